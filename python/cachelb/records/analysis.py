"""Why hits were lost: decision records summed by the step of the token funnel and the cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cachelb.types import DecisionRecord

NOT_CACHED = "prompt -> best"
NOT_PICKED = "best -> selected"
NOT_FOUND = "selected -> engine"

_LOCAL_DECODE = "local-decode"

_ADVICE = {
    (NOT_CACHED, "nowhere"): "New text, or it left every cache: more KV memory, or prompts that begin alike.",
    (NOT_CACHED, "only-one"): "One worker took part: nobody else could hold it. Look at readiness, `among`, roles.",
    (NOT_CACHED, "retry"): "The workers tried before are left out, whatever they hold. Look at what failed.",
    (NOT_CACHED, "no-key"): "Nothing to hash: pass tokens, text, messages or session.",
    (NOT_CACHED, "text-only"): "Only text came, which events do not speak of: tokenize, and pass tokens.",
    (NOT_CACHED, "stale-events"): "The worker's events were behind: look at its stream and its replay socket.",
    (NOT_PICKED, "spill"): "The holder had too much to do: raise load_factor or holder_slack.",
    (NOT_PICKED, "imbalance"): "Load differed too much: raise the policy's balance thresholds.",
    (NOT_PICKED, "short-prompt"): "Too short to follow: lower the policy's minimum.",
    (NOT_PICKED, "cold"): "Too small a match to follow: lower cache_threshold.",
    (NOT_FOUND, ""): "The engine had less than believed: its cache is smaller, was reset, or hashes otherwise.",
}
_ADVICE_ELSE = {
    NOT_CACHED: "New text, or it left every cache.",
    NOT_PICKED: "The policy goes by something else than the cache.",
}


@dataclass(slots=True)
class Loss:
    """Tokens lost at one step for one cause.

    Attributes:
        step: "prompt -> best": no candidate held them. "best -> selected": the picked worker held less than the best.
            "selected -> engine": the engine had fewer than the router believed.
        cause: The reason of the decision, or why nobody held them; of a disagreement, the worker.
        tokens: Tokens lost.
        requests: Requests that lost any.
    """

    step: str
    cause: str
    tokens: int = 0
    requests: int = 0

    @property
    def advice(self) -> str:
        """What to look at."""
        known = _ADVICE.get((self.step, self.cause)) or _ADVICE.get((self.step, ""))
        return known or _ADVICE_ELSE[self.step]


@dataclass(slots=True)
class WorkerTotals:
    """What the router believed of one worker, and what its engine said.

    Attributes:
        requests: Requests that count.
        prompt_tokens: Their tokens.
        matched_tokens: Tokens the router believed cached.
        cached_tokens: Tokens the engine took from its cache.
        missing_tokens: What the engine had less, summed over the requests where it had less.
        surplus_tokens: What it had more, summed over the others.
    """

    requests: int = 0
    prompt_tokens: int = 0
    matched_tokens: int = 0
    cached_tokens: int = 0
    missing_tokens: int = 0
    surplus_tokens: int = 0


@dataclass(slots=True)
class ShadowTotals:
    """How a shadow policy compares.

    Attributes:
        decisions: Decisions it took.
        agreed: Those in which it picked the same worker.
        matched_tokens: Tokens its picks held.
        first_matched_tokens: Tokens the picks of the router's policy held.
    """

    decisions: int = 0
    agreed: int = 0
    matched_tokens: int = 0
    first_matched_tokens: int = 0


@dataclass(slots=True)
class Analysis:
    """Where prompt tokens were lost. All sums are over the same requests.

    Attributes:
        requests: Requests that count: completed, and with cached tokens reported by the engine if any request has them.
        reported: Whether engines reported cached tokens at all; without them the last step is unknown.
        prompt_tokens: Their tokens.
        best_matched_tokens: Tokens the best candidates held.
        selected_matched_tokens: Tokens the picked workers held.
        engine_cached_tokens: Tokens the engines took from their caches; 0 if none reported any.
        left_out: Requests that do not count, by why.
        losses: Tokens lost, the most first.
        workers: Prediction and report by worker.
        shadows: Shadow policies by name.
    """

    requests: int = 0
    reported: bool = False
    prompt_tokens: int = 0
    best_matched_tokens: int = 0
    selected_matched_tokens: int = 0
    engine_cached_tokens: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    workers: dict[str, WorkerTotals] = field(default_factory=dict)
    shadows: dict[str, ShadowTotals] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Give it as values that JSON has.

        Returns:
            The attributes by name; every loss with its advice.
        """
        document = asdict(self)
        document["losses"] = [asdict(loss) | {"advice": loss.advice} for loss in self.losses]
        return document


