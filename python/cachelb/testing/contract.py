"""The contract of every policy, as one check for a gateway's own tests."""

from __future__ import annotations

import gc
import operator
import random
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from cachelb import policies
from cachelb._core import Decision, FleetView, RequestView
from cachelb.errors import NoWorkerAvailable
from cachelb.policies.base import BuiltinPolicy
from cachelb.router import Router
from cachelb.testing.oracle import ManualClock

BLOCK = 16
KEYS: tuple[str, ...] = ("w0", "w1", "w2", "w3")
_SEEDS = 48
_WARM_UP, _WINDOW = 4_500, 1_000
_GROWTH_BYTES = 16_384


def assert_policy_contract(factory: Callable[..., Any] | str, **options: object) -> None:
    """Check that a policy keeps the promises that a router makes of every policy.

    Equal seeds give equal picks; the order of the workers decides nothing but seeded ties; only candidates are picked,
    and never one that left or is not ready; `dry_run` returns the next pick and changes nothing; every load returns to
    zero; fleets of none to 64 workers, prompts around a block's length and missing signals raise no error; threads do
    not disturb it; and after 4,500 requests, each with a session of its own, its memory no longer grows.

    Args:
        factory: The policy's class, or a function that makes a new policy; or a name of `cachelb.policies.make`.
        **options: Options of the policy.

    Raises:
        AssertionError: The contract is broken; the message has the details.

    Example:
        >>> from cachelb.policies import LeastLoaded
        >>> assert_policy_contract(LeastLoaded, load="tokens")
        >>> class First:
        ...     name, needs = "first", frozenset()
        ...
        ...     def choose(self, request, fleet):
        ...         return 0
        >>> assert_policy_contract(First)
        Traceback (most recent call last):
        AssertionError: policy 'first': the order of the workers decides among idle workers: ...
    """
    subject = _Subject(factory, options)
    for check in (
        _equal_seeds_give_equal_picks,
        _order_decides_nothing,
        _only_candidates_are_picked,
        _dry_run_predicts_the_next_pick,
        _gone_workers_stay_gone,
        _any_fleet_and_prompt_is_served,
        _missing_signals_are_no_errors,
        _threads_do_not_disturb,
        _memory_stays,
    ):
        check(subject)


class _Watch:
    """A wrapper of a user's policy that records its errors."""

    def __init__(self, policy: Any) -> None:  # noqa: ANN401 - checked by the router
        self.policy = policy
        self.name: str = policy.name
        self.needs: frozenset[str] = policy.needs
        self.problem: str | None = None

    def choose(self, request: RequestView, fleet: FleetView) -> Any:  # noqa: ANN401 - judged by the router
        try:
            answer = self.policy.choose(request, fleet)
            row = answer[0] if isinstance(answer, tuple) else answer
            fits = not isinstance(row, bool) and 0 <= operator.index(row) < len(fleet)
        except Exception as error:
            self.problem = f"choose() raised {type(error).__name__}: {error}"
            raise
        if not fits:
            self.problem = f"choose() returned {answer!r} with {len(fleet)} candidates"
        return answer


class _Subject:
    """The policy under test and how to make it."""

    def __init__(self, factory: Callable[..., Any] | str, options: dict[str, object]) -> None:
        self._factory, self._options = factory, options
        self.name: str = self.make().name

    def make(self, **more: object) -> Any:  # noqa: ANN401 - built in or not
        options = {**self._options, **more}
        return policies.make(self._factory, **options) if isinstance(self._factory, str) else self._factory(**options)

    def fail(self, text: str) -> AssertionError:
        return AssertionError(f"policy {self.name!r}: {text}")


class _Fleet:
    """A router with the policy, whose every pick is checked."""

    def __init__(self, subject: _Subject, keys: Sequence[str] = KEYS, seed: int = 1) -> None:
        policy = subject.make()
        self.watch = None if isinstance(policy, BuiltinPolicy) else _Watch(policy)
        self.subject = subject
        self.clock = ManualClock(1000.0)
        self.router: Router[str] = Router(
            keys, policy=self.watch or policy, seed=seed, hash_seed=1, block_size=BLOCK, clock=self.clock
        )

    def select(self, **request: Any) -> Decision[str]:  # noqa: ANN401 - as the router's
        decision = self.router.select_worker(**request, by_load=True)
        problem = self.watch and self.watch.problem
        shown = {name: value for name, value in request.items() if name not in {"tokens", "text"}}
        if problem or decision.reason == "policy-error":
            decision.cancel()
            raise self.subject.fail(f"{problem or 'choose() failed'}, for a request with {shown}")
        among, exclude = request.get("among"), request.get("exclude", ())
        if (among is not None and decision.key not in among) or decision.key in exclude:
            raise self.subject.fail(f"picked {decision.key!r}, which is no candidate, for a request with {shown}")
        return decision

    def expect_idle(self) -> None:
        busy = {key: n for key, n in self.router.loads().items() if n}
        if busy or self.router.stats().open_requests:
            raise self.subject.fail(f"requests ended, but load is left: {busy}")
        self.router.validate()


