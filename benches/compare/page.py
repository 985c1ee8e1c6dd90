"""The page and the picture of a comparison."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_TITLES = {
    "hash": "Token ids to block hashes",
    "match": "Who holds how much of a prompt",
    "record": "Remembering a prompt",
    "select": "A whole decision",
    "memory": "Memory",
    "answers": "Answers in cases that went wrong somewhere",
}
_HEAD = """# Beside the alternatives

`make wheel && python -m benches.compare` installs the alternatives, measures all of them in turns within one run and
writes this page. `cachelb bench` does the same with whatever is installed where you are. Medians of single calls from
Python, with 64 workers and blocks of 16 tokens; prompts are lists of token ids unless it says otherwise. "x" is how
many times cachelb's median it is. Every answer that was timed was also compared with the truth: the right number of
leading blocks, and nobody named who does not hold them.

![Medians of finding who holds how much of a prompt](images/compare.svg)

"""


def page(report: dict[str, Any]) -> str:
    """Write the page."""
    parts = [_HEAD]
    for kind, of_kind in groupby(report["rows"], key=lambda row: row["task"].partition("/")[0]):
        parts.append(f"## {_TITLES[kind]}\n\n")
        for task, rows in groupby(of_kind, key=lambda row: row["task"]):
            parts.append(_table(task.partition("/")[2], list(rows)))
    versions = ", ".join(f"{package} {version}" for package, version in report["versions"].items())
    parts.append(f"## Machine and versions\n\n{report['machine']}. {versions}.")
    if report["missing"]:
        parts.append(f" Did not take part: {', '.join(report['missing'])}.")
    return "".join(parts) + "\n"


def _table(size: str, rows: list[dict[str, Any]]) -> str:
    unit = rows[0]["unit"]
    what = f"{int(size):,} tokens" if size else ""
    own = next((row["p50"] for row in rows if row["contender"] == "cachelb"), None)
    answered = any(row["wrong"] is not None for row in rows)
    timed = any(row["p99"] is not None for row in rows)
    head = [what, unit if not timed else f"p50, {unit}", *(["p99"] if timed else []), "x"]
    lines = [[*head, *(["wrong answers"] if answered else [])]]
    lines.append(["---", *["---:"] * (len(lines[0]) - 1)])
    for row in rows:
        line = [row["contender"], _figure(row["p50"])]
        line += [_figure(row["p99"])] if timed else []
        line.append(f"{row['p50'] / own:.1f}" if own else "")
        line += [f"{row['wrong']} of {row['answers']}"] if answered else []
        lines.append(line)
    notes = {row["note"]: row["contender"] for row in reversed(rows) if row["note"]}
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    below = "".join(f"- {contender}: {note}\n" for note, contender in reversed(notes.items()))
    return text + "\n" + (below + "\n" if below else "")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def picture(report: dict[str, Any], path: Path) -> None:
    """Draw the medians of matching by the prompt's length."""
    from matplotlib import pyplot as plt

    lines: dict[str, dict[int, float]] = {}
    for row in report["rows"]:
        task, _, size = row["task"].partition("/")
        if task == "match":
            lines.setdefault(row["contender"], {})[int(size)] = row["p50"]
    plt.rcParams["svg.hashsalt"] = "cachelb"  # the same figures give the same file
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, points in lines.items():
        axes.plot(list(points), list(points.values()), marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="tokens of the prompt", ylabel="us, median")
    ticks = sorted({size for points in lines.values() for size in points})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
