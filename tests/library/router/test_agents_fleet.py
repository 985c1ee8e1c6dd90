"""Claude Code's agents before engines that render as vLLM does, with no option set."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import cachelb
from cachelb_fakes import FakeFleet
from cachelb_fakes.fleet.apis.anthropic import encode_body
from cachelb_fakes.fleet.prefix_cache import PrefixCache

AGENTS: Final = 20
TURNS: Final = 6
WORKERS: Final = 4
PATH: Final = "/v1/messages"
HEADER: Final = "x-anthropic-billing-header: cc_version=2.1.280.%s; cch=%05x;"
TOOLS: Final = [
    {"name": name, "description": f"{name} files. " * 40, "input_schema": {"type": "object", "properties": {}}}
    for name in ("Read", "Write", "Bash", "Grep")
]


def session(agent: int) -> Iterator[dict[str, Any]]:
    """Yield the requests of an agent: another billing line in each, and a reminder in each turn."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": f"Task {agent}: fix the tests of module {agent}. " * 20}
    ]
    for turn in range(TURNS):
        reminder = f"<total_tokens>{5_000_000 - 911 * turn - agent} tokens left</total_tokens>"
        messages.append({"role": "system", "content": reminder})
        system = [
            {"type": "text", "text": HEADER % (f"{agent:03x}", 16 * turn + agent)},
            {"type": "text", "text": "You are Claude Code, an agent that edits files. " * 120},
        ]
        yield {"model": "m", "max_tokens": 8, "system": system, "tools": TOOLS, "messages": list(messages)}
        call = {"type": "tool_use", "id": f"t{turn}", "name": "Read", "input": {"path": f"{agent}/{turn}.py"}}
        thought = {"type": "thinking", "thinking": f"Look at file {turn}. " * 10, "signature": "s"}
        result = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": f"line {agent} {turn}\n" * 80}
        messages += [{"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [result]}]


def in_turn() -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield agent and request, a turn of all agents after the other, in an order of its own."""
    luck = random.Random(1)
    sessions = [session(agent) for agent in range(AGENTS)]
    for _ in range(TURNS):
        for agent in luck.sample(range(AGENTS), AGENTS):
            yield agent, next(sessions[agent])


def most_cached() -> int:
    """Count the tokens that unbounded caches hold if each agent stays on one worker."""
    caches = [PrefixCache(str(worker), block_size=16, max_blocks=1 << 20, publish=None) for worker in range(WORKERS)]
    found = 0
    for agent, body in in_turn():
        tokens, cache = encode_body(body), caches[agent % WORKERS]
        found += cache.look_up(tokens, None)
        cache.keep(tokens, None)
    return found


def ask(url: str, body: bytes) -> dict[str, int]:
    request = urllib.request.Request(url + PATH, body, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - of the test's own engines
        usage: dict[str, int] = json.load(answer)["usage"]
    return usage


def test_agents_reuse_nearly_all_that_engines_hold() -> None:
    """A missed match sends an agent to a worker without its conversation."""
    cached = 0
    with FakeFleet(WORKERS, kv_blocks=1 << 16) as fleet:
        router = cachelb.Router(fleet.urls, seed=1)
        for _, body in in_turn():
            content = json.dumps(body).encode()
            decision = router.select_worker(body=content, path=PATH, headers={})
            usage = ask(decision.worker, content)
            read = usage["cache_read_input_tokens"]
            decision.on_complete(
                cached_tokens=read, prompt_tokens=read + usage["input_tokens"], output_tokens=usage["output_tokens"]
            )
            cached += read
        stats = router.stats().bodies
    assert cached >= 0.98 * most_cached(), (cached, most_cached())
    assert (stats.attribution, stats.layout_unreported) == (AGENTS * TURNS, 0)
