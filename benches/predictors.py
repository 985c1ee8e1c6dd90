"""Errors of the predictors of learned routing on samples they were not trained on.

    python -m benches.predictors p2048__processed_dataset.csv.xz
    python -m benches.predictors decisions.jsonl --seeds 3 --features paper

The log is a table of Lodestar's training data (.csv, .csv.xz), or a file of decision records.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from cachelb.learned import LearnedModel
from cachelb.records import read_records
from cachelb_lab.lodestar import read_lodestar
from cachelb_lab.samples import samples_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from cachelb_lab.samples import Samples

PREDICTORS: Final = ("mean", "linear", "mlp", "trees")
"""The mean of the training part, and the kinds of `LearnedModel`."""

SPLITS: Final = ("random", "time")
"""A random fifth to test on, another one for each seed; or the last fifth."""

_TRAIN = 0.8


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over several seeds.

    Attributes:
        mean: Its mean.
        std: Its standard deviation, 0 for one seed.
    """

    mean: float
    std: float

    def __str__(self) -> str:
        """Three decimals of both."""
        return f"{self.mean:.3f} ± {self.std:.3f}"


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of a predictor.

    Attributes:
        rmse: Root of the mean squared error, in seconds.
        mae: Mean absolute error, in seconds.
        spearman: Rank correlation of predictions and costs: routing needs the order only. 0 for the mean.
        explained: Share of the variance of the costs that the predictions explain; below 0 if the mean of what was
            tested on would do better.
    """

    rmse: Spread
    mae: Spread
    spearman: Spread
    explained: Spread


def evaluate(
    samples: Samples,
    *,
    predictors: Iterable[str] = PREDICTORS,
    splits: Iterable[str] = SPLITS,
    seeds: Iterable[int] = range(5),
    feature_set: str = "extended",
    epochs: int = 20,
) -> dict[tuple[str, str], Score]:
    """Train on four fifths of the samples, measure on the rest, for every predictor, split and seed.

    Args:
        samples: At least five.
        predictors: Some of `PREDICTORS`.
        splits: Some of `SPLITS`.
        seeds: Seeds of the random split and of the training.
        feature_set: "extended" or "paper".
        epochs: Passes of the network over the samples.

    Returns:
        Scores by predictor and split.

    Raises:
        ValueError: A name is unknown, or there are too few samples.
    """
    named, cuts, chances = list(predictors), list(splits), list(seeds)
    for given, known in ((named, PREDICTORS), (cuts, SPLITS)):
        if unknown := [one for one in given if one not in known]:
            raise ValueError(f"unknown {', '.join(unknown)}; there are {', '.join(known)}")
    if len(samples) < 5 or not chances:
        raise ValueError(f"evaluation needs 5 samples and a seed, got {len(samples)} and {len(chances)}")
    figures: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for split in cuts:
        for seed in chances:
            train, test = _split(samples, split, seed)
            for name in named:
                if name == "mean":
                    predicted = np.full(len(test), train.costs.mean(), np.float32)
                else:
                    model = LearnedModel.fit(
                        train.features,
                        train.gpus,
                        train.costs,
                        kind=name,
                        feature_set=feature_set,
                        epochs=epochs,
                        holdout=0.0,
                        seed=seed,
                    )
                    predicted = model.predict(test.features, test.gpus)
                figures.setdefault((name, split), []).append(_measure(test.costs, predicted))
    return {key: _score(rows) for key, rows in figures.items()}


def evaluate_model(samples: Samples, model: LearnedModel) -> Score:
    """Measure a model that is already trained.

    Args:
        samples: The test samples; figures are too good if the model was trained on them.
        model: The model.

    Returns:
        Its score.
    """
    return _score([_measure(samples.costs, model.predict(samples.features, samples.gpus))])


def _split(samples: Samples, split: str, seed: int) -> tuple[Samples, Samples]:
    cut = int(len(samples) * _TRAIN)
    order = np.arange(len(samples)) if split == "time" else np.random.default_rng(seed).permutation(len(samples))
    return samples.take(order[:cut]), samples.take(order[cut:])


def _measure(costs: NDArray[np.float32], predicted: NDArray[np.float32]) -> tuple[float, ...]:
    """RMSE, MAE, Spearman's correlation and explained variance."""
    truth = costs.astype(np.float64)
    errors = predicted - truth
    squares = float(np.mean(errors**2))
    variance = float(truth.var())
    explained = 1.0 - squares / variance if variance else 0.0
    return squares**0.5, float(np.abs(errors).mean()), _spearman(truth, predicted), explained


def _spearman(a: NDArray[np.float64], b: NDArray[np.float32]) -> float:
    x, y = _ranks(a), _ranks(b)
    spread = float(x.std() * y.std())
    return float(np.mean((x - x.mean()) * (y - y.mean()))) / spread if spread else 0.0


def _ranks(values: NDArray[np.float64] | NDArray[np.float32]) -> NDArray[np.float64]:
    """Ranks from 0; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: NDArray[np.float64] = (ends - (counts + 1) / 2)[place]
    return ranks


def _score(rows: Sequence[tuple[float, ...]]) -> Score:
    table = np.array(rows)
    spreads = [Spread(float(mean), float(std)) for mean, std in zip(table.mean(0), table.std(0), strict=True)]
    return Score(*spreads)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per split and predictor."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.predictors", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("log", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--features", choices=["extended", "paper"], default="extended")
    parser.add_argument("--epochs", type=int, default=20)
    given = parser.parse_args(arguments)
    is_table = given.log.name.endswith((".csv", ".csv.xz"))
    samples = read_lodestar(given.log) if is_table else samples_of(read_records(given.log).decisions())
    sys.stdout.write(f"{len(samples):,} samples; 0 throughout: {', '.join(samples.missing) or 'none'}\n")
    scores = evaluate(samples, seeds=range(given.seeds), feature_set=given.features, epochs=given.epochs)
    for (name, split), score in scores.items():
        figures = f"RMSE {score.rmse} s, MAE {score.mae} s, Spearman {score.spearman}, explained {score.explained}"
        sys.stdout.write(f"{split} {name}: {figures}\n")


if __name__ == "__main__":
    main()
