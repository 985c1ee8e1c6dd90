"""Cost models of requests on workers, learned from logs: training, prediction, storage, offline evaluation.

Example:
    >>> import numpy as np
    >>> from cachelb.learned import FEATURES, LearnedModel, Samples, evaluate
    >>> rng = np.random.default_rng(1)
    >>> features = rng.random((500, len(FEATURES)), np.float32)
    >>> samples = Samples(features, [None] * 500, features[:, 0] * features[:, 1])
    >>> scores = evaluate(samples, predictors=("mean", "linear"), seeds=range(2))
    >>> scores["linear", "random"].rmse.mean < scores["mean", "random"].rmse.mean
    True
"""

from __future__ import annotations

from cachelb._core import LearnedModel
from cachelb.learned.evaluation import PREDICTORS, SPLITS, Score, Spread, evaluate, evaluate_model
from cachelb.learned.lodestar import read_lodestar
from cachelb.learned.samples import FEATURES, Samples

__all__ = [
    "FEATURES",
    "PREDICTORS",
    "SPLITS",
    "LearnedModel",
    "Samples",
    "Score",
    "Spread",
    "evaluate",
    "evaluate_model",
    "read_lodestar",
]
