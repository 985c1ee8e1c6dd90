"""Chats with one engine whose model has several cache groups, and what is known of its cache before each request.

The rules of `tests/models/grouped_engine.py` are applied to the blocks in the engine's events, and
the cache of simulated engines gets the same requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgpack  # type: ignore[import-untyped]
from tests.engine.engine import Engine
from tests.engine.traffic import FIRST_PLAIN_TOKEN
from tests.models.grouped_engine import HeldByEvents, Prefix, resumable
from tests.waiting import wait_until

from cachelb import Decision, Router
from cachelb._core import GroupedEngineCache
from cachelb.cache_groups import CacheGroup, CacheLayout

SYSTEM_PROMPTS = (96, 150, 200, 330)  # tokens
LONGEST = 690  # of prompt and answer
MAX_ANSWER = 70
VOCABULARY = 4096
MAX_BATCHED_TOKENS = 256  # of a step: longer prompts are computed in chunks


class Chats:
    """Prompts that begin, continue, truncate and repeat conversations, each with the length of its answer."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._systems = [self._fresh(length) for length in SYSTEM_PROMPTS]
        self._prompts: list[Prefix] = []
        self._talks: list[Prefix] = []

    def next(self) -> tuple[Prefix, int]:
        """Return a prompt and how many tokens to generate."""
        choice = self._random.random()
        if choice < 0.25 or not self._talks:
            prompt = self._random.choice(self._systems) + self._fresh(self._random.randint(1, 150))
        elif choice < 0.65:
            prompt = self._random.choice(self._talks[-8:]) + self._fresh(self._random.randint(1, 90))
        elif choice < 0.85:
            talk = self._random.choice(self._talks[-8:])
            prompt = talk[: self._random.randint(1, len(talk))] + self._fresh(self._random.choice((0, 1, 40)))
        else:
            prompt = self._random.choice(self._prompts[-8:])
        answer = self._random.choice((1, 2, 20, 40, MAX_ANSWER))
        if len(prompt) + answer > LONGEST:
            prompt = self._random.choice(self._systems) + self._fresh(20)
        return prompt, answer

    def record(self, prompt: Prefix, answer: Sequence[int]) -> None:
        """Keep an answer, for the prompts that continue it."""
        self._prompts.append(prompt)
        self._talks.append((*prompt, *answer))

    def _fresh(self, length: int) -> Prefix:
        return tuple(self._random.randrange(FIRST_PLAIN_TOKEN, VOCABULARY) for _ in range(length))


