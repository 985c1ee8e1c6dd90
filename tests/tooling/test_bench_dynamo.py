"""The comparison with Dynamo's own router: what its simulator gets and answers, and what the page makes of it."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benches.dynamo import theirs
from benches.dynamo.page import losses, page
from benches.dynamo.play import Cell, Setting, play_ours, unequal
from benches.dynamo.trace import write_mooncake

from cachelb_lab.sim import Workload, build
from cachelb_lab.sim.league import Store
from cachelb_lab.sim.league.traces import opened
from cachelb_lab.sim.workloads import read_mooncake

ROUTER = "Dynamo kv_router"


def blocks(workload: Workload) -> list[list[int]]:
    """Return the blocks of every prompt, numbered by their first appearance."""
    _, first, ids = np.unique(workload.hashes, return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))[ids]
    return [number[begin:end].tolist() for begin, end in pairwise(workload.offsets.astype(int))]


def test_a_workload_is_the_same_when_it_is_read_back(tmp_path: Path) -> None:
    chats = build("chat", seed=1, count=80)
    requests = opened(chats)
    write_mooncake(tmp_path / "trace.jsonl", requests)
    again = read_mooncake(tmp_path / "trace.jsonl", block_size=requests.block_size, id_tokens=requests.block_size)
    assert again.prompt_tokens.tolist() == requests.prompt_tokens.tolist()
    assert again.output_tokens.tolist() == requests.output_tokens.tolist()
    assert again.arrival_s - again.arrival_s[0] == pytest.approx(requests.arrival_s - requests.arrival_s[0], abs=1e-9)
    assert blocks(again) == blocks(requests)
    # Tokens behind the last full block have an id of their own.
    rows = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    tails = [row["hash_ids"][-1] for row in rows if row["input_length"] % requests.block_size]
    elsewhere = {each for row in rows for each in row["hash_ids"][:-1]}
    assert len(set(tails) - elsewhere) == len(tails) > 40
    assert all(len(row["hash_ids"]) == -(-row["input_length"] // requests.block_size) for row in rows)


def test_turns_that_wait_are_rows_of_one_session_and_bear_their_pause(tmp_path: Path) -> None:
    chats = build("chat", seed=1, count=80)
    write_mooncake(tmp_path / "trace.jsonl", chats)
    rows = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    last: dict[str, int] = {}
    for row, table in enumerate(rows):
        assert last.get(table["session_id"], -1) == chats.parent[row]
        assert table.get("timestamp") == (None if chats.parent[row] >= 0 else chats.arrival_s[row] * 1e3)
        assert table.get("delay") == (chats.think_s[row] * 1e3 if chats.parent[row] >= 0 else None)
        last[table["session_id"]] = row
    assert len(last) == (chats.parent < 0).sum() > 10
    # A session has one next turn.
    turn = int(np.flatnonzero(chats.parent >= 0)[0])
    forked = replace(chats, parent=np.where(np.arange(80) == 79, chats.parent[turn], chats.parent))
    with pytest.raises(ValueError, match="loop='open'"):
        write_mooncake(tmp_path / "trace.jsonl", replace(forked, arrival_s=np.where(forked.parent < 0, 0.0, np.nan)))


def test_dynamo_is_asked_for_the_engines_of_the_cell_and_answers_in_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []

    def replay(_files: list[str], **options: Any) -> SimpleNamespace:
        asked.append(options)
        names = [name for name, _ in theirs.FIGURES.values()]
        return SimpleNamespace(summary=dict.fromkeys(names, 500.0) | {"completed_requests": 497})

    fake = ModuleType("dynamo._core")
    vars(fake).update(run_mocker_trace_replay=replay, KvRouterConfig=lambda **options: options)
    monkeypatch.setitem(sys.modules, "dynamo._core", fake)
    cell = Cell(Setting("chat(count=40,block_size=64)", kv_tokens=6_400, unit=8.0, loads=(0.5,)), 0.5)
    job = {"trace": "t", "engine": cell.engine, "workers": 8, "runs": 2, "router": "kv_router"}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({**job, "options": {"router_temperature": 0.5}})))
    theirs.main()
    first, _ = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (first["ttft_p99_s"], first["hit_rate"], first["unserved"]) == (0.5, 500.0, 3)
    assert len(asked) == 2
    assert asked[0]["extra_engine_args"]["engine"]["num_gpu_blocks"] == 100
    assert asked[0]["trace_block_size"] == cell.fleet.workers[0].block_size == 64
    assert asked[0]["router_config"] == {"router_temperature": 0.5}
    assert cell.fleet.workers[0].kv_blocks == 100


def test_kept_runs_are_not_made_again_until_more_seeds_are_asked_for() -> None:
    store = Store()
    cell = Cell(Setting("chat(count=40,block_size=64)"), 1.0)
    one = play_ours(store, cell, "random", [1])
    assert play_ours(store, cell, "random", [1]) is one
    two = play_ours(store, cell, "random", [1, 2])
    assert (one["runs"], two["runs"]) == (1, 2)
    low, high = two["spread"]["ttft_mean_s"]
    assert low < two["figures"]["ttft_mean_s"] < high

    # Another speed or another cache is another cell.
    setting = Setting("chat(count=40,block_size=64)")
    cells = [Cell(setting, 1.0), Cell(setting, 2.0), Cell(replace(setting, kv_tokens=6_400), 1.0)]
    assert len({cell.key for cell in cells}) == 3


def test_round_robin_is_compared_with_turns_by_the_clock_and_answers_are_no_prefixes() -> None:
    waiting = Cell(Setting("chat(count=40,block_size=64,loop=closed)"), 1.0)
    open_loop = Cell(Setting("chat(count=40,block_size=64)"), 1.0)
    assert waiting.key != open_loop.key == waiting.by_the_clock.key == open_loop.by_the_clock.key
    assert (waiting.workload.parent >= 0).any()
    assert not (waiting.by_the_clock.workload.parent >= 0).any()
    assert not len(waiting.workload.output_hashes)
    assert len(build("chat", count=40, block_size=64, seed=1).output_hashes)


def imported(**seconds: float) -> list[dict[str, Any]]:
    """Return rows of one cell, Dynamo's by `add_import`: a mean TTFT each, all other times equal."""
    store = Store()
    facts = {**Cell(Setting("chat(count=40,block_size=64)"), 1.0).facts(), "runs": 3}
    for name, ttft_s in seconds.items():
        times = {"ttft_mean_s": ttft_s, "ttft_p99_s": 2.0, "tpot_mean_s": 0.01, "e2e_mean_s": 3.0, "hit_rate": 0.5}
        spread = {key: [value, value] for key, value in times.items()}
        policy = ROUTER if name == "dynamo" else name.replace("_", "+")
        store.add_import("c1", policy, times, source="test", spread=spread, **facts)
    return store.rows("run")


