"""`cachelb learn`: train a cost model on a log."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from cachelb.cli.errors import shown
from cachelb.cli.options import COUNT, FILE, NOT_NEGATIVE, option
from cachelb.errors import CachelbError
from cachelb.records import read_records

if TYPE_CHECKING:
    from cachelb_lab.samples import Samples

_TABLES = (".csv", ".csv.xz")
_FIT_EXAMPLES = """\b
Examples:
  cachelb learn fit decisions.jsonl -o costs.model
  cachelb learn fit decisions.jsonl -o costs.model --kind trees --seed 7
  cachelb learn fit p2048__processed_dataset.csv.xz -o l20.model --features paper
"""


@click.group(short_help="Train models of the cost of requests.")
def learn() -> None:
    """Train models of the cost of a request on a worker.

    LOG is a file of decision records, as cachelb.records.JsonlRecords writes it, or a table of Lodestar's training data
    (.csv, .csv.xz).
    """


@learn.command(epilog=_FIT_EXAMPLES)
@click.argument("log", metavar="LOG", type=FILE)
@click.option("-o", "--output", metavar="FILE", required=True, type=FILE, help="Where to.")
@option(
    "--kind",
    "mlp",
    click.Choice(["mlp", "linear", "trees"]),
    "The paper's network, linear regression, or boosted trees.",
)
@option(
    "--features feature_set",
    "extended",
    click.Choice(["extended", "paper"]),
    "Columns the model sees: all nine, or Lodestar's seven.",
)
@option("--epochs", 20, COUNT, "Passes of the network over the log.")
@option("--seed", 0, NOT_NEGATIVE, "Seed of the training.")
@option("--model-version version", 1, NOT_NEGATIVE, "Number it is kept under.")
def fit(*, log: Path, output: Path, kind: str, **training: Any) -> None:  # noqa: ANN401 - of `LearnedModel.fit`
    """Train a model on LOG and write it to FILE."""
    from cachelb.learned import LearnedModel

    samples = _read(log)
    status = Console(stderr=True).status(f"training on {len(samples):,} samples")
    with shown(ValueError, CachelbError, OSError), status:
        model = LearnedModel.fit(samples.features, samples.gpus, samples.costs, kind=kind, **training)
        model.save(output)
    errors = model.errors
    click.echo(
        f"{output}: {kind}, version {training['version']}, trained on {errors['n_train']:,.0f} samples; "
        f"RMSE {errors['rmse']:.3f} s on {errors['n_holdout']:,.0f} others, {errors['mean_rmse']:.3f} s by their mean"
    )
    if samples.missing:
        click.echo(f"the log does not have {', '.join(samples.missing)}; they were 0 throughout")


def _read(log: Path) -> Samples:
    """Read either kind of log."""
    with shown(ValueError), shown(OSError, by=partial(click.BadParameter, param_hint="LOG")):
        if log.name.endswith(_TABLES):
            from cachelb_lab.lodestar import read_lodestar

            samples = read_lodestar(log)
        else:
            from cachelb_lab.samples import samples_of

            samples = samples_of(read_records(log).decisions())
    if not len(samples):
        raise click.ClickException(f"{log} holds no request with a time to the first token")
    return samples
