"""Transcripts in the shapes that coding agents send; all texts are our own."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benches.templates import anthropic, chats, responses
from benches.templates.words import Body, Words

Sessions = list[list[Body]]
"""Bodies of each session; each holds the one before it, but for changes of the client."""


@dataclass(frozen=True, slots=True)
class Request:
    """A body, its path, and whether an earlier one of its session was sent."""

    agent: str
    session: int
    path: str
    body: Body
    continues: bool


@dataclass(frozen=True, slots=True)
class Agent:
    """A client and its requests."""

    name: str
    path: str
    sessions: Sessions
    parallel: bool = False

    def requests(self) -> list[Request]:
        """Return the requests in the order in which they are sent."""
        pairs = [(number, turn) for number, bodies in enumerate(self.sessions) for turn in range(len(bodies))]
        if self.parallel:
            pairs.sort(key=lambda pair: pair[1])
        return [Request(self.name, number, self.path, self.sessions[number][turn], turn > 0) for number, turn in pairs]


_MESSAGES, _CHAT, _RESPONSES = "/v1/messages", "/v1/chat/completions", "/v1/responses"
_KINDS: dict[str, tuple[str, Callable[[Words, random.Random], Sessions]]] = {
    "claude-reminders": (_MESSAGES, anthropic.reminders),
    "claude-header": (_MESSAGES, anthropic.header),
    "claude-no-thinking": (_MESSAGES, anthropic.no_thinking),
    "claude-subagents": (_MESSAGES, anthropic.subagents),
    "claude-compaction": (_MESSAGES, anthropic.compaction),
    "claude-new-tools": (_MESSAGES, anthropic.new_tools),
    "claude-proxied": (_CHAT, chats.proxied),
    "codex": (_RESPONSES, responses.codex),
    "codex-developer": (_RESPONSES, responses.codex_developer),
    "openhands": (_CHAT, chats.openhands),
    "opencode": (_CHAT, chats.opencode),
    "cline": (_CHAT, chats.cline),
    "aider": (_CHAT, chats.aider),
    "copilot": (_CHAT, chats.copilot),
    "thinks-in-text": (_CHAT, chats.thinks_in_text),
    "some-thoughts": (_CHAT, chats.some_thoughts),
}
NAMES = tuple(_KINDS)


def make_agents(names: tuple[str, ...] = NAMES, *, seed: int = 1) -> list[Agent]:
    """Make the transcripts; another seed gives other words, lengths and turns."""
    agents = []
    for name in names:
        path, build = _KINDS[name]
        words = Words(f"{name[0]}{NAMES.index(name)}s{seed}w")
        sessions = build(words, random.Random(f"{seed} {name}"))
        agents.append(Agent(name, path, copy.deepcopy(sessions), parallel=name == "claude-subagents"))
    return agents


def interleaved(agents: list[Agent], *, seed: int) -> Iterator[Request]:
    """Mix the requests of all agents; those of each stay in order."""
    queues = [iter(agent.requests()) for agent in agents]
    order = [number for number, agent in enumerate(agents) for _ in agent.requests()]
    random.Random(seed).shuffle(order)
    for number in order:
        yield next(queues[number])
