"""`cachelb replay`: every kind of workload, every option, what is printed, and what is refused."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tests.commands import app

from cachelb.policies import POLICIES
from cachelb_lab.cli.table import seconds
from cachelb_lab.sim import FleetSpec, Status, build, simulate
from cachelb_lab.sim.workloads import WORKLOADS, read_workload

SMALL = ("--count", 60, "--fleet", "2xa30", "--policy", "cache-aware,random")
ROW = {"timestamp": 0, "input_length": 1200, "output_length": 20, "hash_ids": [0, 1, 2]}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.jsonl.xz"
    rows = [{**ROW, "timestamp": 100 * n, "hash_ids": [0, n % 5, 1000 + n]} for n in range(60)]
    file.write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)], prog_name="cachelb")


def document_of(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def refusal_of(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code in (1, 2), result.output
    assert result.stdout == ""
    return " ".join(result.stderr.split())


def ttft(document: dict[str, Any], cell: int = 0) -> float:
    mean = document["cells"][cell]["spread"]["ttft_s.mean"]["mean"]
    assert isinstance(mean, float)
    return mean


def test_policies_take_options_in_parentheses() -> None:
    document = document_of("chat", "--count", 200, "--fleet", "2xa30", "--policy", "prefill-times-batch(crowding=1)")
    alone = simulate(build("chat", seed=0, count=200), FleetSpec.parse("2xa30"), "prefill-times-batch", crowding=1.0)
    assert document["cells"][0]["policy"] == "prefill-times-batch(crowding=1)"
    assert ttft(document) == float(alone.ttft_s.mean())
    assert "-batch(crowd=1): policy 'prefill-times-batch' has no option 'crowd'; did you mean 'crowding'" in refusal_of(
        "chat", "--policy", "prefill-times-batch(crowd=1)"
    )
    assert "write NAME(KEY=VALUE,KEY=VALUE)" in refusal_of("chat", "--policy", "random(1)")


# === workloads ===


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_generator_is_replayed(name: str) -> None:
    document = document_of(name, "--count", 30, "--policy", "cache-aware", "--fleet", "2xh100")
    assert (document["workload"]["name"], document["workload"]["requests"]) == (name, 30)
    assert document["cells"][0]["runs"][0]["metrics"]["finished"] == 30


def test_mooncake_file_is_replayed(trace: Path) -> None:
    document = document_of(trace, "--policy", "cache-aware")
    assert document["workload"]["name"] == "trace.jsonl.xz"
    assert (document["workload"]["requests"], document["workload"]["prompt_tokens"]) == (60, 60 * 1200)


def test_what_is_exported_can_be_replayed_with_the_same_figures(tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl.gz"
    first = document_of("chat", *SMALL, "--seed", 3, "--export", file)
    again = document_of(file, "--fleet", "2xa30", "--policy", "cache-aware,random", "--seed", 3)
    assert read_workload(file) == build("chat", seed=3, count=60)
    assert [cell["runs"] for cell in again["cells"]] == [cell["runs"] for cell in first["cells"]]


# === options ===


def test_table_has_a_row_per_policy_and_nothing_is_on_stderr(trace: Path) -> None:
    result = run(trace, "--policy", "cache-aware,random", "--fleet", "2xa30")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "trace.jsonl.xz: 60 requests in 6 s on 2 x a30" in result.stdout
    rows = [line for line in result.stdout.splitlines() if "100 %" in line]
    assert sorted(row.strip("│ ").split()[0] for row in rows) == ["cache-aware", "random"]
    assert "one LRU pool of all KV hits" in result.stdout


def test_table_says_what_became_of_requests_that_were_not_served() -> None:
    result = run("giants", "--count", 100, "--fleet", "2xa30", "--kv-tokens", 8000, "--policy", "random")
    assert "too long" in result.stdout
    assert "100 %" not in result.stdout


def test_admission_holds_for_every_policy_but_what_a_policy_names_itself() -> None:
    overload = ("chat", "--count", 300, "--rate", 60, "--fleet", "2xa30", "--policy", "random,random(max_wait_s=0)")
    bound = ("--admission", "max-wait-s=5,max_pending_tokens=2048")
    document = document_of(*overload, *bound)
    held, refused = (int(cell["spread"]["rejected"]["mean"]) for cell in document["cells"])
    assert held < refused
    alone = simulate(
        build("chat", seed=0, count=300, rate=60),
        FleetSpec.parse("2xa30"),
        "random",
        max_pending_tokens=2048,
        max_wait_s=5,
    )
    assert held == int((alone.status == Status.REJECTED).sum())
    assert [cell["policy"] for cell in document["cells"]] == ["random", "random(max_wait_s=0)"]
    table = run(*overload, *bound).stdout
    assert f"{refused} rejected" in table
    assert "admission, where a policy names no other: max_pending_tokens=2048, max_wait_s=5" in table


TIMES = ["TTFT mean", "TTFT p50", "TTFT p90", "TTFT p99", "TPOT mean", "E2E mean", "session mean"]


def rows_of(table: str) -> list[dict[str, str]]:
    """Read a table: a row per policy, with headers in one line."""
    lines = [line.replace("┃", "│").split("│")[1:-1] for line in table.splitlines() if line[:1] in ("┃", "│")]
    heads = [" ".join(f"{upper.strip()} {lower.strip()}".split()) for upper, lower in zip(*lines[:2], strict=True)]
    return [dict(zip(heads, map(str.strip, row), strict=True)) for row in lines[2:]]


@pytest.mark.parametrize(
    ("options", "heads"),
    [
        (("chat", "--policy", "random"), ["done", *TIMES[:2], *TIMES[3:]]),
        (("rag", "--policy", "random"), ["done", *TIMES[:2], *TIMES[3:6], "token hits"]),
        (
            ("chat", "--policy", "cache-aware+events", "--seeds", 3, "--slo", "ttft=1"),
            ["done", *TIMES[:2], TIMES[3], TIMES[5], "good req/s"],
        ),
        (("rag", "--policy", "prefill-times-batch(crowding=1)+events"), ["done", *TIMES[:2], TIMES[3]]),
        (
            ("rag", "--policy", "prefill-times-batch(crowding=1,max_pending_tokens=1048576,max_wait_s=12.5)+events"),
            ["done", TIMES[0]],
        ),
    ],
)
def test_80_columns_keep_what_matters_most_uncut(
    monkeypatch: pytest.MonkeyPatch, options: tuple[object, ...], heads: list[str]
) -> None:
    monkeypatch.setattr("cachelb.cli.table._PIPE_WIDTH", 80)
    result = run(*options, *SMALL[:4])
    assert "…" not in result.stdout
    assert list(rows_of(result.stdout)[0]) == ["policy", *heads]
    named = " ".join(result.stdout.split()).partition("no room here for ")[2].partition(";")[0].split(", ")
    gone = [time for time in TIMES if time not in heads and not (time == "session mean" and "rag" in options)]
    assert [name for name in named if name in TIMES] == sorted(gone, key=named.index)
    assert ("±" in named) == ("--seeds" in options)


@pytest.mark.parametrize("name", ["chat", "rag"])
def test_times_are_those_of_numpy_and_of_sessions_only_where_there_are_some(name: str) -> None:
    (row,) = rows_of(run(name, *SMALL[:4], "--policy", "cache-aware").stdout)
    alone = simulate(build(name, seed=0, count=60), FleetSpec.parse("2xa30"), "cache-aware")
    p50, p90, p99 = np.percentile(alone.ttft_s, (50, 90, 99))
    times = [alone.ttft_s.mean(), p50, p90, p99, alone.tpot_s.mean(), alone.e2e_s.mean()]
    if name == "chat":
        times.append(alone.session_s.mean())
    assert {head: text for head, text in row.items() if head in TIMES} == dict(
        zip(TIMES, map(seconds, times), strict=False)
    )


def test_equal_seeds_give_equal_bytes_with_one_thread_and_with_two() -> None:
    documents = [document_of("chat", *SMALL, "--seeds", 2, "--threads", threads) for threads in (1, 2, 2)]
    for document in documents:
        assert len(document.pop("wall_clock")) == 4
    assert json.dumps(documents[0]) == json.dumps(documents[1]) == json.dumps(documents[2])


def test_seeds_are_spread(trace: Path) -> None:
    document = document_of("chat", *SMALL, "--seed", 7, "--seeds", 3)
    assert document["seeds"] == [7, 8, 9]
    spread = document["cells"][0]["spread"]["ttft_s.mean"]
    assert spread["low"] < spread["mean"] < spread["high"]
    assert "±" in run("chat", *SMALL, "--seeds", 2).stdout
    fixed = document_of(trace, "--policy", "round-robin", "--seeds", 2)["cells"][0]["spread"]
    assert fixed["bound_rate"]["std"] == 0
    moved = document_of(trace, "--policy", "round-robin", "--seeds", 2, "--jitter", 2)["cells"][0]["spread"]
    assert moved["ttft_s.mean"]["std"] > 0


def test_fleet_options_reach_the_run(trace: Path) -> None:
    options = ("--fleet", "2xh100:tp4+1xa100", "--model", "qwen3-32b", "--block-size", 64, "--policy", "random")
    fleet = FleetSpec.parse("2xh100:tp4+1xa100", model="qwen3-32b", block_size=64)
    document = document_of(trace, *options)
    assert (document["fleet"]["description"], document["fleet"]["workers"]) == (fleet.describe(), 3)
    assert document["fleet"]["cache_tokens"] == fleet.cache_tokens
    assert [kind["count"] for kind in document["fleet"]["kinds"]] == [2, 1]
    assert document["workload"]["block_size"] == 64
    assert document_of(trace, *options, "--kv-tokens", 64_000)["fleet"]["cache_tokens"] == 3 * 64_000


@pytest.mark.parametrize(
    ("easy", "hard"),
    [
        (("--mfu", 1), ("--mfu", 0.1)),
        (("--speed", 1), ("--speed", 50)),
        (("--kv-tokens", 40_000), ("--kv-tokens", 3_000)),
        (("--rate", 1), ("--rate", 100)),
    ],
)
def test_harder_runs_are_slower(easy: tuple[object, ...], hard: tuple[object, ...]) -> None:
    always = ("chat", "--count", 150, "--fleet", "2xa30", "--policy", "cache-aware")
    means = [ttft(document_of(*always, *options)) for options in (easy, hard)]
    assert means[0] < means[1]


def test_signals_and_gateways_are_in_the_document() -> None:
    options = ("--event-lag", 0.25, "--scrape-interval", 2, "--gateways", 3)
    settings = document_of("chat", *SMALL, *options)["settings"]
    assert (settings["signals"]["event_lag_s"], settings["signals"]["scrape_interval_s"]) == (0.25, 2.0)
    assert settings["gateways"] == 3


def test_limit_reads_the_first_rows(trace: Path) -> None:
    assert document_of(trace, "--policy", "random", "--limit", 7)["workload"]["requests"] == 7


def test_policies_take_aliases_suffixes_and_repeats(trace: Path) -> None:
    names = "rendezvous_hash, kv-aware+oracle,rendezvous,vllm_cache_aware+events"
    cells = document_of(trace, "--policy", names)["cells"]
    assert [cell["policy"] for cell in cells] == ["rendezvous", "kv-aware+oracle", "cache-aware+events"]


def test_all_stands_for_every_policy(trace: Path) -> None:
    cells = document_of(trace, "--policy", "all", "--limit", 20)["cells"]
    assert [cell["policy"] for cell in cells] == list(POLICIES)


def test_sweep_gives_a_section_per_value() -> None:
    policies = ("--policy", "cache-aware,cache-aware+events")
    options = ("chat", *SMALL[:4], *policies, "--sweep", "cache_threshold=0.1:0.9:0.4")
    document = document_of(*options)
    assert document["sweep"] == {"name": "cache_threshold", "values": [0.1, 0.5, 0.9]}
    assert [cell["value"] for cell in document["cells"]] == [0.1, 0.1, 0.5, 0.5, 0.9, 0.9]
    table = run(*options).stdout
    assert "cache_threshold" in table
    assert all(f"│ {value} " in table for value in (0.1, 0.5, 0.9))


def test_rate_is_swept_of_generators() -> None:
    document = document_of("rag", *SMALL, "--sweep", "rate=2,200")
    assert ttft(document, 0) < ttft(document, 2)


def test_goodput_is_printed_with_its_limits() -> None:
    result = run("chat", *SMALL, "--slo", "ttft=500ms,tpot=0.05")
    assert "good: TTFT <= 500 ms and TPOT <= 50.0 ms" in result.stdout
    document = document_of("chat", *SMALL, "--slo", "ttft=1ms")
    assert document["settings"]["slo"] == {"ttft_s": 0.001}
    assert document["cells"][0]["runs"][0]["metrics"]["attained"] == 0.0
    assert "good" not in run("chat", *SMALL).stdout


def test_explain_names_the_slowest_requests_and_why() -> None:
    result = run("bursts", *SMALL, "--explain")
    assert "slowest with cache-aware, seed 0" in result.stdout
    assert "slowest with random, seed 0" in result.stdout
    assert "prompt tokens" in result.stdout
    worst = document_of("bursts", *SMALL, "--explain")["cells"][0]["worst"]
    assert len(worst) == 5
    assert [one["ttft_s"] for one in worst] == sorted((one["ttft_s"] for one in worst), reverse=True)
    assert all(one["why"] for one in worst)


def test_page_shows_table_and_pictures(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    result = run("chat", *SMALL, "--html", file, "--sweep", "speed=1,2")
    assert result.exit_code == 0, result.output
    page = file.read_text("utf-8")
    assert [head for head in rows_of(page.partition("<pre>")[2].partition("</pre>")[0])[0] if head in TIMES] == TIMES
    assert "cache-aware, speed 2" in page
    assert "one LRU pool of all KV hits" in page


# === refusals ===


def test_unknown_policy_is_answered_with_the_nearest(trace: Path) -> None:
    said = refusal_of(trace, "--policy", "random,cache-awre+events")
    assert "there is no policy 'cache-awre'; did you mean 'cache-aware'?" in said


def test_unknown_workload_is_answered_with_the_nearest() -> None:
    assert "'chatt' is neither a file nor a generator; did you mean 'chat'?" in refusal_of("chatt")
    assert "'nowhere.jsonl' is neither a file nor a generator; there are 'agent'" in refusal_of("nowhere.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--block-size", 48), "block size 48 does not divide the trace's 512"),
        (("--kv-tokens", 15), "kv_tokens 15 holds no block of 16 tokens"),
        (("--fleet", "0xa30"), "cannot read '0xa30'; write groups like 8xa30+8xv100"),
        (("--fleet", "8xb999"), "no GPU 'b999'; there are '4090'"),
        (("--model", "llama-9"), "no model 'llama-9'"),
        (("--speed", 0), "0.0 is not in the range"),
        (("--speed", "nan"), "factor must be a finite number, got nan"),
        (("--speed", "1e30"), "factor must be from 1e-09 to 1e+09, got 1e+30"),
        (("--jitter", "nan"), "seconds must be a finite number, got nan"),
        (("--event-lag", "inf"), "event_lag_s must be a finite number, got inf"),
        (("--scrape-interval", "1e-9"), "scrape_interval_s must be 0.0001 or more, got 1e-09"),
        (("--fleet", "99999999xh100"), "65536 workers at most"),
        (("--limit", 0), "0 is not in the range"),
        (("--rate", 4), "--rate is for generators; a file takes --speed and --limit"),
        (("--count", 4), "--count is for generators; a file takes --speed and --limit"),
        (("--slo", "ttft=soon"), "ttft must be a time such as 0.5, 0.5s or 500ms, got 'soon'"),
        (("--sweep", "speed=2:1:1"), "cannot read 'speed=2:1:1'"),
        (("--sweep", "rate=1,2"), "rate can be swept of generat"),
        (("--sweep", "cache_treshold=1,2"), "has no option 'cache_treshold'"),
        (("--export", "x.jsonl.zst"), "use .jsonl, .jsonl.gz or .jsonl.xz"),
        (("--html", "/nowhere/page.html"), "No such file or directory"),
        (("--admission", "max_wait=1"), "an admission has no option 'max_wait'; did you mean 'max_wait_s'?"),
        (("--admission", "max_wait_s=-1"), "max_wait_s must be 0 or more, got -1"),
        (("--admission", "edf"), "cannot read 'edf'; write KEY=VALUE,KEY=VALUE"),
    ],
)
def test_option_of_no_sense_is_refused(trace: Path, options: tuple[object, ...], message: str) -> None:
    assert message in refusal_of(trace, "--policy", "cache-aware", *options)


def test_limit_of_a_generator_is_refused() -> None:
    assert "--limit is for files; 'chat' is a generator, which takes --count" in refusal_of("chat", "--limit", 5)


def test_pages_without_the_extra_name_the_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "install it, or cachelb-lab[plots]" in refusal_of("chat", *SMALL, "--html", tmp_path / "page.html")


def test_help_shows_examples_generators_and_devices() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "  cachelb replay chat" in result.stdout.partition("Examples:")[2]
    said = " ".join(result.stdout.split())
    assert "Tokens EACH worker can cache" in said
    assert all(name in said for name in (*WORKLOADS, "a100-80", "llama-3-8b"))


# === the real trace ===


def test_real_trace_rewards_going_by_prefixes(conversation_trace: Path) -> None:
    options = ("--policy", "cache-aware,round-robin", "--fleet", "8xh100-80", "--limit", 4000, "--jitter", 3)
    document = document_of(conversation_trace, *options)
    aware, even = (cell["runs"][0]["metrics"] for cell in document["cells"])
    assert aware["completed"] == even["completed"] == 1.0
    assert 0.7 < aware["of_bound"] <= 1.1
    assert aware["hit_rate"] > 1.5 * even["hit_rate"]
    assert aware["ttft_s"]["mean"] < even["ttft_s"]["mean"]
