"""Why a decision picked its worker, with its view of the others."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from typing import Any

    from cachelb.bodies import MatchBasis
    from cachelb.types import Reason

NoSource: TypeAlias = Literal[
    "no-peer-group",
    "no-tokens",
    "speed-unknown",
    "link-unknown",
    "no-longer-prefix",
    "not-servable",
    "doubtful",
    "source-failing",
    "slower",
]
"""Why a worker copies nothing, by the peer that came nearest to being its source: it is in no group, the prompt is
text, no first token has shown how fast workers compute, the group has no `load_ms_per_token`, no peer holds more, holds
it where its engine does not send from or by layers that cannot resume, is only expected to hold it or has no live
events, fails or rests or was tried already, is no sooner than computing."""

_KEPT = "only the latest 256 decisions are kept"
_HEADERS = ("", "worker", "state", "matched", "inflight", "prefill", "decode", "weight", "score")
_TEXT_COLUMNS = 3
_NONE = "-"


@dataclass(frozen=True, slots=True)
class CandidateView:
    """A selection's view of one worker, before the booking.

    Attributes:
        key: Key of the worker; of one with data-parallel ranks, `key#rank`.
        state: "available", or why the worker took no part; the numbers are 0 then.
        overlap_blocks: Leading blocks of the request it could reuse.
        inflight: Requests booked on it and not finished.
        pending_prefill_tokens: Uncached prompt tokens on it without a first token.
        held_blocks: Leading blocks it held for its layers that attend to the whole prefix: more than `overlap_blocks`
            where a hybrid model cannot resume so far.
        matched_tokens: Prompt tokens it need not compute, by the credits of their media.
        decode_blocks: Blocks of its requests past their first token.
        weight: Its relative capacity.
        score: The number that the policy ranks by, in its own unit; None without one.
        picked: Whether it was picked.
        confirmed_blocks: Leading blocks by medium that events of its engine confirmed; empty without an event stream.
        speculative_blocks: Leading blocks by medium that were routed to it and not confirmed by an event.
        doubtful_blocks: Leading blocks by medium that may be evicted already, as messages of its engine are missing;
            once they are lost for good, unconfirmed routed blocks too.
        events: Trust in the events of its engine, a `KvEventStats.state`; None without events.
        shared_blocks: Blocks behind those it held that it can read from the shared cache of the model.
        terms: The terms of the score. `adaptive` has `waiting_ms`, the prefill that waits on the worker; `own_ms`,
            the request's own; `cache_ms`, what that pushes out of the cache; `queued_ms` and `running_ms`, what
            it delays; `decoding_ms`, how long its own output takes, as far as that counts; `copy_ms`, a copy from a
            peer and bringing back what it evicts, where it would copy; and `memory_ms`, what scarce KV memory adds.
            Their sum is the score. Empty for other policies, and where the decision was made already:
            only `Router.explain` and dry runs take scores apart.
        kv_source: Of the picked one, the worker that it copies from (`Decision.kv_source`).
        pulled_tokens: Prompt tokens to copy from there.
        pull_ms: Milliseconds until they are there, an estimate.
        no_source: Why the picked one copies nothing, where `terms` are known; None if it does, or computes no prompt.

    Example:
        >>> CandidateView("gpu0", "available", 4, 1, 64).overlap_blocks
        4
    """

    key: str
    state: str
    overlap_blocks: int
    inflight: int
    pending_prefill_tokens: int
    held_blocks: int = 0
    matched_tokens: float = 0.0
    decode_blocks: int = 0
    weight: float = 1.0
    score: float | None = None
    picked: bool = False
    confirmed_blocks: dict[str, int] = field(default_factory=dict, hash=False)
    speculative_blocks: dict[str, int] = field(default_factory=dict, hash=False)
    events: str | None = None
    doubtful_blocks: dict[str, int] = field(default_factory=dict, hash=False)
    terms: dict[str, float] = field(default_factory=dict, hash=False)
    shared_blocks: int = 0
    kv_source: str | None = None
    pulled_tokens: int = 0
    pull_ms: float = 0.0
    no_source: NoSource | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a decision picked its worker. It costs nothing until it is read.

    Attributes:
        key: Key of the picked worker.
        policy: Name of the policy that picked it.
        reason: The decision's reason.
        prompt_tokens: Length of the prompt.
        best_matched_tokens: Prompt tokens matched on the best candidate.
        matched_tokens: Prompt tokens matched on the picked worker.
        higher_is_better: Whether the policy takes a higher score to be better.
        candidates: The offered workers, in the order of the list; beyond 64 only the picked one and those that held
            something. Empty once the decision is too long ago, see `forgotten`.
        convention: Convention by which the conversation is known, such as "claude-code"; None without `body=`,
            `headers=` or a conversation. See `RequestBodies`.
        match_basis: On what ground the prompt matched, as in `Decision.match_basis`.
        layout: The layout by which a chat was matched, as options of `RequestBodies`; None without one.

    Example:
        >>> from cachelb.policies import LeastLoaded
        >>> with LeastLoaded(seed=1).select_worker(["gpu0", "gpu1"], by_load=True) as decision:
        ...     explanation = decision.explain()
        >>> print(explanation)
        gpu1: least-loaded by least-loaded, 0 of 0 prompt tokens matched (best 0), 2 of 2 workers available, \
score 0 (lower is better)
        >>> print(explanation.table())
           worker  state      matched  inflight  prefill  decode  weight  score
           gpu0    available        0         0        0       0       1      0
        *  gpu1    available        0         0        0       0       1      0
    """

    key: str
    policy: str
    reason: Reason
    prompt_tokens: int
    best_matched_tokens: int
    matched_tokens: int
    higher_is_better: bool
    candidates: tuple[CandidateView, ...]
    convention: str | None = None
    match_basis: MatchBasis = "certain"
    layout: str | None = None

    @property
    def forgotten(self) -> bool:
        """Whether the decision is too long ago to know what it saw."""
        return not self.candidates

    def line(self) -> str:
        """Summarise it in one line, as for a log.

        Returns:
            The line.
        """
        text = (
            f"{self.key}: {self.reason} by {self.policy}, {self.matched_tokens} of {self.prompt_tokens} prompt tokens "
            f"matched (best {self.best_matched_tokens})"
        )
        if self.forgotten:
            return f"{text}, candidates no longer known: {_KEPT}"
        available = sum(view.state == "available" for view in self.candidates)
        text += f", {available} of {len(self.candidates)} workers available"
        picked = next((view for view in self.candidates if view.picked), None)
        if picked is not None and picked.score is not None:
            text += f", score {_number(picked.score)} ({self._better} is better)"
        return text

    def table(self) -> str:
        """Lay the candidates out as plain text, the picked one marked with `*`.

        Returns:
            One line per candidate below a line of headers; without candidates, the one line.
        """
        if self.forgotten:
            return self.line()
        rows = [_HEADERS, *map(_cells, self.candidates)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        pads = [str.ljust] * _TEXT_COLUMNS + [str.rjust] * (len(_HEADERS) - _TEXT_COLUMNS)
        lines = []
        for row in rows:
            cells = (pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True))
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values.

        Returns:
            The attributes by name, `forgotten` among them. A score without bounds is None.
        """
        views = [asdict(view) for view in self.candidates]
        for view in views:
            if view["score"] is not None and not isfinite(view["score"]):
                view["score"] = None  # JSON has no infinity
        return {**asdict(self), "forgotten": self.forgotten, "candidates": views}

    @property
    def _better(self) -> str:
        return "higher" if self.higher_is_better else "lower"

    def __str__(self) -> str:
        """Summarise it in one line."""
        return self.line()


def _cells(view: CandidateView) -> tuple[str, ...]:
    if view.state != "available":
        return ("", view.key, view.state, *[_NONE] * (len(_HEADERS) - _TEXT_COLUMNS))
    return (
        "*" if view.picked else "",
        view.key,
        view.state,
        _number(view.matched_tokens),
        str(view.inflight),
        str(view.pending_prefill_tokens),
        str(view.decode_blocks),
        _number(view.weight),
        _NONE if view.score is None else _number(view.score),
    )


def _number(value: float) -> str:
    """Write a number without insignificant digits."""
    return str(int(value)) if isfinite(value) and value == int(value) else f"{value:.4g}"
