"""Leagues: the table against an obvious computation, runs kept and resumed, halves of traces, capacity, the command."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from tests.commands import app
from tests.models import league_table

from cachelb.common.calls import split_list
from cachelb_lab.sim import FleetSpec, build, simulate
from cachelb_lab.sim.contender import KV_EVENTS, ORACLE, POOL_BLIND, Contender
from cachelb_lab.sim.league import COMPARED, REALISM, League, Row, Standings, Store, Trace, as_dict, markdown, play
from cachelb_lab.sim.league.capacity import capacity
from cachelb_lab.sim.league.traces import fingerprint, part_of, roots

SMALL = League(("chat(count=150)", "rag(count=150)"), ("2xl40s",), loads=(0.5, 0.9), seeds=(1, 2))
POLICIES = ["cache-aware", "prefill-times-batch(crowding=1)+events", "round-robin"]

# === the table ===

NAMED = ["a", "b", "c+oracle"]
TIMES = st.one_of(st.none(), st.floats(0, 1e4, allow_subnormal=False))
RUNS = st.fixed_dictionaries(
    {
        **{figure.name: TIMES for figure in COMPARED if not figure.of},
        "unserved": st.integers(0, 2),
        "requests": st.just(100),
        "preemptions": st.integers(0, 50),
    }
)
TABLES = st.dictionaries(st.tuples(st.sampled_from(["w", "x", "y", "z"]), st.sampled_from(NAMED)), RUNS, min_size=1)


def standings(table: dict[tuple[str, str], dict[str, Any]]) -> Standings:
    return Standings([Row(cell, {"load": cell}, policy, figures) for (cell, policy), figures in table.items()])


@given(TABLES)
def test_ratios_and_scores_are_those_of_the_obvious_computation(table: dict[tuple[str, str], dict[str, Any]]) -> None:
    found = standings(table)
    scores = {score.policy: score for score in found.scores()}
    assert set(scores) == {policy for _, policy in table}
    for policy, score in scores.items():
        cells = [cell for cell, of in table if of == policy]
        assert score.cells == len(cells)
        for figure in COMPARED:
            expected = league_table.ratios_of(table, policy, figure.name, figure.floor)
            assert found.ratios(policy, figure) == pytest.approx(expected)
            ratio = score.figures[figure.name]
            if not expected:
                assert ratio is None
                continue
            assert ratio is not None
            assert ratio.mean == pytest.approx(league_table.geometric_mean(list(expected.values())))
            assert ratio.worst == pytest.approx(max(expected.values()))
            assert expected[ratio.worst_cell["load"]] == pytest.approx(ratio.worst)
        ttft = league_table.ratios_of(table, policy, "ttft_mean_s", 1e-3)
        assert score.near == (sum(ratio <= 1.03 for ratio in ttft.values()) / len(ttft) if ttft else 0)
        assert score.unserved == sum(table[cell, policy]["unserved"] for cell in cells)
    order = [score.figures["ttft_mean_s"] for score in found.scores()]
    means = [math.inf if ratio is None else ratio.mean for ratio in order]
    assert means == sorted(means)
    json.dumps(as_dict(found), allow_nan=False)
    assert markdown(found).count("\n| ") >= len(scores)


def test_best_of_a_cell_served_most_and_is_no_oracle() -> None:
    table = {
        ("w", "a"): {"ttft_mean_s": 0.1, "unserved": 3},
        ("w", "b"): {"ttft_mean_s": 0.4, "unserved": 0},
        ("w", "c+oracle"): {"ttft_mean_s": 0.2, "unserved": 0},
    }
    found = standings(table)
    assert {policy: found.ratios(policy, COMPARED[0])["w"] for _, policy in table} == pytest.approx(
        {"a": 0.25, "b": 1.0, "c+oracle": 0.5}
    )
    assert {score.policy: score.behind for score in found.scores()} == {"a": 1, "b": 0, "c+oracle": 0}
    assert "| 3* |" in markdown(found)


def test_runs_from_before_a_figure_was_kept_have_no_ratio_of_it() -> None:
    mean, p50 = COMPARED[:2]
    old, new, unserved = {mean.name: 0.2}, {mean.name: 0.4, p50.name: 0.3}, {mean.name: None, p50.name: None}
    found = standings({("w", "old"): old, ("w", "new"): new, ("w", "unserved"): unserved})
    assert [found.ratios(policy, p50) for policy in ("old", "new", "unserved")] == [{}, {"w": 1.0}, {"w": math.inf}]
    assert found.ratios("old", mean) == {"w": 1.0}


def test_balanced_is_the_mean_of_its_ratios_where_a_run_has_all_of_them() -> None:
    balanced = COMPARED[-1]
    whole = {"ttft_p50_s": 0.2, "ttft_mean_s": 0.2, "ttft_p99_s": 0.4, "e2e_mean_s": 1.0}
    found = standings({("w", "a"): whole, ("w", "b"): {**whole, "ttft_p50_s": 3.2}, ("x", "a"): {"ttft_mean_s": 0.1}})
    assert found.ratios("a", balanced) == {"w": 1.0}
    assert found.ratios("b", balanced) == {"w": pytest.approx(2.0)}


def test_open_loops_have_no_time_of_sessions() -> None:
    store = Store()
    traces = tuple(f"chat(count=150,loop={loop})" for loop in ("open", "closed"))
    play(replace(SMALL, traces=traces, seeds=(1,)), ["round-robin"], store=store)
    kept = {row["trace"]: row["figures"]["session_mean_s"] for row in store.rows("run")}
    assert kept["chat(count=150)"] is None
    assert kept["chat(count=150,loop=closed)"] > 1


def test_rows_are_read_while_others_are_added() -> None:
    store = Store()

    def add() -> None:
        for number in range(20_000):
            store.add("run", str(number), {"number": number})

    with ThreadPoolExecutor(1) as pool:
        adding = pool.submit(add)
        while not adding.done():
            found = [row["number"] for row in store.rows("run")]
            assert found == list(range(len(found)))
    assert len(store.rows("run")) == 20_000


def test_values_below_the_floor_are_equal() -> None:
    found = standings({("w", "a"): {"ttft_mean_s": 1e-9}, ("w", "b"): {"ttft_mean_s": 9e-4}})
    assert found.ratios("b", COMPARED[0]) == {"w": 1.0}


def test_preemptions_count_above_the_least_of_the_cell() -> None:
    runs = {"a": 4, "b": 10}
    found = standings({("w", policy): {"preemptions": count, "requests": 100} for policy, count in runs.items()})
    assert {score.policy: score.preempted for score in found.scores()} == {"a": 0.0, "b": 0.06}


# === runs ===


def test_stopped_league_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    found = play(SMALL, POLICIES, store=Store(whole), threads=2)
    lines = whole.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 2 + 2 * 2 * 2 * len(POLICIES)
    for kept in (1, 2, 3, 11, len(lines) - 1):
        file = tmp_path / f"stopped-{kept}.jsonl"
        file.write_bytes(b"".join(lines[:kept]) + lines[kept][: len(lines[kept]) // 2])
        assert as_dict(play(SMALL, POLICIES, store=Store(file))) == as_dict(found)
        assert file.read_bytes() == whole.read_bytes()


def test_new_policy_adds_its_runs_alone(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    play(SMALL, POLICIES[:1], store=Store(file))
    before = file.read_bytes()
    found = play(SMALL, POLICIES, store=Store(file))
    assert file.read_bytes().startswith(before)
    assert as_dict(found) == as_dict(play(SMALL, POLICIES))
    store = Store(file)
    store.forget(["round-robin"])
    assert {row["policy"] for row in Store(file).rows("run")} == set(POLICIES[:2])
    assert len(Store(file).rows("capacity")) == 2


def test_runs_are_those_of_simulate(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.jsonl")
    play(replace(SMALL, loads=(0.9,), seeds=(2,)), ["prefill-times-batch(crowding=1)"], store=store)
    speeds = {row["trace"]: row["speed"] for row in store.rows("capacity")}
    assert len(store.rows("run")) == 2
    for row in store.rows("run"):
        requests = Trace.parse(row["trace"]).requests(2).speed_up(0.9 * speeds[row["trace"]])
        alone = simulate(requests, FleetSpec.parse("2xl40s"), "prefill-times-batch", seed=2, crowding=1.0)
        assert row["figures"]["ttft_mean_s"] == float(alone.ttft_s.mean())
        assert row["figures"]["e2e_mean_s"] == float(alone.e2e_s.mean())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"timestamp": 0}\n', "is not a file of league runs"),
        (b"garbage", "is not a file of league runs"),
        (b'{"format": "cachelb-league", "version": 9}\n', "version 9 of league runs, this cachelb reads 1"),
        (b'{"format": "cachelb-league", "version": 1}\n{"kind": 3}\n', "runs.jsonl:2: damaged"),
    ],
)
def test_other_files_are_refused_and_left_alone(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Store(file)
    assert file.read_bytes() == content


def test_runs_from_elsewhere_take_part() -> None:
    store = Store()
    league = replace(SMALL, loads=(0.5,), seeds=(1,))
    play(league, POLICIES, store=store)
    for cell in {row["cell"] for row in store.rows("run")}:
        store.add_import(cell, "other", {"ttft_mean_s": 0.002, "unserved": 0}, source="another router")
    store.add_import("no cell of this league", "stranger", {"ttft_mean_s": 0.002}, source="another router")
    found = play(league, POLICIES, store=store)
    assert found.policies == (*POLICIES, "other")
    first, *rest = found.scores()
    assert (first.policy, first.near) == ("other", 1.0)
    assert all(score.near == 0.0 for score in rest)
    with pytest.raises(ValueError, match=r"no figure 'ttft'; did you mean"):
        store.add_import("c", "other", {"ttft": 1.0}, source="another router")


# === halves ===


@pytest.mark.parametrize("name", ["chat", "agent", "rag"])
def test_halves_are_disjoint_complete_and_keep_sessions_whole(name: str) -> None:
    workload = build(name, seed=3, count=400)
    halves = [part_of(workload, part) for part in ("develop", "report")]
    assert sum(map(len, halves)) == len(workload)
    assert all(80 < len(half) < 320 for half in halves)
    lengths = np.concatenate([half.prompt_tokens for half in halves])
    assert sorted(lengths) == sorted(workload.prompt_tokens)
    if workload.session is None:
        assert np.nanmax(halves[0].arrival_s) <= np.nanmin(halves[1].arrival_s)
    else:
        sessions = [set(half.session or ()) for half in halves]
        assert not sessions[0] & sessions[1]
    assert part_of(workload, "all") is workload


def test_session_is_in_the_same_half_whatever_else_the_trace_has() -> None:
    def develop(count: int) -> set[str]:
        return set(part_of(build("chat", seed=1, count=count), "develop").session or ())

    few, many = develop(100), develop(400)
    assert few
    assert few == many & set(build("chat", seed=1, count=100).session or ())


def test_requests_without_session_follow_their_root() -> None:
    chats = replace(build("chat", seed=1, count=200), session=None)
    root = roots(chats)
    assert (chats.parent[root] < 0).all()
    halves = [part_of(chats, part) for part in ("develop", "report")]
    assert sum(map(len, halves)) == 200
    assert sum(int((half.parent >= 0).sum()) for half in halves) == int((chats.parent >= 0).sum())


# === traces, capacity, realism ===


def test_open_loop_offers_the_same_arrivals_and_closed_loop_waits() -> None:
    opened, closed = (Trace.parse(f"chat(count=100,loop={loop})").requests(1) for loop in ("open", "closed"))
    assert (opened.parent < 0).all()
    assert (closed.parent >= 0).any()
    assert sorted(opened.prompt_tokens) == sorted(closed.prompt_tokens)
    assert np.nanmin(opened.arrival_s) == np.nanmin(closed.arrival_s) == 0


def test_copies_share_what_sessions_share_and_nothing_else(tmp_path: Path) -> None:
    turn = {"turn": 0, "offset_ms": 0, "input_length": 48, "output_length": 5}
    file = tmp_path / "sessions.jsonl"
    rows = [{**turn, "session_id": f"s{nth}", "hash_ids": [0, 100 + nth, 200 + nth]} for nth in range(12)]
    file.write_text("\n".join(map(json.dumps, rows)))
    once, thrice = (Trace.parse(f"{file}(copies={copies})") for copies in (1, 3))
    assert (once.label, thrice.label) == ("sessions", "sessions(copies=3)")
    with pytest.raises(ValueError, match="part 'all' has 12 requests, at least 30 are needed"):
        once.requests(1)
    requests = thrice.requests(1)
    assert (len(requests), len(set(requests.session or ()))) == (36, 36)
    blocks = np.stack([requests.prompt(row) for row in range(36)])
    assert [len(set(column)) for column in blocks.T] == [1, 36, 36]
    assert len(set(requests.arrival_s)) == 36
    halves = [thrice._read(1), *(part_of(thrice._read(1), part) for part in ("develop", "report"))]
    assert len(halves[0]) == len(halves[1]) + len(halves[2]) == 12
    with pytest.raises(ValueError, match="copies is for files with sessions"):
        Trace.parse("chat(copies=2)")


def test_label_has_no_folder_and_keeps_options(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl.xz"
    build("rag", seed=1, count=60).save(file)
    trace = Trace.parse(f"{file}(limit=50,jitter=2)")
    assert trace.label == "mine(limit=50,jitter=2)"
    one, other = trace.requests(1), trace.requests(2)
    assert len(one) == 50
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(trace.requests(1))


def test_capacity_is_deterministic_and_grows_with_the_fleet() -> None:
    chats = Trace.parse("rag(count=400)").requests(1)
    found = [capacity(chats, FleetSpec.parse(f"{count}xl40s")) for count in (1, 2, 4, 8)]
    assert found == sorted(set(found))
    assert found[1] == capacity(chats, FleetSpec.parse("2xl40s"))
    assert capacity(chats, FleetSpec.parse("2xl40s", mfu=0.5)) < found[1]


def test_load_is_a_share_of_what_the_fleet_keeps_up_with() -> None:
    store = Store()
    play(replace(SMALL, traces=("rag(count=600)",), loads=(0.5, 1.5), seeds=(1,)), ["cache-aware"], store=store)
    half, over = (row["figures"]["ttft_mean_s"] for row in store.rows("run"))
    assert over > 4 * half


# Events replayed 50 ms later change no decision here, and no policy goes by the cached tokens of answers yet.
@pytest.mark.parametrize(
    "name", [name for name in REALISM if name not in ("none", "events-replayed", "cached-unknown")]
)
def test_every_switch_changes_a_run(name: str) -> None:
    store = Store()
    fleet = "2xl40s:tp2" if name == "tensor-parallel-loss" else "3xl40s"
    league = League(("chat(count=300)",), (fleet,), loads=(0.9,), realism=("none", name))
    play(league, ["overlap-cost+events", "least-expected-wait"], store=store)
    figures: dict[str, list[Any]] = {}
    for row in store.rows("run"):
        figures.setdefault(row["policy"], []).append(row["figures"])
    assert any(undisturbed != disturbed for undisturbed, disturbed in figures.values())


def test_each_switch_is_part_of_a_key() -> None:
    cell = SMALL.cells()[0]
    signals: list[dict[str, Any]] = [
        *({"report_queued_tokens": False}, {"report_cached_tokens": False}, {"first_token_delay_s": 0.25}),
        *({"sharing_lag_s": 0.5}, {"decision_s": 0.001}),
    ]
    changes: list[dict[str, Any]] = [{}, {"sharing": True}, {"all_reduce": True}]
    changes += [{"signals": replace(cell.realism.signals, **each)} for each in signals]
    realisms = [replace(cell.realism, **change) for change in changes]
    keys = [replace(cell, realism=each).key("requests", cell.workers(16), 1.0) for each in realisms]
    assert len(set(keys)) == 8


def test_cold_worker_has_nothing_before_it_joins() -> None:
    chats = build("rag", seed=1, count=200)
    span_s = float(chats.arrival_s.max())
    cold = REALISM["cold-worker"].incidents_in(span_s)
    result = simulate(chats, FleetSpec.parse("3xl40s"), "round-robin", incidents=cold)
    assert result.finished.all()
    joined = result.arrival_s[result.worker == 0]
    assert span_s / 3 <= joined.min() < span_s / 3 + 5


def test_bursts_keep_requests_and_rate() -> None:
    even = build("rag", seed=1, count=300)
    burst = REALISM["bursts"].disturbed(even)
    assert len(np.unique(burst.arrival_s)) <= 21
    assert abs(burst.arrival_s - even.arrival_s).max() < even.arrival_s.max() * 15 / 299
    assert np.array_equal(burst.hashes, even.hashes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"traces": ("chatt",)}, r"trace 'chatt' is neither a file nor a generator; did you mean 'chat'"),
        ({"traces": ("chat(loop=half)",)}, r"loop must be one of open, closed, got 'half'"),
        ({"traces": ("chat(count)",)}, r"cannot read 'count' in 'chat\(count\)'; write NAME\(KEY=VALUE"),
        ({"traces": ("chat(count=20)",)}, r"has 20 requests, at least 30 are needed"),
        ({"traces": ("chat", "chat")}, r"traces must be at least one, each once"),
        ({"fleets": ("2xl41s",)}, r"no GPU 'l41s'"),
        ({"loads": (0.0,)}, r"loads must be above 0, got 0.0"),
        ({"loads": ()}, r"loads must be at least one"),
        ({"realism": ("crashes",)}, r"no realism 'crashes'; did you mean 'crash'"),
        ({"part": "half"}, r"part must be one of all, develop, report, got 'half'"),
    ],
)
def test_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        play(replace(SMALL, **settings), ["random"])


@pytest.mark.parametrize(
    ("policies", "error", "message"),
    [
        (["cache-awar"], ValueError, "did you mean 'cache-aware'"),
        (["cache-aware(crowd=1)"], TypeError, "crowd"),
        (["cache-aware+event"], ValueError, "there is no policy|cannot read policy"),
        ([], ValueError, "policies must be at least one"),
    ],
)
def test_wrong_policy_is_named(policies: Sequence[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        play(SMALL, policies)


OPTIONS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True),
    st.one_of(st.integers(-99, 99), st.floats(-9, 9), st.booleans(), st.none(), st.sampled_from(["x", "least-loaded"])),
    max_size=3,
)


ENDINGS = ["", KV_EVENTS, POOL_BLIND, ORACLE]
CONTENDERS = st.builds(Contender, st.sampled_from(["a", "b-c"]), OPTIONS, st.sampled_from(ENDINGS))


@given(st.lists(CONTENDERS, min_size=1))
def test_short_form_of_policies_is_read_back(policies: list[Contender]) -> None:
    assert [Contender.parse(text) for text in split_list(", ".join(map(str, policies)))] == policies


# === the command and the picture ===


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["league", *map(str, arguments)], prog_name="cachelb")


TINY = ("chat(count=120)", "--fleet", "2xl40s", "--loads", "0.6,0.9", "--policy", "cache-aware,round-robin")
ONE = ("--seeds", 1)


def test_command_prints_tables_documents_and_a_picture(tmp_path: Path) -> None:
    store, picture = tmp_path / "runs.jsonl", tmp_path / "league.svg"
    printed = run(*TINY, "--quick", "--store", store, "--svg", picture)
    assert printed.exit_code == 0, printed.output
    assert "2 cells. Ratios to the best policy of each cell" in printed.stdout
    assert "TTFT mean by load" in printed.stdout
    assert picture.read_text("utf-8").count("geometric mean") == 1
    kept = store.read_bytes()
    document = run(*TINY, *ONE, "--store", store, "--json", "--threads", 1)
    assert document.exit_code == 0, document.output
    assert json.loads(document.stdout)["cells"] == 2
    assert [len(group["scores"]) for group in json.loads(document.stdout)["groups"]["load"]] == [2, 2]
    assert store.read_bytes() == kept
    assert run(*TINY, *ONE, "--json").stdout == document.stdout
    assert "| cache-aware |" in run(*TINY, "--store", store, "--markdown", "--again", "round-robin").stdout
    assert len(store.read_bytes().splitlines()) == 1 + 1 + 2 * 2 * 3, "three seeds are the default"


def test_command_names_policies_with_their_admission(tmp_path: Path) -> None:
    store, policies = tmp_path / "runs.jsonl", ("--policy", "random,random(max_wait_s=0)+events")
    for admission in ((), ("--admission", "default"), ("--admission", "max_wait_s=3")):
        printed = run("chat(count=60)", "--quick", "--store", store, *policies, *admission)
        assert printed.exit_code == 0, printed.output
    assert list(dict.fromkeys(row["policy"] for row in Store(store).rows("run"))) == [
        "random",
        "random(max_wait_s=0)+events",
        "random(max_pending_tokens=4096)",
        "random(max_pending_tokens=4096,max_wait_s=0)+events",
        "random(max_wait_s=3)",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--loads", "half"), "must be numbers such as 0.5,0.95, got 'half'"),
        (("--realism", "crashes"), "did you mean 'crash'"),
        (("--policy", "cache-aware(crowd=1)"), "crowd"),
        (("--again", "random"), "--again is for the runs of a --store"),
        (("--json", "--markdown"), "exclude each other"),
    ],
)
def test_command_names_what_is_wrong(arguments: tuple[str, ...], message: str) -> None:
    result = run("chat(count=60)", *arguments)
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.stderr.replace("│", " ").split())
