"""`cachelb learn`: train a cost model on a log, and evaluate it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from cachelb.cli.options import COUNT, FILE, NOT_NEGATIVE, json_option, option
from cachelb.cli.progress import progress_bar
from cachelb.cli.table import console
from cachelb.errors import CachelbError
from cachelb.records import read_records

if TYPE_CHECKING:
    from cachelb.learned import LearnedModel, Samples, Score

_TABLES = (".csv", ".csv.xz")
_LOG = click.argument("log", metavar="LOG", type=FILE)
_FEATURES = option(
    "--features",
    "extended",
    click.Choice(["extended", "paper"]),
    "Columns the model sees: all nine, or Lodestar's seven.",
)
_EPOCHS = option("--epochs", 20, COUNT, "Passes of the network over the log.")
_FIT_EXAMPLES = """\b
Examples:
  cachelb learn fit decisions.jsonl -o costs.model
  cachelb learn fit decisions.jsonl -o costs.model --kind trees --seed 7
  cachelb learn fit p2048__processed_dataset.csv.xz -o l20.model --features paper
"""
_EVALUATE_EXAMPLES = """\b
Examples:
  cachelb learn evaluate decisions.jsonl
  cachelb learn evaluate decisions.jsonl --model costs.model
  cachelb learn evaluate p2048__processed_dataset.csv.xz --seeds 3 --json
"""


@click.group(short_help="Train models of the cost of requests.")
def learn() -> None:
    """Train and measure models of what a request costs on a worker.

    LOG is a file of decision records, as cachelb.records.JsonlRecords writes it, or a table of Lodestar's training data
    (.csv, .csv.xz).
    """


@learn.command(epilog=_FIT_EXAMPLES)
@_LOG
@click.option("-o", "--output", metavar="FILE", required=True, type=FILE, help="Where to.")
@option(
    "--kind",
    "mlp",
    click.Choice(["mlp", "linear", "trees"]),
    "The paper's network, linear regression, or boosted trees.",
)
@_FEATURES
@_EPOCHS
@option("--seed", 0, NOT_NEGATIVE, "Seed of the training.")
@option("--model-version", 1, NOT_NEGATIVE, "Number it is kept under.")
def fit(*, log: Path, output: Path, kind: str, features: str, epochs: int, seed: int, model_version: int) -> None:
    """Train a model on LOG and write it to FILE."""
    from cachelb.learned import LearnedModel

    samples = _read(log)
    with Console(stderr=True).status(f"training on {len(samples):,} samples"):
        try:
            model = LearnedModel.fit(
                samples.features,
                samples.gpus,
                samples.costs,
                kind=kind,
                feature_set=features,
                epochs=epochs,
                seed=seed,
                version=model_version,
            )
            model.save(output)
        except (ValueError, CachelbError) as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            raise click.ClickException(f"{output}: {error.strerror}") from error
    errors = model.errors
    click.echo(
        f"{output}: {kind}, version {model_version}, trained on {errors['n_train']:,.0f} samples; "
        f"RMSE {errors['rmse']:.3f} s on {errors['n_holdout']:,.0f} others, {errors['mean_rmse']:.3f} s by their mean"
    )


@learn.command(epilog=_EVALUATE_EXAMPLES)
@_LOG
@click.option("--model", "file", metavar="FILE", type=FILE, help="A trained model to add.")
@option("--seeds", 5, COUNT, "Repetitions of each figure.")
@_FEATURES
@_EPOCHS
@json_option()
def evaluate(*, log: Path, file: Path | None, seeds: int, features: str, epochs: int, as_json: bool) -> None:
    """Say how well each predictor does on a fifth of LOG that it was not trained on.

    The fifth is a random one, another for each seed, or the last. A trained model is measured on all of LOG.
    """
    from cachelb.learned import evaluate as run
    from cachelb.learned import evaluate_model

    samples = _read(log)
    given = _load(file) if file else None
    with progress_bar("training", quiet=as_json) as progress:
        try:
            scores = run(
                samples,
                seeds=range(seeds),
                feature_set=features,
                epochs=epochs,
                progress=progress,
            )
        except (ValueError, CachelbError) as error:
            raise click.ClickException(str(error)) from error
    if given is not None:
        scores[str(file), "all"] = evaluate_model(samples, given)
    if as_json:
        rows = [{"predictor": name, "split": split} | asdict(score) for (name, split), score in scores.items()]
        click.echo(json.dumps({"samples": len(samples), "missing": samples.missing, "scores": rows}, indent=2))
        return
    out = console()
    out.print(_table(f"{log.name}: {len(samples):,} samples, {seeds} seeds", scores))
    if samples.missing:
        click.echo(f"the log does not tell {', '.join(samples.missing)}; they were 0 throughout")


def _table(title: str, scores: dict[tuple[str, str], Score]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("split")
    table.add_column("predictor", overflow="fold")
    for header in ("RMSE s", "MAE s", "Spearman", "explained"):
        table.add_column(header, justify="right", no_wrap=True)
    for (name, split), score in scores.items():
        table.add_row(split, name, *map(str, (score.rmse, score.mae, score.spearman, score.explained)))
    return table


def _read(log: Path) -> Samples:
    """Read either kind of log."""
    try:
        if log.name.endswith(_TABLES):
            from cachelb.learned import read_lodestar

            samples = read_lodestar(log)
        else:
            from cachelb.records.samples import samples_of

            samples = samples_of(read_records(log).decisions())
    except OSError as error:
        raise click.BadParameter(f"{log}: {error.strerror or error}", param_hint="LOG") from error
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if not len(samples):
        raise click.ClickException(f"{log} holds no request with a time to the first token")
    return samples


def _load(file: Path) -> LearnedModel:
    from cachelb.learned import LearnedModel

    try:
        return LearnedModel.load(file)
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", param_hint="--model") from error
    except CachelbError as error:
        raise click.ClickException(f"{file}: {error}") from error
