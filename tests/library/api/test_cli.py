"""The command line: output, exit codes, messages, and a stable JSON document."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from click.testing import CliRunner, Result
from tests.commands import app

from cachelb.cli import main as entry
from cachelb.policies import POLICIES
from cachelb_gateway.cli.doctor import doctor
from cachelb_lab.cli.demo import demo


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="cachelb")


SEVEN = {
    *("adaptive", "prefill-times-batch", "overlap-cost", "sticky-until-saturated"),
    *("cache-aware", "least-loaded", "round-robin"),
}


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "agentic"),
        *((name,) for name in ("replay", "league", "demo", "config", "explain", "watch", "doctor")),
    ],
)
def test_help_shows_an_example(command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert f"  cachelb {' '.join(command)}".rstrip() in result.stdout.partition("Examples:")[2]


@pytest.mark.parametrize(
    ("words", "policies"), [((), SEVEN), (("--policy", "adaptive,random"), {"adaptive", "random"})]
)
def test_demo_prints_a_table_and_a_verdict_of_one_line(words: tuple[str, ...], policies: set[str]) -> None:
    result = run("demo", "--requests", 300, *words)
    assert result.exit_code == 0
    assert {name for name in POLICIES if f"│ {name} " in result.stdout} == policies
    verdict = result.stdout.splitlines()[-1]
    first = next(line for line in result.stdout.splitlines() if " 100 % " in line).split()[1]
    assert verdict.startswith(f"{first} is first: the mean time to the first token is ")
    assert ("round-robin's " in verdict) == ("round-robin" in policies)
    assert verdict.count("over 3 seeds") == 1 + ("round-robin" in policies)
    cells = json.loads(run("demo", "--requests", 300, *words, "--json").stdout)["cells"]
    others = {
        "median": "ttft_s.p50",
        "P90": "ttft_s.p90",
        "P99": "ttft_s.p99",
        "TPOT": "tpot_s.mean",
        "E2E": "e2e_s.mean",
    }
    for title, key in others.items():
        assert f"by {title} {min(cells, key=lambda cell: cell['spread'][key]['mean'])['policy']}" in verdict


def test_demo_runs_as_a_command_and_repeats_itself() -> None:
    main = "from cachelb.cli.main import main; main()"
    command = [sys.executable, "-c", main, "demo", "--requests", "400", "--policy", "all", "--json"]
    first, again = (json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(2))
    assert len(first.pop("wall_clock")) == len(again.pop("wall_clock")) == 3 * len(POLICIES)
    assert first == again
    metrics = {cell["policy"]: cell["runs"][0]["metrics"] for cell in first["cells"]}
    blind = [metrics[policy] for policy in ("least-loaded", "random", "round-robin")]
    for policy in ("adaptive", "cache-aware"):
        assert metrics[policy]["hit_rate"] > max(one["hit_rate"] for one in blind)
        assert metrics[policy]["ttft_s"]["mean"] < min(one["ttft_s"]["mean"] for one in blind)


# === exit codes of the entry point ===


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as left:
        entry.main(list(arguments))
    return left.value.code


def test_entry_point_maps_outcomes_to_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out.startswith("cachelb ")
    commands = ("chat --count 20 --policy random", "chat --polcy random", "none", "chat --sweep nothing=1,2")
    assert [exit_code("replay", *command.split()) for command in commands] == [0, 2, 2, 1]


def test_interrupt_leaves_with_130_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "callback", interrupted)
    assert exit_code("demo") == 130
    assert capsys.readouterr().err.strip() == "cachelb: interrupted"


def test_commands_are_listed_with_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    known = {name: about for commands in entry.COMMANDS.values() for name, about in commands.items()}
    assert known == {name: command.short_help for name, command in app.commands.items()}
    for words in ([], ["-h"], ["--help"]):
        assert exit_code(*words) == 0
        listed = capsys.readouterr().out
        assert [line for line in listed.splitlines() if len(line) > 80] == []
        assert all(f"  {name:8} {about}\n" in listed for name, about in known.items())
        assert "pip install" not in listed


def test_commands_of_a_missing_distribution_name_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = EntryPoint("own", "a:b", entry.GROUP)

    def found(*, name: str = "own", **_: str) -> list[EntryPoint]:
        return [plugin] * (name == "own")

    monkeypatch.setattr(entry, "entry_points", found)
    assert exit_code("serve") == 2
    assert capsys.readouterr().err == "cachelb: the command serve is in cachelb-gateway: pip install cachelb-gateway\n"
    assert exit_code("sevre") == 2
    assert capsys.readouterr().err == "cachelb: there is no command 'sevre'; did you mean 'serve'?\n"
    assert exit_code() == 0
    listed = capsys.readouterr().out
    assert "Commands of cachelb-lab (pip install cachelb-lab):\n  bench " in listed
    assert "Other commands:\n  own\n" in listed


def test_doctor_without_the_lab_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(doctor.commands, "analyze")
    result = run("doctor", "analyze", "capture.jsonl")
    assert result.exit_code == 2
    assert "cachelb doctor analyze is in cachelb-lab: pip install cachelb-lab" in result.stderr
