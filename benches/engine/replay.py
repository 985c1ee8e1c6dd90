"""The episodes in simulated time: the closed loop of the clients, the router itself, and simulated engines."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
from benches.engine.workload import Known, Shape, plan

from cachelb import Router
from cachelb.index import hash_blocks
from cachelb.router.flat import grouped
from cachelb_lab.sim import simulate
from cachelb_lab.sim.contender import Contender
from cachelb_lab.sim.workloads.workload import make

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachelb_lab.sim import FleetSpec, Signals
    from cachelb_lab.sim.result import SimResult
    from cachelb_lab.sim.workloads import Workload


def replay(fleet: FleetSpec, signals: Signals, policy: str, shape: Shape, seed: int) -> dict[str, Any]:
    """Play all chats of an episode under a policy.

    A client sends its next request when its last one has ended, and which chat goes on is drawn as `episode` does. A
    later request changes nothing before it, so the run is repeated with one request more until all are sent.

    Returns:
        `requests`, in the order they were sent, and `wall_s`, as `episode.play` returns them.
    """
    loop = _Loop(fleet.workers[0].block_size, shape, seed)
    result = _run(fleet, signals, policy, loop.workload(), seed)
    while (follower := loop.send_next(result)) is not None:
        if follower:
            result = _run(fleet, signals, policy, loop.workload(), seed)
    first_s = result.first_token_s - result.arrival_s
    whole_s = result.finish_s - result.arrival_s
    requests = [
        {**row, "sent_s": float(sent), "cached": int(cached), "first_s": float(first), "whole_s": float(whole)}
        for row, sent, cached, first, whole in zip(
            loop.requests, result.arrival_s, result.cached_tokens, first_s, whole_s, strict=True
        )
    ]
    return {"requests": requests, "wall_s": float(result.finish_s.max())}


def behind_s(fleet: FleetSpec, signals: Signals) -> float:
    """Return the time to the first token of 2,048 new tokens that come 50 ms after 4,096 at the same engine."""
    workload = new_prompts(fleet.workers[0].block_size, [4096, 2048], arrival_s=[0.0, 0.05], answer_tokens=1)
    result = simulate(workload, fleet, "round-robin", signals=signals, pinned=[0, 0])
    return float(result.first_token_s[1] - result.arrival_s[1])


def new_prompts(block_size: int, tokens: Sequence[int], *, arrival_s: Sequence[float], answer_tokens: int) -> Workload:
    """Make requests whose prompts, of so many tokens, have nothing in common."""
    blocks = [each // block_size for each in tokens]
    return make(
        "new prompts",
        block_size=block_size,
        arrival_s=arrival_s,
        prompt_tokens=tokens,
        output_tokens=[answer_tokens] * len(tokens),
        hashes=np.arange(1, sum(blocks) + 1, dtype=np.uint64),
        offsets=np.concatenate([[0], np.cumsum(blocks)]),
    )


def _run(fleet: FleetSpec, signals: Signals, policy: str, workload: Workload, seed: int) -> SimResult:
    """Run the requests sent so far, with a router that knows the workers' names and nothing else, as in `episode`."""
    given = Contender.parse(policy)
    router: Router[str] = Router(
        fleet.names,
        block_size=workload.block_size,
        seed=seed,
        clock=lambda: 0.0,
        **grouped({"policy": given.name, **given.options}),
    )
    result = simulate(
        workload, fleet, policy, seed=seed, signals=signals, gateway=router, sample_interval_s=float("inf")
    )
    if not result.finished.all():
        raise ValueError(f"{policy} left {int((~result.finished).sum())} requests of seed {seed} without an answer")
    return result


class _Loop:
    """Sends as `episode` does, by the ends that a run so far has shown."""

    def __init__(self, block_size: int, shape: Shape, seed: int) -> None:
        self._block_size = block_size
        self._shape = shape
        self._left = dict(enumerate(map(list, plan(shape, seed))))
        self._histories: dict[int, list[int]] = {chat: [] for chat in self._left}
        self._ready = list(self._left)
        self._known = Known(block_size)
        self._dice = random.Random(seed)
        self._answers = random.Random(-1 - seed)
        self._ended: set[int] = set()
        self._idle = shape.in_flight
        self._prompts: list[list[int]] = []
        self._outputs: list[list[int]] = []
        self._parents: list[int] = []
        self.requests: list[dict[str, Any]] = []
        self._send(-1)

    def _send(self, parent: int) -> bool:
        """Let all clients send that wait and have a chat to go on with."""
        before = len(self.requests)
        while self._idle and self._ready:
            self._idle -= 1
            chat = self._ready.pop(self._dice.randrange(len(self._ready)))
            prompt = self._histories[chat] + self._left[chat].pop(0)
            turn = self._shape.turns - len(self._left[chat])
            possible = self._known.possible(prompt)
            self._known.add(prompt)
            self._prompts.append(prompt)
            self._outputs.append(
                [self._answers.randrange(self._shape.vocabulary) for _ in range(self._shape.answer_tokens)]
            )
            self._parents.append(parent)
            self.requests.append({"chat": chat, "turn": turn, "prompt": len(prompt), "possible": possible})
        return len(self.requests) > before

    def send_next(self, result: SimResult) -> bool | None:
        """Go on behind the first end that was not yet looked at; say whether something was sent, None at the end."""
        waiting = [row for row in range(len(self.requests)) if row not in self._ended]
        if not waiting:
            return None
        row = min(waiting, key=lambda one: (result.finish_s[one], one))
        self._ended.add(row)
        history = self._prompts[row] + self._outputs[row]
        self._known.add(history[:-1])
        chat = self.requests[row]["chat"]
        self._histories[chat] = history
        if self._left[chat]:
            self._ready.append(chat)
        self._idle += 1
        return self._send(row)

    def workload(self) -> Workload:
        """Return the requests sent so far."""
        size = self._block_size
        hashes = [hash_blocks(prompt, size) for prompt in self._prompts]
        # The last token of an answer is in no cache.
        whole = [hash_blocks((p + o)[:-1], size) for p, o in zip(self._prompts, self._outputs, strict=True)]
        outputs = [long[len(short) :] for short, long in zip(hashes, whole, strict=True)]
        return make(
            "episode",
            block_size=size,
            arrival_s=[0.0 if parent < 0 else np.nan for parent in self._parents],
            parent=self._parents,
            prompt_tokens=[len(prompt) for prompt in self._prompts],
            output_tokens=[len(output) for output in self._outputs],
            hashes=np.concatenate(hashes).astype(np.uint64),
            offsets=np.concatenate([[0], np.cumsum([len(one) for one in hashes])]),
            output_hashes=np.concatenate(outputs).astype(np.uint64),
            output_offsets=np.concatenate([[0], np.cumsum([len(one) for one in outputs])]),
        )
