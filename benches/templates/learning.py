"""All agents at one worker, which reports cached tokens as an engine of unbounded cache would."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from benches.templates.agents import Agent, interleaved
from benches.templates.cells import Prompts, Share, Sum
from benches.templates.engine import Engine, RefusedError
from benches.templates.readers import Options

import cachelb

REPORTS: Final = ("exact", "usual", "half-cut", "answers", "missing", "zero")
"""`usual`: 10 % cut by eviction and 2 % noise; `answers`: as that, and up to 10 % of the prompt more, as answers are
cached, too; `zero`: caching is off, but the field is there."""
PHASES: Final = ("first 20", "20 to 100", "from 100", "from 20")
STARTS: Final = (
    "m",
    "command-r",
    "deepseek",
    "deepseek-r1",
    "deepseek-v3.1",
    "gemma-4",
    "glm-",
    "gpt-oss",
    "mistral-nemo",
    "mistral-small",
    "phi-3",
    "qwen3.6",
    "qwen3.8",
)
"""Names of models that begin with different layouts."""
_BYTES: Final = 4


@dataclass(slots=True)
class Played:
    """Sums by phase and agent, and reasons of decisions, by phase."""

    sums: dict[tuple[str, str], Sum] = field(default_factory=lambda: defaultdict(Sum))
    grounds: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))


def play(
    engine: Engine, agents: list[Agent], options: Options, *, reports: str, seed: int, most: int | None = None
) -> Played:
    """Route all requests, or the first `most`, in one order; agents that the template refuses are left out."""
    luck = random.Random(f"{seed} {engine.name} {reports}")
    router = cachelb.Router(["gpu0"], seed=seed, bodies=cachelb.RequestBodies(**options))
    played, cache = Played(), Prompts()
    for answers, (name, path, body, prompt) in enumerate(islice(_rendered(engine, agents, seed), most)):
        phases = (PHASES[(answers >= 20) + (answers >= 100)], *PHASES[3 : 3 + (answers >= 20)])
        decision = router.select_worker(body=json.dumps(body | {"model": engine.model}).encode(), path=path)
        true = cache.add(prompt)
        share = 0.0 if reports == "zero" else true / len(prompt)
        claimed = decision.matched_tokens / max(1, decision.prompt_tokens)
        for phase in phases:
            played.sums[phase, name].add(Share(share, claimed, len(prompt)))
            played.grounds[phase, str(getattr(decision, "match_basis", None))] += 1
        decision.on_complete(
            cached_tokens=_report(reports, true, len(prompt), luck), prompt_tokens=len(prompt) // _BYTES
        )
    return played


def _rendered(engine: Engine, agents: list[Agent], seed: int) -> Iterator[tuple[str, str, dict[str, object], bytes]]:
    """Yield agent, path, body and prompt of each request of agents that the template takes."""
    prompts = {}
    for agent in agents:
        try:
            prompts[agent.name] = iter([engine.render(each.path, each.body) for each in agent.requests()])
        except RefusedError:
            continue
    for request in interleaved([agent for agent in agents if agent.name in prompts], seed=seed):
        yield request.agent, request.path, request.body, next(prompts[request.agent])


def _report(reports: str, true: int, length: int, luck: random.Random) -> int | None:
    """Return the cached tokens that the engine reports."""
    if reports == "missing":
        return None
    if reports == "zero":
        return 0
    tokens = float(true) / _BYTES
    if reports != "exact":
        if luck.random() < (0.5 if reports == "half-cut" else 0.1):
            tokens *= luck.random()
        tokens *= luck.uniform(0.98, 1.02)
    if reports == "answers":
        tokens += luck.uniform(0.0, 0.1) * length / _BYTES
    return min(int(tokens), length // _BYTES)
