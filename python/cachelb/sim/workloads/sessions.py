"""What chats and agents have in common: a prompt is the whole history plus what is new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachelb.sim.workloads.draft import Zipf, around

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachelb.sim.workloads.draft import Draft, Piece


@dataclass(frozen=True, slots=True)
class SessionKind:
    """How sessions of one kind go.

    Attributes:
        name: Used in session ids.
        turns: Mean number of turns; geometric.
        first_tokens: Median tokens of the first message.
        new_tokens: Median tokens that a later turn adds, besides the answer before it.
        output_tokens: Median length of an answer.
        think_s: Median pause between an answer and the next turn.
        max_prompt_tokens: A session ends before a prompt gets longer.

    Raises:
        ValueError: A number makes no sense.
    """

    name: str
    turns: float
    first_tokens: float
    new_tokens: float
    output_tokens: float
    think_s: float
    max_prompt_tokens: int

    def __post_init__(self) -> None:
        for key, least in {"turns": 1, "first_tokens": 1, "new_tokens": 1, "output_tokens": 1, "think_s": 0}.items():
            if not least <= getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be at least {least}, got {getattr(self, key)}")


def shared_texts(draft: Draft, count: int, tokens: tuple[int, int]) -> list[Piece]:
    """Return texts that sessions share.

    Args:
        draft: Where they are used.
        count: How many.
        tokens: The shortest and the longest; uniform between.

    Returns:
        The texts.

    Raises:
        ValueError: There is none, or the shortest is longer than the longest.
    """
    low, high = tokens
    if count < 1 or not 1 <= low <= high:
        raise ValueError(f"need at least one shared text of 1 or more tokens, got {count} of {low} to {high}")
    return [draft.piece(int(draft.lengths.integers(low, high + 1))) for _ in range(count)]


def write_sessions(draft: Draft, kind: SessionKind, systems: Sequence[Piece], *, popularity: float = 1.0) -> None:
    """Append sessions until there are enough requests; the last one may be cut short.

    Args:
        draft: What to write to.
        kind: How sessions go.
        systems: The shared prefixes that sessions begin with.
        popularity: Exponent of how much more often the first of them are used.
    """
    zipf = Zipf(len(systems), popularity)
    number = 0
    while not draft.full:
        system = systems[int(zipf.draw(draft.prefixes, 1)[0])]
        write_session(draft, kind, [system], f"{kind.name}-{number}")
        number += 1


def write_session(draft: Draft, kind: SessionKind, history: list[Piece], name: str) -> None:
    """Append one session.

    Args:
        draft: What to write to.
        kind: How it goes.
        history: What stands before the first message.
        name: Its id.
    """
    history = list(history)
    parent, new_tokens = -1, kind.first_tokens
    turns = int(draft.lengths.geometric(1 / kind.turns))
    for _ in range(turns):
        message = draft.piece(around(draft.lengths, new_tokens))
        if parent >= 0 and sum(piece.tokens for piece in history) + message.tokens > kind.max_prompt_tokens:
            return
        history.append(message)
        answer = draft.piece(around(draft.lengths, kind.output_tokens))
        think_s = around(draft.pauses, kind.think_s * 1000) / 1000 if parent >= 0 else 0.0
        parent = draft.request(history, answer, parent=parent, think_s=think_s, session=name)
        if draft.full:
            return
        history.append(answer)
        new_tokens = kind.new_tokens
