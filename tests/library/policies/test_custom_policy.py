"""Policies of the caller's own, run by the router."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.routers import flat_router

import cachelb
from cachelb import Health, Pairs, Router, policies
from cachelb.policies import FleetView, Policy, RequestView
from cachelb.testing import ManualClock

KEYS = ["gpu0", "gpu1", "gpu2"]


class Own:
    """A policy made of a function."""

    name = "own"

    def __init__(self, choose: Callable[[RequestView, FleetView], Any], *needs: str) -> None:
        self._choose = choose
        self.needs = frozenset(needs)

    def choose(self, request: RequestView, fleet: FleetView) -> Any:
        return self._choose(request, fleet)


class Bounded(Own):
    """One with bounds of its placements."""

    max_blocks_per_worker, ttl_s = 3, 60


def router(choose: Callable[[RequestView, FleetView], Any], *needs: str, **options: Any) -> Router[str]:
    return Router(KEYS, seed=1, hash_seed=1, policy=Own(choose, *needs), **options)


def seeing(look: Callable[[RequestView, FleetView], Any], pick: Any = 0) -> tuple[list[Any], Callable[..., Any]]:
    """A policy that picks one row, or that of a function, and keeps what it sees."""
    seen: list[Any] = []

    def choose(request: RequestView, fleet: FleetView) -> Any:
        seen.append(look(request, fleet))
        return pick(request, fleet) if callable(pick) else pick

    return seen, choose


# --- the pick ---


def test_pick_is_booked_with_reason_custom() -> None:
    fleet = router(lambda _request, fleet: len(fleet) - 1)
    decision = fleet.select_worker(prompt_tokens=100, by_load=True)
    assert (decision.worker, decision.reason) == ("gpu2", "custom")
    assert fleet.loads() == {"gpu0": 0, "gpu1": 0, "gpu2": 1}
    decision.on_complete()
    assert fleet.loads()["gpu2"] == 0
    assert fleet.stats().decisions == {("own", "custom"): 1}


@pytest.mark.parametrize("answer", [1, np.int64(1), np.uint8(1), np.array([0, 3, 1]).argmax()])
def test_any_integer_is_a_pick(answer: object) -> None:
    with router(lambda *_: answer).select_worker(by_load=True) as decision:
        assert (decision.worker, decision.reason) == ("gpu1", "custom")


def test_reason_of_the_closed_set_is_kept_and_cold_moves_the_cold_order() -> None:
    order, choose = seeing(lambda _, fleet: fleet.column("last_cold_pick").tolist(), pick=(1, "cold"))
    fleet = router(choose)
    assert [fleet.select_worker(by_load=True).reason for _ in range(2)] == ["cold", "cold"]
    assert order == [[0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        *((bad, "TypeError") for bad in (None, True, 1.0, np.float64(1), np.True_, "gpu1", (1, 2, 3), (1, None))),
        ((1, "because"), "ValueError"),
        *((row, "IndexError") for row in (3, -1, 1 << 70)),
    ],
    ids=repr,
)
def test_nonsense_goes_to_the_least_loaded_and_is_logged(
    answer: object, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = router(lambda *_: answer)
    picked = [fleet.select_worker(by_load=True) for _ in range(3)]
    assert sorted(decision.worker for decision in picked) == KEYS
    assert {decision.reason for decision in picked} == {"policy-error"}
    told = f"policy 'own' failed with {error}; the least loaded worker serves such requests (reason 'policy-error')"
    assert [record.getMessage() for record in caplog.records] == [told]


def test_each_class_of_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    errors = [ZeroDivisionError, KeyError, ZeroDivisionError, KeyError]

    def fail(*_: object) -> int:
        raise errors.pop()

    fleet = router(fail)
    held = [fleet.select_worker(by_load=True) for _ in range(4)]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [KeyError, ZeroDivisionError]
    assert fleet.stats().decisions == {("own", "policy-error"): len(held)}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_interrupts_pass_and_leave_nothing_booked(error: type[BaseException]) -> None:
    def fail(*_: object) -> int:
        raise error

    fleet = router(fail)
    with pytest.raises(error):
        fleet.select_worker(prompt_tokens=10, by_load=True)
    assert fleet.stats().open_requests == 0
    fleet.validate()


def test_one_candidate_is_only_one_and_nobody_raises_without_asking() -> None:
    asked, choose = seeing(lambda _, fleet: len(fleet))
    fleet = router(choose)
    assert fleet.select_worker(among=["gpu1"], by_load=True).reason == "only-one"
    with pytest.raises(cachelb.NoWorkerAvailable, match="gpu0 is not in `among`"):
        fleet.select_worker(among=[], by_load=True)
    assert asked == [1]
    assert fleet.stats().no_worker == 1


def test_dry_run_and_explain_ask_and_book_nothing() -> None:
    asked, choose = seeing(lambda request, _: request.dry_run, pick=lambda request, _: request.randrange(3))
    fleet = router(choose)
    for _ in range(20):
        explained, dry = fleet.explain(), fleet.select_worker(dry_run=True, by_load=True)
        assert fleet.stats().open_requests == 0
        with fleet.select_worker(by_load=True) as real:
            assert explained.key == dry.worker == real.worker
            assert dry.reason == real.reason == "custom"
    assert asked == [True, True, False] * 20


def test_equal_seeds_draw_equal_picks_and_all_of_them() -> None:
    def choose(request: RequestView, fleet: FleetView) -> int:
        assert 0 <= request.random() < 1
        return request.randrange(len(fleet))

    picks = [[one.select_worker(by_load=True).worker for _ in range(60)] for one in (router(choose), router(choose))]
    assert picks[0] == picks[1]
    assert set(picks[0]) == set(KEYS)


# --- what it sees ---


def test_columns_hold_loads_reports_and_weights() -> None:
    seen: dict[str, list[float]] = {}
    _, look = seeing(lambda _, fleet: seen.update({name: fleet.column(name).tolist() for name in fleet.COLUMNS}))
    clock = ManualClock(100.0)
    fleet = router(look, clock=clock, health=Health(max_report_age_s=2))
    fleet.add_worker("gpu1", weight=2.0)
    fleet.load_sink.update_load(
        "gpu1", running=3, waiting=4, queued_tokens=5, kv_usage=0.5, prefill_tps=6, gen_tps=7, age_s=1
    )
    fleet.load_sink.update_load("gpu2", running=3, age_s=5)
    decision = fleet.select_worker(prompt_tokens=100, by_load=True)
    fleet.select_worker(prompt_tokens=40, dry_run=True, by_load=True)
    nan = pytest.approx(float("nan"), nan_ok=True)
    assert seen["inflight"] == [1, 7, 0], "a fresh report tells of requests that others brought"
    assert seen["pending_prefill_tokens"] == seen["dispatched_tokens"] == [100, 0, 0]
    assert (seen["matched_tokens"], seen["uncached_tokens"]) == ([0, 0, 0], [40, 40, 40])
    assert seen["weight"] == [1, 2, 1]
    reported = {"running": 3, "waiting": 4, "queued_tokens": 5, "kv_usage": 0.5, "prefill_tps": 6, "gen_tps": 7}
    for name, value in reported.items():
        assert seen[name] == [nan, value, nan], name
    assert seen["report_age_s"] == [nan, 1.0, 5.0]
    assert seen["dp_rank"] == [-1, -1, -1]
    clock.advance(0.5)
    decision.on_first_token()
    fleet.select_worker(prompt_tokens=40, dry_run=True, by_load=True)
    assert seen["decode_blocks"] == [6, 0, 0]
    assert seen["observed_prefill_tps"] == [pytest.approx(200), nan, nan]


def test_tokens_are_hashed_and_recorded_only_if_needed() -> None:
    overlaps, look = seeing(lambda _, fleet: fleet.column("overlap_blocks").tolist(), pick=1)
    without = router(look, pairs=Pairs(prefill="least-loaded"))
    with_tokens = Router(KEYS, policy=Bounded(look, "tokens"))
    for fleet in (without, with_tokens):
        for _ in range(2):
            fleet.select_worker(tokens=range(100)).on_complete()
    assert overlaps == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 3, 0]]
    assert (without.stats().index_blocks, with_tokens.stats().index_blocks) == (0, 3)


def test_request_says_what_it_is_and_never_what_it_says() -> None:
    views, look = seeing(lambda request, _: request)
    fleet = router(look, "session")
    told = {"tenant": "acme", "priority": 3, "model": "llama", "lora": "adapter", "max_output_tokens": 9}
    fleet.select_worker(text="a secret " * 40, session="chat-1", expected_output_tokens=8, **told)  # type: ignore[arg-type]
    fleet.select_worker(tokens=range(40))
    fleet.select_worker(prompt_tokens=35, by_load=True)
    whole, headed, bare = views
    assert {name: getattr(whole, name) for name in told} == told
    assert (whole.expected_output_tokens, whole.attempt) == (8, 0)
    assert whole.session == whole.key
    assert isinstance(whole.key, int)
    assert (headed.session, headed.has_tokens, headed.total_blocks, headed.block_size) == (None, True, 2, 16)
    assert isinstance(headed.key, int)
    assert (bare.key, bare.has_tokens, bare.prompt_tokens, bare.total_blocks) == (None, False, 35, 2)
    said = repr(whole) + "".join(str(getattr(whole, name)) for name in dir(whole))
    assert "chat-1" not in said
    assert "secret" not in said


def test_retry_counts_attempts_and_leaves_out_the_tried() -> None:
    seen, look = seeing(lambda request, fleet: (request.attempt, fleet.keys))
    router(look).select_worker(by_load=True).retry().retry()
    assert seen == [(0, ("gpu0", "gpu1", "gpu2")), (1, ("gpu1", "gpu2")), (2, ("gpu2",))]


def test_ranks_are_candidates_and_gpus_are_named() -> None:
    seen, look = seeing(lambda _, fleet: (fleet.keys, fleet.gpu, fleet.column("dp_rank").tolist(), len(fleet)), pick=2)
    fleet = Router[str](policy=Own(look))
    fleet.add_worker("one", gpu="a100")
    fleet.add_worker("two", dp_size=2)
    decision = fleet.select_worker(by_load=True)
    assert seen == [(("one", "two", "two"), ("a100", None, None), [-1, 0, 1], 3)]
    assert (decision.worker, decision.dp_rank) == ("two", 1)


def test_unknown_column_names_the_nearest() -> None:
    views, look = seeing(lambda _, fleet: fleet)
    router(look).select_worker(by_load=True)
    with pytest.raises(KeyError, match=r"there is no column \W*inflght\W+did you mean \W+inflight\W+$"):
        views[0].column("inflght")


def test_columns_share_memory_are_read_only_and_outlive_the_request() -> None:
    kept: list[Any] = []

    def keep(_: RequestView, fleet: FleetView) -> int:
        inflight = fleet.column("inflight")
        assert np.shares_memory(inflight, fleet.column("inflight"))
        assert not inflight.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            inflight[0] = 7
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            inflight.flags.writeable = True
        kept.extend([inflight, fleet.column("kv_usage")])
        return 0

    fleet = router(keep)
    fleet.load_sink.update_load("gpu1", kv_usage=0.25)
    held = [fleet.select_worker(by_load=True) for _ in range(50)]
    del fleet
    gc.collect()
    assert [int(inflight[0]) for inflight in kept[::2]] == list(range(50))
    assert [float(usage[1]) for usage in kept[1::2]] == [0.25] * 50
    assert {array.dtype.str for array in kept} == {"<i8", "<f8"}
    assert len(held) == 50


def test_memory_of_a_view_is_freed_with_the_last_array() -> None:
    kept, keep = seeing(lambda _, fleet: fleet.column("inflight"))
    router(keep).select_worker(by_load=True).on_complete()
    base = kept[0].base
    counts = sys.getrefcount(base)
    with memoryview(base):
        assert sys.getrefcount(base) > counts
    assert sys.getrefcount(base) == counts


# --- the world changes meanwhile ---


def test_pick_that_left_meanwhile_is_asked_for_again() -> None:
    def leave(_: RequestView, view: FleetView) -> int:
        if len(view) == 3:
            fleet.remove_worker("gpu0")
        return 0

    seen, choose = seeing(lambda _, view: view.keys, pick=leave)
    fleet = router(choose)
    decision = fleet.select_worker(by_load=True)
    assert (decision.worker, decision.reason) == ("gpu1", "custom")
    assert seen == [("gpu0", "gpu1", "gpu2"), ("gpu1", "gpu2")]
    assert fleet.loads() == {"gpu1": 1, "gpu2": 0}


def test_picks_that_keep_leaving_end_at_the_least_loaded() -> None:
    def leave(_: RequestView, view: FleetView) -> int:
        fleet.set_ready(view.keys[0], False)
        return 0

    asked, choose = seeing(lambda _, view: len(view), pick=leave)
    fleet = Router([f"gpu{i}" for i in range(5)], policy=Own(choose))
    decision = fleet.select_worker(by_load=True)
    assert asked == [5, 4, 3]
    assert decision.worker in {"gpu3", "gpu4"}
    assert decision.reason == "policy-error"


def test_policy_may_use_the_router_it_serves() -> None:
    inner: list[str] = []
    fleet: Router[str]

    def choose(request: RequestView, view: FleetView) -> int:
        if request.priority == 0:
            with fleet.select_worker(tokens=range(500), priority=1) as nested:
                inner.append(nested.worker)
        return len(view) - 1

    fleet = router(choose, "tokens")
    decision = fleet.select_worker(tokens=range(1000, 1100))
    assert (decision.prompt_tokens, decision.worker, inner) == (100, "gpu2", ["gpu2"])
    fleet.validate()


# --- shadows and pairs ---


def test_shadow_of_your_own_decides_beside_and_books_nothing() -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError

    last = Own(lambda _, fleet: len(fleet) - 1, "tokens")
    fleet = Router(KEYS, policy="round-robin", shadow=[last, "random", Own(broken)], seed=1)
    fleet.select_worker(tokens=range(64)).on_complete()
    for decision in fleet.select_batch([{"tokens": range(64)}] * 3):
        decision.on_complete()
    assert sum(fleet.loads().values()) == 0
    picks = [("own", "custom"), ("random", "random"), ("own", "policy-error")]
    assert [[(pick.policy, pick.reason) for pick in record.shadows] for record in fleet.records.recent()] == [picks] * 4
    assert [record.shadows[0].key for record in fleet.records.recent()] == ["gpu2"] * 4
    assert fleet.stats().decisions == {("round-robin", "round-robin"): 4}


def test_shadow_does_not_change_what_the_first_policy_picks() -> None:
    own = Own(lambda request, fleet: request.randrange(len(fleet)))
    alone, beside = (Router(KEYS, policy="random", shadow=shadow, seed=4) for shadow in ([], [own]))
    picks = [[one.select_worker(by_load=True).worker for _ in range(40)] for one in (alone, beside)]
    assert picks[0] == picks[1]


def test_pair_asks_one_policy_per_half() -> None:
    by_prefill, second = seeing(lambda _, fleet: (fleet.keys, list(by_decode)), pick=1)
    by_decode, first = seeing(lambda _, fleet: fleet.keys)
    fleet = Router[str](pairs=Pairs(prefill=Own(second), decode=Own(first)))
    for key in ("p0", "p1", "d0", "d1"):
        fleet.add_worker(key, role="prefill" if key > "e" else "decode")
    pair = fleet.select_pair(prompt_tokens=100, by_load=True)
    assert pair.prefill is not None
    assert (pair.prefill.worker, pair.prefill.reason) == ("p1", "custom")
    assert (pair.decode.worker, pair.decode.reason) == ("d0", "custom")
    assert by_prefill == [(("p0", "p1"), [("d0", "d1")])], "the decode half comes first"
    pair.on_complete()
    assert sum(fleet.loads().values()) == 0


def test_batch_asks_for_each_request_and_books_all_or_nothing() -> None:
    answers = iter([0, 1, 2, 0, 1])
    fleet = router(lambda *_: next(answers))
    decisions = fleet.select_batch([{"prompt_tokens": n, "by_load": True} for n in (10, 20, 30)])
    assert [decision.worker for decision in decisions] == KEYS
    assert [decision.prompt_tokens for decision in decisions] == [10, 20, 30]
    with pytest.raises(cachelb.NoWorkerAvailable):
        fleet.select_batch([{"by_load": True}, {"by_load": True}, {"among": [], "by_load": True}])
    assert fleet.loads() == dict.fromkeys(KEYS, 1)
    assert fleet.stats().endings["cancelled"] == 2


# --- what is taken as a policy ---


class Waits:
    name, needs = "waits", frozenset[str]()

    async def choose(self, request: RequestView, fleet: FleetView) -> int:
        return 0


@pytest.mark.parametrize(
    ("policy", "error", "message"),
    [
        (object(), TypeError, "an object with choose\\(request, fleet\\), not object"),
        (Own, TypeError, "not the class Own; pass Own\\(\\)"),
        (type("NoName", (), {"choose": print, "needs": frozenset()})(), TypeError, "NoName.name must be a str"),
        (type("NoNeeds", (), {"choose": print, "name": "x"})(), TypeError, "NoNeeds.needs must be a frozenset"),
        (Own(print, "token"), ValueError, "needs has 'token'.*did you mean 'tokens'"),
        (Waits(), TypeError, r"Waits\.choose must be a plain function"),
    ],
    ids=["object", "class", "name", "needs", "unknown need", "awaited"],
)
def test_what_is_no_policy_is_refused_with_the_fix(policy: Any, error: type[Exception], message: str) -> None:
    for place in ({"policy": policy}, {"shadow": [policy]}, {"decode_policy": policy}):
        with pytest.raises(error, match=message):
            flat_router(KEYS, place)


def test_unknown_option_of_an_own_policy_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="no argument 'ttl'; did you mean ttl_s, an attribute of the policy: Own"):
        Router(KEYS, policy=Own(lambda *_: 0), ttl=3)  # type: ignore[call-arg]


def test_router_and_policy_are_collected_together() -> None:
    policy: Any = Own(lambda *_: 0)
    policy.router = Router(KEYS, policy=policy)
    policy.router.select_worker(by_load=True).on_complete()
    gone = weakref.ref(policy)
    del policy
    gc.collect()
    assert gone() is None


def test_own_and_built_in_policies_are_policies_and_only_own_ones_are_asked() -> None:
    builtin: Any = policies.make("random")
    for policy in (Own(lambda *_: 0), builtin):
        assert isinstance(policy, Policy)
    assert not isinstance("random", Policy)
    with pytest.raises(TypeError, match="'random' runs natively: give it to Router"):
        builtin.choose(None, None)


def test_numpy_is_imported_by_the_first_column_only() -> None:
    code = """
import sys, cachelb
class Last:
    name, needs = "last", frozenset()
    def choose(self, request, fleet):
        if request.priority: fleet.column("inflight")
        return len(fleet) - 1
router = cachelb.Router(["a", "b"], policy=Last())
for priority in (0, 1):
    print(router.select_worker(priority=priority, by_load=True).worker, "numpy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "b False\nb True\n"
