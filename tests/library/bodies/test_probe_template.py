"""`probe_template`: where small templates put tools, reasoning and system messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

import cachelb
from cachelb.tokenizers.templates import ChatTemplates
from cachelb_lab.descriptions import describe_body
from cachelb_lab.probe import probe_template

TURN = "<{{ m.role }}>{{ m.content }}</{{ m.role }}>"
CHAT = f"{{% for m in messages %}}{TURN}{{% endfor %}}"
TOOLS = "{% if tools %}[tools]{% for tool in tools %}{{ tool | tojson }}{% endfor %}[/tools]{% endif %}"
IN_SYSTEM = (
    "{% set given = messages and messages[0].role == 'system' %}"
    "{% if given or tools %}<system>{% if given %}{{ messages[0].content }}{% endif %}" + TOOLS + "</system>{% endif %}"
    "{% for m in messages %}{% if not (loop.first and given) %}" + TURN + "{% endif %}{% endfor %}"
)
LAST_USER = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if loop.index0 == ns.last %}" + TOOLS + "{% endif %}" + TURN + "{% endfor %}"
)
# System text within the last user message, if that comes last.
NEMO = (
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% set messages = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% if m == users[-1] %}" + TOOLS + "{% endif %}"
    "[INST]{% if loop.last and system %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)


TWICE = "{{ tools | length if tools else 0 }}" + TOOLS + IN_SYSTEM


@pytest.mark.parametrize(
    ("template", "place"),
    [
        pytest.param(TOOLS + CHAT, "before-system", id="first"),
        pytest.param(IN_SYSTEM, "after-system", id="in-the-system-turn"),
        pytest.param("{% if tools %}You can call tools. {% endif %}" + IN_SYSTEM, "after-system", id="preamble"),
        pytest.param(LAST_USER, "last-user", id="last-user"),
        pytest.param(NEMO, "last-user", id="system-in-the-last-message"),
        pytest.param(NEMO.replace("loop.last", "m == users[-1]"), "last-user", id="system-in-the-last-user-message"),
        pytest.param(CHAT, None, id="not-rendered"),
        pytest.param(CHAT + TOOLS, None, id="behind-all"),
        pytest.param("{{ raise_exception('no') }}", None, id="raising"),
        pytest.param("{% if tools %}{{ raise_exception('no') }}{% endif %}" + CHAT, None, id="refuses-tools"),
        pytest.param(TWICE, None, id="twice"),
        pytest.param("{{ messages | length }}" + TOOLS + CHAT, None, id="another-beginning-each-turn"),
        pytest.param("{% if tools %}{{ tools[0].function.name }}{% endif %}" + CHAT, None, id="names-only"),
    ],
)
def test_the_place_of_tools_is_found(template: str, place: str | None) -> None:
    assert probe_template(template).get("tools_place") == place


REASONING = "{% if m.reasoning_content %}(think){{ m.reasoning_content }}(/think){% endif %}"
LAST = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
DROPS = (
    LAST + "{% for m in messages %}{% if loop.index0 > ns.last %}" + REASONING + "{% endif %}" + TURN + "{% endfor %}"
)
EMPTY = REASONING.replace("{% endif %}", "{% elif m.role == 'assistant' %}(think)(/think){% endif %}")
# Reasoning of calls goes once an answer follows.
CALLS_THINK = (
    LAST.replace("m.role == 'user'", "m.role == 'assistant' and not m.tool_calls")
    + "{% for m in messages %}{% if m.tool_calls and loop.index0 > ns.last %}"
    + REASONING
    + "{% endif %}"
    + TURN
    + "{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "keeps"),
    [
        pytest.param("{% for m in messages %}" + REASONING + TURN + "{% endfor %}", True, id="kept"),
        pytest.param("{% for m in messages %}" + EMPTY + TURN + "{% endfor %}", True, id="always-one"),
        pytest.param(DROPS, False, id="dropped"),
        pytest.param(DROPS.replace(REASONING, EMPTY), False, id="dropped-empty"),
        # Kept behind the last answer, and an empty one there.
        pytest.param(
            DROPS.replace(
                "{% if loop.index0 > ns.last %}" + REASONING + "{% endif %}",
                EMPTY.replace("m.role == 'assistant'", "m.role == 'assistant' and loop.index0 > ns.last"),
            ),
            False,
            id="kept-or-empty",
        ),
        pytest.param(CALLS_THINK, False, id="dropped-of-calls"),
        pytest.param(CHAT, True, id="never-rendered"),
        pytest.param("{{ raise_exception('no') }}", None, id="raising"),
    ],
)
def test_reasoning_of_earlier_turns_is_found(template: str, keeps: bool | None) -> None:
    assert probe_template(template).get("keeps_reasoning") is keeps


def test_an_answer_is_not_claimed_where_an_empty_thought_goes() -> None:
    template = (
        LAST + "{% for m in messages %}<{{ m.role }}>{% if m.reasoning %}(think){{ m.reasoning }}(/think)"
        "{% elif m.role == 'assistant' and loop.index0 > ns.last %}(think)(/think){% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    bodies = cachelb.RequestBodies(engine="vllm", **probe_template(template))
    answered = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "Step one. " * 200}]
    one, then = (
        describe_body(json.dumps({"messages": messages}).encode(), bodies=bodies)
        for messages in (answered, [*answered, {"role": "user", "content": "and now?"}])
    )
    assert one.shared_with(then).tokens == 0


MERGED = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}" + TURN + "{% endfor %}"
)
LEADS = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
RAISES = LEADS + TURN + "{% endfor %}"


@pytest.mark.parametrize(
    ("template", "inline"),
    [
        pytest.param(CHAT, "in-place", id="in-place"),
        pytest.param(MERGED, "merged", id="moved"),
        pytest.param(RAISES, "merged", id="refused"),
        pytest.param("{{ raise_exception('no') }}", None, id="raising"),
    ],
)
def test_system_messages_among_the_others_are_found(template: str, inline: str | None) -> None:
    assert probe_template(template).get("inline_system") == inline


def test_the_template_for_tools_is_probed_with_tools() -> None:
    both = ChatTemplates({"default": CHAT, "tool_use": TOOLS + CHAT}, None)
    assert probe_template(both)["tools_place"] == "before-system"


@pytest.mark.parametrize("match", ["certain", "likely"])
def test_the_result_is_options_of_request_bodies(match: Any) -> None:
    found = probe_template(IN_SYSTEM, match=match)
    assert found.pop("match", "likely") == match
    assert found == {"tools_place": "after-system", "keeps_reasoning": True, "inline_system": "in-place"}
    cachelb.Router(["gpu0"], bodies=cachelb.RequestBodies(**found))


def test_a_text_may_use_special_tokens() -> None:
    assert probe_template(CHAT.replace(TURN, TURN + "{{ eos_token + '' }}")) == probe_template(CHAT)


def test_options_that_no_chat_shows_are_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="cachelb.tokenizers"):
        assert probe_template("{{ raise_exception('no') }}", match="likely") == {}
    assert [name in caplog.text for name in ("tools_place", "keeps_reasoning", "inline_system")] == [True] * 3


def test_a_text_that_is_no_template_is_refused() -> None:
    with pytest.raises(ValueError, match="no valid Jinja"):
        probe_template("{% for")


def test_another_kind_of_match_is_refused() -> None:
    with pytest.raises(ValueError, match="'certain' or 'likely', got 'sure'"):
        probe_template(CHAT, match="sure")  # type: ignore[arg-type]
