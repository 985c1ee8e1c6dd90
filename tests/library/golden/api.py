"""Every name of cachelb that the golden traces use: a renamed one is an edit here, and no trace changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from tests.library.golden.own import OWN

from cachelb import Admission, Decision, Health, NoWorkerAvailable, Overloaded, PairDecision, Pairs, Router, policies
from cachelb.admission import AdmissionPreview
from cachelb.explanation import Explanation

Refused: TypeAlias = NoWorkerAvailable
Held: TypeAlias = "Decision[str] | PairDecision[str]"

NAMES = (*policies.POLICIES, *OWN)
"""The policies that have traces."""

KNOWN_TO_ALL = "known to all golden routers"
PAIRED_BY_ITSELF = "adaptive"
"""A policy that weighs both halves of a pair, where none is set for either."""

LEARNING: dict[str, Any] = {"training": "inline", "timeout_ms": None, "n_min": 60, "theta": 60}
OPTIONS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "adaptive": ({"objective": "ttft"}, {"objective": "e2e", "load_ms_per_token": {"cpu": 0.003}}),
    "cache-aware": (
        {"index": "radix", "page_size": 16},
        {"cache_threshold": 0.6, "load_factor": 1.1, "balance_abs_threshold": 1.0, "matcher": "binary"},
    ),
    "least-loaded": ({"load": "tokens"}, {"load": "blocks"}),
    "power-of-two": ({"choices": 3, "load": "expected-wait"},),
    "rendezvous": ({"bounded": True, "epsilon": 0.1},),
    "consistent-hash": ({"vnodes": 20, "epsilon": 0.1},),
    "prefix-hash": ({"prefix_token_count": 64, "load_factor": 1.1}, {"cache_boundaries": (64, 128, 256)}),
    "boundary-learning": ({"learn": "original", "multi_depth": False, "load_imbalance_factor": 1.2},),
    "length-bucket": ({"l_max": 1024, "balance_abs_threshold": 256.0},),
    "session": ({"mode": "manual", "assignment": "min_load"}, {"mode": "hash"}, {"base": "cache-aware", "hard": True}),
    "round-robin": ({"start": "first"},),
    "random": (),
    "prefix-affinity": ({"compat": "ray", "imbalanced_threshold": 4.0}, {"match_rate_threshold": 0.5}),
    "prefix-cache": ({"tau": 0.2, "gate": True},),
    "prefix-cache-and-load": ({"imbalance_threshold": 2.0, "scope": "candidate"},),
    "overlap-cost": (
        {"router_temperature": 0.5, "decode_active_request_weight": 0.5},
        {"overlap_score_credit_decay": 0.1, "prefill_load_scale": 0.5, "router_predicted_ttl_secs": 20.0},
    ),
    "prefill-times-batch": ({"crowding": 1.0},),
    "sticky-until-saturated": ({"exploration_probability": 0.2, "max_ttft_penalty_ms": 20.0, "gate": False},),
    "least-expected-wait": ({"max_waiting_requests": 2, "cache_aware": False},),
    "queue-over-throughput": ({"throughput": {"w0": 2.0, "w1": 1.0}},),
    "estimated-ttft": ({"ttft_slo_ms": 200.0, "on_slo": "reject"}, {"gate": False, "kvcache_balancing_threshold": 1.1}),
    "exploit-explore": ({"gate": False, "tpot_s": 0.01},),
    "kv-aware": (
        {"scoring": "cost", "router_temperature": 0.3},
        {"continuation": "best-credit", "credits": {"cpu": 0.5}, "enable_speculative": False},
    ),
    "learned": ({**LEARNING, "model_kind": "linear", "features": "paper", "fallback": "cache-aware"},),
}
"""Options of each policy, beside the defaults, under which it is played too."""

RENAMED: Mapping[str, str] = {}
"""Fields of statistics that have another name today, and their name in the golden files."""

UNSTEADY = {
    # real time
    *("select_seconds", "lag_s", "round_s"),
    # the layout of memory
    *("index_bytes", "memory_bytes"),
    # drawn by chance
    *("origin", "id"),
}
"""Fields of statistics that do not depend on the calls alone."""


def policy(name: str, options: Mapping[str, Any]) -> Any:
    """Make a policy."""
    if name in OWN:
        return OWN[name]()
    return policies.make(name, **({**LEARNING, **options} if name == "learned" else options))


class Subject:
    """A router under one policy."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        clock: Callable[[], float],
        *,
        pairs: Mapping[str, Any] | None = None,
        memory_mb: float | None = 256,
        shadow: Iterable[str] = (),
        replicas: int = 1,
    ) -> None:
        """Make it without workers. With `pairs`, the policy picks both halves, under these options of pairs."""
        halves: dict[str, Any] = {}
        if pairs is not None and name != PAIRED_BY_ITSELF:
            halves = {"prefill": policy(name, options), "decode": policy(name, options)}
        self.router: Router[str] = Router(
            policy=policy(name, options),
            seed=11,
            secret=KNOWN_TO_ALL,
            clock=clock,
            block_size=16,
            max_memory_mb=memory_mb,
            shadow=[policy(each, {}) for each in shadow],
            models={"other": 16},
            replicas=replicas,
            health=Health(booking_ttl_s=120.0, veto_kv_usage=0.97, breaker_failures=3, breaker_cooldown_s=2.0),
            pairs=Pairs(**halves, **(pairs or {})),
        )

    # --- requests ---

    def select(self, asked: Mapping[str, Any], *, pair: bool, dry_run: bool = False) -> Held:
        select: Callable[..., Held] = self.router.select_pair if pair else self.router.select_worker
        return select(dry_run=dry_run, **asked)

    def reserve(self, key: str, asked: Mapping[str, Any], *, prefill: bool) -> Held:
        return self.router.reserve(key, track_prefill_tokens=prefill, **asked)

    def batch(self, several: Sequence[Any], most: int | None) -> list[tuple[Held, Any]]:
        """Select for several requests; return the decision and the arguments of each."""
        found = self.router.select_batch(several, max_per_worker=most)
        return list(zip(found, several, strict=True))

    def explain(self, asked: Mapping[str, Any]) -> Iterable[str]:
        return views(self.router.explain(**asked))

    def admission(self, bounds: Mapping[str, Any]) -> Admission[str]:
        return Admission(self.router, **bounds)

    # --- the fleet ---

    def add(
        self, key: str, *, weight: float, role: Any, ranks: int, gpu: str, blocks: int | None, slow_start_s: float
    ) -> None:
        self.router.add_worker(
            key, weight=weight, role=role, dp_size=ranks, gpu=gpu, kv_blocks=blocks, slow_start_s=slow_start_s
        )

    def add_shared_cache(self, name: str, media: list[Any]) -> None:
        self.router.shared_caches.add(name, load_ms_per_token=0.01, media=media)

    def remove(self, key: str, *, drain: bool) -> None:
        self.router.remove_worker(key, drain=drain)

    def ready(self, key: str, is_ready: bool) -> None:
        self.router.set_ready(key, is_ready)

    def learn(self, key: str, blocks: int, block_size: int) -> None:
        self.router.load_sink.learn_worker(key, kv_blocks=blocks, block_size=block_size)

    def report(self, key: str, report: Mapping[str, Any]) -> None:
        self.router.load_sink.update_load(key, **report)

    def health(self, key: str, answered: bool) -> None:
        self.router.load_sink.update_health(key, answered=answered, took_s=0.1)

    def reset_cache(self, key: str) -> None:
        self.router.load_sink.reset_cache(key)

    def finish_session(self, session: str) -> None:
        self.router.finish_session(session)

    def apply_events(self, key: str, message: bytes, seq: int, rank: int | None) -> None:
        self.router.event_sink.apply_events(key, message, seq=seq, dp_rank=rank)

    # --- sharing, as a transport does it ---

    def share(self, origin: int) -> None:
        self.router._fleet.share(origin, 60.0, 1 << 20)

    def publish(self, *, everything: bool = False) -> list[bytes]:
        """Take the messages that a transport would carry now, or all that a new router needs."""
        fleet = self.router._fleet
        return fleet.publish_all() if everything else [*fleet.publish(), fleet.heartbeat(7) or b""]

    def receive(self, message: bytes) -> bool:
        """Apply a message of another router; return whether messages before it are missing."""
        return bool(message) and self.router._fleet.receive(message) == "gap"

    # --- counters ---

    def stats(self) -> list[str]:
        """List every counter that is not 0."""
        found = asdict(self.router.stats())
        found["workers"] = {
            f"{row['key']}{'' if row['dp_rank'] is None else row['dp_rank']}": row for row in found["workers"]
        }
        found["sharing"] = self.router._fleet.sharing_counts()
        found["loads"] = self.router.loads()
        return sorted(flat(found))  # Not every map of theirs has an order.

    def records(self) -> list[str]:
        """Describe the requests that ended last, but for when that was by the calendar."""
        return [
            " ".join(flat({name: value for name, value in asdict(record).items() if name != "time_s"}))
            for record in self.router.records.recent(20)
        ]


