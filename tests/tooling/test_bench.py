"""`python -m benches.structures`: the same work for every contender, and wrong answers are counted."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import takewhile
from operator import eq
from typing import Any

import pytest
from benches.compare.contenders.nested_maps import NestedMaps
from benches.structures import measure, running
from benches.structures.__main__ import main
from benches.structures.indexes import OWN, Blocks, Index
from benches.structures.measures import answers, events, matching, memory, selecting, threads
from benches.structures.prompts import BLOCK, WORKERS, Contender, Prompt, Truth, prompts
from benches.structures.streams import CHAIN, STEP, Stream, name
from benches.structures.streams import WORKERS as ENGINES
from benches.structures.timing import in_turns
from click.testing import CliRunner


def test_prompts_share_the_beginning_of_their_family_alone() -> None:
    given = prompts(40, 64, seed=5, share=0.5)
    assert [len(prompt.tokens) for prompt in given] == [64] * 40
    assert given[0].tokens[:32] == given[16].tokens[:32] != given[1].tokens[:32]
    assert len({tuple(prompt.tokens) for prompt in given}) == 40
    assert given[0].tokens[32] != given[16].tokens[32]
    assert given[3].array.tolist() == given[3].tokens
    assert prompts(3, 64, seed=5) == prompts(3, 64, seed=5) != prompts(3, 64, seed=6)


def test_the_model_equals_a_comparison_token_by_token() -> None:
    draw = random.Random(1)
    held: list[tuple[list[int], int]] = []
    truth = Truth()
    for _ in range(60):
        blocks = [draw.randrange(2) for _ in range(3)]
        prompt = Prompt([token for token in blocks for _ in range(BLOCK)])
        common = [(len(list(takewhile(bool, map(eq, blocks, other)))), worker) for other, worker in held]
        best = max((depth for depth, _ in common), default=0)
        holders = {worker for depth, worker in common if depth == best > 0}
        assert truth.best(prompt) == (best, frozenset(holders))
        held.append((blocks, draw.randrange(4)))
        truth.record(prompt, held[-1][1])


@pytest.mark.parametrize("make", [*OWN, NestedMaps], ids=lambda make: make.name)
def test_indexes_answer_like_the_model(make: type[Index]) -> None:
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
        assert holders == truly or make is not NestedMaps


class Liar(Blocks):
    """Names a worker that holds nothing."""

    name, excess = "liar", 0

    def best(self, answer: dict[str, int]) -> tuple[int, frozenset[int]]:
        blocks, holders = super().best(answer)
        return blocks + self.excess, holders if self.excess else frozenset({WORKERS + 1})


class Generous(Liar):
    """Credits a block too many."""

    name, excess = "generous", 1


def test_wrong_answers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "LENGTHS", (128,))
    monkeypatch.setattr(matching, "_HELD_TOKENS", 10_000)
    rows = {row.contender: row for row in matching.measure(16, [Blocks, Liar, Generous]) if row.task == "match/128"}
    assert {name: row.wrong for name, row in rows.items()} == {"cachelb": 0, "liar": 16, "generous": 16}
    assert rows["cachelb"].answers == 16


def test_known_cases_are_answered_rightly_and_wrong_ones_are_listed() -> None:
    def deep(case: answers.Case) -> int:
        if any(step[0] == "remove" for step in case.steps):
            raise KeyError(case.name)
        return len(case.asked)

    own, other = answers.measure(8, {"deep": deep})
    assert (own.contender, own.wrong, own.answers, own.note) == ("cachelb", 0, 8, "")
    assert (other.contender, other.wrong) == ("deep", 7)
    assert "a hole: KeyError instead of 2; an unknown parent: 4 instead of 2" in other.note


def test_contenders_take_turns() -> None:
    calls: list[tuple[str, int]] = []
    times = in_turns({"a": lambda i: calls.append(("a", i)), "b": lambda i: calls.append(("b", i))}, 10)
    assert calls == [(name, i) for turn in (range(8), range(8, 10)) for name in "ab" for i in turn]
    assert [len(times[name]) for name in "ab"] == [10, 10]


def test_the_command_prints_a_table_and_json() -> None:
    command = ["--task", "hashing", "--task", "answers", "--calls", "8"]
    run = CliRunner().invoke(main, [*command, "--json"])
    report: dict[str, Any] = json.loads(run.stdout)
    assert {row["task"] for row in report["rows"]} == {"hash/512", "hash/2048", "hash/32768", "answers"}
    assert {row["contender"] for row in report["rows"]} == {"cachelb", "cachelb, numpy"}
    assert all(row["p50"] > 0 for row in report["rows"] if row["unit"] == "us")
    assert set(report["versions"]) == {"cachelb", "numpy"}
    run = CliRunner().invoke(main, command)
    assert run.exit_code == 0
    assert "hash/32768" in run.stdout
    assert "0 of 8" in run.stdout


def test_tasks_without_the_extra_testing_are_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (running, answers, events):
        monkeypatch.setattr(module, "can_write_events", lambda: False)
    report = measure(["answers", "events"], calls=8)
    assert (report.rows, report.missing) == ([], ["cachelb-fakes"])
    assert measure(["hashing"], calls=8).missing == []


def test_bad_arguments_name_the_right_ones() -> None:
    with pytest.raises(ValueError, match="there is no task 'speed'; choose of hashing, matching, selecting, events"):
        measure(["speed"])
    with pytest.raises(ValueError, match="calls must be at least 8, got 7"):
        measure(["hashing"], calls=7)


def test_decisions_and_memory_are_measured_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    def other(given: Sequence[Prompt], stack: ExitStack) -> Contender:
        stack.callback(closed.append, len(given))
        return Contender("other", lambda prompt: prompt.tokens[0], "looks")

    monkeypatch.setattr(selecting, "LENGTHS", (128,))
    rows = list(selecting.measure(8, other))
    assert {row.task for row in rows} == {"select/128"}
    assert [row.contender for row in rows] == ["cachelb", "cachelb, numpy", "other"]
    assert (rows[2].note, closed) == ("looks", [256])
    (row,) = memory.measure(8, [Blocks])
    assert row.contender == "cachelb"
    assert row.p50 > 8, "an index keeps at least the hash of a block"


def test_engines_evict_the_oldest_prompt_from_its_end() -> None:
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


def test_events_are_applied_and_compared_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "Stream", lambda messages: Stream(messages, held=1))
    applied, selected = events.measure(8)
    assert (applied.task, applied.wrong, applied.answers) == ("events/apply", 0, 16)
    assert (selected.task, selected.unit) == ("events/select", "us")
    send = events.EventRouter.send

    def forget(self: events.EventRouter, number: int, worker: int, encoded: bytes) -> None:
        send(self, number, worker, encoded.replace(b"BlockRemoved", b"BlockIgnored"))

    monkeypatch.setattr(events.EventRouter, "send", forget)
    assert (next(events.measure(8)).wrong or 0) > 0


def test_threads_share_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "THREADS", (1, 3))
    names = [(row.task, row.contender, row.p50 > 0) for row in threads.measure(8, [Blocks])]
    contenders = ("cachelb: match", "cachelb")
    assert names == [(f"threads/{count}", contender, True) for count in (1, 3) for contender in contenders]
