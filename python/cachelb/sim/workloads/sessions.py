"""Sessions of chats and agents: a prompt is the whole history plus a new message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cachelb.sim.workloads.draft import Draft, Piece, Zipf, around


@dataclass(frozen=True, slots=True)
class SessionKind:
    """The shape of sessions of one kind."""

    name: str  # in session ids
    turns: float  # mean number; geometric
    first_tokens: float  # median of the first message
    new_tokens: float  # median of a later turn, besides the answer before it
    output_tokens: float  # median of an answer
    think_s: float  # median pause between an answer and the next turn
    max_prompt_tokens: int  # a session ends before a prompt gets longer

    def __post_init__(self) -> None:
        for key, least in {"turns": 1, "first_tokens": 1, "new_tokens": 1, "output_tokens": 1, "think_s": 0}.items():
            if not least <= getattr(self, key) < float("inf"):
                raise ValueError(f"{key} must be at least {least}, got {getattr(self, key)}")


def shared_texts(draft: Draft, count: int, tokens: tuple[int, int]) -> list[Piece]:
    """Return texts that sessions share, of a length uniform between the two."""
    low, high = tokens
    if count < 1 or not 1 <= low <= high:
        raise ValueError(f"need at least one shared text of 1 or more tokens, got {count} of {low} to {high}")
    return [draft.piece(int(draft.lengths.integers(low, high + 1))) for _ in range(count)]


def write_sessions(draft: Draft, kind: SessionKind, systems: Sequence[Piece], *, popularity: float = 1.0) -> None:
    """Append sessions until there are enough requests; the last one may be cut short.

    They begin with one of `systems`, the first ones more often by the exponent `popularity`.
    """
    zipf = Zipf(len(systems), popularity)
    number = 0
    while not draft.full:
        system = systems[int(zipf.draw(draft.prefixes, 1)[0])]
        write_session(draft, kind, [system], f"{kind.name}-{number}")
        number += 1


def write_session(draft: Draft, kind: SessionKind, history: list[Piece], name: str) -> None:
    """Append one session, behind a history."""
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
