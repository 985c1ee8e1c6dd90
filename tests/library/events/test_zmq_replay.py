"""Catching up over a replay socket that does not send everything, which a ROUTER socket may do at any time."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import pytest
import zmq

from cachelb.events.zmq.replay import Progress, Replay

END = -1


class Engine:
    """The replay socket of an engine, and a replay that asks it."""

    def __init__(self) -> None:
        self.delivered: list[int] = []
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._address = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self._dealers: list[zmq.Socket[bytes]] = []
        self._peer = b""

    def replay(self, start: int) -> Replay:
        return Replay(self._dealer, lambda socket: socket.close(0), start, timeout_s=10.0, now_s=0.0)

    def asked(self) -> int:
        """Wait for the next request; return its number."""
        assert self._router.poll(30_000)
        self._peer, empty, start = self._router.recv_multipart()
        assert empty == b""
        number: int = struct.unpack(">q", start)[0]
        return number

    def answer(self, *numbers: int) -> None:
        for number in numbers:
            self._router.send_multipart([self._peer, b"", b"topic", struct.pack(">q", number), b"payload"])

    def garbage(self) -> None:
        self._router.send_multipart([self._peer, b"", b"garbage"])

    def read(self, replay: Replay, *, until: Iterable[int] | None = None, now_s: float = 1.0) -> Progress:
        """Read until these were delivered, or until the replay asks again or ends."""
        asking = len(self._dealers)
        wanted = None if until is None else list(until)
        while True:
            assert self._dealers[-1].poll(30_000)
            progress = replay.receive(lambda seq, _: self.delivered.append(seq), now_s)
            if progress is not Progress.RUNNING or len(self._dealers) > asking or self.delivered == wanted:
                return progress

    def close(self) -> None:
        self._context.destroy(0)

    def _dealer(self) -> zmq.Socket[bytes]:
        dealer = self._context.socket(zmq.DEALER)
        dealer.connect(self._address)
        self._dealers.append(dealer)
        return dealer


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.close()


@pytest.mark.parametrize(
    ("rounds", "delivered"),
    [
        ([(5, [5, 6, 7])], [5, 6, 7]),
        ([(5, [90, 91])], [90, 91]),
        ([(0, [0, 1, 5, 6]), (2, [2, 3, 4, 5, 6])], [*range(7)]),
        ([(0, [*range(600)]), (600, [600])], [*range(601)]),
    ],
    ids=["whole", "begins late", "with a hole", "so large that its end may be missing"],
)
def test_answers_are_followed_up_until_nothing_is_missing(
    engine: Engine, rounds: list[tuple[int, list[int]]], delivered: list[int]
) -> None:
    replay = engine.replay(rounds[0][0])
    for left, (start, numbers) in zip(reversed(range(len(rounds))), rounds, strict=True):
        assert engine.asked() == start
        engine.answer(*numbers, END)
        assert engine.read(replay) is (Progress.RUNNING if left else Progress.COMPLETE)
    assert engine.delivered == delivered
    replay.end()


def test_large_answer_without_its_end_is_followed_up_soon(engine: Engine) -> None:
    replay = engine.replay(0)
    engine.asked()
    engine.answer(*range(499))
    engine.read(replay, until=range(499), now_s=5.0)
    assert replay.deadline_s == 15.0
    engine.answer(*range(499, 600))
    engine.read(replay, until=range(600), now_s=6.0)
    assert replay.check(6.4) is Progress.RUNNING
    assert replay.check(6.5) is Progress.RUNNING
    assert engine.asked() == 600
    assert replay.deadline_s == 16.5, "the engine has its time again"
    engine.answer(END)
    assert engine.read(replay) is Progress.COMPLETE
    replay.end()


def test_answer_that_stops_is_asked_for_again_and_given_up_without_progress(engine: Engine) -> None:
    replay = engine.replay(0)
    engine.asked()
    engine.answer(0, 1)
    assert engine.read(replay, until=[0, 1], now_s=5.0) is Progress.RUNNING
    assert replay.check(14.9) is Progress.RUNNING
    assert replay.deadline_s == 15.0, "every batch gives the engine time for the next"
    assert replay.check(15.0) is Progress.RUNNING
    assert engine.asked() == 2
    assert replay.check(25.0) is Progress.FAILED
    replay.end()


def test_an_answer_that_only_repeats_itself_is_no_progress(engine: Engine) -> None:
    replay = engine.replay(5)
    engine.asked()
    engine.garbage()
    engine.answer(4, 3, 4, 5)
    assert engine.read(replay, until=[5]) is Progress.RUNNING
    assert replay.malformed == 1
    engine.answer(5, 5, 5, END)
    assert engine.read(replay, now_s=100.0) is Progress.COMPLETE
    assert (engine.delivered, replay.deadline_s) == ([5], 11.0)
    replay.end()
    assert replay.receive(lambda _seq, _payload: None, 1.0) is Progress.FAILED, "it is over"
