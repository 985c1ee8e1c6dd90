"""Prompts sent twice, to compare the router's prediction with the engine's reported cached tokens."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any, Final

from cachelb_gateway.doctor.client import AskError, WorkerClient
from cachelb_gateway.doctor.pages import Facts
from cachelb_gateway.doctor.settings import Settings
from cachelb_gateway.doctor.stream import Stream
from cachelb_gateway.doctor.verdicts import Check

_DEFAULT_BLOCK: Final = 16
_BLOCKS: Final = 4
_LEAST_BLOCKS: Final = 2
_TOKENS: Final = range(100, 1000)  # every vocabulary is as large
_TRIES: Final = 2
_DETAILS_FIX: Final = {
    "vllm": "start the engine with --enable-prompt-tokens-details",
    "sglang": "start the engine with --enable-cache-report",
    None: "start vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report",
}


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of the probe."""

    predicted: int | None  # tokens the router expected in the cache, None without events
    cached: int | None  # as the engine reported, None without a report
    reusable: int  # the most possible: the last token is always computed, with the rest of what resumes together
    again: bool  # the same prompt was sent before


class Prober:
    """Sends probes to one worker, or to one data-parallel rank of it."""

    def __init__(
        self, client: WorkerClient, facts: Facts, settings: Settings, stream: Stream | None, rank: int | None = None
    ) -> None:
        self._client = client
        self._facts = facts
        self._timeout_s = settings.timeout_s
        self._stream = stream
        self._rank = rank
        self._rng = random.SystemRandom() if settings.seed is None else random.Random(settings.seed)
        self._size = facts.block_size or settings.block_size or _DEFAULT_BLOCK

    async def run(self) -> list[Check]:
        """Send the probes and make the checks "cached-tokens" and "prediction"."""
        blocks = self._blocks()
        if blocks < _LEAST_BLOCKS:
            seen = f"the model takes {self._facts.max_model_len} tokens, too few for two blocks"
            return [Check("cached-tokens", "skip", seen), Check("prediction", "skip", seen)]
        try:
            sent = await self._round(blocks)
            for _ in range(_TRIES - 1):
                # Other traffic may evict a block between prediction and request, so only a second error counts.
                if all(each.predicted in (None, each.cached) for each in sent):
                    break
                sent = await self._round(blocks)
        except AskError as error:
            fix = "the engine must complete prompts of token ids at /v1/completions"
            refused = Check("cached-tokens", "fail", f"the probe was refused: {error}", fix)
            return [refused, Check("prediction", "skip", "the probe was refused")]
        return [_cached(sent, _DETAILS_FIX[self._facts.program]), self._prediction(sent)]

    def _blocks(self) -> int:
        """Return how many full blocks a probe may have."""
        longest = self._facts.max_model_len
        return _BLOCKS if longest is None else min(_BLOCKS, (longest - 1 - self._size // 2) // self._size)

    async def _round(self, blocks: int) -> list[Sent]:
        """Send two prompts twice: one ends within a block, the other shares its beginning and ends with a block."""
        first = self._random(blocks * self._size + self._size // 2)
        shared = blocks // 2 * self._size
        second = [*first[:shared], *self._random(blocks * self._size - shared)]
        return [sent for prompt in (first, second) for sent in await self._twice(prompt)]

    async def _twice(self, prompt: list[int]) -> list[Sent]:
        stream = self._stream
        probe = None if stream is None else stream.tap.watch(prompt)
        sent = [await self._send(prompt, again=False)]
        if stream is not None and probe is not None:
            full = len(prompt) // self._size * self._size

            def is_covered() -> bool:
                return stream.tap.covered(probe, self._rank) >= full

            if not await asyncio.to_thread(stream.tap.wait_for, is_covered, self._timeout_s):
                self._stream = None  # nothing can be predicted from events that do not come
        return [*sent, await self._send(prompt, again=True)]

    async def _send(self, prompt: list[int], *, again: bool) -> Sent:
        size = self._size
        step = None if self._stream is None else self._stream.alignment(self._rank)
        reusable = (len(prompt) - 1) // size * size
        held = None if self._stream is None else self._stream.predict(prompt, self._rank)
        predicted = None if held is None else min(held // size * size, reusable)
        if step is not None:
            reusable = reusable // step * step
        headers = {} if self._rank is None else {"X-data-parallel-rank": str(self._rank)}
        body = {"model": self._facts.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        answer = await self._client.post("/v1/completions", body, headers)
        return Sent(predicted, _cached_tokens(answer), reusable, again)

    def _random(self, length: int) -> list[int]:
        return self._rng.choices(_TOKENS, k=length)

    def _prediction(self, sent: list[Sent]) -> Check:
        listed = ", ".join(f"{each.predicted}/{each.cached}" for each in sent)
        if any(each.predicted is None for each in sent):
            return Check("prediction", "skip", "without its events nothing can be predicted")
        if any(each.cached is None for each in sent):
            fix = _DETAILS_FIX[self._facts.program]
            return Check("prediction", "skip", "the engine does not report cached tokens", fix)
        if all(each.predicted == each.cached for each in sent):
            return Check("prediction", "ok", f"predicted/cached tokens of {len(sent)} requests: {listed}")
        fix = "make sure that the event address is this very engine's, and that the router has its block size"
        return Check("prediction", "fail", f"predicted/cached tokens differ: {listed}", fix)


def _cached(sent: list[Sent], details_fix: str) -> Check:
    """Check the engine's own reports."""
    if any(each.cached is None for each in sent):
        fix = f"{details_fix}: without it the hit rate is unknown, and layouts of prompts are not learned"
        return Check("cached-tokens", "warn", "the engine does not report cached tokens", fix)
    again = [each for each in sent if each.again]
    listed = ", ".join(f"{each.cached} of {each.reusable}" for each in again)
    if all(each.cached == each.reusable for each in again):
        return Check("cached-tokens", "ok", f"prompts sent again: {listed} reusable tokens cached")
    fix = "check --enable-prefix-caching and the block size, and that requests reach this one engine"
    if any(each.predicted is None for each in again):
        fix += "; a hybrid model resumes at few places: give its groups as cache_layout, or let it publish events"
    if all(each.cached for each in again):
        return Check("cached-tokens", "warn", f"prompts sent again: only {listed} reusable tokens cached", fix)
    return Check("cached-tokens", "fail", f"prompts sent again: {listed} reusable tokens cached", fix)


def _cached_tokens(answer: Any) -> int | None:  # noqa: ANN401 - any JSON
    """Read the usage of an answer."""
    try:
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    except (KeyError, TypeError):
        return None
    return cached if isinstance(cached, int) else None
