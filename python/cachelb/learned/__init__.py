"""Cost models of requests on workers, learned from logs: training, prediction and storage.

Example:
    >>> import numpy as np
    >>> from cachelb.learned import FEATURES, LearnedModel, Samples
    >>> rng = np.random.default_rng(1)
    >>> features = rng.random((500, len(FEATURES)), np.float32)
    >>> samples = Samples(features, [None] * 500, features[:, 0] * features[:, 1])
    >>> errors = LearnedModel.fit(samples.features, samples.gpus, samples.costs, kind="linear").errors
    >>> errors["rmse"] < errors["mean_rmse"]  # on a fifth that it was not trained on; of the mean
    True
"""

from __future__ import annotations

from cachelb._core import LearnedModel
from cachelb.learned.lodestar import read_lodestar
from cachelb.learned.samples import FEATURES, Samples

__all__ = [
    "FEATURES",
    "LearnedModel",
    "Samples",
    "read_lodestar",
]
