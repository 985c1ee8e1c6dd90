"""`cachelb config`: verdict, list of values, exit codes and a stable JSON document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.commands import app

GOOD = '[router]\npolicy = "cache-aware"\nhash_seed = 424242\n\n[policy]\nload_factor = 1.5\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(GOOD + '[[workers]]\nurl = "http://gpu0:8000"\n')
    return path


def run(*arguments: object, **environ: str) -> Result:
    return CliRunner(env=environ).invoke(app, ["config", *map(str, arguments)])


@pytest.mark.parametrize("options", [(), ("--show",)])
def test_a_mistake_leaves_with_2_and_its_place(file: Path, options: tuple[str, ...]) -> None:
    file.write_text("[router]\nblock_sise = 3\n")
    result = run(file, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: {file}: router.block_sise: unknown key; did you mean 'block_size'?\n"
    file.unlink()
    missing = run(file, *options)
    assert missing.exit_code == 2
    assert "gateway.toml: No such file or directory" in missing.stderr


def test_a_mistake_as_json(file: Path) -> None:
    result = run(file, "--json", CACHELB_POLICY="randm")
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert document["error"].startswith("env CACHELB_POLICY: router.policy: there is no policy 'randm'")


def test_show_prints_values_and_their_places_and_no_secret(file: Path) -> None:
    result = run(file, "--show", CACHELB_BLOCK_SIZE="32")
    assert result.exit_code == 0
    rows = {tuple(line.replace("│", " ").split()) for line in result.stdout.splitlines()}
    assert rows >= {
        ("router.block_size", "32", "env", "CACHELB_BLOCK_SIZE"),
        ("policy.load_factor", "1.5", str(file)),
        ("policy.page_size", "1", "default"),
        ("router.hash_seed", '"set"', str(file)),
    }
    assert "424242" not in result.stdout


def test_show_as_json_has_every_value(file: Path) -> None:
    document = json.loads(run(file, "--show", "--json").stdout)
    settings = {row["path"]: (row["value"], row["origin"]) for row in document.pop("settings")}
    assert settings["router.hash_seed"] == ("set", str(file))
    assert settings["router.max_memory_mb"] == (256, "default")
    assert settings["workers[0].url"] == ("http://gpu0:8000", str(file))
    assert document == {"ok": True, "source": str(file), "policy": "cache-aware", "workers": 1, "unused": {}}


def test_a_good_file_is_ok_and_what_takes_no_effect_is_said(file: Path) -> None:
    result = run(file)
    assert (result.exit_code, result.stdout) == (0, f"ok: {file}: policy cache-aware, 1 worker\n")
    result = run(file, CACHELB_POLICY="random")
    assert result.stdout.splitlines()[1:] == [
        "not used: policy.load_factor, since env CACHELB_POLICY names another policy"
    ]
    assert "not used" in run(file, "--show", CACHELB_POLICY="random").stdout
