"""The command line: output, exit codes, messages, and a stable JSON document."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from cachelb.cli import main as entry
from cachelb.cli.app import app
from cachelb.cli.demo import demo
from cachelb.policies import POLICIES


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="cachelb")


SEVEN = {
    *("adaptive", "prefill-times-batch", "overlap-cost", "sticky-until-saturated"),
    *("cache-aware", "least-loaded", "round-robin"),
}


@pytest.mark.parametrize(
    "command", [(), *((name,) for name in ("replay", "league", "demo", "config", "explain", "watch", "doctor"))]
)
def test_help_shows_an_example(command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert f"  cachelb {' '.join(command)}".rstrip() in result.stdout.partition("Examples:")[2]


def test_demo_prints_a_table_and_a_verdict_of_one_line() -> None:
    result = run("demo", "--requests", 300)
    assert result.exit_code == 0
    assert {name for name in POLICIES if f"│ {name} " in result.stdout} == SEVEN
    verdict = result.stdout.splitlines()[-1]
    assert verdict.startswith("adaptive finds ")
    assert "the first token comes after" in verdict


def test_demo_takes_the_policies_that_are_named() -> None:
    result = run("demo", "--requests", 60, "--policy", "adaptive,random")
    assert result.exit_code == 0
    assert {name for name in POLICIES if f"│ {name} " in result.stdout} == {"adaptive", "random"}
    assert "adaptive finds" not in result.stdout, "there is no round-robin to compare with"


def test_demo_runs_as_a_command_and_repeats_itself() -> None:
    main = "from cachelb.cli.main import main; main()"
    command = [sys.executable, "-c", main, "demo", "--requests", "400", "--policy", "all", "--json"]
    documents = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(2)
    ]
    for document in documents:
        assert len(document.pop("wall_clock")) == len(POLICIES)
    assert documents[0] == documents[1]
    metrics = {cell["policy"]: cell["runs"][0]["metrics"] for cell in documents[0]["cells"]}
    blind = [metrics[policy] for policy in ("least-loaded", "random", "round-robin")]
    for policy in ("adaptive", "cache-aware"):
        assert metrics[policy]["hit_rate"] > max(one["hit_rate"] for one in blind)
        assert metrics[policy]["ttft_s"]["mean"] < min(one["ttft_s"]["mean"] for one in blind)


def test_demo_refuses_a_fleet_that_cannot_be_read() -> None:
    result = run("demo", "--fleet", "eight")
    assert result.exit_code == 2
    assert "no GPU 'eight'; use one of a30" in " ".join(result.stderr.split())


# === exit codes of the entry point ===


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as left:
        entry.main(list(arguments))
    return left.value.code


def test_entry_point_maps_outcomes_to_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out.startswith("cachelb ")
    assert exit_code("replay", "chat", "--count", "20", "--policy", "random") == 0
    assert exit_code("replay", "chat", "--polcy", "random") == 2
    assert exit_code("replay", "none") == 2
    assert exit_code("replay", "chat", "--sweep", "nothing=1,2") == 1


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
