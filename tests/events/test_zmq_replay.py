"""Catching up over a replay socket that does not send everything, which a ROUTER socket may do at any time."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import pytest
import zmq

from cachelb.events.replay import Progress, Replay

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


def test_short_answer_with_its_end_is_complete(engine: Engine) -> None:
    replay = engine.replay(5)
    assert engine.asked() == 5
    engine.answer(5, 6, 7, END)
    assert engine.read(replay) is Progress.COMPLETE
    assert engine.delivered == [5, 6, 7]
    replay.end()


def test_answer_that_begins_late_is_what_there_is(engine: Engine) -> None:
    replay = engine.replay(5)
    engine.asked()
    engine.answer(90, 91, END)
    assert engine.read(replay) is Progress.COMPLETE
    assert engine.delivered == [90, 91]
    replay.end()


def test_hole_in_an_answer_is_asked_for_again(engine: Engine) -> None:
    replay = engine.replay(0)
    engine.asked()
    engine.answer(0, 1, 5, 6, END)
    assert engine.read(replay) is Progress.RUNNING
    assert engine.asked() == 2
    engine.answer(2, 3, 4, 5, 6, END)
    assert engine.read(replay) is Progress.COMPLETE
    assert engine.delivered == list(range(7))
    replay.end()


def test_large_answer_may_lack_its_end_and_is_followed_up(engine: Engine) -> None:
    replay = engine.replay(0)
    engine.asked()
    engine.answer(*range(600), END)
    assert engine.read(replay) is Progress.RUNNING
    assert engine.asked() == 600
    engine.answer(600, END)
    assert engine.read(replay) is Progress.COMPLETE
    assert engine.delivered == list(range(601))
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
