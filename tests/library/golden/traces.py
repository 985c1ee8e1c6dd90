"""The scenes that every policy plays, and the golden files of their traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

from tests.library.golden import api
from tests.library.golden.admitted import AdmittedPlayer
from tests.library.golden.player import Player, Scene

BLOCK = 50
"""Requests that one digest is of."""

_COST = {"transfer_ms": 5.0, "fallback": True}
_THRESHOLD = {"uncached_token_threshold": 200}
_FAIR = {"fairness": "vtc", "tenant_weights": {"tenant1": 2.0}}
_BOUNDS = {"max_pending_requests": 2, "max_pending_tokens": 1024, "max_wait_s": 1.0, "max_queued": 8}


def scenes(policy: str, *, lossy: bool) -> Mapping[str, Scene]:
    """Return the scenes: without loss, or with lost messages and a memory limit."""
    if lossy:
        return {
            "lost events": Scene(300, events=True, lost=True),
            "lost messages between routers": Scene(150, routers=2, events=True, lost=True),
            "memory limit": Scene(100, router={"memory_mb": 1}, blocks=20_000, long=15_000, events=True),
        }
    return {
        "requests": Scene(450, router={"shadow": ("power-of-two", "cache-aware")}),
        **{
            f"options {at}": Scene(100, options=options, events=at % 2 == 1)
            for at, options in enumerate(api.OPTIONS.get(policy, ()))
        },
        "events": Scene(300, events=True),
        "small caches": Scene(150, blocks=60),
        "pairs": Scene(250, pairs=_COST),
        "pairs with events": Scene(100, pairs=_THRESHOLD, events=True),
        "sharing": Scene(250, routers=2),
        "sharing with events": Scene(100, routers=3, events=True),
        "admission": Scene(200, bounds={**_BOUNDS, "order": "shortest-uncached"}),
        "fair admission": Scene(100, bounds={**_BOUNDS, **_FAIR, "order": "fcfs"}),
        "admission of pairs": Scene(100, bounds={**_BOUNDS, "order": "edf"}, pairs=_COST),
    }


def transcript(policy: str, *, lossy: bool) -> Iterator[tuple[str, list[str]]]:
    """Play all scenes; give the lines of so many requests, and of the counters in the end, under a heading each."""
    for name, scene in scenes(policy, lossy=lossy).items():
        player = (Player if scene.bounds is None else AdmittedPlayer)(policy, scene)
        lines: list[str] = []
        for step, more in enumerate(player.play()):
            lines += more
            if step % BLOCK == BLOCK - 1 or step == scene.requests:
                yield f"{name}, requests to {step}", lines
                lines = []
        for at, router in enumerate(player.routers):
            yield f"{name}, records of router {at}", router.records()
            yield f"{name}, counters of router {at}", router.stats()


def summary(policy: str, *, lossy: bool) -> Iterator[str]:
    """Play; give the content of the golden file: digests, and the counters of the router themselves."""
    for heading, lines in transcript(policy, lossy=lossy):
        is_readable = "counters" in heading
        digested = [line for line in lines if line.startswith("workers.")] if is_readable else lines
        digest = blake2b("\n".join(digested).encode(), digest_size=6)
        yield f"{heading}: {digest.hexdigest()}"
        if is_readable:
            yield from (f"    {line}" for line in lines if not line.startswith("workers."))


def path(policy: str, *, lossy: bool) -> Path:
    """Return where the golden file of a policy is."""
    return Path(__file__).parent / ("lossy" if lossy else "plain") / f"{policy}.txt"
