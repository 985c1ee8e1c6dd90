"""The cost of a decision of a trained model, features included. Each call is timed alone, as in `test_router.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from benches.test_router import IN_FLIGHT, KNOWN, fleet, label, prompts, run

from cachelb.learned import FEATURES, LearnedModel
from cachelb.policies import Learned

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


def model(kind: str) -> bytes:
    """Train a model on made-up requests."""
    random = np.random.default_rng(1)
    features = random.random((2_000, len(FEATURES)), np.float32) * 500
    costs = features @ random.random(len(FEATURES), np.float32) / 1_000
    return LearnedModel.fit(features, [None] * len(features), costs, kind=kind, epochs=2, seed=1).to_bytes()


def trained(kind: str) -> Learned:
    """Build a policy in which a model decides every request, whatever it was trained on."""
    return Learned(model=model(kind), outside="ignore", guards=False, epsilon=0.0, timeout_ms=None)


@pytest.mark.parametrize("kind", ["mlp", "linear", "trees"])
@pytest.mark.parametrize("workers", [16, 64, 256, 1024])
def test_decision(benchmark: BenchmarkFixture, workers: int, kind: str) -> None:
    """Select by the expected time among so many workers, 256 of which are scored at most."""
    label(benchmark, f"learned/{workers}/{kind}", f"512-token buffer, {KNOWN} prompts known, {IN_FLIGHT} in flight")
    run(benchmark, fleet(workers, policy=trained(kind)), prompts(), rounds=2_000)
