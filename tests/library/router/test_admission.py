"""Admission: refused requests, against a naive model, and the messages."""

from __future__ import annotations

import contextlib
import copy
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb import Admission, Decision, NoWorkerAvailable, Overloaded, Router
from cachelb.policies import LeastLoaded

WORKERS = ("a", "b", "c")
WEIGHTS = (1.0, 2.0, 0.5)


def make(*workers: str, **options: object) -> Router[str]:
    return Router(workers or ("a",), seed=1, clock=lambda: 0.0, **options)  # type: ignore[arg-type]


def prompt(number: int, tokens: int) -> range:
    """Return tokens that no other prompt begins with."""
    return range(1_000_000 * number, 1_000_000 * number + tokens)


@dataclass
class Pending:
    """A request without a first token, as the model has it."""

    worker: str
    tokens: int


def has_room(pending: list[Pending], weight: float, requests: int | None, tokens: int | None) -> bool:
    """Return whether one more fits, the obvious way."""
    if not pending:
        return True
    few = requests is None or len(pending) < requests * weight
    return few and (tokens is None or sum(one.tokens for one in pending) < tokens * weight)


@given(
    bounds=st.tuples(st.none() | st.integers(1, 4), st.none() | st.integers(1, 6000)).filter(any),
    steps=st.lists(
        st.tuples(st.sampled_from(["acquire", "select", "first-token", "end", "ready"]), st.integers(0, 5000)),
        max_size=60,
    ),
)
def test_requests_are_refused_if_and_only_if_no_worker_has_room(
    bounds: tuple[int | None, int | None], steps: list[tuple[str, int]]
) -> None:
    router: Router[str] = Router(seed=1, clock=lambda: 0.0, policy="random")
    for worker, weight in zip(WORKERS, WEIGHTS, strict=True):
        router.add_worker(worker, weight=weight)
    admission = Admission(router, max_pending_requests=bounds[0], max_pending_tokens=bounds[1])
    pending: dict[Decision[str], Pending] = {}
    opened: list[Decision[str]] = []
    said: list[bool] = []
    ready = dict.fromkeys(WORKERS, True)
    for number, (step, value) in enumerate(steps):
        if step in {"acquire", "select"}:
            of = {worker: [one for one in pending.values() if one.worker == worker] for worker in WORKERS}
            room = [has_room(of[worker], weight, *bounds) for worker, weight in zip(WORKERS, WEIGHTS, strict=True)]
            candidates = [worker for worker in WORKERS if ready[worker]]
            fits = any(room[WORKERS.index(worker)] for worker in candidates)
            acquire = admission.acquire_nowait if step == "acquire" else router.select_worker
            try:
                decision = acquire(tokens=prompt(number, value))
            except Overloaded as error:
                assert (step, fits, bool(candidates)) == ("acquire", False, True)
                said.append(error.reasons == {worker: "full" if ready[worker] else "not ready" for worker in WORKERS})
                continue
            except NoWorkerAvailable:
                assert not candidates
                continue
            assert fits or step == "select"
            pending[decision] = Pending(decision.worker, value)
            opened.append(decision)
        elif step == "ready":
            worker = WORKERS[value % len(WORKERS)]
            ready[worker] = not ready[worker]
            router.set_ready(worker, ready[worker])
        elif opened:
            decision = opened[value % len(opened)]
            pending.pop(decision, None)
            if step == "first-token":
                decision.on_first_token()
            else:
                opened.remove(decision)
                decision.on_complete()
    assert all(said)
    assert router.stats().overloaded == len(said)
    router.validate()


def test_a_prompt_of_any_length_gets_an_idle_worker_and_the_next_is_refused_until_its_first_token() -> None:
    admission = Admission(make(), max_pending_tokens=4096)
    long = admission.acquire_nowait(tokens=range(100_000))
    with pytest.raises(Overloaded, match="no worker available: a is full") as caught:
        admission.acquire_nowait(tokens=[1])
    assert (caught.value.status, caught.value.headers) == (429, {"retry-after": "24"})
    long.on_first_token()
    admission.acquire_nowait(tokens=prompt(1, 100))


