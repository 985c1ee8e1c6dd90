"""Prompts that share chunks share what chat templates make of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.engine.changes import changed
from tests.engine.render import Read, falsely_shared, numbers
from tests.engine.spellings import Spellings
from tests.engine.talks import CHAT, Body, Talks

from cachelb import RequestBodies
from cachelb.tokenizers.template import ChatTemplate

PAIRS = 1000

TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
CALLS = "{% for call in m.tool_calls or [] %}<call>{{ call.function | tojson }}{% endfor %}"
PLAIN = f"<|{{{{ m.role }}}}|>{{{{ m.content or '' }}}}{CALLS}<|end|>\n"

# Where each puts system text, tools and reasoning is that of the models it is named after; the words are not.
TEMPLATES = {
    # Tools behind the first system message, reasoning behind the last question only, results of tools in a row are one.
    "qwen": (
        "{% set first = messages[0].role == 'system' %}{% if tools or first %}<|system|>{% if first %}"
        "{{ messages[0].content }}{% endif %}{% if tools %}# Tools\n" + TOOLS + "{% endif %}<|end|>\n{% endif %}"
        "{% set ns = namespace(query=-1) %}{% for m in messages %}{% if m.role == 'user' and not "
        "m.content.startswith('<tool_response>') %}{% set ns.query = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% if m.role == 'tool' %}{% if loop.previtem is undefined or loop.previtem.role != "
        "'tool' %}<|user|>{% endif %}<r>{{ m.content }}</r>{% elif m.role == 'assistant' %}{% "
        "set content = m.content or '' %}"
        "{% set thought = m.reasoning or '' %}{% if '</think>' in content %}{% set thought = "
        "content.split('</think>')[0] %}"
        "{% set content = content.split('</think>')[-1] %}{% endif %}<|assistant|>{% if loop.index0 > ns.query and "
        "(loop.last or thought) %}<think>{{ thought }}</think>{% endif %}{{ content }}" + CALLS + "<|end|>\n"
        "{% elif not (loop.first and first) %}" + PLAIN + "{% endif %}{% endfor %}"
    ),
    # A first line announces the tools; they come in the first user message.
    "llama": (
        "{% set first = messages[0].role == 'system' %}<|system|>{% if tools %}Environment: tools\n{% endif %}"
        "{% if first %}{{ messages[0].content }}{% set messages = messages[1:] %}{% endif %}<|end|>\n"
        "{% if tools %}<|user|>" + TOOLS + "{% endif %}{% for m in messages %}" + PLAIN + "{% endfor %}"
    ),
    # Tools before the last user message.
    "mistral": (
        "{% set ns = namespace(user=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% "
        "set ns.user = loop.index0 %}"
        "{% endif %}{% endfor %}{% if ns.user < 0 %}{{ raise_exception('no user message') }}{% endif %}"
        "{% for m in messages %}{% if tools and loop.index0 == ns.user %}" + TOOLS + "{% endif %}"
        "" + PLAIN + "{% endfor %}"
    ),
    # Tools before the last user message, and system text in it if it comes last.
    "nemo": (
        "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
        "{% if system %}{% set messages = messages[1:] %}{% endif %}"
        "{% set ns = namespace(user=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% "
        "set ns.user = loop.index0 %}"
        "{% endif %}{% endfor %}{% if ns.user < 0 %}{{ raise_exception('no user message') }}{% endif %}"
        "{% for m in messages %}{% if loop.index0 == ns.user %}"
        + TOOLS
        + "{% if loop.last and system %}{{ system }}\n\n{% endif %}{% endif %}"
        + PLAIN
        + "{% endfor %}"
    ),
    # All system messages first, no reasoning.
    "deepseek": (
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n{% endif %}{% endfor %}" + TOOLS + ""
        "{% for m in messages %}{% if m.role != 'system' %}<|{{ m.role }}|>{{ (m.content or "
        "'').split('</think>')[-1] }}"
        "" + CALLS + "{% endif %}{% endfor %}"
    ),
    # Tools within the system message.
    "phi": (
        "{% if messages[0].role != 'system' %}" + TOOLS + "{% endif %}{% for m in messages %}<|{{ m.role }}|>"
        "{{ m.content }}{% if loop.first and m.role == 'system' %}" + TOOLS + "{% endif %}" + CALLS + "<|end|>\n"
        "{% endfor %}"
    ),
    # The system text is a part of the first turn, and tools are before it.
    "gemma": (
        TOOLS
        + "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% else %}"
        + PLAIN
        + "{% endif %}"
        "{% endfor %}"
    ),
    "hermes": (
        "{% if tools %}<|system|>" + TOOLS + "<|end|>\n{% endif %}{% for m in messages %}{% if m.reasoning %}"
        "<think>{{ m.reasoning }}</think>{% endif %}" + PLAIN + "{% endfor %}"
    ),
    # Reasoning of calls goes once an answer follows, that of answers always.
    "gpt-oss": (
        "{% if tools %}<|channels|>{% endif %}{% set first = messages[0].role in ['system', "
        "'developer'] %}<|developer|>"
        "{% if first %}{{ messages[0].content }}{% set messages = messages[1:] %}{% endif %}" + TOOLS + "<|end|>\n"
        "{% set ns = namespace(answer=-1) %}{% for m in messages %}{% if m.role == 'assistant' and not m.tool_calls %}"
        "{% set ns.answer = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% if "
        "m.reasoning and m.tool_calls "
        "and loop.index0 > ns.answer %}<analysis>{{ m.reasoning }}{% endif %}" + PLAIN + "{% endfor %}"
    ),
    # Answers behind the last question get a thought, if an empty one.
    "always-thinks": (
        "{% set ns = namespace(query=-1) %}{% for m in messages %}{% if m.role == 'user' and not "
        "m.content.startswith('<tool_response>') %}{% set ns.query = loop.index0 %}{% endif %}{% endfor %}" + TOOLS + ""
        "{% for m in messages %}{% if m.role == 'assistant' and loop.index0 > ns.query %}<think>{{ m.reasoning or '' }}"
        "</think>{% endif %}" + PLAIN + "{% endfor %}"
    ),
    # Plan, calls and their results come before the text of a message.
    "calls-first": (
        TOOLS + "{% for m in messages %}{% if m.role != 'tool' %}<|{{ m.role }}|>{{ m.plan or '' }}" + CALLS + ""
        "{% set ns = namespace(on=m.tool_calls) %}{% for r in messages[loop.index:] %}{% if r.role != 'tool' %}"
        "{% set ns.on = false %}{% elif ns.on %}<r>{{ r.content }}</r>{% endif %}{% endfor %}{{ m.content }}<|end|>\n"
        "{% endif %}{% endfor %}"
    ),
    # A message with calls has no text.
    "calls-only": (
        TOOLS + "{% for m in messages %}<|{{ m.role }}|>{% if m.tool_calls %}" + CALLS + "{% else %}{{ m.content }}"
        "{% endif %}<|end|>\n{% endfor %}"
    ),
    # The text of a call is a thought, and goes once an answer follows.
    "text-thinks": (
        "{% set ns = namespace(answer=-1) %}{% for m in messages %}{% if m.role == 'assistant' and not m.tool_calls %}"
        "{% set ns.answer = loop.index0 %}{% endif %}{% endfor %}" + TOOLS + "{% for m in messages %}<|{{ m.role }}|>"
        "{% if not m.tool_calls or loop.index0 > ns.answer %}{{ m.content }}{% endif %}" + CALLS + "{% endfor %}"
    ),
    # The last system message counts.
    "last-system": (
        "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = "
        "m.content %}{% endif %}{% endfor %}{{ ns.system }}"
        + TOOLS
        + "{% for m in messages %}{% if m.role != 'system' "
        "%}" + PLAIN + "{% endif %}{% endfor %}"
    ),
    # Only the last answer has the thought in its text.
    "last-thinks": (
        "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'assistant' %}{% set ns.last = "
        "loop.index0 %}{% endif %}{% endfor %}" + TOOLS + "{% for m in messages %}<|{{ m.role }}|>{% if m.role == "
        "'assistant' and loop.index0 != ns.last %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}"
        "{% endif %}" + CALLS + "<|end|>\n{% endfor %}"
    ),
}
PLACES = {
    "qwen": "after-system",
    "phi": "after-system",
    "llama": "after-system",
    "mistral": "last-user",
    "nemo": "last-user",
    "gemma": "before-system",
}
# Chats without a user message; the default profile does not suit them.
REFUSES = ("mistral", "nemo")
PLACES |= {"hermes": "before-system", "gpt-oss": "after-system"}


def rendered(template: ChatTemplate, body: Body) -> str | None:
    """Render a body, unless the template refuses it."""
    try:
        return template.render(body["messages"], body.get("tools", []), {"add_generation_prompt": False})
    except ValueError:
        return None


def altered(talks: Talks, body: Body) -> Body:
    """Change a body anywhere, and often at one of its ends."""
    other = changed(talks, body)
    if talks.chance(0.3):
        other["messages"].append(talks.turn())
    elif talks.chance(0.3):
        other["messages"][:1] = [talks.turn()]
    return other


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_chunks_are_shared_only_where_renderings_are(family: str, *, known: bool) -> None:
    place: Any = PLACES.get(family, "unknown") if known or family in REFUSES else "unknown"
    bodies = RequestBodies(match="certain", tools_place=place, keeps_reasoning=known and family == "hermes")
    template = ChatTemplate(TEMPLATES[family], {})
    shares = 0
    for number in range(PAIRS):
        talks = Talks(number, family)
        one = talks.body()
        other = altered(talks, one)
        first, second = (rendered(template, body) for body in (one, other))
        if first is None or second is None:
            continue
        written = (Spellings(talks).of(one), json.dumps(other).encode())
        shared = Read.of(bodies, CHAT, written[0]).shared_with(Read.of(bodies, CHAT, written[1]))
        assert not falsely_shared(shared, (first, second)), json.dumps([one, other])
        shares += bool(numbers(shared))
    assert shares > PAIRS // 10
