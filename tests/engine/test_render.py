"""Bodies that share chunks share what vLLM renders of them, and those that are read as equal are rendered as equal."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engine.changes import changed
from tests.engine.engine import environment_python, running
from tests.engine.render import Read, RenderServer, falsely_shared, numbers, template_of
from tests.engine.spellings import Conversation, Spellings
from tests.engine.talks import RESPONSES, Blocks, Items, Talks, Texts
from tests.library.bodies.test_body_templates import PLACES, REFUSES, TEMPLATES

from cachelb import RequestBodies
from cachelb.tokenizers.template import ChatTemplate

# Pairs of each endpoint and server.
PAIRS = int(os.environ.get("CACHELB_RENDER_PAIRS", "280"))
SPELLINGS = 200
CHATS = 2000
ENDPOINTS = {"chat": Talks, "completions": Texts, "messages": Blocks, "responses": Items}
# These move system messages to the first.
MERGING = ("deepseek", "last-system")
DEVELOPER = ("gpt-oss",)
# vLLM has the fields of a function in another order behind /v1/responses: templates that print them in their order
# separate calls that come through different endpoints.
NAMED_CALLS = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.reasoning or '' }}{{ m.content or '' }}{% for call in m.tool_calls or [] %}<call>{{ call.function.name }}"
    "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
SERVERS = {
    # vLLM leaves system messages of Anthropic's API where they are, and merges all where there is a developer's.
    "in-place": template_of(
        {name: source for name, source in TEMPLATES.items() if name not in DEVELOPER},
        "{% for m in messages %}{{ m.content }}{% endfor %}",
    ),
    # It merges them, and leaves those of developers.
    "merged": template_of(
        {**TEMPLATES, "named-calls": NAMED_CALLS}, "{{ raise_exception('a system message is not the first') }}"
    ),
}


@pytest.fixture(scope="module")
def servers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RenderServer]]:
    folder = tmp_path_factory.mktemp("render")
    servers = {name: RenderServer(model, folder / f"{name}.log", template) for name, template in SERVERS.items()}
    with running(list(servers.values())):
        yield servers


def families(server: str) -> list[str]:
    return [name for name in TEMPLATES if server == "merged" or name not in DEVELOPER]


def profile(family: str, server: str, *, known: bool) -> RequestBodies:
    """A router's settings for the engines: all true ones, or those that the defaults do not cover."""
    place: Any = PLACES.get(family, "unknown") if known or family in REFUSES else "unknown"
    stays = known and server == "in-place" and family not in MERGING
    return RequestBodies(
        engine="vllm",
        tools_place=place,
        keeps_reasoning=known and family == "hermes",
        inline_system="in-place" if stays else "merged",
    )


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_chunks_are_shared_only_where_vllm_renders_alike(
    endpoint: str, server: str, servers: dict[str, RenderServer]
) -> None:
    counts: Counter[str] = Counter()
    names = families(server)
    for number in range(PAIRS):
        family = names[number % len(names)]
        talks = ENDPOINTS[endpoint](number, family)
        pair = [talks.body()]
        pair.append(changed(talks, pair[0]))
        bodies = [json.dumps(body).encode() for body in pair]
        rendered = [servers[server].render(talks.path, body) for body in bodies]
        ids = [found[0] for found in rendered if found is not None]
        if len(ids) < len(bodies) or not all(map(talks.is_usual, pair)):
            counts["left out"] += 1
            continue
        first, second = (servers[server].text(found) for found in ids)
        told = profile(family, server, known=number // len(names) % 2 == 1)
        # Without the engine, tools are in front of results of tools among the texts of the last user message.
        known_engine_only = endpoint == "messages" and told.tools_place == "last-user"
        for bodies_of in (told,) if known_engine_only else (told, replace(told, engine=None)):
            one, other = (Read.of(bodies_of, talks.path, body) for body in bodies)
            shared = one.shared_with(other)
            assert not falsely_shared(shared, (first, second)), json.dumps(pair)
            # An unfinished message of the assistant has no end.
            assert one != other or first.startswith(second) or second.startswith(first), json.dumps(pair)
            counts["shares"] += bool(numbers(shared))
    assert counts["shares"] > PAIRS // 3
    assert counts["left out"] < PAIRS // 2


@pytest.mark.parametrize("endpoint", ["chat", "messages", "responses"])
def test_spellings_of_a_body_are_equal(endpoint: str, servers: dict[str, RenderServer]) -> None:
    told = RequestBodies(engine="vllm")
    names = families("in-place")
    taken = 0
    for number in range(SPELLINGS):
        talks = ENDPOINTS[endpoint](1000 + number, names[number % len(names)])
        body = talks.body()
        spellings = [json.dumps(body).encode(), Spellings(talks).of(body)]
        one, other = (Read.of(told, talks.path, text) for text in spellings)
        assert one == other, spellings
        first, second = (servers["in-place"].render(talks.path, text) for text in spellings)
        assert first == second, spellings
        taken += first is not None
    assert taken > SPELLINGS // 2


def test_a_conversation_is_the_same_through_three_endpoints(servers: dict[str, RenderServer]) -> None:
    told = RequestBodies(engine="vllm")
    names = families("merged")
    for number in range(SPELLINGS):
        alike = number % 2 == 0
        talks = Talks(2000 + number, "named-calls" if alike else names[number // 2 % len(names)])
        bodies = {path: json.dumps(body).encode() for path, body in Conversation(talks).bodies().items()}
        assert len({Read.of(told, path, body) for path, body in bodies.items()}) == 1, bodies
        rendered = [servers["merged"].render(path, body) for path, body in bodies.items() if alike or path != RESPONSES]
        assert rendered[0] is not None
        assert rendered == [rendered[0]] * len(rendered), bodies


def test_chat_templates_render_as_those_of_transformers() -> None:
    names = list(TEMPLATES)
    chats = []
    for number in range(CHATS):
        talks = Talks(3000 + number, names[number % len(names)])
        body = talks.body()
        # transformers takes texts, and arguments as objects; vLLM makes them for it.
        for turn in body["messages"]:
            if not isinstance(turn["content"], str):
                turn["content"] = talks.text()
            for call in turn.get("tool_calls", []):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        chats.append((TEMPLATES[talks.family], body["messages"], body.get("tools", []), talks.chance(0.5)))
    lines = "".join(json.dumps(chat) + "\n" for chat in chats)
    command = [environment_python(), Path(__file__).with_name("jinja_oracle.py")]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for (template, messages, tools, prompt), answer in zip(chats, answers, strict=True):
        ours = ChatTemplate(template, {})
        try:
            text = ours.render(messages, tools, {"add_generation_prompt": prompt})
        except ValueError:
            text = None
        assert text == answer, messages
    assert sum(answer is not None for answer in answers) > CHATS * 9 // 10
