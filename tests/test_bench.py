"""`cachelb bench`: what it measures is the same work for all, and it notices a wrong answer."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from cachelb.bench import compare, rivals
from cachelb.bench.comparing import TASKS
from cachelb.bench.measures import answers, events, matching, threads
from cachelb.bench.prompts import BLOCK, WORKERS, Prompt, Truth, prompts
from cachelb.bench.rivals.nested_maps import NestedMaps
from cachelb.bench.rivals.own import Arrays, Blocks, Text
from cachelb.bench.rows import times
from cachelb.bench.streams import CHAIN, STEP, Stream, name
from cachelb.bench.streams import WORKERS as ENGINES
from cachelb.bench.timing import in_turns
from cachelb.cli.app import app

if TYPE_CHECKING:
    from cachelb.bench.rivals.index import Index

OWN: list[type[Index]] = [Blocks, Arrays, Text, NestedMaps]


def test_prompts_share_what_they_say_and_no_more() -> None:
    given = prompts(40, 64, seed=5, share=0.5)
    assert [len(prompt.tokens) for prompt in given] == [64] * 40
    assert given[0].tokens[:32] == given[16].tokens[:32] != given[1].tokens[:32]
    assert len({tuple(prompt.tokens) for prompt in given}) == 40
    assert given[0].tokens[32] != given[16].tokens[32]
    assert given[3].array.tolist() == given[3].tokens
    assert prompts(3, 64, seed=5) == prompts(3, 64, seed=5) != prompts(3, 64, seed=6)


def test_truth_is_what_comparing_token_by_token_says() -> None:
    draw = random.Random(1)
    held: list[tuple[list[int], int]] = []
    truth = Truth()
    for _ in range(60):
        tokens = [draw.randrange(2) for _ in range(3)]
        prompt = Prompt([token for token in tokens for _ in range(BLOCK)])
        best = max((_common(prompt.tokens, other) for other, _ in held), default=0)
        holders = {worker for other, worker in held if _common(prompt.tokens, other) == best and best}
        assert truth.best(prompt) == (best, frozenset(holders))
        worker = draw.randrange(4)
        truth.record(prompt, worker)
        held.append((prompt.tokens, worker))


def _common(one: list[int], other: list[int]) -> int:
    blocks = 0
    while blocks < len(one) // BLOCK and one[: (blocks + 1) * BLOCK] == other[: (blocks + 1) * BLOCK]:
        blocks += 1
    return blocks


@pytest.mark.parametrize("make", OWN, ids=lambda make: make.name)
def test_contenders_answer_the_truth(make: type[Index]) -> None:
    index, truth = make(), Truth()
    for i, prompt in enumerate(prompts(80, 128, seed=2)):
        index.record(prompt, i % WORKERS)
        truth.record(prompt, i % WORKERS)
    for prompt in prompts(80, 128, seed=2)[::7] + prompts(3, 128, seed=3):
        blocks, holders = index.best(index.match(prompt))
        depth, truly = truth.best(prompt)
        assert blocks == depth
        assert holders <= truly
        assert bool(holders) == bool(depth)


class Liar(Blocks):
    """Names a worker that holds nothing."""

    name = "liar"

    def best(self, answer: dict[str, int]) -> tuple[int, frozenset[int]]:
        return super().best(answer)[0], frozenset({WORKERS + 1})


class Generous(Blocks):
    """Credits a block too many."""

    name = "generous"

    def best(self, answer: dict[str, int]) -> tuple[int, frozenset[int]]:
        blocks, holders = super().best(answer)
        return blocks + 1, holders


def test_wrong_answers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "available", lambda: [Blocks, Liar, Generous])
    monkeypatch.setattr(matching, "LENGTHS", (128,))
    monkeypatch.setattr(matching, "_HELD_TOKENS", 10_000)
    rows = {row.contender: row for row in matching.measure(16) if row.task == "match/128"}
    assert {name: row.wrong for name, row in rows.items()} == {"cachelb": 0, "liar": 16, "generous": 16}
    assert rows["cachelb"].answers == 16


def test_known_cases_are_answered_rightly() -> None:
    own = next(row for row in answers.measure(8) if row.contender == "cachelb")
    assert (own.wrong, own.answers, own.note) == (0, 8, "")


def test_contenders_take_turns() -> None:
    calls: list[tuple[str, int]] = []
    times = in_turns({"a": lambda i: calls.append(("a", i)), "b": lambda i: calls.append(("b", i))}, 10)
    assert calls == [(name, i) for turn in (range(8), range(8, 10)) for name in "ab" for i in turn]
    assert [len(times[name]) for name in "ab"] == [10, 10]


def test_who_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "is_here", lambda module: module == "cachelb")
    assert [make.name for make in rivals.available()] == [make.name for make in OWN]
    assert rivals.missing() == ["ai-dynamo-runtime", "ray[serve,llm]", "production-stack's vllm_router", "litellm"]


def test_the_command_prints_tables_and_json() -> None:
    runner = CliRunner()
    run = runner.invoke(app, ["bench", "--task", "hashing", "--task", "answers", "--calls", "8", "--json"])
    report: dict[str, Any] = json.loads(run.stdout)
    assert {row["task"] for row in report["rows"]} == {"hash/512", "hash/2048", "hash/32768", "answers"}
    assert all(row["p50"] > 0 for row in report["rows"] if row["unit"] == "us")
    assert report["versions"]["cachelb"]
    run = runner.invoke(app, ["bench", "--task", "hashing", "--calls", "8"])
    assert run.exit_code == 0
    assert "hash/32768" in run.stdout
    assert "cachelb, numpy" in run.stdout


def test_bad_arguments_name_what_is_right() -> None:
    with pytest.raises(ValueError, match="there is no task 'speed'; choose of hashing, matching, selecting"):
        compare(["speed"])
    with pytest.raises(ValueError, match="calls must be at least 8, got 7"):
        compare(["hashing"], calls=7)
    assert TASKS == ("hashing", "matching", "selecting", "events", "threads", "memory", "answers")


def test_whole_decisions_and_memory_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    from cachelb.bench.measures import memory, selecting

    monkeypatch.setattr(selecting, "LENGTHS", (128,))
    monkeypatch.setattr(selecting, "is_here", lambda _module: False)
    names = [(row.task, row.contender) for row in selecting.measure(8)]
    assert names == [("select/128", "cachelb"), ("select/128", "cachelb, numpy")]
    monkeypatch.setattr(memory, "available", lambda: [Blocks])
    rows = list(memory.measure(8))
    # An index keeps at least the hash of a block.
    assert [row.contender for row in rows] == ["cachelb"]
    assert rows[0].p50 > 8


def test_engines_forget_the_oldest_from_its_end_and_no_more_than_they_have_no_room_for() -> None:
    parts = CHAIN // STEP
    stream = Stream(ENGINES * parts * 6 + 3, held=2)
    held: dict[int, list[int]] = {worker: [] for worker in range(ENGINES)}
    for message in stream.messages:
        blocks = held[message.worker]
        for gone in message.removed:
            blocks.remove(gone)
        assert message.parent is None or message.parent in blocks
        blocks += message.stored
        assert len(blocks) <= 2 * CHAIN
        assert len(message.tokens) == 16 * len(message.stored)
    truth = stream.truth()
    for chain in stream.chains():
        names = range(name(chain), name(chain) + CHAIN)
        for worker, depth in truth.overlaps(chain).items():
            assert set(names[:depth]) <= set(held[worker])
            assert depth == CHAIN or names[depth] not in held[worker]
    # Every prompt comes to two workers, and what is left of the oldest is its beginning.
    assert truth.overlaps(0) == {}
    assert sorted(truth.overlaps(2 * ENGINES + 4).values()) == [CHAIN, CHAIN]
    assert sorted(truth.overlaps(2 * ENGINES).values()) == [CHAIN - STEP, CHAIN]


def test_events_are_followed_rightly_over_sockets_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from cachelb.bench.rivals import feeds

    class Deaf(feeds.Own):
        """Forgets to remove."""

        name = "deaf"

        def send(self, number: int, worker: int, encoded: bytes) -> None:
            super().send(number, worker, encoded.replace(b"BlockRemoved", b"BlockIgnored"))

    monkeypatch.setattr(feeds, "FEEDS", (feeds.Own, feeds.OwnOverZmq, Deaf))
    monkeypatch.setattr(events, "ROUNDS", 1)
    monkeypatch.setattr(events, "_SHARES", (0.5,))
    monkeypatch.setattr(events, "Stream", lambda messages: Stream(messages, held=1))
    rows = {(row.task, row.contender): row for row in events.measure(8)}
    overload = [rows["events/overload", contender] for contender in ("cachelb", "cachelb over ZeroMQ", "deaf")]
    assert [row.wrong for row in overload[:2]] == [0, 0]
    assert (overload[2].wrong or 0) > 0
    assert all(row.answers == 16 and row.p50 > 0 for row in overload)
    kept = rows["events/keep-up", "cachelb"]
    assert kept.wrong == 0
    assert kept.p50 <= overload[0].p50
    assert rows["events/lookup", "cachelb"].unit == "us"


def test_threads_share_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "available", lambda: [Blocks])
    monkeypatch.setattr(threads, "THREADS", (1, 3))
    names = [(row.task, row.contender, row.p50 > 0) for row in threads.measure(8)]
    contenders = ("cachelb: match", "cachelb")
    assert names == [(f"threads/{count}", contender, True) for count in (1, 3) for contender in contenders]


def test_rates_are_turned_round_to_say_how_much_somebody_costs() -> None:
    assert times(30.0, 10.0, "us") == 3.0
    assert times(10.0, 30.0, "blocks/s") == 3.0
    assert times(0.0, 30.0, "blocks/s") is None
    assert times(3.0, 0.0, "wrong") is None
