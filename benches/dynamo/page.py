"""The page: where cachelb's default loses first, then every figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benches.dynamo.play import DYNAMO, TOLERANCE

from cachelb_lab.sim.league import Row, Standings, markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Rows = list[dict[str, Any]]

DEFAULTS = ("adaptive+events", "adaptive")
"""The policies of the lists of losses."""
_COLUMNS = {
    "ttft_mean_s": ("TTFT mean, ms", 1e3, ",.0f"),
    "ttft_p99_s": ("p99, ms", 1e3, ",.0f"),
    "tpot_mean_s": ("TPOT, ms", 1e3, ",.1f"),
    "e2e_mean_s": ("E2E, ms", 1e3, ",.0f"),
    "hit_rate": ("hits", 1.0, ".1%"),
}
_COMPARED = tuple(TOLERANCE)
_HEAD = """# Beside Dynamo's own router

`python -m benches.dynamo` plays traces through NVIDIA Dynamo's simulator with Dynamo's own router, both of the wheel
`{package}`, and the same requests through cachelb's simulator with cachelb's policies. It installs
the wheel into an environment of its own, writes this page, and keeps every run in `bench-results/dynamo.jsonl`.

- **Equal engines**: {workers} workers with DynoSim's scheduler and its default polynomial for the time of a pass, both
  of which cachelb's simulator models ([what fits](simulator-measured.md#the-scheduler-dynosim-161)). A cell counts if
  every time under `round_robin` differs by at most {tolerance:.0%} between the simulators: see the last table. Policies
  route in no time, receive KV events at once and no load reports, as Dynamo's router does there.
- **Traces**: Mooncake's conversation (12,031 requests, 6,400 blocks of 64 tokens a worker), and 60 recorded sessions of
  coding agents, open loop by their recorded times (3,576 requests of 112,000 tokens in the median, DynoSim's default of
  16,384 blocks). x1 of the conversation is its own speed; the sessions span days, and x1 of them is 8 times as fast.
  The [generated agents](../agentic.md) begin 0.02 sessions per second at x1, and their turns wait for the answer before
  (3,000 requests of 124,000 tokens in the median, 7,153 blocks, which are the memory of an H100 beside Llama-3-8B).
  Round robin is played with their turns by the clock: where turns wait, arrivals that differ by a millisecond change
  its mean TTFT by up to a tenth, in one simulator as between two. No prompt finds the answer before it in a cache.
  The slowest hundredth of the conversation at x1 are its longest prompts, with either router: 2.06 of the 2.23 s in the
  median are their own prefill, so that p99 depends little on routing there.
- **Means**: of {runs} runs of Dynamo, which draws equal costs without a seed, and of {seeds} seeds of cachelb. Dynamo
  has its default settings. Hits are cached tokens of prompts when they were first admitted.