def analyse(records: Iterable[DecisionRecord], workers: Collection[str] = ()) -> Analysis:
    """Sum up records. Reads them once and keeps none.

    Args:
        records: The records.
        workers: Count the decisions for these workers only; empty counts all.

    Returns:
        The sums.

    Example:
        >>> import cachelb
        >>> router = cachelb.Router(["gpu0"])
        >>> router.select_worker(tokens=range(100)).on_complete(cached_tokens=0)
        >>> [(loss.step, loss.cause, loss.tokens) for loss in analyse(router.recent()).losses]
        [('prompt -> best', 'only-one', 100)]
    """
    # Whether the engines report is known only at the end, so both populations are summed.
    told, untold = _Sums(), _Sums()
    left_out: Counter[str] = Counter()
    shadows: defaultdict[str, ShadowTotals] = defaultdict(ShadowTotals)
    for record in records:
        if workers and record.key not in workers:
            left_out["other workers"] += 1
            continue
        _compare(shadows, record)
        if record.outcome != "completed":
            left_out[f"ended as {record.outcome}"] += 1
        elif record.part == "decode" and record.reason != _LOCAL_DECODE:
            left_out["decode half of a pair"] += 1
        elif not (record.engine_prompt_tokens or record.prompt_tokens):
            left_out["length unknown"] += 1
        else:
            (untold if record.cached_tokens is None else told).add(record)
    chosen = told if told.analysis.requests else untold
    analysis = chosen.analysis
    analysis.reported = chosen is told
    if analysis.reported and untold.analysis.requests:
        left_out["no cached tokens reported"] += untold.analysis.requests
    analysis.losses = sorted(chosen.losses.values(), key=lambda loss: (-loss.tokens, loss.step, loss.cause))
    analysis.workers = dict(sorted(chosen.workers.items()))
    analysis.left_out, analysis.shadows = dict(left_out), dict(shadows)
    return analysis


class _Sums:
    """The sums of one population."""

    def __init__(self) -> None:
        self.analysis = Analysis()
        self.losses: dict[tuple[str, str], Loss] = {}
        self.workers: defaultdict[str, WorkerTotals] = defaultdict(WorkerTotals)

    def add(self, record: DecisionRecord) -> None:
        analysis, worker = self.analysis, self.workers[record.key]
        prompt, best, selected = _in_engine_tokens(record)
        analysis.requests += 1
        analysis.prompt_tokens += prompt
        analysis.best_matched_tokens += best
        analysis.selected_matched_tokens += selected
        self._lose(NOT_CACHED, _why_not_cached(record), prompt - best)
        self._lose(NOT_PICKED, record.reason, best - selected)
        worker.requests += 1
        worker.prompt_tokens += prompt
        worker.matched_tokens += selected
        if record.cached_tokens is None:
            return
        cached = min(record.cached_tokens, prompt)
        analysis.engine_cached_tokens += cached
        worker.cached_tokens += cached
        worker.missing_tokens += max(0, selected - cached)
        worker.surplus_tokens += max(0, cached - selected)
        self._lose(NOT_FOUND, record.key, selected - cached)

    def _lose(self, step: str, cause: str, tokens: int) -> None:
        if tokens > 0:
            loss = self.losses.setdefault((step, cause), Loss(step, cause))
            loss.tokens += tokens
            loss.requests += 1


def _in_engine_tokens(record: DecisionRecord) -> tuple[int, int, int]:
    """Give prompt, best and selected in the engine's tokens: those of a prompt given as text are an estimate."""
    own, best, selected = record.prompt_tokens, record.best_matched_tokens, record.matched_tokens
    prompt = own if record.engine_prompt_tokens is None else record.engine_prompt_tokens
    if own in (0, prompt):
        return prompt, best, selected
    return prompt, best * prompt // own, selected * prompt // own


def _why_not_cached(record: DecisionRecord) -> str:
    """Name why no candidate held more."""
    if record.attempt > 0:
        return "retry"
    if record.reason in ("no-key", "only-one", "text-only", "stale-events"):
        return record.reason
    return "nowhere"


def _compare(shadows: defaultdict[str, ShadowTotals], record: DecisionRecord) -> None:
    for pick in record.shadows:
        totals = shadows[pick.policy]
        totals.decisions += 1
        totals.agreed += pick.agrees
        totals.matched_tokens += pick.matched_tokens
        totals.first_matched_tokens += record.matched_tokens
