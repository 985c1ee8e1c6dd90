"""One episode: empty caches, a new router behind a gateway, and all chats through it."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benches.engine.client import ask
from benches.engine.processor import Processors
from benches.engine.workload import Known, Shape, plan
from tests.gateways import GATEWAYS, wait_until
from tests.http_client import metrics

from cachelb import Router
from cachelb.admission import AdmissionOptions
from cachelb.events import ZmqSource
from cachelb.router.flat import grouped
from cachelb_lab.sim.contender import KV_EVENTS, Contender, admission_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cachelb.events import Endpoint
    from cachelb.types import WorkerStats

WARM_UP_BLOCKS = 2
DEADLINE_S = 120.0
POLICIES = (
    "round-robin",
    "adaptive",
    "adaptive+events",
    "adaptive(max_wait_s=1.5)+events",
    "cache-aware",
    "kv-aware",
    "prefill-times-batch(crowding=1)",
    "estimated-ttft",
)
HITS = "vllm:prefix_cache_hits_total"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The engines.

    Attributes:
        urls: Where each answers.
        endpoints: Where each publishes, by its URL.
        reset: Empties all caches.
        block_size: Tokens per block.
        groups: Process groups of the engines.
    """

    urls: Sequence[str]
    endpoints: Mapping[str, Endpoint]
    reset: Callable[[], None]
    block_size: int
    groups: Sequence[int] = ()


def hears_events(contender: Contender) -> bool:
    """Say whether a policy has the engines' events, by its name or by the ending of it."""
    return contender.name == "kv-aware" or contender.ending == KV_EVENTS


def play(fleet: Fleet, policy: str, shape: Shape, seed: int) -> dict[str, Any]:
    """Play all chats under a policy, which is spelled as leagues do.

    Returns:
        `requests`, in the order they ended, with the seconds from the start at which each was sent and the tokens of
        its answer: with `plan` they give all prompts; `wall_s`, what the engines' counters and the router's funnel say,
        and the share of the machine that other processes took. It is plain data, for JSON.

    Raises:
        RuntimeError: An engine found something in its cache after it was emptied.
    """
    fleet.reset()
    given = Contender.parse(policy)
    options, admission = admission_apart(given.options)
    with contextlib.ExitStack() as stack:
        made: Router[str] = Router(
            list(fleet.urls), block_size=fleet.block_size, seed=seed, **grouped({"policy": given.name, **options})
        )
        router = stack.enter_context(made)
        if hears_events(given):
            router.attach(ZmqSource(endpoints=fleet.endpoints))
            # An engine may not know of the subscription yet; events sent until then would be missed.
            _wait(router, _is_live)
        # `cachelb serve` has the admission, the example has none.
        served = GATEWAYS["serve"](router, admission=AdmissionOptions(**admission)) if admission else None
        gateway = stack.enter_context(served or GATEWAYS["starlette"](router))
        _warm_up(fleet, seed)
        if hears_events(given):
            _wait(router, _knows_warm_up)
        hits, others = _hits(fleet), Processors(fleet.groups)
        began = time.perf_counter()
        requests = _Driver(gateway, plan(shape, seed), Known(fleet.block_size), shape, seed).run()
        wall_s = time.perf_counter() - began
        # The gateway reports an end to its router after the client has read it.
        wait_until(lambda: not router.stats().open_requests, timeout_s=DEADLINE_S)
        funnel = router.stats().funnel
        return {
            "requests": requests,
            "wall_s": wall_s,
            "others": others.others(),
            "load": os.getloadavg()[0],
            "hits": _hits(fleet) - hits,
            "expected_tokens": funnel.selected_matched_tokens,
            "time": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        }


def _warm_up(fleet: Fleet, seed: int) -> None:
    """Send each engine a request past the gateway: it is then that vLLM announces that its cache was emptied."""
    dice = random.Random(-1 - seed)
    prompt = [dice.randrange(5, 4096) for _ in range(WARM_UP_BLOCKS * fleet.block_size)]
    for url in fleet.urls:
        if cached := ask(url, prompt, 1).cached_tokens:
            raise RuntimeError(f"{url} found {cached} tokens in the cache that was emptied")


def _wait(router: Router[str], ready: Callable[[WorkerStats], bool]) -> None:
    """Wait until all workers are ready."""
    try:
        wait_until(lambda: all(map(ready, router.stats().workers)), timeout_s=DEADLINE_S)
    except AssertionError:
        raise RuntimeError(f"events are not heard: {router.stats().workers}") from None


def _is_live(worker: WorkerStats) -> bool:
    return worker.kv_events is not None and worker.kv_events.state == "live"


def _knows_warm_up(worker: WorkerStats) -> bool:
    """Return whether the index holds the blocks that the engine holds."""
    return _is_live(worker) and worker.index_blocks == {"gpu": WARM_UP_BLOCKS}


def _hits(fleet: Fleet) -> int:
    return sum(int(metrics(url, DEADLINE_S)[HITS]) for url in fleet.urls)


class _Driver:
    """Sends the turns of all chats, a few at a time; which chat goes on is drawn."""

    def __init__(self, url: str, chats: list[list[list[int]]], known: Known, shape: Shape, seed: int) -> None:
        self._url = url
        self._left = dict(enumerate(map(list, chats)))
        self._histories: dict[int, list[int]] = {chat: [] for chat in self._left}
        self._ready = list(self._left)
        self._known = known
        self._shape = shape
        self._dice = random.Random(seed)
        self._changed = threading.Condition()
        self._requests: list[dict[str, Any]] = []
        self._failed = False
        self._began = 0.0

    def run(self) -> list[dict[str, Any]]:
        self._began = time.perf_counter()
        with ThreadPoolExecutor(self._shape.in_flight) as pool:
            working = [pool.submit(self._work) for _ in range(self._shape.in_flight)]
            with self._ending_all():
                for done in working:
                    done.result()
        return self._requests

    def _work(self) -> None:
        with self._ending_all():
            while (chat := self._next()) is not None:
                self._turn(chat)

    @contextlib.contextmanager
    def _ending_all(self) -> Iterator[None]:
        """Let nothing more be sent after a failure, or when this process is terminated."""
        try:
            yield
        except BaseException:
            with self._changed:
                self._failed = True
                self._changed.notify_all()
            raise

    def _next(self) -> int | None:
        """Draw a chat that waits for its next turn, or return None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or not self._left or self._failed)
            if self._failed or not self._left:
                return None
            return self._ready.pop(self._dice.randrange(len(self._ready)))

    def _turn(self, chat: int) -> None:
        prompt = self._histories[chat] + self._left[chat].pop(0)
        with self._changed:
            possible = self._known.possible(prompt)
            self._known.add(prompt)
        sent_s = time.perf_counter() - self._began
        answer = ask(self._url, prompt, self._shape.answer_tokens)
        history = prompt + answer.output
        with self._changed:
            self._known.add(history[:-1])  # the last token of an answer is in no cache: nothing was computed after it
            self._histories[chat] = history
            turn = self._shape.turns - len(self._left[chat])
            if self._left[chat]:
                self._ready.append(chat)
            else:
                del self._left[chat]
            self._requests.append(
                {
                    "chat": chat,
                    "turn": turn,
                    "sent_s": sent_s,
                    "prompt": answer.prompt_tokens,
                    "cached": answer.cached_tokens,
                    "output": answer.output,
                    "possible": possible,
                    "first_s": answer.first_s,
                    "whole_s": answer.whole_s,
                    "refused": answer.refused,
                }
            )
            self._changed.notify_all()
