"""Prompts that share chunks share what chat templates make of them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from cachelb import RequestBodies, Router
from cachelb.tokenizers.template import ChatTemplate

CHAT = "/v1/chat/completions"
PAIRS = 500
# Marks around texts, names of roles and a digest are no part of a rendering.
SLACK = 500

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


class Talks:
    """Random conversations, each text of which has a number of its own, and one change of each."""

    def __init__(self, seed: int) -> None:
        self.luck = random.Random(seed)
        self.count = 0

    def text(self) -> str:
        self.count += 1
        return f"#{self.count};" + f" word{self.count}" * 150

    def message(self) -> dict[str, Any]:
        roles = ["system", "developer", "user", "user", "assistant", "assistant", "tool"]
        message: dict[str, Any] = {"role": self.luck.choice(roles), "content": self.text()}
        if message["role"] == "assistant":
            if self.luck.random() < 0.3:
                message["reasoning"] = self.text()
            if self.luck.random() < 0.2:
                message["content"] = f"{self.text()}</think>{message['content']}"
            if self.luck.random() < 0.4:
                function = {"name": "f", "arguments": json.dumps({"a": self.text()})}
                message["tool_calls"] = [{"id": "1", "type": "function", "function": function}]
        if self.luck.random() < 0.1:
            message["plan"] = self.text()
        if message["role"] == "user" and self.luck.random() < 0.1:
            message["content"] = "<tool_response>" + message["content"]
        return message

    def tool(self) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "f", "description": self.text(), "parameters": {}}}

    def talk(self) -> dict[str, Any]:
        messages = [self.message() for _ in range(self.luck.randint(1, 7))]
        return {"messages": messages, "tools": [self.tool() for _ in range(self.luck.randint(0, 2))]}

    def call(self, messages: list[dict[str, Any]]) -> None:
        """Add a call to each message of the assistant."""
        function = {"name": "f", "arguments": json.dumps({"a": self.text()})}
        for message in messages:
            if message["role"] == "assistant":
                message.setdefault("tool_calls", []).append({"id": "2", "type": "function", "function": function})

    def changed(self, talk: dict[str, Any]) -> dict[str, Any]:
        other: dict[str, Any] = json.loads(json.dumps(talk))
        messages, tools = other["messages"], other["tools"]
        at = self.luck.randrange(len(messages))
        match self.luck.randrange(10):
            case 0:
                messages[at]["content"] += "!"
            case 1:
                messages[at]["role"] = self.luck.choice(["system", "developer", "user", "tool"])
            case 2:
                messages.insert(at, self.message())
            case 3 | 4 as kind:
                messages.append({"role": "user", "content": self.text()} if kind == 3 else self.message())
            case 5 | 6 as kind:
                tools[:] = [*tools, self.tool()] if kind == 5 else tools[1:]
            case 7:
                messages[at]["plan"] = self.text()
            case 8:
                self.call(messages)
            case _:
                del messages[at + 1 :]
        return other

    def written(self, talk: dict[str, Any]) -> bytes:
        """A body in one of many spellings."""
        fields = list(talk.items())
        self.luck.shuffle(fields)
        messages = [dict(self.luck.sample(list(m.items()), len(m))) for m in talk["messages"]]
        document = dict(fields) | {"messages": messages}
        return json.dumps(document, ensure_ascii=self.luck.random() < 0.5, indent=self.luck.choice([None, 1])).encode()


def common(one: str, other: str) -> int:
    least = min(len(one), len(other))
    return next((i for i in range(least) if one[i] != other[i]), least)


def hidden(talk: dict[str, Any], rendered: str) -> int:
    """Letters of texts that a template leaves out."""
    texts = json.dumps(talk).replace("\\", "").split("#")[1:]
    return sum(len(text) for text in texts if f"#{text.partition(';')[0]};" not in rendered)


def has_user(talk: dict[str, Any]) -> bool:
    return any(message["role"] == "user" for message in talk["messages"])


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_chunks_are_shared_only_where_renderings_are(family: str, *, known: bool) -> None:
    place: Any = PLACES.get(family, "unknown") if known or family in REFUSES else "unknown"
    bodies = RequestBodies(match="certain", tools_place=place, keeps_reasoning=known and family == "hermes")
    router = Router(["gpu0"], seed=1, bodies=bodies)
    template = ChatTemplate(TEMPLATES[family], {})
    talks = Talks(7)
    shared = 0
    for number in range(PAIRS):
        one = talks.talk()
        other = talks.changed(one)
        if family in REFUSES and not all(has_user(talk) for talk in (one, other)):
            continue  # it refuses them
        seen = [
            template.render(talk["messages"], talk["tools"], add_generation_prompt=False, variables={})
            for talk in (one, other)
        ]
        call: dict[str, Any] = {"path": CHAT, "cache_salt": str(number)}
        router.select_worker(body=talks.written(one), **call).on_complete()
        decision = router.select_worker(body=talks.written(other), dry_run=True, **call)
        matched = 4 * decision.matched_tokens
        most = common(*seen) + min(hidden(one, seen[0]), hidden(other, seen[1])) + SLACK
        assert matched <= most, json.dumps([one, other])
        shared += matched > SLACK
    assert shared > PAIRS // 10
