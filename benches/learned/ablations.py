"""The gain of parts of the learned policy: variants of it at places where they matter by the paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from benches.learned.cells import Place, figures
from benches.learned.change import Change
from benches.learned.lessons import learn, watch

from cachelb_lab.sim import FleetSpec, simulate

SHIFT, RECURRING, FEWER = 20_000, 15_000, 6_000
LONG, SINCE = 40_000, 0.75
"""Requests of a run with a long history, and the part of them that is history: ten thousand follow, as published."""
SMALL = {"fifo_size": 1_000, "replay_size": 1_000, "n_min": 500, "theta": 250}
"""Pools that a phase of 2,500 requests replaces."""
CLIP_S = 15.0
"""Longer times count as this in training."""


@dataclass(frozen=True)
class Ablation:
    """Variants of the policy at one place.

    Attributes:
        title: The question.
        place: Where.
        variants: Options by name; the others are compared with the first.
        since: After which part of the requests TTFT counts.
        expected: The result of the paper.
        offline: Where the models of variants were learned that begin with one.
        watched: Whether errors of predictions are measured.
        change: Change of the devices when the part begins that counts.
    """

    title: str
    place: Place
    variants: dict[str, dict[str, Any]]
    since: float = 0.0
    expected: str = ""
    offline: dict[str, Place] = field(default_factory=dict)
    watched: bool = False
    change: Change | None = None


def ablations(seed: int) -> list[Ablation]:
    """Return all of them.

    Args:
        seed: Seed of the places.

    Returns:
        The ablations.
    """
    shift = Place("prefix-shift", "8xa30", 0.8, seed, SHIFT)
    elsewhere = Place("prefix-mixed", "8xa30", 0.6, seed + 100, FEWER)
    return [
        Ablation(
            "Learning on after the shared part of prompts grew from 5 to 50 %",
            shift,
            {"learned": {}, "frozen before the shift": {"freeze_after": SHIFT // 2, "guards": False}},
            since=0.5,
            expected="frozen worse",
        ),
        Ablation(
            "What is trained on, over the same shift",
            shift,
            {
                "two pools": {},
                "newest only": {"replay": "none"},
                "all": {"replay": "all"},
                "as in its repository": {"replay": "lodestar"},
            },
            since=0.5,
            expected="newest only 2.39x / 2.50x worse, all 1.21x / 1.11x worse",
        ),
        Ablation(
            "What is trained on, while 5 and 50 % shared take turns of 2,500 requests",
            Place("recurring", "8xa30", 0.8, seed, RECURRING),
            {
                "two pools": SMALL,
                "newest only": {**SMALL, "replay": "none"},
                "all": {**SMALL, "replay": "all"},
                "offline only": {"freeze_after": 0, "outside": "ignore", "guards": False},
            },
            since=1 / 3,
            expected="newest only and all worse (of one shift), offline only worse",
            offline={"offline only": Place("prefix-05", "8xa30", 0.8, seed + 100, FEWER)},
            watched=True,
        ),
        Ablation(
            "What is trained on, when L20 become half as fast after 30,000 requests",
            Place("conversation", "7xl20+8xa30", 0.6, seed, LONG),
            {"two pools": {}, "newest only": {"replay": "none"}, "all": {"replay": "all"}},
            since=SINCE,
            expected="newest only 2.39x / 2.50x worse, all 1.21x / 1.11x worse (of a shift of the shared part)",
            watched=True,
            change=Change("l20", before=1.0, after=2.0),
        ),
        Ablation(
            "A model of another fleet, while the rate grows 2.2 times",
            Place("rate-shift", "7xa30+8xv100", 0.95, seed, SHIFT),
            {
                "learned": {},
                "offline only": {"freeze_after": 0, "outside": "ignore", "guards": False},
                "offline only, guarded": {"freeze_after": 0},
            },
            since=0.5,
            expected="offline only much worse",
            offline={"offline only": elsewhere, "offline only, guarded": elsewhere},
        ),
        Ablation(
            "Keeping prompts that begin alike to few workers",
            Place("tool-agent", "8xa30", 0.95, seed, SHIFT),
            {
                "k=2": {},
                "k=0": {"k": 0},
                "k=2, crowding=0": {"crowding": 0},
                "k=0, crowding=0": {"k": 0, "crowding": 0},
            },
            expected="without 1.72x / 1.78x worse",
        ),
        Ablation(
            "Minding who waits behind (ours)",
            Place("prefix-50", "8xa30", 0.95, seed, SHIFT),
            {"crowding=1": {}, "crowding=0, as published": {"crowding": 0}, "crowding=2": {"crowding": 2}},
        ),
        Ablation(
            "Kinds of models and features (ours)",
            Place("conversation", "7xl20+8xa30", 0.8, seed, SHIFT),
            {
                "network": {},
                "linear": {"model_kind": "linear"},
                "trees": {"model_kind": "trees"},
                "the paper's features": {"features": "paper"},
            },
        ),
    ]


def run(ablation: Ablation, variant: str) -> dict[str, Any]:
    """Return the figures of a variant, TTFT of the part that counts as `later`.

    Args:
        ablation: Where.
        variant: Which.

    Returns:
        JSON values.
    """
    place, options = ablation.place, {"training": "inline", **ablation.variants[variant]}
    if variant in ablation.offline:
        options["model"] = _trained(ablation.offline[variant])
    requests, fleet = place.requests, FleetSpec.parse(place.fleet)
    first = int(ablation.since * len(requests))
    since_s = float(requests.arrival_s[first])
    if ablation.change:
        fleet = ablation.change.fleet(fleet, since_s)
    if not ablation.watched:
        return figures(simulate(requests, fleet, "learned", seed=place.seed, **options), since_s=since_s)
    del options["training"]
    result, expected = watch(requests, fleet, seed=place.seed, **options)
    error = np.abs(expected - np.minimum(result.first_token_s - result.arrival_s, CLIP_S))
    found = figures(result, since_s=since_s) | {"error": float(np.nanmean(error[first:]))}
    if ablation.change:
        found["periods"] = ablation.change.periods(result, fleet, first, error)
    return found


@lru_cache(maxsize=2)
def _trained(place: Place) -> bytes:
    return learn(place.requests, FleetSpec.parse(place.fleet), seed=place.seed)