"""


def page(rows: Rows, router: str, checks: Sequence[tuple[dict[str, Any], dict[str, Any]]], machine: str) -> str:
    """Write the page.

    Args:
        rows: Rows of a store, by cell.
        router: Name of Dynamo's router in tables.
        checks: Round robin here and in Dynamo, by cell.
        machine: Where it was run.
    """
    runs = {row["policy"]: row["runs"] for row in rows}
    workers = rows[0]["fleet"].partition("x")[0]
    parts = [
        _HEAD.format(
            package=DYNAMO,
            workers=workers,
            tolerance=max(TOLERANCE.values()),
            runs=runs[router],
            seeds=max(runs[name] for name in runs if name != router),
        ),
        *(part for name in DEFAULTS if name in runs for part in _losses(rows, name, router)),
        "## All figures\n\nIn brackets the ratio to Dynamo's router.\n\n",
    ]
    for key in dict.fromkeys(row["cell"] for row in rows):
        parts += _cell([row for row in rows if row["cell"] == key], router)
    parts += ["## As a league\n\n", "![Ratios to the best of each cell](images/dynamo.svg)\n\n"]
    parts += [markdown(standings(rows)).partition("\nTTFT mean by")[0], "\n"]
    parts += ["## Equal engines\n\n", *_checks(checks), f"\n## Machine\n\n{machine}\n"]
    return "".join(parts)


def standings(rows: Rows) -> Standings:
    """Return rows of a store as a league."""
    facts = ("trace", "fleet", "load", "realism", "seed")
    # Sessions come by the clock here, and Dynamo does not report them.
    figures = [{key: value for key, value in row["figures"].items() if key != "session_mean_s"} for row in rows]
    return Standings(
        [
            Row(row["cell"], {key: row[key] for key in facts}, row["policy"], kept)
            for row, kept in zip(rows, figures, strict=True)
        ]
    )


def losses(rows: Rows, policy: str, router: str) -> list[tuple[float, str, dict[str, Any], dict[str, Any]]]:
    """Return where a policy is worse than Dynamo's router: ratio, figure, its row and Dynamo's, the worst first."""
    by_cell = {(row["cell"], row["policy"]): row for row in rows}
    found = []
    for (cell, name), own in by_cell.items():
        other = by_cell.get((cell, router))
        if name == policy and other is not None:
            ratios = {figure: own["figures"][figure] / other["figures"][figure] for figure in _COMPARED}
            found += [(ratio, figure, own, other) for figure, ratio in ratios.items() if ratio > 1.0]
    return sorted(found, key=lambda loss: -loss[0])


def _losses(rows: Rows, policy: str, router: str) -> Iterable[str]:
    yield f"## Where `{policy}` loses to {router}\n\n"
    found = losses(rows, policy, router)
    for ratio, figure, own, other in found:
        title = _COLUMNS[figure][0]
        ranges = f"{_range(own, figure)} over seeds against {_range(other, figure)} over runs"
        yield f"- {_place(own)}: {title}, {ratio:.3f} times: {ranges}\n"
    yield "\n" if found else "In no cell, by no time.\n\n"


def _cell(rows: Rows, router: str) -> Iterable[str]:
    yield f"### {_place(rows[0])}\n\n"
    yield f"| router | {' | '.join(title for title, _, _ in _COLUMNS.values())} |\n"
    yield "|---" + "|---:" * len(_COLUMNS) + "|\n"
    theirs = next(row for row in rows if row["policy"] == router)
    for row in sorted(rows, key=lambda row: row["figures"]["ttft_mean_s"]):
        texts = []
        for figure in _COLUMNS:
            text = _text(figure, row["figures"][figure])
            if figure in _COMPARED and row is not theirs:
                text += f" ({row['figures'][figure] / theirs['figures'][figure]:.2f})"
            texts.append(text)
        name = f"**{row['policy']}**" if row is theirs else row["policy"]
        yield f"| {name} | {' | '.join(texts)} |\n"
    runs = [f"{_COLUMNS[figure][0]} {_range(theirs, figure)}" for figure in _COMPARED]
    yield f"\nRuns of Dynamo: {'; '.join(runs)}.\n\n"


def _checks(checks: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> Iterable[str]:
    yield "Round robin in cachelb's simulator / in Dynamo's.\n\n"
    yield f"| cell | {' | '.join(title for title, _, _ in _COLUMNS.values())} |\n"
    yield "|---" + "|---:" * len(_COLUMNS) + "|\n"
    for own, other in checks:
        texts = [f"{_text(name, own['figures'][name])} / {_text(name, other['figures'][name])}" for name in _COLUMNS]
        yield f"| {_place(own)} | {' | '.join(texts)} |\n"


def _place(row: dict[str, Any]) -> str:
    return f"{row['trace'].partition('(')[0]} {row['load']}"


def _range(row: dict[str, Any], figure: str) -> str:
    low, high = (_text(figure, value) for value in row["spread"][figure])
    return low if low == high else f"{low} to {high}"


def _text(figure: str, value: float) -> str:
    _, unit, form = _COLUMNS[figure]
    return f"{value * unit:{form}}"