def _prompt(number: int, blocks: int = 8) -> range:
    """A prompt that shares its first tokens with no other."""
    return range(number * 10_000, number * 10_000 + blocks * BLOCK)


def _request(draw: random.Random) -> dict[str, Any]:
    """A request as gateways send them: with and without prompts, prefixes in common, sessions."""
    request: dict[str, Any] = {}
    kind = draw.randrange(4)
    if kind:
        request["tokens"] = _prompt(draw.randrange(6), draw.randrange(1, 12))
    else:
        request["prompt_tokens"] = draw.randrange(500)
    if draw.random() < 0.5:  # noqa: PLR2004 - every other
        request["session"] = f"session-{draw.randrange(8)}"
    return request


def _end(decision: Decision[str], draw: random.Random) -> None:
    kind = draw.randrange(5)
    if kind == 0:
        decision.cancel()
    elif kind == 1:
        decision.on_error(400)
    else:
        decision.on_first_token()
        decision.on_tokens(20)
        decision.on_complete(cached_tokens=0)


def _play(fleet: _Fleet, steps: int, seed: int = 5) -> list[tuple[str, str]]:
    """Run mixed traffic to its end; return the picks and reasons."""
    draw = random.Random(seed)
    picks: list[tuple[str, str]] = []
    open_: list[Decision[str]] = []
    for _ in range(steps):
        decision = fleet.select(**_request(draw))
        picks.append((decision.key, decision.reason))
        open_.append(decision)
        fleet.clock.advance(0.01)
        while len(open_) > draw.randrange(1, 12):
            _end(open_.pop(draw.randrange(len(open_))), draw)
    for decision in open_:
        _end(decision, draw)
    return picks


def _equal_seeds_give_equal_picks(subject: _Subject) -> None:
    runs = []
    for _ in range(2):
        fleet = _Fleet(subject)
        runs.append(_play(fleet, 150))
        fleet.expect_idle()
    for step, (one, other) in enumerate(zip(*runs, strict=True)):
        if one != other:
            raise subject.fail(
                f"equal seeds and calls picked {one} and {other} in step {step}; draw from request.random()"
            )


def _order_decides_nothing(subject: _Subject) -> None:
    """Over many seeds, the same workers must be picked in any order: one by rule, several by seeded ties."""
    warm = _prompt(1)

    fleets: dict[str, tuple[dict[str, int], bool]] = {
        "idle workers": ({}, False),
        "loaded workers": ({"w0": 2, "w1": 1, "w2": 3, "w3": 1}, False),
        "workers of which one is warm": ({}, True),
    }
    for name, (loads, is_warm) in fleets.items():
        seen: dict[tuple[str, ...], set[str]] = {}
        for order in (KEYS, KEYS[::-1], (*KEYS[2:], *KEYS[:2])):
            seen[order] = set()
            for seed in range(_SEEDS):
                select = _ordered(subject, order, seed)
                held = [select(among=[key], tokens=_prompt(9)) for key, count in loads.items() for _ in range(count)]
                if is_warm:
                    select(among=["w2"], tokens=warm).on_complete()
                decision = select(tokens=warm)
                seen[order].add(decision.key)
                for booked in (decision, *held):
                    booked.cancel()
        first, *others = seen.items()
        for order, keys in others:
            if keys != first[1]:
                raise subject.fail(
                    f"the order of the workers decides among {name}: {sorted(first[1])} come up in order "
                    f"{', '.join(first[0])}, {sorted(keys)} in order {', '.join(order)}; break ties by "
                    "cachelb.policies.lowest() or request.randrange()"
                )


def _ordered(subject: _Subject, order: Sequence[str], seed: int) -> Callable[..., Decision[str]]:
    """Selections from workers in that order. A policy with workers of its own takes them as the caller lists them."""
    policy = subject.make()
    if not isinstance(policy, BuiltinPolicy):
        return _Fleet(subject, order, seed).select
    own = subject.make(seed=seed, clock=ManualClock(1000.0))
    return lambda **request: own.select_worker(order, **request, by_load=True)


def _only_candidates_are_picked(subject: _Subject) -> None:
    fleet, draw = _Fleet(subject), random.Random(2)
    for _ in range(60):
        among = draw.sample(KEYS, draw.randrange(1, 5))
        exclude = draw.sample(KEYS, draw.randrange(3))
        if not set(among) - set(exclude):
            continue
        _end(fleet.select(**_request(draw), among=among, exclude=exclude), draw)
    for key in KEYS:
        decision = fleet.select(among=[key], tokens=_prompt(3))
        if decision.reason != "only-one" or fleet.router.loads()[key] != 1:
            raise subject.fail(f"one candidate must be booked with reason 'only-one', not {decision.reason!r}")
        decision.on_complete()
    retried = fleet.select(tokens=_prompt(4))
    tried = {retried.key}
    for _ in KEYS[1:]:
        retried = retried.retry()
        tried.add(retried.key)
    if len(tried) != len(KEYS):
        raise subject.fail(f"retries came back to a worker already tried: {sorted(tried)}")
    retried.cancel()
    fleet.expect_idle()


