"""Cost models of requests on workers, learned from logs: training, prediction and storage.

Example:
    >>> import numpy as np
    >>> from cachelb.learned import FEATURES, LearnedModel
    >>> rng = np.random.default_rng(1)
    >>> features = rng.random((500, len(FEATURES)), np.float32)
    >>> errors = LearnedModel.fit(features, [None] * 500, features[:, 0] * features[:, 1], kind="linear").errors
    >>> errors["rmse"] < errors["mean_rmse"]  # on a fifth that it was not trained on; of the mean
    True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cachelb._core import LearnedModel

__all__ = ["FEATURES", "LearnedModel"]

FEATURES: Final = (
    "kv_hit_ratio",
    "running",
    "waiting",
    "prefill_tokens",
    "decode_tokens",
    "kv_usage",
    "input_tokens",
    "uncached_tokens",
    "inflight",
)
"""Columns of a sample in their order; the first seven are Lodestar's."""

if not TYPE_CHECKING:
    from functools import partial

    from cachelb.common.moved import moved_name

    __getattr__ = partial(moved_name, __name__)
