"""Whether the gateway's tokenizer and the engine's make the same token ids."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cachelb_gateway.doctor.client import AskError
from cachelb_gateway.doctor.verdicts import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cachelb.tokenizers import Tokenizer
    from cachelb_gateway.doctor.client import WorkerClient
    from cachelb_gateway.doctor.pages import Facts

_TEXT: Final = "The quick brown fox; 12 345 + 6.78 = ?\n\n\tnaïve 日本語 🦊 "
_USER: Final = {"role": "user", "content": "What is 17 * 23?"}
_ANSWERED: Final = [_USER, {"role": "assistant", "content": "391."}, {"role": "user", "content": " And\n24? "}]
CHATS: Final[tuple[list[dict[str, str]], ...]] = (
    [_USER],
    _ANSWERED,
    [{"role": "system", "content": "Answer briefly."}, *_ANSWERED],
)
"""Chats without private content. Some templates refuse the system message of the last."""


async def read_chats(client: WorkerClient, facts: Facts) -> None:
    """Ask the engine for the ids of the chats; one that it refuses has none."""
    for chat in CHATS:
        try:
            facts.chat_ids.append(await _ids(client, {"model": facts.model, "messages": chat}))
        except AskError as error:
            if not error.status:
                return
            facts.chat_ids.append([])


async def check_template(client: WorkerClient, facts: Facts, tokenizer: Tokenizer | None) -> Check:
    """Compare the token ids of a text and of the chats."""
    if tokenizer is None:
        fix = "pass --tokenizer, if the gateway makes token ids"
        return Check("template", "skip", "no tokenizer to compare with", fix)
    try:
        theirs = await _ids(client, {"model": facts.model, "prompt": _TEXT})
    except AskError as error:
        return Check("template", "warn", f"not compared: {error}", "let the engine serve /tokenize")
    prompts: list[tuple[str, Callable[[], Sequence[int]], list[int]]] = [
        ("a text", partial(tokenizer.encode, _TEXT), theirs)
    ]
    for chat, ids in zip(CHATS, facts.chat_ids, strict=False):
        prompts.append((f"a chat of {len(chat)} messages", partial(tokenizer.apply_chat_template, chat), ids))
    for name, make, expected in prompts:
        seen = _difference(make, expected)
        if seen:
            fix = "give the gateway the tokenizer and the chat template of the engine's model directory"
            return Check("template", "fail", f"{name}: {seen}", fix)
    compared = sum(bool(ids) for _, _, ids in prompts)
    return Check("template", "ok", f"{compared} of {len(prompts)} prompts compared, all with the engine's token ids")


def _difference(make: Callable[[], Sequence[int]], theirs: list[int]) -> str:
    """Describe how ids differ, empty if they are equal."""
    try:
        ours = list(make())
    except ValueError as error:
        return "" if not theirs else f"refused here ({error}), not by the engine"
    if not theirs:
        return "refused by the engine, not here"
    at = next((i for i, (own, their) in enumerate(zip(ours, theirs, strict=False)) if own != their), None)
    if at is None and len(ours) == len(theirs):
        return ""
    at = min(len(ours), len(theirs)) if at is None else at
    return f"{len(ours)} tokens here, {len(theirs)} in the engine, which differ from token {at} on"


async def _ids(client: WorkerClient, body: dict[str, Any]) -> list[int]:
    answer = await client.post("/tokenize", body)
    try:
        return [int(token) for token in answer["tokens"]]
    except (KeyError, TypeError, ValueError):
        raise AskError("/tokenize answers without token ids", 200) from None
