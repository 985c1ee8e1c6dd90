"""`probe_template`: where small templates put tools, reasoning and system messages."""

from __future__ import annotations

import pytest

import cachelb
from cachelb.tokenizers import probe_template
from cachelb.tokenizers.templates import ChatTemplates

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


@pytest.mark.parametrize(
    ("template", "place"),
    [
        pytest.param(TOOLS + CHAT, "before-system", id="first"),
        pytest.param(IN_SYSTEM, "after-system", id="in-the-system-turn"),
        pytest.param(LAST_USER, "last-user", id="last-user"),
        pytest.param(NEMO, "last-user", id="system-in-the-last-message"),
        pytest.param(NEMO.replace("loop.last", "m == users[-1]"), "last-user", id="system-in-the-last-user-message"),
        pytest.param(CHAT, "unknown", id="not-rendered"),
        pytest.param(CHAT + TOOLS, "unknown", id="behind-all"),
        pytest.param("{{ raise_exception('no') }}", "unknown", id="raising"),
        pytest.param("{% if tools %}{{ raise_exception('no') }}{% endif %}" + CHAT, "unknown", id="refuses-tools"),
        pytest.param("{% if tools %}You can call tools. {% endif %}" + IN_SYSTEM, "unknown", id="preamble"),
        pytest.param("{{ tools | length if tools else 0 }}" + TOOLS + IN_SYSTEM, "unknown", id="twice"),
        pytest.param("{{ messages | length }}" + TOOLS + CHAT, "unknown", id="another-beginning-each-turn"),
        pytest.param("{% if tools %}{{ tools[0].function.name }}{% endif %}" + CHAT, "unknown", id="names-only"),
    ],
)
def test_the_place_of_tools_is_found(template: str, place: str) -> None:
    assert probe_template(template)["tools_place"] == place


REASONING = "{% if m.reasoning_content %}(think){{ m.reasoning_content }}(/think){% endif %}"
DROPS = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if loop.index0 > ns.last %}" + REASONING + "{% endif %}" + TURN + "{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "keeps"),
    [
        pytest.param("{% for m in messages %}" + REASONING + TURN + "{% endfor %}", True, id="kept"),
        pytest.param(DROPS, False, id="dropped"),
        pytest.param(CHAT, False, id="never-rendered"),
    ],
)
def test_reasoning_of_earlier_turns_is_found(template: str, *, keeps: bool) -> None:
    assert probe_template(template)["keeps_reasoning"] is keeps


MERGED = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}" + TURN + "{% endfor %}"
)
LEADS = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "inline"),
    [
        pytest.param(CHAT, "in-place", id="in-place"),
        pytest.param(MERGED, "merged", id="moved"),
        pytest.param(LEADS + TURN + "{% endfor %}", "merged", id="refused"),
        pytest.param("{% for m in messages if m.role != 'system' %}" + TURN + "{% endfor %}", "merged", id="left-out"),
    ],
)
def test_system_messages_among_the_others_are_found(template: str, inline: str) -> None:
    assert probe_template(template)["inline_system"] == inline


def test_the_template_for_tools_is_probed_with_tools() -> None:
    both = ChatTemplates({"default": CHAT, "tool_use": TOOLS + CHAT}, None)
    assert probe_template(both)["tools_place"] == "before-system"


def test_the_result_is_options_of_request_bodies() -> None:
    found = probe_template(IN_SYSTEM)
    assert found == {"tools_place": "after-system", "keeps_reasoning": False, "inline_system": "in-place"}
    cachelb.Router(["gpu0"], bodies=cachelb.RequestBodies(**found))


def test_a_text_that_is_no_template_is_refused() -> None:
    with pytest.raises(ValueError, match="no valid Jinja"):
        probe_template("{% for")
