"""The gain of parts of the learned policy: the last section of docs/maintainers/learned-grid.md.

Every run is kept in a file, as those of the grid are.

    python -m benches.learned_ablations [--seeds 3] [--jobs 2] [--only behind] [--again] [--write]
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from benches.learned.ablations import Ablation, ablations, run
from benches.learned.change import PERIODS
from benches.learned.document import ABLATIONS
from benches.learned.store import Store
from benches.learned.training import rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAINING = {"two pools": {}, "newest only": {"replay": "none"}, "all": {"replay": "all"}}


def main() -> None:
    """Run missing variants, then write the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="the policy has changed: forget all runs first")
    parser.add_argument("--only", default="", help="run those whose title contains this")
    parser.add_argument("--write", action="store_true", help="run nothing, write of what is there")
    parser.add_argument("--runs", type=Path, default=Path("bench-results/learned-ablations.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("docs/maintainers/learned-grid.md"))
    given = parser.parse_args()
    if given.again:
        given.runs.unlink(missing_ok=True)
    store = Store(given.runs)
    wanted = (
        []
        if given.write
        else [
            (ablation, variant)
            for seed in range(1, given.seeds + 1)
            for ablation in ablations(seed)
            for variant in ablation.variants
            if given.only in ablation.title and _key(ablation, variant) not in store
        ]
    )
    with ThreadPoolExecutor(given.jobs) as pool:
        for done, (ablation, variant, found) in enumerate(pool.map(lambda one: (*one, run(*one)), wanted), 1):
            store.add(_key(ablation, variant), found)
            told = f"{ablation.title}: {variant}, seed {ablation.place.seed}"
            print(f"{done} of {len(wanted)}: {told}", file=sys.stderr, flush=True)
    page = given.out.read_text(encoding="utf-8").partition(ABLATIONS)[0] if given.out.exists() else ""
    lines = [page.rstrip(), "", ABLATIONS, "", *_section(store, given.seeds)] if page else list(_section(store, 1))
    given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {given.out}", file=sys.stderr)


def _key(ablation: Ablation, variant: str) -> str:
    return f"{ablation.title}/{ablation.place.key(variant)}"


def _rounds(name: str) -> str:
    return f"rounds of training/{name}"


def _section(store: Store, seeds: int) -> Iterator[str]:
    """Yield the lines."""
    yield "## Ablations"
    yield ""
    yield f"Made by `python -m benches.learned_ablations --seeds {seeds}`. Ratios are TTFT over the first row's."
    per_seed = [ablations(seed) for seed in range(1, seeds + 1)]
    for of_seeds in zip(*per_seed, strict=True):
        done = [each for each in of_seeds if all(_key(each, variant) in store for variant in each.variants)]
        if done:
            yield from _table(store, done)
    yield ""
    yield "### Cost of a round of training"
    yield ""
    for name, options in TRAINING.items():
        if _rounds(name) not in store:
            store.add(_rounds(name), {"rounds": list(rounds(options, seed=1))})
    columns = {name: store[_rounds(name)]["rounds"] for name in TRAINING}
    yield "Samples the latest round was trained on, and its seconds on one core of the machine that made this page."
    yield ""
    yield "| samples so far | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for row in zip(*columns.values(), strict=True):
        yield f"| {row[0][0]:,} | " + " | ".join(f"{pooled:,}, {seconds:.2g} s" for _, pooled, seconds in row) + " |"


def _table(store: Store, of_seeds: list[Ablation]) -> Iterator[str]:
    """Yield the lines of one ablation, which was run with these seeds."""
    first = of_seeds[0]
    place = first.place
    yield ""
    yield f"### {first.title}"
    yield ""
    part = f"after the first {first.since:.0%} of the requests" if first.since else "after the first five minutes"
    told = f" Published: {first.expected}." if first.expected else ""
    seeds = "1 seed" if len(of_seeds) == 1 else f"{len(of_seeds)} seeds, the ratios of each in brackets"
    yield f"{place.workload}, {place.fleet}, {place.load:.0%} ({place.rate:.1f} requests/s), {part}, {seeds}.{told}"
    yield ""
    head = ["variant", "mean TTFT, s", "P99, s", "ratio of means", "ratio of P99", "hit rate", "decided by the model"]
    if first.watched:
        head.append("mean error of predictions, s")
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    base = [store[_key(each, next(iter(each.variants)))]["later"] for each in of_seeds]
    for variant in first.variants:
        runs = [store[_key(each, variant)] for each in of_seeds]
        cells = [variant] + [f"{mean(run['later'][figure] for run in runs):.3g}" for figure in ("mean", "p99")]
        for figure in ("mean", "p99"):
            ratios = [run["later"][figure] / one[figure] for run, one in zip(runs, base, strict=True)]
            whole = sum(run["later"][figure] for run in runs) / sum(one[figure] for one in base)
            each_seed = f" ({', '.join(f'{ratio:.2f}' for ratio in ratios)})" if len(ratios) > 1 else ""
            cells.append(f"{whole:.2f}{each_seed}")
        cells += [f"{mean(run['hit'] for run in runs):.2f}", f"{mean(_by_model(run['reasons']) for run in runs):.0%}"]
        if first.watched:
            cells.append(f"{mean(run['error'] for run in runs):.3f}")
        yield f"| {' | '.join(cells)} |"
    if first.change:
        yield from _periods(first, {each: [store[_key(one, each)] for one in of_seeds] for each in first.variants})


def _periods(ablation: Ablation, runs: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield the lines of a table of the time around a change, averaged over the seeds."""
    assert ablation.change
    yield ""
    yield (
        f"Before and after the change, by requests since: mean TTFT, mean error of predictions, and the share of the "
        f"requests that {ablation.change.gpu.upper()} got."
    )
    yield ""
    yield "| variant | " + " | ".join(f"{begin:,} to {end:,}" for begin, end in PERIODS) + " |"
    yield "|---" * (len(PERIODS) + 1) + "|"
    for variant, found in runs.items():
        cells = []
        for at in range(len(PERIODS)):
            ttft, error, share = (mean(run["periods"][at][key] for run in found) for key in ("mean", "error", "share"))
            cells.append(f"{ttft:.3g} s, {error:.2g} s, {share:.0%}")
        yield f"| {variant} | {' | '.join(cells)} |"


def _by_model(reasons: dict[str, float]) -> float:
    return sum(reasons.get(reason, 0.0) for reason in ("learned", "learned-tie", "k-filter"))


if __name__ == "__main__":
    main()
