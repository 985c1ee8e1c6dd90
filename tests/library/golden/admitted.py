"""Plays requests that an admission lets through, holds or refuses, in an event loop whose time is the router's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.library.golden import api
from tests.library.golden.player import Player, Scene
from tests.library.golden.traffic import request


class _Loop(asyncio.SelectorEventLoop):
    """Timers follow the clock of the routers."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self.time = now  # type: ignore[method-assign]


class AdmittedPlayer(Player):
    """A scene with an admission."""

    def __init__(self, policy: str, scene: Scene) -> None:
        super().__init__(policy, scene)
        self.admission = self.router.admission(scene.bounds or {})
        self._waiting: list[asyncio.Task[None]] = []

    def play(self) -> Iterator[list[str]]:
        """Play; give the lines of each step."""
        loop = _Loop(self.clock)
        try:
            for step in range(self.scene.requests):
                loop.run_until_complete(self._step(Random(f"step {step}"), step))
                yield self.taken(step)
            loop.run_until_complete(self._end())
            yield self.taken(self.scene.requests)
        finally:
            loop.close()

    async def _step(self, draw: Random, step: int) -> None:
        self.clock.now_s += draw.choice((0.001, 0.01, 0.05, 0.2))
        await self._settle()
        self._change(draw, step)
        for _ in range(draw.randrange(5)):
            self._advance(draw)
            await self._settle()
        asked = request(draw)
        if draw.random() < 0.1:
            asked["among"] = draw.sample(("w0", "w1", "w2", "w3"), 2)
        if step % 5 == 0:
            self._try(lambda: self.log(api.preview(self.admission.explain(**asked))))
        if step % 7 == 3:
            self._book(lambda: self.admission.acquire_nowait(**asked), asked)
        else:
            timeout_s = draw.choice((None, None, 0.3))
            self._waiting.append(asyncio.get_running_loop().create_task(self._come(step, timeout_s, asked)))
        if self._waiting and draw.random() < 0.05:
            self._waiting[draw.randrange(len(self._waiting))].cancel()
        await self._settle()
        self._waiting = [task for task in self._waiting if not task.done()]

    async def _come(self, step: int, timeout_s: float | None, asked: dict[str, Any]) -> None:
        acquire = self.admission.acquire if self.scene.pairs is None else self.admission.acquire_pair
        try:
            held: api.Held = await acquire(timeout_s=timeout_s, **asked)
        except api.Refused as error:
            self.log(f"{step} {api.refusal(error)}")
        except asyncio.CancelledError:
            self.log(f"{step} cancelled")
        else:
            self.log(f"{step} goes")
            self.keep(held, asked)

    async def _settle(self) -> None:
        """Let those that were called go, and timers end."""
        for _ in range(6):
            await asyncio.sleep(0)

    async def _end(self) -> None:
        for task in self._waiting:
            task.cancel()
        await self._settle()
        for _ in range(4 * len(self._open)):
            self._advance(Random("the end"))
