"""`cachelb explain --body`: the table, the comparison, options of each form, and files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.lab.test_cli_explain import explained, run

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Do magpies sing? " * 20}], "max_tokens": 8}
GROWN = {**CHAT, "messages": [*CHAT["messages"], {"role": "assistant", "content": "Seldom."}]}  # type: ignore[misc]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text(json.dumps(CHAT))
    other.write_text(json.dumps(GROWN))
    return one, other


def test_the_table_shows_what_is_read_and_by_which_path(files: tuple[Path, Path]) -> None:
    result = run("--body", files[0], "--header", "x-session-id: secret")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines()]
    for row in (["kind", "chat"], ["messages", "1"], ["max output tokens", "8"], ["convention", "opencode"]):
        assert row in rows, result.output
    assert ["path", "/v1/chat/completions"] in rows
    assert "secret" not in result.output
    assert "magpies" not in result.output


def test_a_body_is_read_from_standard_input() -> None:
    result = run("--body", "-", "--path", "/v1/completions", "--json", given=b'{"prompt": [1, 2, 3]}')
    (body,) = json.loads(result.stdout)["bodies"]
    assert (body["file"], body["path"], body["kind"], body["tokens"]) == ("-", "/v1/completions", "tokens", 3)


def test_two_bodies_are_compared(files: tuple[Path, Path]) -> None:
    one, other = files
    document = explained("--body", one, "--body", other)
    shared = document["shared"]
    assert (shared["where"], shared["message"], shared["tokens"]) == ("message", 2, 80)
    assert [body["messages"] for body in document["bodies"]] == [1, 2]
    lines = run("--body", one, "--body", other, "--block-size", 8).stdout.splitlines()
    assert lines[-2].startswith("shared: 10 blocks, 80 tokens, 8")
    assert lines[-1] == "first difference: message 2 of the second"
    assert "the prompts are the same: 5 whole blocks, 80 tokens" in run("--body", one, "--body", one).stdout


def test_a_template_sets_what_is_known_of_the_engines(files: tuple[Path, Path], tmp_path: Path) -> None:
    turn = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    template, config = tmp_path / "chat.jinja", tmp_path / "tokenizer_config.json"
    template.write_text("{{ tools | tojson if tools else '' }}" + turn)
    config.write_text(json.dumps({"chat_template": turn}))
    probed = explained("--body", files[0], "--template", template)["engines"]
    assert probed == {"tools_place": "before-system", "keeps_reasoning": True, "inline_system": "in-place"}
    given = ("--tools-place", "last-user", "--engine", "vllm", "--keeps-reasoning")
    own = explained("--body", files[0], "--template", config, *given)["engines"]
    assert own == {
        "tools_place": "last-user",
        "keeps_reasoning": True,
        "inline_system": "in-place",
        "engine": "vllm",
    }
    shown = "engines: keeps_reasoning = True\nengines: inline_system = in-place\n"
    assert shown in run("--body", files[0], "--template", config).stdout
    config.write_text("{}")
    assert "has no chat_template" in run("--body", files[0], "--template", config).stderr


def test_what_is_known_of_the_engines_changes_what_is_shared(tmp_path: Path) -> None:
    file, other = tmp_path / "one.json", tmp_path / "other.json"
    system = {"role": "system", "content": "Be brief. " * 30}
    for path, name in ((file, "find"), (other, "look")):
        tools = [{"type": "function", "function": {"name": name}}]
        path.write_text(json.dumps({"messages": [system, *CHAT["messages"]], "tools": tools}))  # type: ignore[misc]
    both = ("--body", file, "--body", other)
    found = [explained(*both, *more)["shared"] for more in (("--match", "certain"), ())]
    assert [(shared["where"], shared["tokens"]) for shared in found] == [("tools", 0), ("tools", 80)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param((), "give either FILE", id="neither"),
        pytest.param(("records.jsonl", "--body", "ONE"), "give either FILE", id="both"),
        pytest.param(("--body", "ONE", "--top", 3), "--top goes with FILE only", id="option-of-records"),
        pytest.param(("records.jsonl", "--engine", "vllm"), "--engine goes with --body only", id="option-of-bodies"),
        pytest.param(("--body", "ONE", "--body", "ONE", "--body", "ONE"), "may be given twice", id="three"),
        pytest.param(("--body", "-", "--body", "-"), "only one --body can be standard input", id="stdin-twice"),
        pytest.param(("--body", "ONE", "--header", "nonsense"), "must be NAME:VALUE", id="header"),
        pytest.param(("--body", "nowhere.json"), "does not exist", id="no-file"),
    ],
)
def test_a_wrong_call_is_refused(arguments: tuple[object, ...], text: str, files: tuple[Path, Path]) -> None:
    result = run(*(files[0] if each == "ONE" else each for each in arguments))
    assert result.exit_code == 2
    assert text in result.stderr


def test_a_body_that_cannot_be_read_names_kind_and_byte(tmp_path: Path) -> None:
    file = tmp_path / "cut.json"
    file.write_text('{"messages": [')
    result = run("--body", file)
    assert result.exit_code == 1
    assert "request body: truncated at byte 14; it would be routed by load" in result.stderr


def test_a_body_without_a_prompt_asks_for_the_path() -> None:
    assert "--path must be the path of the request" in run("--body", "-", given=b'{"input": "Hello!"}').stdout


def test_no_more_of_a_file_is_read_than_a_router_takes(tmp_path: Path) -> None:
    file = tmp_path / "long.json"
    with file.open("wb") as out:
        out.truncate((16 << 20) + 1)
    assert "request body: too-large" in run("--body", file).stderr
