"""The command line: output, exit codes, messages, and a stable JSON document."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from cachelb.cli import main as entry
from cachelb.cli.app import app
from cachelb.cli.demo import demo
from cachelb.policies import POLICIES

if TYPE_CHECKING:
    from pathlib import Path

ROW = {"timestamp": 0, "input_length": 1200, "output_length": 20, "hash_ids": [0, 1, 2]}
SCHEMA = {
    "schema": {},
    "source": {"name", "requests", "prompt_tokens", "output_tokens", "duration_s", "id_tokens"},
    "fleet": {"workers", "kv_tokens_per_worker", "block_size", "seed"},
    "bound": {
        "capacity_tokens",
        "block_hit_rate",
        "token_hit_rate",
        "infinite_block_hit_rate",
        "infinite_token_hit_rate",
    },
}
POLICY_KEYS = {
    "policy",
    "requests",
    "blocks",
    "hit_blocks",
    "block_hit_rate",
    "token_hit_rate",
    "hit_vs_bound",
    "prefill_tokens_saved",
    "predicted_tokens",
    "requests_max_over_mean",
    "busy_max_over_mean",
    "peak_inflight",
    "peak_inflight_worker",
    "worker_requests",
    "reasons",
}
WALL_CLOCK_KEYS = {"decisions_per_s", "select_p50_us", "select_p99_us", "replay_s"}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.jsonl.xz"
    rows = [{**ROW, "timestamp": 100 * n, "hash_ids": [0, n % 5, 1000 + n]} for n in range(60)]
    file.write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))
    return file


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="cachelb")


def report_of(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_replay_prints_one_row_per_policy_and_nothing_on_stderr(trace: Path) -> None:
    result = run("replay", trace, "--policy", "cache-aware,random", "--workers", 2)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "trace.jsonl.xz: 60 requests" in result.stdout
    rows = [line for line in result.stdout.splitlines() if "%" in line and "│" in line]
    assert [row.strip("│ ").split()[0] for row in rows] == ["cache-aware", "random"]


def test_replay_json_has_the_documented_keys(trace: Path) -> None:
    document = report_of("replay", trace)
    assert document["schema"] == 1
    assert set(document) == {*SCHEMA, "policies", "wall_clock"}
    for section in ("source", "fleet", "bound"):
        assert set(document[section]) == SCHEMA[section], section
    assert [result["policy"] for result in document["policies"]] == list(POLICIES)
    assert all(set(result) == POLICY_KEYS for result in document["policies"])
    assert {name: set(times) for name, times in document["wall_clock"].items()} == dict.fromkeys(
        POLICIES, WALL_CLOCK_KEYS
    )


def test_replay_options_reach_the_simulation(trace: Path) -> None:
    options = ("--workers", 3, "--kv-tokens", 2048, "--block-size", 64, "--seed", 9, "--limit", 7, "--speed", 2)
    document = report_of("replay", trace, "--policy", "round-robin", *options)
    assert document["fleet"] == {"workers": 3, "kv_tokens_per_worker": 2048, "block_size": 64, "seed": 9}
    assert document["bound"]["capacity_tokens"] == 3 * 2048
    assert (document["source"]["requests"], document["source"]["duration_s"]) == (7, 0.3)
    assert sorted(document["policies"][0]["worker_requests"]) == [2, 2, 3]


def test_rows_out_of_order_are_replayed_in_order_of_arrival(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(json.dumps({**ROW, "timestamp": stamp}) for stamp in (9000, 0, 5000)))
    document = report_of("replay", file, "--policy", "random", "--workers", 1)
    assert (document["source"]["duration_s"], document["policies"][0]["peak_inflight"]) == (9.0, 1)


def test_policy_names_accept_aliases_and_spaces_and_drop_repeats(trace: Path) -> None:
    document = report_of("replay", trace, "--policy", "rendezvous_hash, random,rendezvous")
    assert [result["policy"] for result in document["policies"]] == ["rendezvous", "random"]


def test_unknown_policy_is_answered_with_the_nearest(trace: Path) -> None:
    result = run("replay", trace, "--policy", "random,cache-awre")
    assert result.exit_code == 2
    assert "there is no policy 'cache-awre'; did you mean 'cache-aware'?" in " ".join(result.stderr.split())


def test_missing_trace_names_the_file_and_the_way_out() -> None:
    result = run("replay", "nowhere.jsonl")
    assert result.exit_code == 2
    assert "no file 'nowhere.jsonl'" in result.stderr
    assert "cachelb demo" in result.stderr


def test_trace_without_rows_is_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text("\n\n")
    result = run("replay", file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "empty.jsonl has no rows" in result.stderr


def test_bad_row_is_a_failure_that_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps(ROW) + "\n" + json.dumps({**ROW, "input_length": -4}))
    result = run("replay", file, "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "bad.jsonl:2: input_length must be a whole number >= 0, got -4" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--block-size", 48), "block size 48 does not divide the trace's 512"),
        (("--kv-tokens", 511), "kv_tokens 511 holds no block of 512 tokens"),
        (("--workers", 0), "0 is not in the range"),
        (("--speed", 0), "0.0 is not in the range"),
        (("--limit", 0), "0 is not in the range"),
    ],
)
def test_option_of_no_sense_is_wrong_usage(trace: Path, options: tuple[object, ...], message: str) -> None:
    result = run("replay", trace, *options)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("command", [(), ("replay",), ("demo",)])
def test_help_shows_an_example(command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert f"  cachelb {' '.join(command)}".rstrip() in result.stdout.partition("Examples:")[2]


def test_replay_help_says_that_the_capacity_is_per_worker() -> None:
    assert "Tokens EACH worker can cache" in " ".join(run("replay", "--help").stdout.split())


def test_demo_prints_a_table_and_a_verdict_of_one_line() -> None:
    result = run("demo", "--requests", 400)
    assert result.exit_code == 0
    assert all(name in result.stdout for name in POLICIES)
    verdict = result.stdout.splitlines()[-1]
    assert verdict.startswith("cache-aware finds ")
    assert "x fewer tokens" in verdict


def test_demo_runs_as_a_command_and_repeats_itself() -> None:
    command = [sys.executable, "-c", "from cachelb.cli.main import main; main()", "demo", "--requests", "500", "--json"]
    documents = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(2)
    ]
    for document in documents:
        assert set(document.pop("wall_clock")) == set(POLICIES)
    assert documents[0] == documents[1]
    rates = {result["policy"]: result["token_hit_rate"] for result in documents[0]["policies"]}
    assert rates["cache-aware"] > max(rates[blind] for blind in ("least-loaded", "random", "round-robin", "rendezvous"))


# === exit codes of the entry point ===


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as left:
        entry.main(list(arguments))
    return left.value.code


def test_entry_point_maps_outcomes_to_exit_codes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out.startswith("cachelb ")
    assert exit_code("replay", str(trace), "--policy", "random") == 0
    assert exit_code("replay", str(trace), "--polcy", "random") == 2
    assert exit_code("replay", str(trace.with_name("none"))) == 2


def test_interrupt_leaves_with_130_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "callback", interrupted)
    assert exit_code("demo") == 130
    assert capsys.readouterr().err.strip() == "cachelb: interrupted"


@pytest.mark.parametrize("package", ["click", "rich"])
def test_missing_extra_names_the_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("cachelb.cli.") and name != "cachelb.cli.main"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    assert exit_code("demo") == 1
    assert f"needs {package}: pip install 'cachelb[cli]'" in capsys.readouterr().err
