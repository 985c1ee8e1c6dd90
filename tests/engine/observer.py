"""A router that listens to the engines of a test, and what it predicts of prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tests.engine.drive import send_prompt
from tests.engine.engine import Completion, Engine, EngineError
from tests.engine.traffic import Prompt
from tests.library.router.router_parts import Replaced

from cachelb import Router
from cachelb.events import Endpoint, ZmqSource
from cachelb.stats.events import KvEventStats
from cachelb.types import WorkerStats

REPLAY_TIMEOUT_S = 30.0  # an engine that shares two cores with everything else answers late


class LossyRouter(Router[str]):
    """A router whose live messages are lost now and then, as PUB sockets lose them; replayed ones arrive."""

    lose_every = 0
    _live = 0
    lost = 0

    @property
    def event_sink(self) -> Any:
        return Replaced(super().event_sink, {"live": self._take})

    def _take(self, key: str, dp_rank: int | None, seq: int | None, payload: bytes) -> tuple[int, int | None]:
        self._live += 1
        if self.lose_every and self._live % self.lose_every == 0:
            self.lost += 1
            return 0, None
        return super().event_sink.live(key, dp_rank, seq, payload)


class Observer:
    """One router with its event source.

    Args:
        engines: The engines by the number that prompts use.
        endpoints: Where each publishes, by its URL.
        block_size: Tokens per block of the router.
    """

    def __init__(self, engines: Sequence[Engine], endpoints: Mapping[str, Endpoint], block_size: int) -> None:
        self.keys = [engine.url for engine in engines]
        self.block_size = block_size
        self.router = LossyRouter(self.keys, policy="kv-aware", block_size=block_size, seed=block_size)
        self.source = ZmqSource(endpoints=endpoints, replay_timeout_s=REPLAY_TIMEOUT_S)
        self.router.attach(self.source)

    def predict(self, prompt: Prompt) -> int:
        """Return how many tokens of a prompt its worker is predicted to take from its cache."""
        key = self.keys[prompt.worker]
        candidates = self.router.explain(**_arguments(prompt), among=[key]).candidates
        view = next(view for view in candidates if view.key == key)
        assert view.state == "available", view
        return int(view.matched_tokens)

    def decide(self, prompt: Prompt) -> int:
        """Return the same as a decision has it."""
        key = self.keys[prompt.worker]
        return self.router.select_worker(**_arguments(prompt), among=[key], dry_run=True).matched_tokens

    def worker(self, number: int) -> WorkerStats:
        """Return the counters of a worker."""
        key = self.keys[number]
        return next(worker for worker in self.router.stats().workers if worker.key == key)

    def kv(self, number: int) -> KvEventStats:
        """Return the event statistics of a worker that has sent some."""
        events = self.worker(number).kv_events
        assert events is not None
        return events

    def stream_state(self, number: int) -> str:
        """Return the state of a worker's connection."""
        stream = self.source.stats().streams.get((self.keys[number], None))
        return "connecting" if stream is None else stream.state

    def doubts(self, number: int) -> list[str]:
        """Return what may make a prediction of a worker wrong at the moment."""
        self.router.explain()  # what is expected and overdue leaves with the next look
        worker, found = self.worker(number), []
        if worker.kv_events is None or not worker.kv_events.fed:
            return ["no events have been applied"]
        if worker.kv_events.state != "live":
            found.append(f"the stream is {worker.kv_events.state}")
        if speculative := worker.index_blocks.get("speculative", 0):
            found.append(f"{speculative} blocks are speculative")
        return found


def routed(observers: Sequence[Observer]) -> Callable[..., Completion]:
    """Return a function that sends prompts; every router predicts and books each, and receives its end."""

    def send(engines: Sequence[Engine], prompt: Prompt, max_tokens: int = 1) -> Completion:
        with ExitStack() as bookings:
            decisions = [
                bookings.enter_context(
                    observer.router.select_worker(**_arguments(prompt), among=[observer.keys[prompt.worker]])
                )
                for observer in observers
            ]
            try:
                answer = send_prompt(engines, prompt, max_tokens)
            except (OSError, EngineError):
                for decision in decisions:
                    decision.on_error(503)
                raise
            for decision in decisions:
                decision.on_complete(
                    cached_tokens=answer.cached_tokens,
                    prompt_tokens=answer.prompt_tokens,
                    output_tokens=len(answer.output),
                )
        return answer

    return send


def _arguments(prompt: Prompt) -> dict[str, Any]:
    identity = prompt.identity
    return {"tokens": prompt.tokens, "lora": identity.adapter, "cache_salt": identity.cache_salt}
