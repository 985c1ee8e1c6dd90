"""Causes of lost hits: decision records summed by step of the token funnel and cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from cachelb.common.table import Table, Tabular, one_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from cachelb.types import DecisionRecord

NOT_CACHED = "prompt -> best"
NOT_PICKED = "best -> selected"
NOT_FOUND = "selected -> engine"

_LOCAL_DECODE = "local-decode"

_ADVICE = {
    (NOT_CACHED, "nowhere"): "New text, or it left every cache: more KV memory, or prompts that begin alike.",
    (NOT_CACHED, "only-one"): "One worker took part: no other could hold it. Look at readiness, `among`, roles.",
    (NOT_CACHED, "retry"): "The workers tried before are left out, whatever they hold. Look at what failed.",
    (NOT_CACHED, "no-key"): "Nothing to hash: pass tokens, text, messages or session.",
    (NOT_CACHED, "cannot-resume"): "The worker holds it, but its windows or states resume no deeper: a hybrid model.",
    (NOT_CACHED, "text-only"): "Only text came, which events do not name: tokenize, and pass tokens.",
    (NOT_CACHED, "stale-events"): "The worker's events were behind: look at its stream and its replay socket.",
    (NOT_PICKED, "spill"): "The holder had too much to do: raise load_factor.",
    (NOT_PICKED, "imbalance"): "Load differed too much: raise the policy's balance thresholds.",
    (NOT_PICKED, "short-prompt"): "Too short to follow: lower the policy's minimum.",
    (NOT_PICKED, "cold"): "Too small a match to follow: lower cache_threshold.",
    (NOT_FOUND, ""): "The engine had less than predicted: its cache is smaller, was reset, or hashes otherwise.",
}
_ADVICE_ELSE = {
    NOT_CACHED: "New text, or it left every cache.",
    NOT_PICKED: "The policy goes by something else than the cache.",
}


@dataclass(slots=True)
class Loss:
    """Tokens lost at one step for one cause.

    The steps are "prompt -> best": no candidate held them, "best -> selected": the picked worker held less than the
    best, and "selected -> engine": the engine had fewer cached than the router predicted.
    """

    step: str
    cause: str  # the reason of the decision, or why no candidate held them; of the last step, the worker
    tokens: int = 0
    requests: int = 0  # that lost any

    @property
    def advice(self) -> str:
        """Advice on the cause."""
        known = _ADVICE.get((self.step, self.cause)) or _ADVICE.get((self.step, ""))
        return known or _ADVICE_ELSE[self.step]


@dataclass(slots=True)
class WorkerTotals:
    """The predictions for one worker, and the reports of its engine."""

    requests: int = 0  # that count
    prompt_tokens: int = 0  # of these
    matched_tokens: int = 0  # predicted to be cached
    cached_tokens: int = 0  # reported by the engine
    missing_tokens: int = 0  # reported below predicted, summed over the requests where it was below
    surplus_tokens: int = 0  # reported above predicted, summed over the others


@dataclass(slots=True)
class ShadowTotals:
    """Comparison of a shadow policy."""

    decisions: int = 0
    agreed: int = 0  # decisions with the same worker
    matched_tokens: int = 0  # held by its picks
    first_matched_tokens: int = 0  # held by the picks of the router's policy


@dataclass(slots=True)
class Analysis(Tabular):
    """Lost prompt tokens by step. All sums are over the same requests."""

    requests: int = 0  # completed, and with reported cached tokens if any request has them
    reported: bool = False  # whether any engine reported cached tokens; without, the last step is unknown
    prompt_tokens: int = 0
    best_matched_tokens: int = 0  # held by the best candidates
    selected_matched_tokens: int = 0  # held by the picked workers
    selected_held_tokens: int = 0  # more than matched where a hybrid model holds what it cannot resume
    selected_shared_tokens: int = 0  # of the matched ones, those to be read from a shared cache
    selected_pulled_tokens: int = 0  # further ones, to be copied from a peer
    engine_cached_tokens: int = 0  # 0 if none reported any
    left_out: dict[str, int] = field(default_factory=dict)  # requests that do not count, by reason
    losses: list[Loss] = field(default_factory=list)  # the most tokens first
    workers: dict[str, WorkerTotals] = field(default_factory=dict)
    shadows: dict[str, ShadowTotals] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes by name as JSON values; every loss with its advice."""
        document = asdict(self)
        document["losses"] = self._losses()
        return document

    def table(self, of: str = "losses") -> Table:
        """Return the ``"losses"`` with advice, or the totals of ``"workers"`` or ``"shadows"``, as a table."""

        def named(name: str, totals: Mapping[str, WorkerTotals | ShadowTotals]) -> list[dict[str, Any]]:
            return [{name: key, **asdict(each)} for key, each in totals.items()]

        return one_of(
            of,
            {
                "losses": self._losses,
                "workers": lambda: named("worker", self.workers),
                "shadows": lambda: named("policy", self.shadows),
            },
        )

    def _losses(self) -> list[dict[str, Any]]:
        return [asdict(loss) | {"advice": loss.advice} for loss in self.losses]


def analyse(records: Iterable[DecisionRecord], workers: Collection[str] = ()) -> Analysis:
    """Sum up records, of the decisions for `workers` only if there are any. Reads them once and keeps none.

    Example:
        >>> import cachelb
        >>> router = cachelb.Router(["gpu0"])
        >>> router.select_worker(tokens=range(100)).on_complete(cached_tokens=0)
        >>> [(loss.step, loss.cause, loss.tokens) for loss in analyse(router.records.recent()).losses]
        [('prompt -> best', 'only-one', 100)]
    """
    # Whether the engines report is known only at the end, so both populations are summed.
    reported, unreported = _Sums(), _Sums()
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
            (unreported if record.cached_tokens is None else reported).add(record)
    chosen = reported if reported.analysis.requests else unreported
    analysis = chosen.analysis
    analysis.reported = chosen is reported
    if analysis.reported and unreported.analysis.requests:
        left_out["no cached tokens reported"] += unreported.analysis.requests
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
        prompt, best, selected, held, shared, pulled = _in_engine_tokens(record)
        analysis.requests += 1
        analysis.prompt_tokens += prompt
        analysis.best_matched_tokens += best
        analysis.selected_matched_tokens += selected
        analysis.selected_held_tokens += held
        analysis.selected_shared_tokens += shared
        analysis.selected_pulled_tokens += pulled
        stuck = max(0, held - best)
        self._lose(NOT_CACHED, "cannot-resume", stuck)
        self._lose(NOT_CACHED, _why_not_cached(record), prompt - best - stuck)
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


def _in_engine_tokens(record: DecisionRecord) -> tuple[int, ...]:
    """Return prompt, best, selected, held, shared and pulled in engine tokens: a text's own count is an estimate."""
    own, matched = record.prompt_tokens, record.matched_tokens
    prompt = own if record.engine_prompt_tokens is None else record.engine_prompt_tokens
    # Older records lack the held tokens.
    held = max(matched, record.held_tokens or 0)
    parts = (record.best_matched_tokens, matched, held, record.shared_tokens or 0, record.pulled_tokens or 0)
    return prompt, *(part if own in (0, prompt) else part * prompt // own for part in parts)


def _why_not_cached(record: DecisionRecord) -> str:
    """Return why no candidate held more."""
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
