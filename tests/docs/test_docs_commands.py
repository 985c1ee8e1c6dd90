"""Every command on the pages runs, or its words are checked by the program's own parser.

Bash reads a block in a folder with the files that the pages speak of, and records its commands. `cachelb` then runs in
this process; serving, network and long simulations stop where they would begin. Programs in Python run up to their
parsed arguments. For programs that are not ours, only their input files are checked.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import inspect
import json
import lzma
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
import pytest
from click.testing import CliRunner
from tests.commands import app
from tests.docs.pages import PAGES, ROOT, Block, definitions, name_of, parameters, prose
from tests.hostile.tables import AGENTS, AZURE, MOONCAKE, SESSIONS

from cachelb import Router
from cachelb.records import Capture, JsonlRecords
from cachelb_gateway.cli import serve

# Programs that are not ours: of their words, only files are checked.
OTHERS = {
    "cargo": "a build of minutes; tests/capi does it",
    "cc": "links what cargo built; tests/capi does it",
    "curl": "asks LiteLLM's proxy; tests/docs/test_example_litellm.py does it",
    "docker": "an image of a gigabyte; tests/gateway/test_deploy.py reads the Dockerfile",
    "envoy": "`make test-envoy` runs it with this file",
    "jq": "makes a file that the test has",
    "kubectl": "needs a cluster; tests/gateway/test_deploy.py checks the manifests",
    "litellm": "tests/docs/test_example_litellm.py runs it with this file",
    "openssl": "prints random digits",
    "pip": "tests/tooling/test_installation.py reads what it is given",
    "production_stack.py": "has the options of vllm-router; `make test-hosts` runs it",
    "sleep": "nothing was started",
    "vllm": "needs a model; `make test-engine` runs it with these options",
    "xz": "makes a file that the test has",
}
LODESTAR = ("comp__latency_predictor_model_output_pod_specific_data.csv", "p2048__processed_dataset.csv")
HEAD = (
    "kv_hit_ratio,inflight_requests,gpu_kv_cache,running_requests,waiting_requests,prefill_tokens,decode_tokens,"
    "gpu_model,input_tokens,ttft"
)
MODULES = [ROOT, *(ROOT / name for name in ("python", "gateway", "lab", "fakes"))]
FOLDERS = ("benches", "deploy", "docs", "examples", "rust", "tests")
SPAN = re.compile(r"(?<!`)`((?:cachelb|cargo|docker|kubectl|make|python) [^`]+)`(?!`)")
LONG = (
    *("cachelb_gateway.cli.doctor._load",),
    *("cachelb_lab.sim.league.running.capacity", "cachelb_lab.sim.experiments.runs.simulate"),
)


class BegunError(Exception):
    """The command is right: what would begin now is its work."""


class Command(NamedTuple):
    """A command as bash understood it."""

    folder: Path
    """In the folder of the block."""
    input: str
    policy: str
    words: list[str]


def begin(*words: object, **_: object) -> NoReturn:
    for word in words:
        if inspect.iscoroutine(word):
            word.close()
    raise BegunError


def build(*words: Any) -> NoReturn:
    """Build the router of `cachelb serve`, and serve nothing."""
    with BUILD_ROUTER(*words):
        raise BegunError


BUILD_ROUTER = serve.build_router
PARSE_ARGS = argparse.ArgumentParser.parse_args


def parse(parser: argparse.ArgumentParser, *words: Any, **named: Any) -> NoReturn:
    PARSE_ARGS(parser, *words, **named)
    raise BegunError


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the commands of the pages read."""
    folder = tmp_path_factory.mktemp("files")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").touch()
    (folder / "traces").mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    for name in ("production_stack.py", "envoy/gateway.toml", "envoy/envoy.yaml"):
        shutil.copy(ROOT / "examples" / name, folder)
    (folder / "rules.py").write_text(definitions("docs/policies.md"))
    mooncake = ("trace", "conversation_trace", "synthetic_trace")
    contents = dict.fromkeys((*(f"{name}.jsonl" for name in mooncake), "traces/trace_1.json"), MOONCAKE * 64)
    contents |= dict.fromkeys(("AzureLLMInferenceTrace_conv.csv", "AzureLLMInferenceTrace_code_1week.csv"), AZURE)
    contents |= {"agents.jsonl": AGENTS, "sessions.jsonl": "".join(SESSIONS.replace('"a"', f'"{n}"') for n in range(9))}
    contents["tokenizer_config.json"] = json.dumps({"chat_template": "{{ messages[0].content }}"})
    body = json.dumps(
        {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    )
    contents |= dict.fromkeys(("turn-1.json", "turn-2.json", "request.json"), body)
    samples = "".join(f"{at},{at % 7},0.5,2,1,{40 + at},9,L20,{400 + at},{250 + at}\n" for at in range(40))
    contents |= dict.fromkeys(LODESTAR, f"{HEAD}\n{samples}")
    for name, content in contents.items():
        (folder / name).write_text(content)
        with lzma.open(folder / f"{name}.xz", "wt") as file:
            file.write(content)
    with Router(["http://gpu0:8000"], seed=1) as router:
        router.attach(JsonlRecords(folder / "decisions-17.jsonl"))
        router.attach(Capture(folder / "capture.jsonl", seconds=300))
        for turn in range(1, 5):
            router.select_worker(tokens=[1] * 160 * turn).on_complete(cached_tokens=80, output_tokens=10)
    return folder


def recorded(block: Block, folder: Path) -> Iterator[Command]:
    """Let bash read a block in a folder, which it may change, and yield its commands."""
    log = folder / "log"
    (folder / "route").write_text("#!/bin/sh\n")  # what `cc` would have left
    (folder / "route").chmod(0o755)
    script = f". {ROOT / 'tests' / 'recording.sh'}\n{block.text}\nwait\n"
    bash = shutil.which("bash")
    assert bash is not None
    run = subprocess.run(
        [bash, "-c", script],
        cwd=folder,
        env={"PATH": "/nowhere", "LOG": str(log), "LITELLM_MASTER_KEY": "sk-1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, ""), f"{block.place}: {run.stderr}"
    fields = iter(log.read_text("utf-8").split("\0")[:-1])
    for place in fields:
        given, policy, count = next(fields), next(fields), int(next(fields))
        yield Command(Path(place).relative_to(folder), given, policy, [next(fields) for _ in range(count)])


def check_files(words: list[str], folder: Path = ROOT) -> None:
    """Files of the repository exist, and those that options name."""
    for before, word in zip(["", *words], words, strict=False):
        path = word.partition("=")[2] or word
        if path.startswith(tuple(f"{name}/" for name in FOLDERS)) or before in {"-c", "--config"}:
            assert (ROOT / path).exists() or (folder / path).exists(), f"{path} is not in the repository"


def check_make(words: list[str]) -> None:
    text = (ROOT / "Makefile").read_text("utf-8")
    targets, variables = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE)), set(re.findall(r"\$\((\w+)\)", text))
    for word in words:
        name, is_variable, _ = word.partition("=")
        assert name in (variables if is_variable else targets), f"the Makefile has no {name}"


def path_of(module: str) -> Path:
    """The file that `python -m` runs."""
    names = (f"{module.replace('.', '/')}{end}.py" for end in ("", "/__main__"))
    found = [folder / name for name in names for folder in MODULES if (folder / name).exists()]
    assert found, f"there is no module {module}"
    return found[0]


def check_python(words: list[str], given: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the program up to its parsed arguments."""
    match words:
        case ["-m", "venv", *_]:
            return
        case ["-" | "-c" as option, *rest]:
            compile(given or rest[0], option, "exec")
            return
        case ["-m", module, *rest]:
            path = path_of(module)
        case _:
            name, *rest = words
            path = folder / name if (folder / name).exists() else ROOT / name
    assert path.exists(), f"there is no file {path}"
    source = path.read_text("utf-8")
    assert '__name__ == "__main__"' in source, f"{path.name} is no program"
    if "ArgumentParser(" not in source:
        assert not rest or "sys.argv" in source or path.name in OTHERS, f"{path.name} takes no arguments"
        return
    monkeypatch.setattr(sys, "argv", [str(path), *rest])
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    with pytest.raises(BegunError):
        runpy.run_path(str(path), run_name="__main__")


def check_cachelb(words: list[str], given: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command, or up to its work."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name in LONG:
        monkeypatch.setattr(name, begin)
    monkeypatch.setattr(serve, "build_router", build)
    monkeypatch.setattr(asyncio, "run", begin)
    monkeypatch.setattr(http.client.HTTPConnection, "request", begin)
    here = [re.sub(r"^/models/.*", str(folder), word) for word in words]
    result = CliRunner().invoke(app, here, input=given, prog_name="cachelb")
    is_begun = isinstance(result.exception, BegunError)
    assert is_begun or result.exit_code == 0, f"cachelb {shlex.join(words)}\n{result.output}\n{result.exception!r}"


@pytest.mark.parametrize("block", parameters("bash"))
def test_commands_of_a_block_are_right(
    block: Block, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in recorded(block, shutil.copytree(files, tmp_path / "block", symlinks=True)):
        (program, *words), folder = command.words, files / command.folder
        with monkeypatch.context() as patch:
            if command.policy:
                patch.setenv("CACHELB_POLICY", command.policy)
            if program == "cachelb":
                check_cachelb(words, command.input, folder, patch)
            elif program == "python":
                check_python(words, command.input, folder, patch)
            elif program == "make":
                check_make(words)
            else:
                assert program in OTHERS, f"{block.place}: nothing here checks {program!r}"
                check_files(words, folder)


def check_options(words: list[str]) -> None:
    """The command and its options exist; `doctor` has those of `doctor check`."""
    command: click.Command = app
    for word in words:
        if isinstance(command, click.Group):
            command = command.commands.get(word, command)
    assert command is not app or words[0] == "COMMAND", f"there is no command {words[0]!r}"
    below = command.commands.values() if isinstance(command, click.Group) else ()
    known = {"--help", *(name for each in (command, *below) for option in each.params for name in option.opts)}
    unknown = [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    assert unknown == [], f"`cachelb {shlex.join(words)}`: no such option"


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_commands_in_sentences_exist(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = prose(page)
    for span in SPAN.finditer(text):
        line = text.count("\n", 0, span.start()) + 1
        for part in re.sub(r" \[.*?\]|\.\.\.", "", span[1]).split("&&"):
            program, *words = shlex.split(part)
            with monkeypatch.context() as patch:
                try:
                    if program == "cachelb":
                        check_options(words)
                    elif program == "python":
                        path_of(words[1]) if words[0] == "-m" and len(words) == 2 else check_python(
                            words, "", ROOT, patch
                        )
                    elif program == "make":
                        check_make(words)
                    else:
                        check_files(words)
                except (AssertionError, SystemExit) as error:
                    pytest.fail(f"{name_of(page)}:{line}: {error}")