def picked(held: Held) -> str:
    """Describe a decision, or both of a pair."""
    if isinstance(held, PairDecision):
        return f"{'-' if held.prefill is None else picked(held.prefill)} => {picked(held.decode)}"
    rank = "" if held.dp_rank is None else f"#{held.dp_rank}"
    tokens = f"{held.matched_tokens}/{held.best_matched_tokens}/{held.prompt_tokens}"
    return f"{held.key}{rank} {held.reason} {tokens} {held.match_basis}"


def halves(held: Held) -> list[Decision[str]]:
    """Return the decisions of a request, that of the worker that computes the prompt first."""
    both = (held.prefill, held.decode) if isinstance(held, PairDecision) else (held,)
    return [half for half in both if half is not None]


def views(explanation: Explanation) -> Iterable[str]:
    """Describe an explanation, one line for each worker."""
    best = "highest" if explanation.higher_is_better else "lowest"
    tokens = f"{explanation.matched_tokens}/{explanation.best_matched_tokens}/{explanation.prompt_tokens}"
    yield f"{explanation.key} {explanation.policy} {explanation.reason} {tokens} {best}"
    for view in explanation.candidates:
        columns = {
            "blocks": view.overlap_blocks,
            "held": view.held_blocks,
            "matched": view.matched_tokens,
            "inflight": view.inflight,
            "pending": view.pending_prefill_tokens,
            "decode": view.decode_blocks,
            "weight": view.weight,
            "score": view.score,
            "confirmed": view.confirmed_blocks,
            "speculative": view.speculative_blocks,
            "doubtful": view.doubtful_blocks,
            "shared": view.shared_blocks,
            "events": view.events,
            "terms": view.terms,
        }
        yield " ".join([f"{'*' if view.picked else '-'} {view.key} {view.state}", *flat(columns)])


