"""`benches.templates`: engines, cells and reports, over templates of our own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benches.templates import __main__ as command
from benches.templates.agents import NAMES, make_agents
from benches.templates.cells import Prompts, Share, Sum, true_shares
from benches.templates.engine import Engine, RefusedError
from benches.templates.fuzz import fuzz
from benches.templates.learning import PHASES, play
from benches.templates.runs import options_of
from tests.tooling.chat_families import FAMILIES

PLAIN = (
    "{% for m in messages %}[{{ m.role }}{% if m.reasoning %}({{ m.reasoning }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}={{ c.function.arguments.a }}{% endfor %}]{% endfor %}"
)
STRICT = PLAIN.replace(
    "[{{ m.role }}",
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}[{{ m.role }}",
)
HEADER = "x-anthropic-billing-header: cch=1;"


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Engine]:
    def engine(source: str, **options: bool) -> Engine:
        file = tmp_path / "family.jinja"
        file.write_text(source)
        return Engine(file, **options)

    return engine


CLAUDE = {
    "system": [text(HEADER), text("S")],
    "messages": [
        {"role": "user", "content": [text("q")]},
        {"role": "system", "content": "note"},
        {
            "role": "assistant",
            "content": [
                text("a"),
                {"type": "thinking", "thinking": "t"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": "x"}},
            ],
        },
        {"role": "user", "content": [text("more"), {"type": "tool_result", "tool_use_id": "1", "content": "r"}]},
    ],
}
CODEX = {
    "instructions": "S",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": "x"}'},
        {"type": "function_call_output", "call_id": "1", "output": "r"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
    ],
}
PROXIED = {"messages": [{"role": "system", "content": f"{HEADER}\nS"}, {"role": "user", "content": "q"}]}


@pytest.mark.parametrize(
    ("source", "options", "sent", "prompt"),
    [
        (PLAIN, {}, ("/v1/messages", CLAUDE), "[systemS][userq][systemnote][assistant(t)a=x][toolr][usermore]"),
        (STRICT, {}, ("/v1/messages", CLAUDE), "[systemSnote][userq][assistant(t)a=x][toolr][usermore]"),
        (PLAIN, {}, ("/v1/responses", CODEX), "[systemS][userq][assistant(t)a=x][toolr][systemd]"),
        (STRICT, {}, ("/v1/responses", CODEX), "[systemS\n\nd][userq][assistant(t)a=x][toolr]"),
        (PLAIN, {"gathers": True}, ("/v1/responses", CODEX), "[systemS\n\nd][userq][assistant(t)a=x][toolr]"),
        (PLAIN, {}, ("/v1/chat/completions", PROXIED), "[systemS][userq]"),
        (PLAIN, {"keeps_line": True}, ("/v1/chat/completions", PROXIED), f"[system{HEADER}\nS][userq]"),
    ],
)
def test_bodies_become_prompts_as_vllm_makes_them(
    make: Any, source: str, options: dict[str, bool], sent: tuple[str, dict[str, Any]], prompt: str
) -> None:
    assert make(source, **options).render(*sent).decode() == prompt


def test_a_chat_that_a_template_refuses_is_no_cell(make: Any) -> None:
    with pytest.raises(RefusedError, match="family"):
        make("{{ raise_exception('no') }}").render("/v1/chat/completions", PROXIED)


def test_a_prompt_shares_most_with_one_beside_it_in_order() -> None:
    cache = Prompts()
    assert [cache.add(prompt) for prompt in (b"abcd", b"abx", b"zz", b"abce", b"b")] == [0, 2, 0, 3, 0]


def test_found_and_false_are_weighted_by_length() -> None:
    total = Sum()
    for share in (Share(true=0.8, claimed=0.4, length=300), Share(true=0.2, claimed=0.5, length=100)):
        total.add(share)
    assert total.found_share == pytest.approx((0.4 * 300 + 0.2 * 100) / (0.8 * 300 + 0.2 * 100))
    assert total.false_share == pytest.approx(0.3 * 100 / 400)


def test_transcripts_of_every_agent_grow(make: Any) -> None:
    agents = make_agents(seed=3)
    assert [agent.name for agent in agents] == list(NAMES)
    engine = make(FAMILIES["before"])
    for agent in agents:
        requests = agent.requests()
        shares = true_shares(engine, requests)
        turns = [share for request, (share, _) in zip(requests, shares, strict=True) if request.continues]
        assert 5 <= len(requests) <= 40
        assert sum(turns) / len(turns) > 0.4, agent.name
        assert max(share for share, _ in shares) < 1, agent.name


@pytest.mark.parametrize("family", FAMILIES)
def test_certain_options_of_families_have_no_false_claim(make: Any, family: str) -> None:
    engine = make(FAMILIES[family])
    result = fuzz(engine, options_of(engine, {"engine": "vllm", "probed": "certain"}), pairs=150, seed=5)
    assert (result.false, result.examples) == (0, [])
    assert result.shared > 40


def test_a_wrong_option_has_false_claims(make: Any) -> None:
    wrong = {"engine": "vllm", "keeps_reasoning": True, "tools_place": "after-system"}
    result = fuzz(make(FAMILIES["after"]), wrong, pairs=150, seed=5)
    assert result.false > 0
    assert len(result.examples) == min(3, result.false)


def test_reports_reach_the_router_and_phases_are_counted(make: Any) -> None:
    agents = make_agents(("openhands", "cline"), seed=2)
    played = play(make(FAMILIES["before"]), agents, {"engine": "vllm"}, reports="exact", seed=1)
    assert {phase for phase, _ in played.sums} == {*PHASES[:2], PHASES[3]}
    seen = [amount for (phase, _), amount in played.grounds.items() if phase in PHASES[:3]]
    assert sum(seen) == sum(len(agent.requests()) for agent in agents)
    late = played.sums[PHASES[1], "openhands"]
    assert late.found_share > 0.9
    assert late.false_share < 0.05


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ((), "first request of a further session"),
        (("--cells", "--reader", "default"), "openhands / before"),
        (("--layouts",), "best layout of each"),
        (("--learn", "missing", "--reader", "default"), "default; reports: missing"),
        (("--fuzz", "20"), "0 false claims"),
    ],
)
def test_the_command_prints_tables(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    mode: tuple[str, ...],
    expected: str,
) -> None:
    (tmp_path / "before.jinja").write_text(FAMILIES["before"])
    monkeypatch.setattr("sys.argv", ["templates", str(tmp_path), "--agents", "openhands", *mode])
    assert command.main() == 0
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--only", "zeta"), "no *.jinja in"), (("--agents", "clippy"), "no agent is called 'clippy'")],
)
def test_the_command_names_what_is_wrong(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    (tmp_path / "before.jinja").write_text(FAMILIES["before"])
    monkeypatch.setattr("sys.argv", ["templates", str(tmp_path), *arguments])
    with pytest.raises(SystemExit):
        command.main()
    assert message in capsys.readouterr().err
