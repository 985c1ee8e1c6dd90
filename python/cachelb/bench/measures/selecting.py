"""The whole decision: a prompt comes, a worker is picked and booked, the request ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from cachelb import Router
from cachelb.bench.prompts import WORKERS, prompts
from cachelb.bench.rivals import is_here
from cachelb.bench.rows import Row
from cachelb.bench.timing import in_turns, p10, p50_p99

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cachelb.bench.prompts import Prompt

LENGTHS = (512, 8_192)
_PROMPTS = 256


class _Contender(NamedTuple):
    select: Callable[[Prompt], object]
    note: str


def measure(calls: int) -> Iterator[Row]:
    """Pick workers for prompts that were seen before."""
    for length in LENGTHS:
        given = prompts(_PROMPTS, length, seed=3)
        for prompt in given:
            _ = prompt.array
        with contextlib.ExitStack() as stack:
            contenders = {**_own(), **_litellm(stack), **_dynamo(stack, given)}
            bound = {name: _nth(contender.select, given) for name, contender in contenders.items()}
            for call in bound.values():
                for i in range(len(given)):
                    call(i)
            for name, times in in_turns(bound, calls).items():
                note = contenders[name].note
                yield Row(f"select/{length}", name, *p50_p99(times), unit="us", note=note, p10=p10(times))


def _nth(select: Callable[[Prompt], object], given: list[Prompt]) -> Callable[[int], object]:
    return lambda i: select(given[i % len(given)])


def _keys() -> list[str]:
    return [f"http://w{worker}:8000" for worker in range(WORKERS)]


def _own() -> dict[str, _Contender]:
    """Make the routers of this project."""

    def contender(form: str) -> _Contender:
        router = Router(_keys(), policy="cache-aware", seed=1)

        def select(prompt: Prompt) -> None:
            decision = router.select_worker(tokens=getattr(prompt, form))
            decision.on_first_token()
            decision.on_complete()

        return _Contender(select, "cache-aware: hash, match, pick, book, remember, end")

    return {"cachelb": contender("tokens"), "cachelb, numpy": contender("array")}


def _litellm(stack: contextlib.ExitStack) -> dict[str, _Contender]:
    """Make LiteLLM's router, if it is installed."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no download of a price list
    if not is_here("litellm"):
        return {}
    from litellm.router import Router as LiteLLM

    models = [
        {"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": key, "api_key": "none"}}
        for key in _keys()
    ]
    router: Any = LiteLLM(model_list=models)
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    messages = [{"role": "user", "content": "x"}]

    def select(_prompt: Prompt) -> None:
        picking = router.async_get_available_deployment(model="m", messages=messages, request_kwargs={})
        loop.run_until_complete(picking)

    return {"LiteLLM": _Contender(select, "simple-shuffle: looks at no prompt, books nothing")}


def _dynamo(stack: contextlib.ExitStack, given: Sequence[Prompt]) -> dict[str, _Contender]:
    """Start Dynamo's selection service, if it is installed."""
    if not (is_here("dynamo._core") and is_here("zmq") and is_here("msgpack")):
        return {}
    from cachelb.bench.rivals.selection_service import Service

    service = Service(WORKERS, given)
    stack.callback(service.close)
    note = "SelectionService: select_and_reserve, prefill_complete, free_reservation; its event loop's turn included"
    return {"Dynamo": _Contender(service.select, note)}
