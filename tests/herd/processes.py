"""Routers in processes of their own, as the parent sees them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from tests.herd.router_process import Spec, run
from tests.library.state.addresses import free_addresses
from tests.waiting import wait_until

ANSWER_S = 60.0
"""How long an answer may take on a busy machine; nothing is measured by it."""


class RouterProcess:
    """One of them. Ends with the `with` block, whatever state it is in."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        spawning = multiprocessing.get_context("spawn")
        self.connection, theirs = spawning.Pipe()
        self._process = spawning.Process(target=run, args=(theirs, spec), daemon=True)
        self._process.start()
        theirs.close()
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            self.resume()
            with contextlib.suppress(BrokenPipeError):  # It has failed, and reported it.
                self.tell("end")
            self._process.join(ANSWER_S)
        self.kill()

    def tell(self, what: str, *given: object) -> None:
        """Send a command that has no answer, or whose answer is read from the connection."""
        self.connection.send((what, *given))

    def ask(self, what: str, *given: object) -> Any:
        """Ask something while no other answer is under way."""
        self.tell(what, *given)
        return self.answer()

    def answer(self) -> Any:
        """Wait for the next answer."""
        assert self.connection.poll(ANSWER_S), "a router does not answer"
        kind, value = self.connection.recv()
        assert kind != "broken", value
        return value

    def kill(self) -> None:
        """End it without a warning: SIGKILL."""
        if not self._ended:
            self._ended = True
            self._process.kill()
            self._process.join()
            self._process.close()
            self.connection.close()

    def stop(self) -> None:
        """Let it stand still: SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on: SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


@contextmanager
def herd(
    count: int,
    workers: Sequence[str],
    *,
    shared: bool = True,
    mesh: Mapping[str, Any] | None = None,
    redis: str | None = None,
    look_every_s: float = 0.05,
    specials: Mapping[int, Mapping[str, Any]] | None = None,
    **options: Any,
) -> Iterator[list[RouterProcess]]:
    """Start routers that share state.

    Args:
        count: How many.
        workers: Names of the workers that all have.
        shared: Whether they share their state.
        mesh: Options of the mesh.
        redis: A server through which they share instead.
        look_every_s: Seconds between two notes of the loads that each sees.
        specials: Settings of single routers, as for `Spec`.
        **options: Those of the routers.

    Yields:
        The routers, once each receives from all others.
    """
    addresses = free_addresses(count)
    with ExitStack() as stack:
        found = []
        for at, address in enumerate(addresses):
            spec: dict[str, Any] = {
                "workers": tuple(workers),
                "options": {"secret": "known to all gateways", "policy": "cache-aware", "seed": at, **options},
                "bind": address if shared else None,
                "peers": tuple(addresses),
                "mesh": dict(mesh or {}),
                "redis": redis if shared else None,
                "look_every_s": look_every_s,
                **(specials or {}).get(at, {}),
            }
            found.append(stack.enter_context(RouterProcess(Spec(**spec))))
        for router in found:
            router.answer()
        if shared:
            all_heard(found)
        yield found


def all_heard(routers: Sequence[RouterProcess]) -> None:
    """Wait until each receives from all others."""
    wait_until(lambda: all(len(router.ask("stats").peers) == len(routers) - 1 for router in routers), ANSWER_S)


def seconds_until_agreed(
    routers: Sequence[RouterProcess], loads: Mapping[str, int], prompts: Sequence[bytes] = (), *, limit_s: float = 60.0
) -> float:
    """Wait until all see the same loads, and predict the same for some prompts.

    Args:
        routers: The routers.
        loads: The true loads.
        prompts: Every one of them must be predicted to be cached on some worker.
        limit_s: Fail after so many seconds.

    Returns:
        How long it took, to 50 ms.
    """
    began_s = time.monotonic()
    while True:
        at_s = time.monotonic()
        seen = [(router.ask("loads"), router.ask("matched", prompts)) for router in routers]
        if all(each == seen[0] for each in seen) and seen[0][0] == loads and all(any(m.values()) for m in seen[0][1]):
            return at_s - began_s
        assert at_s < began_s + limit_s, f"they do not agree: {[each[0] for each in seen]}, true are {loads}"
        time.sleep(0.05)