def preview(found: AdmissionPreview) -> str:
    """Describe a preview."""
    if not found.held:
        return "would go"
    return f"would wait behind {found.requests_before} of {found.tokens_before} tokens {shown(found.expected_wait_s)}"


def refusal(error: NoWorkerAvailable) -> str:
    """Describe a refusal."""
    reasons = ",".join(f"{key}:{why}" for key, why in sorted(error.reasons.items()))
    if isinstance(error, Overloaded):
        return f"refused {error.reason} after {shown(error.waited_s)} until {shown(error.retry_after_s)} {reasons}"
    return f"none until {shown(error.retry_after_s)} {reasons}"


_EMPTY: tuple[object, ...] = (None, 0, "", {}, (), [])


def flat(value: Any, name: str = "") -> Iterable[str]:
    """List every value that is not empty, as `name=value`."""
    kind = type(value)
    if kind in {list, tuple, dict}:
        for key, each in value.items() if kind is dict else enumerate(value):
            if each in _EMPTY:
                continue
            part = ",".join(map(str, key)) if isinstance(key, tuple) else RENAMED.get(str(key), str(key))
            if part not in UNSTEADY:
                yield from flat(each, f"{name}.{part}" if name else part)
    elif value not in _EMPTY:
        yield f"{name}={shown(value)}"


def shown(value: Any) -> str:
    """Write a value; nine digits of a number, as sums may be taken in another order."""
    return f"{value:.9g}" if isinstance(value, float) else str(value)
