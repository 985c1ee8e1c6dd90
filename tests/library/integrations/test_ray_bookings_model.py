"""Bookings under any order in which Serve may call: loads are right whenever nothing is owed, and 0 at the end."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest

from cachelb import Router
from cachelb.integrations.ray_serve.bookings import Bookings

REPLICAS = ["a", "b", "c"]


class Task:
    """Sender of a call, with the callbacks that watch it."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Task], None]] = []
        self._is_cancelled = False
        self.add_done_callback = self.callbacks.append
        self.remove_done_callback = self.callbacks.remove

    def cancel(self) -> None:
        self._is_cancelled = True
        for callback in list(self.callbacks):
            callback(self)

    def cancelled(self) -> bool:
        return self._is_cancelled


@dataclass(eq=False)
class Call:
    """A call as Serve drives it, with the ends of its attempts that are still to be reported."""

    request_id: str
    prompt: str
    future: Future[str] = field(default_factory=Future)
    task: Task = field(default_factory=Task)
    taken_by: str | None = None
    ends: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return (self.taken_by is not None or self.is_given_up) and not self.ends

    @property
    def is_given_up(self) -> bool:
        return self.future.cancelled() or self.task.cancelled()


class Serve:
    """Draws what happens next."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.router = Router(REPLICAS, seed=seed)
        self.bookings = Bookings(self.router, landed=lambda future: future.result() if future.done() else None)
        self.calls: list[Call] = []
        self.tasks: list[Task] = []
        self.made = 0

    def step(self, *, finish: bool = False) -> None:
        if not self.calls or (not finish and self.rng.random() < 0.2):
            self.made += 1
            # A third of the calls share their request's id with others.
            request_id = f"shared-{self.made % 3}" if self.rng.random() < 0.3 else f"id-{self.made}"
            self.calls.append(Call(request_id, f"prompt {self.rng.randrange(5)} " * 40))
        call = self.rng.choice(self.calls)
        if call.ends and self.rng.random() < 0.5:
            self.bookings.ended(call.request_id, call.ends.pop(0))
        elif call.taken_by is None and not call.is_given_up:
            self._route(call, finish=finish)
        if call.is_over:
            self.calls.remove(call)
            self.tasks.append(call.task)

    def _route(self, call: Call, *, finish: bool) -> None:
        picks = self.bookings.choose(call.request_id, call, {"text": call.prompt}, REPLICAS)
        what = self.rng.random()
        if what < 0.2 and not finish:
            return  # every queue was full: chosen again later
        if what < 0.3:
            call.future.cancel()
            return
        replica = picks[0] if self.rng.random() < 0.7 else self.rng.choice(REPLICAS)
        call.future.set_result(replica)
        self.bookings.sent(call.request_id, call, call.task)
        if self.rng.random() < 0.1:
            # The replica hangs, and the caller gives up. It may go on later.
            call.task.cancel()
            if self.rng.random() < 0.5:
                call.ends.append(replica)
            return
        if self.rng.random() < 0.4:
            # Refused. Its end is reported at some time, perhaps before the next choice.
            call.ends.append(replica)
            if self.rng.random() < 0.5:
                self.bookings.ended(call.request_id, call.ends.pop())
            call.future = Future()
            return
        if self.rng.random() < 0.2:
            self.bookings.ended(call.request_id, replica)  # done before it is known as taken
        else:
            call.ends.append(replica)
        self.bookings.taken(call.request_id, call, replica, dict)
        call.taken_by = replica


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_calls_ends_with_no_load(seed: int) -> None:
    serve = Serve(seed)
    for _ in range(400):
        serve.step()
        # An end that is taken for another one of the same id is made good when that one comes.
        outstanding = sum(len(call.ends) for call in serve.calls)
        assert sum(serve.router.loads().values()) <= len(serve.calls) + outstanding
    assert serve.bookings.counters.chosen_again > 0
    for _ in range(100_000):
        if not serve.calls:
            break
        serve.step(finish=True)
    assert serve.calls == []
    assert not any(task.callbacks for task in serve.tasks)
    assert any(task.cancelled() for task in serve.tasks)
    assert serve.router.loads() == dict.fromkeys(REPLICAS, 0)
    assert len(serve.bookings) == 0
    assert serve.bookings.counters.abandoned == 0
    assert serve.router.stats().open_requests == 0
    serve.router.validate()