def _dry_run_predicts_the_next_pick(subject: _Subject) -> None:
    fleet, draw = _Fleet(subject), random.Random(4)
    open_: list[Decision[str]] = []
    for step in range(80):
        request = _request(draw)
        before = (fleet.router.loads(), fleet.router.stats().index_blocks)
        dry = [fleet.select(**request, dry_run=True) for _ in range(2)]
        if (fleet.router.loads(), fleet.router.stats().index_blocks) != before:
            raise subject.fail("dry_run changed loads or recorded a placement")
        real = fleet.select(**request)
        picks = [(decision.key, decision.reason) for decision in (*dry, real)]
        if len(set(picks)) > 1:
            raise subject.fail(f"two dry runs and the pick they announce differ in step {step}: {picks}")
        open_.append(real)
        if len(open_) > 5:  # noqa: PLR2004 - some are open, not all
            _end(open_.pop(0), draw)
    for decision in open_:
        decision.cancel()
    fleet.expect_idle()


def _gone_workers_stay_gone(subject: _Subject) -> None:
    fleet, draw = _Fleet(subject), random.Random(6)
    _play(fleet, 40)
    fleet.router.set_ready("w1", ready=False)
    fleet.router.remove_worker("w2")
    for _ in range(40):
        decision = fleet.select(**_request(draw))
        if decision.key in {"w1", "w2"}:
            raise subject.fail(f"picked {decision.key!r}, which {'is not ready' if decision.key == 'w1' else 'left'}")
        _end(decision, draw)
    if "w2" in fleet.router.loads() or any(worker.key == "w2" for worker in fleet.router.stats().workers):
        raise subject.fail("a worker that left is still counted")
    fleet.router.set_ready("w1", ready=True)
    fleet.router.add_worker("w2")
    _play(fleet, 40)
    fleet.expect_idle()


def _any_fleet_and_prompt_is_served(subject: _Subject) -> None:
    for count in (0, 1, 2, 64):
        keys = [f"w{index}" for index in range(count)]
        fleet = _Fleet(subject, keys)
        for length in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1):
            for request in ({"tokens": range(length)}, {"prompt_tokens": length}, {"text": "x" * length}):
                try:
                    fleet.select(**request).on_complete()
                except NoWorkerAvailable:
                    if count:
                        raise
                else:
                    assert count, "a router without workers picked one"
        fleet.expect_idle()


def _missing_signals_are_no_errors(subject: _Subject) -> None:
    signals = {"running": 2, "waiting": 3, "queued_tokens": 100, "kv_usage": 0.5, "prefill_tps": 1000, "gen_tps": 50}
    reports: list[dict[str, Any]] = [{}, signals, {**signals, "age_s": 3600}]
    reports += [{name: value} for name, value in signals.items()]
    reports += [{name: other for name, other in signals.items() if name != left} for left in signals]
    requests: list[dict[str, Any]] = [
        {},
        {"prompt_tokens": 100},
        {"tokens": _prompt(1)},
        {"tokens": _prompt(1), "session": "one", "tenant": "acme", "model": "llama", "lora": "adapter"},
        {"session": "one"},
        {"text": "one " * 100},
        {"among": ["w1", "somebody else"], "exclude": ["nobody"]},
    ]
    for report in reports:
        fleet = _Fleet(subject)
        for key in KEYS[:2]:
            fleet.router.load_sink.update_load(key, **report)
        for request in requests:
            fleet.select(**request).on_complete()


def _threads_do_not_disturb(subject: _Subject) -> None:
    fleet = _Fleet(subject)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            _play(fleet, 150, seed)
        except BaseException as error:  # noqa: BLE001 - raised again on join
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    fleet.expect_idle()


def _memory_stays(subject: _Subject) -> None:
    fleet = _Fleet(subject)
    number = 0

    def run(requests: int) -> None:
        nonlocal number
        for _ in range(requests):
            number += 1
            if number % 50 == 0:
                fleet.router.remove_worker(f"pod-{number - 50}")
                fleet.router.add_worker(f"pod-{number}")
            session = f"session-{number if fleet.watch else number % 64}"
            fleet.select(tokens=_prompt(number % 16, 2), session=session).on_complete()

    def used() -> tuple[int, int]:
        gc.collect()
        return tracemalloc.get_traced_memory()[0], fleet.router.stats().memory_bytes

    run(_WARM_UP)
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        run(_WINDOW)
        sizes = [used()]
        for _ in range(2):
            run(_WINDOW)
            sizes.append(used())
    finally:
        if not was_tracing:
            tracemalloc.stop()
    for what, values in zip(("Python", "native"), zip(*sizes, strict=True), strict=True):
        grown = [later - earlier for earlier, later in pairwise(values)]
        # A leak grows every time; a table that doubles does so once.
        if min(grown) > _GROWTH_BYTES:
            raise subject.fail(f"{what} memory grows with every request: by {grown} bytes per {_WINDOW} requests")