class EventView:
    """An engine as its events describe it: its groups, and the prefixes that each of them holds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next = 0
        self._names: dict[object, Prefix] = {}
        self._groups: dict[int, CacheGroup] = {}
        self._held = HeldByEvents(0)
        self._ids: dict[object, int] = {}
        self.removed = 0

    @property
    def messages(self) -> int:
        """Messages applied."""
        return self._next

    @property
    def layout(self) -> CacheLayout:
        """The groups seen so far."""
        return CacheLayout([self._groups[number] for number in sorted(self._groups)])

    def predict(self, prompt: Prefix) -> int:
        """Return how many tokens of a prompt the engine should take from its cache."""
        return resumable(self.layout, prompt, self._prefixes()) if self._groups else 0

    def predict_by_full(self, prompt: Prefix) -> int:
        """Return the same by the groups with full attention alone."""
        return resumable(self.layout, prompt, self._prefixes(), sides=False) if self._groups else 0

    def settle(self, computed: Prefix) -> None:
        """Apply all events up to those of a request that has just ended with these tokens computed."""

        def is_held() -> bool:
            self._apply_new()
            step = self.layout.alignment if self._groups else len(computed) + 1
            end = len(computed) // step * step
            full = next((n for n, group in sorted(self._groups.items()) if group.is_full), None)
            return full is not None and (end == 0 or computed[:end] in self._prefixes()[full])

        if len(computed) >= self._engine.block_size * 2:
            wait_until(is_held, complaint="no event of the end of a request")

    def _prefixes(self) -> list[set[Prefix]]:
        known = {number: name for name, number in self._ids.items()}
        return [{self._names[known[number]] for number in counts} for counts in self._held.counts]

    def _apply_new(self) -> None:
        for number, payload in self._engine.replay(self._next):
            self._next = number + 1
            events = msgpack.unpackb(payload)[1]
            for event in events:
                self._learn(event)
            for event in events:
                self._apply(event)

    def _learn(self, event: Mapping[str, Any]) -> None:
        """Learn a group, and the names of prefixes, which full attention gives: others may come before in a batch."""
        if event["type"] != "BlockStored":
            return
        number, size = event["group_idx"], event["block_size"]
        window = event.get("kv_cache_spec_sliding_window")
        self._groups[number] = CacheGroup(event["kv_cache_spec_kind"], size, window=window)
        while len(self._held.counts) < len(self._groups):
            self._held.counts += HeldByEvents(1).counts
        if self._groups[number].is_full:
            parent = event["parent_block_hash"]
            tokens = (() if parent is None else self._names[parent]) + tuple(event["token_ids"])
            first = len(tokens) - len(event["token_ids"])
            for i, name in enumerate(event["block_hashes"], 1):
                self._names[name] = tokens[: first + i * size]
                self._ids.setdefault(name, len(self._ids))

    def _apply(self, event: Mapping[str, Any]) -> None:
        for name in event.get("block_hashes", ()):
            if event["type"] == "BlockStored":
                self._held.store(event["group_idx"], self._ids[name])
            else:
                self._held.remove(event["group_idx"], self._ids[name])
                self.removed += 1


class Routers:
    """Routers that place every request on one engine: `kinds` names them by how each learns of the cache."""

    def __init__(self, engine: Engine, kinds: Mapping[str, Router[str]]) -> None:
        self._engine = engine
        self._routers = kinds

    def place(self, prompt: Prefix) -> tuple[dict[str, int], Callable[[int, Sequence[int]], None]]:
        """Book a request; return what each router predicts, and how it ends with its cached and generated tokens."""
        decisions = {kind: router.select_worker(tokens=prompt) for kind, router in self._routers.items()}

        def complete(cached: int, generated: Sequence[int]) -> None:
            for kind, decision in decisions.items():
                ids = generated if kind == "answers" else None
                decision.on_complete(
                    cached_tokens=cached, prompt_tokens=len(prompt), output_tokens=len(generated), output_ids=ids
                )

        return {kind: predicted_tokens(decision) for kind, decision in decisions.items()}, complete

    def settle(self, messages: int) -> None:
        """Wait until those that follow the engine's events have applied so many messages."""
        for router in self._routers.values():
            events = router.stats().workers[0].kv_events
            if events is not None:
                wait_until(
                    lambda router=router: router.stats().workers[0].kv_events.messages >= messages,  # type: ignore[misc]
                    complaint=f"{messages} messages were published: {router.stats().workers[0].kv_events}",
                )


def predicted_tokens(decision: Decision[str]) -> int:
    """Return how many tokens of its prompt a decision takes for cached."""
    return decision.matched_tokens


@dataclass(slots=True)
class Outcome:
    """The prediction for one request and the engine's report."""

    prompt: Prefix
    cached: int
    by_events: int
    by_full: int
    by_model: int
    by_routers: dict[str, int] = field(default_factory=dict)


def chat(engine: Engine, requests: int, *, seed: int, blocks: int, routers: Routers | None = None) -> list[Outcome]:
    """Send chats one request at a time.

    Args:
        engine: The engine, its cache empty.
        requests: How many.
        seed: Seed of the chats.
        blocks: Blocks of its cache that requests can use.
        routers: Routers that place the same requests.

    Returns:
        Prediction and report of each.
    """
    chats, view, outcomes = Chats(seed), EventView(engine), list[Outcome]()
    model: _Model | None = None
    for _ in range(requests):
        prompt, length = chats.next()
        by_events, by_full = view.predict(prompt), view.predict_by_full(prompt)
        by_routers, complete = ({}, None) if routers is None else routers.place(prompt)
        answer = engine.complete(prompt, max_tokens=length)
        if complete is not None:
            complete(answer.cached_tokens, answer.output)
        computed = (*prompt, *answer.output[:-1])
        view.settle(computed)
        if routers is not None:
            routers.settle(view.messages)
        if model is None:
            model = _Model(view.layout, blocks)
        by_model = model.serve(computed, len(prompt))
        outcomes.append(Outcome(prompt, answer.cached_tokens, by_events, by_full, by_model, by_routers))
        chats.record(prompt, answer.output)
    assert model is not None
    assert model.layout == view.layout
    return outcomes


class _Model:
    """The cache of a simulated engine, one request at a time."""

    def __init__(self, layout: CacheLayout, blocks: int) -> None:
        self.layout = layout
        self._cache = GroupedEngineCache(blocks, asdict(layout), max_batched_tokens=MAX_BATCHED_TOKENS)

    def serve(self, computed: Prefix, prompt_tokens: int) -> int:
        size = self.layout.hash_block
        names = [hash(computed[:end]) % 2**64 for end in range(size, len(computed) + 1, size)]
        request, cached, _ = self._cache.start(names, prompt_tokens)
        self._cache.prefill(request)
        self._cache.extend(request, names, len(computed))
        self._cache.release(request)
        return cached