def test_the_page_has_dynamo_as_a_contender_and_losses_first() -> None:
    rows = imported(dynamo=0.4, adaptive_events=0.5, adaptive=0.3)
    rows[0]["spread"]["e2e_mean_s"] = [2.5, 3.5]
    text = page(rows, ROUTER, [(rows[1], rows[0])], "a machine")
    assert "- chat x1: TTFT mean, ms, 1.250 times: 500 over seeds against 400 over runs" in text
    assert "In no cell, by no time." in text  # adaptive, without events
    assert text.index("loses to") < text.index("## All figures") < text.index("## As a league")
    assert "| **Dynamo kv_router** | 400 | 2,000 | 10.0 | 3,000 | 50.0% |" in text
    assert "Runs of Dynamo: TTFT mean, ms 400; p99, ms 2,000; TPOT, ms 10.0; E2E, ms 2,500 to 3,500." in text
    assert "| adaptive+events | 500 (1.25) | 2,000 (1.00) |" in text
    assert "| Dynamo kv_router | 1.33 (1.33) |" in text


def test_losses_are_worst_first_and_ties_are_none() -> None:
    rows = imported(dynamo=0.4, adaptive=0.4)
    rows[1]["figures"] |= {"ttft_p99_s": 2.2, "e2e_mean_s": 6.0}
    lost = [(round(ratio, 2), figure) for ratio, figure, _, _ in losses(rows, "adaptive", ROUTER)]
    assert lost == [(2.0, "e2e_mean_s"), (1.1, "ttft_p99_s")]


def test_engines_that_differ_are_named() -> None:
    one, other = imported(dynamo=0.4, adaptive=0.41)
    assert unequal(other, one) == ["ttft_mean_s 0.41 here, 0.4 in Dynamo"]
    assert not unequal(one, one)
