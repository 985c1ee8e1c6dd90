"""Methods of policies that learn a model, and how a model is written."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from cachelb.policies.base import BuiltinPolicy
from cachelb.types import LearnedStats


class Learner(BuiltinPolicy):
    """A policy that learns a model."""

    def learned_stats(self) -> LearnedStats:
        """Counts of samples, trainings and reasons, and how far predictions were off.

        Returns:
            The figures.
        """
        (stats,) = self._learned()
        return LearnedStats(**stats)

    def save_model(self, path: str | PathLike[str]) -> None:
        """Write the model, for option `model` of another policy.

        Args:
            path: The file; one that exists is replaced.

        Raises:
            ValueError: There is no model yet.
            OSError: The file cannot be written.
        """
        write_model(self._learned_model(), path)


def write_model(model: bytes | None, path: str | PathLike[str]) -> None:
    """Write the bytes of a model, None without one, to a file; one that exists is replaced at once."""
    if model is None:
        raise ValueError("there is no model yet: the first one is trained after n_min samples")
    target = Path(path)
    beside = target.with_name(f".{target.name}.new")
    beside.write_bytes(model)
    beside.replace(target)
