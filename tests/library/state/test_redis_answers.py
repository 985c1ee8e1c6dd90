"""Snapshots in parts: in order, without holes, and no faster than they are read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachelb.common.secret import Secret
from cachelb.state.redis.answers import NONCE_BYTES, Answers, Questions
from cachelb.state.seal import Seal

ASKED = Seal([Secret("known to all gateways")], "cachelb")
INBOX = b"cachelb:to:12"


def nonce(number: int) -> bytes:
    return number.to_bytes(NONCE_BYTES, "big")


def frames(count: int, of: int) -> list[bytes]:
    """All parts of an answer, as the asking routers see them."""
    answers = Answers()
    answers.begin(INBOX, nonce(of), [bytes([of, part]) for part in range(count)], 0.0)
    found = []
    while due := answers.due(0.0):
        for answer in due:
            found += answer.take(ASKED, 0.0)
    return [ASKED.unwrap(INBOX, frame)[1][1:] for frame in found]


@given(
    count=st.integers(1, 100),
    lost=st.lists(st.integers(0, 99), max_size=3),
    latest=st.integers(0, 3),
)
def test_what_is_taken_is_the_beginning_of_the_latest_answer(count: int, lost: list[int], latest: int) -> None:
    questions = Questions()
    for number in range(latest + 1):
        questions.ask(ASKED.life, nonce(number), 0.0)
    taken: list[bytes] = []
    for of in range(latest + 1):
        for part, body in enumerate(frames(count, of)):
            if part not in lost:
                message = questions.part(ASKED.life, body, 1.0)
                if message is not None:
                    taken.append(message)
    whole = min([count, *lost])
    assert taken == [bytes([latest, part]) for part in range(whole)]
    if 0 < whole < count:
        assert questions.is_stuck(ASKED.life, 2.0)
        assert not questions.is_stuck(ASKED.life, 1.9)
    assert questions.may_ask(ASKED.life, 0.0) == (whole == count), "no router is asked twice within a second"
    assert not questions.is_stuck(b"somebody else", 9.0)


@given(st.lists(st.integers(0, 60), max_size=60))
def test_no_more_than_some_lie_unread(reads: list[int]) -> None:
    answers = Answers()
    answers.begin(INBOX, nonce(1), [b"x"] * 1000, 0.0)
    lying, now, sent = 0, 0.0, 0
    for read in reads:
        now += 0.1
        lying -= min(lying, read)
        for answer in answers.due(now):
            took = len(answer.take(ASKED, now))
            lying += took
            sent += took
            answer.unread = lying
        assert lying <= 128 + 32
    assert sent <= 1000
    assert sent == 1000 or lying > 128 or sent >= 32 * len(reads) - 32 * 5


def test_answer_that_nobody_reads_is_given_up_and_few_are_kept() -> None:
    answers = Answers()
    for inbox in range(100):
        answers.begin(b"%d" % inbox, nonce(1), [b"x"] * 1000, 0.0)
    due = answers.due(0.0)
    assert [answer.inbox for answer in due] == [b"%d" % inbox for inbox in range(36, 100)]
    for answer in due:
        answer.is_asking = True
    assert answers.due(9.0) == []
    for answer in due:
        answer.is_asking = False
    assert answers.due(11.0) == []


def test_answers_under_way_are_bounded_in_bytes() -> None:
    answers = Answers()
    part = bytes(8 << 20)
    for inbox in range(10):
        answers.begin(b"%d" % inbox, nonce(1), [part] * 8, 0.0)
    assert [answer.inbox for answer in answers.due(0.0)] == [b"0", b"1", b"2", b"3"]
    (first, *_) = answers.due(0.0)
    first.take(ASKED, 0.0)
    assert answers.due(0.0)[0].inbox == b"1", "it is sent"
    answers.begin(b"10", nonce(1), [part] * 8, 0.0)
    assert [answer.inbox for answer in answers.due(0.0)] == [b"1", b"2", b"3", b"10"]
    alone = Answers()
    alone.begin(b"large", nonce(1), [part] * 100, 0.0)
    assert [answer.inbox for answer in alone.due(0.0)] == [b"large"], "one is always answered"


def test_new_question_of_the_same_router_ends_the_answer_to_the_one_before() -> None:
    answers = Answers()
    answers.begin(INBOX, nonce(1), [b"x"] * 1000, 0.0)
    answers.begin(INBOX, nonce(2), [b"y"], 0.0)
    (answer,) = answers.due(0.0)
    assert (answer.nonce, list(answer.parts)) == (nonce(2), [b"y"])