def test_only_uncached_tokens_are_pending() -> None:
    admission = Admission(make(), max_pending_tokens=1024)
    for _ in range(2):
        first = admission.acquire_nowait(tokens=range(3200))
        with pytest.raises(Overloaded) if first.matched_tokens == 0 else contextlib.nullcontext():
            admission.acquire_nowait(tokens=range(16)).cancel()
        first.on_first_token()


def test_a_retry_is_not_refused() -> None:
    admission = Admission(make("a", "b"), max_pending_requests=1)
    decisions = [admission.acquire_nowait(tokens=prompt(at, 64)) for at in range(2)]
    decisions[0].on_error(ConnectionError("gone"))
    assert decisions[0].retry().worker == decisions[1].worker


def test_the_wait_is_that_of_the_worker_that_has_room_first() -> None:
    now_s = 0.0
    router = Router(["slow", "fast"], seed=1, clock=lambda: now_s)
    for worker, took_s in {"slow": 10.0, "fast": 1.0}.items():
        one = router.select_worker(tokens=prompt(len(worker), 10_000), among=[worker])
        now_s += took_s
        one.on_first_token()
        one.on_complete()
    admission = Admission(router, max_pending_tokens=1000)
    pending = [router.select_worker(tokens=prompt(9, 32_000), among=[worker]) for worker in ("slow", "fast")]
    with pytest.raises(Overloaded) as caught:
        admission.acquire_nowait(tokens=[1])
    assert len(pending) == 2
    # 31,001 tokens too many, at 10,000 a second.
    assert caught.value.retry_after_s == pytest.approx(3.1, abs=0.01)
    assert caught.value.headers == {"retry-after": "4"}


@pytest.mark.parametrize(("given_s", "kept_s"), [(0.2, 1.0), (2.5, 2.5), (1e9, 60.0)])
def test_the_wait_that_is_said_is_bounded_and_survives_copies(given_s: float, kept_s: float) -> None:
    error = copy.deepcopy(Overloaded({"a": "full"}, given_s))
    assert (error.retry_after_s, error.reasons) == (kept_s, {"a": "full"})


def test_threads_do_not_share_room() -> None:
    admission = Admission(make("a", "b", policy=LeastLoaded()), max_pending_requests=3)
    start, admitted = threading.Barrier(8), []

    def acquire(thread: int) -> None:
        start.wait()
        for number in range(50):
            with contextlib.suppress(Overloaded):
                admitted.append(admission.acquire_nowait(tokens=prompt(100 * thread + number, 32)))

    threads = [threading.Thread(target=acquire, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == 2 * 3
    assert admission.router.stats().overloaded == 8 * 50 - 6


def test_a_policy_in_python_is_asked_only_where_there_is_room() -> None:
    asked = []

    class First:
        name = "first"
        needs: frozenset[str] = frozenset()

        def choose(self, request: object, workers: object) -> int:
            asked.append(request)
            return 0

    admission = Admission(make("a", "b", policy=First()), max_pending_requests=1)
    first, second = (admission.acquire_nowait(tokens=prompt(at, 64)) for at in range(2))
    assert (first.worker, second.worker) == ("a", "a")  # as b had room, the policy picked among all
    third = admission.router.select_worker(tokens=[1], among=["b"])
    with pytest.raises(Overloaded):
        admission.acquire_nowait(tokens=[2])
    assert third.is_open
    assert len(asked) == 3
    assert admission.router.stats().overloaded == 1


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"max_pending_requests": 0}, "max_pending_requests must be"),
        ({"max_pending_tokens": 0}, "max_pending_tokens must be"),
        ({"max_pending_tokens": 1.5}, "max_pending_tokens must be"),
        ({"max_pending_tokens": None}, "both None"),
    ],
)
def test_wrong_bounds_are_named(bounds: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Admission(make(), **bounds)
