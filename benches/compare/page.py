"""The page and the picture of a comparison."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Rows = list[dict[str, Any]]

_OWN = "cachelb"
_WIRE = " over "
_TITLES = {
    "hash": "Token ids to block hashes",
    "match": "Who holds how much of a prompt",
    "record": "Remembering a prompt",
    "select": "A whole decision",
    "events": "Following engines' events",
    "threads": "Threads",
    "memory": "Memory",
    "answers": "Answers in cases that went wrong somewhere",
}
_PARTS = {
    "overload": "all at once",
    "processor": "processor time of it, all threads",
    "keep-up": "highest rate kept up with",
    "lookup": "a lookup meanwhile",
}
_SMALLEST = {
    "a hole that was stored again": "store a, b, c, d, e; remove b; store b behind a; ask for a, b, c, d, e",
    "a head that was stored again": "store a, b, c; remove a; store a; ask for a, b, c",
    "a hole": "store a, b, c, d, e; remove c; ask for a, b, c, d, e",
    "an unknown parent": "store a, b; store c, d behind an unknown x; ask for a, b, c, d",
    "the same tail behind another head": "store a, b, c, d; ask for a, b, e, f",
    "another block in the middle": "store a, b, c, d; ask for a, x, c, d",
}
_HEAD = """# Beside the alternatives

`make wheel && python -m benches.compare` installs the alternatives, measures all of them in turns within one run and
writes this page. `python -m benches.compare --here` prints it for the alternatives that are installed where you are;
`python -m benches.structures` measures cachelb alone. Medians of single calls, with 64 workers and blocks of 16 tokens;
from Python, prompts are lists of token ids unless stated otherwise. "x" is the cost as a multiple of cachelb's: 2.0 is
twice as slow or twice as large, 0.5 is half; of rates, the inverse. Every answer of a timed call was also compared with
that of a model: the right number of leading blocks, and no worker named that does not hold them.

{load}![Medians of finding who holds how much of a prompt](images/compare.svg)

"""
_ABOUT = {
    "events": """Engines with 8 workers publish as vLLM does, 64 blocks a message: prompts of 8,192 tokens, each on two
workers; once a worker holds 32 of them, every message removes as many old blocks as it stores. The clock stops when the
last message of every worker is visible to a lookup. As in Dynamo's own benchmark, a rate counts as kept up with if that
is within 1.10 of the time in which the messages were due and the last was sent within 1.01 of it; the highest share of
the overload's rate that was. Blocks stored and removed are counted, nothing else.

""",
    "threads": """Calls per second of all threads together, the fastest of some rounds.

""",
}
# Why another is better: by its name and, if other tasks have other reasons, the kind of task.
_REASONS = {
    ("dynamo PositionalIndexer", ""): "it looks at one block of 32, and its answers are wrong (below)",
    (
        "dynamo ConcurrentRadixTreeCompressed",
        "events",
    ): "it has no table of blocks, does not key engines' names, and keeps a hole that is stored again (below)",
    ("dynamo-kv-router", "hash"): "it hashes each block alone, cachelb with all before it",
    ("kv-index ChainIndex", "events"): "it has no table of blocks, which takes [16 ns a block"
    "](design/block-index.md#following-events) here; its lookups walk a prompt instead",
    ("smg-radix-tree", "memory"): "it has no table of blocks, 16 of cachelb's bytes; its lookups walk a prompt instead",
}
_CRATES = """## In Rust

The crates themselves, without Python: `cargo run --release --manifest-path benches/compare/crates/Cargo.toml`, built
with the same options, in turns within one process. Prompts are hashed before a match is timed. Here cachelb follows
events with an `Ingest` per worker over one `BlockIndex` behind a lock, as its router does.

"""
_CRATE_ABOUT = {
    "match": "Among a million blocks; three quarters of every prompt are shared by 16 families.\n\n",
    "events": "The messages as above, decoded. Hashing of the tokens is timed for all.\n\n",
    "threads": "Concurrent lookups of one unchanging index. On 16 cores: [locks](design/block-index.md#locks).\n\n",
}


def page(report: dict[str, Any], crates: dict[str, Any] | None) -> str:
    """Write the page; measurements that were not run are left out."""
    load = f"{report['load']}\n\n" if report.get("load") else ""
    parts = [
        _HEAD.format(load=load),
        _losses(report["rows"], "Python"),
        *([_losses(crates["rows"], "Rust")] if crates else []),
    ]
    parts += [_wrong([*report["rows"], *(crates["rows"] if crates else [])])]
    for kind, rows in _by_kind(report["rows"]).items():
        parts += [f"## {_TITLES[kind]}\n\n", _ABOUT.get(kind, ""), *_tables(kind, rows)]
    if crates:
        parts.append(_CRATES)
        for kind, rows in _by_kind(crates["rows"]).items():
            parts += [f"### {_TITLES[kind]}, in Rust\n\n", _CRATE_ABOUT.get(kind, ""), *_tables(kind, rows)]
    versions = ", ".join(f"{package} {version}" for package, version in report["versions"].items())
    parts.append(f"## Machine and versions\n\n{report['machine']}. {versions}.")
    if crates:
        parts.append(" Crates: dynamo-kv-router 1.6.1, dynamo-tokens 1.6.1, kv-index 2.0.0, smg-radix-tree 0.1.0.")
    if report["missing"]:
        parts.append(f" Did not take part: {', '.join(report['missing'])}.")
    return "".join(parts) + "\n"


def _by_kind(rows: Rows) -> dict[str, Rows]:
    kinds = defaultdict(list)
    for row in rows:
        kinds[row["task"].partition("/")[0]].append(row)
    return {kind: kinds[kind] for kind in _TITLES if kind in kinds}


def _by_task(rows: Rows) -> dict[str, Rows]:
    tasks = defaultdict(list)
    for row in rows:
        tasks[row["task"]].append(row)
    return dict(tasks)


def times(figure: float, own: float, unit: str) -> float | None:
    """Return a cost as a multiple of cachelb's: 2.0 is twice as slow or as large. None where that is undefined."""
    above, below = (own, figure) if unit.endswith("/s") else (figure, own)
    return above / below if below else None


def _losses(rows: Rows, where: str) -> str:
    """List the figures in which another is better than cachelb by a tenth or more, with the reason."""
    lines = defaultdict(list)
    for task, of_task in _by_task(rows).items():
        for row in of_task if task != "answers" else ():
            own = _own(of_task, row["contender"])
            ratio = None if own is None else times(row["p50"], own["p50"], row["unit"])
            if own is not None and not row["contender"].startswith(_OWN) and ratio is not None and ratio <= 0.9:
                kind, _, size = task.partition("/")
                what = f"{_TITLES[kind].lower()}, {_size(kind, size)}" if size else _TITLES[kind].lower()
                figures = f"{_figure(row['p50'])} against {_figure(own['p50'])} {row['unit']}"
                reasons = (_REASONS.get((row["contender"], of)) for of in (kind, ""))
                why = next((reason for reason in reasons if reason), "unexplained")
                lines[row["contender"], why].append(f"  - {what}: {figures}\n")
    text = "".join(f"- {name}: {why}\n{''.join(those)}" for (name, why), those in lines.items()) or "- nowhere\n"
    return f"## Where others are better, from {where}\n\n{text}\n"


def _wrong(rows: Rows) -> str:
    """List the wrong answers."""
    lines = []
    for row in rows:
        if row["wrong"] and row["task"] == "answers":
            lines += [f"- {row['contender']}: {_spell(case)}\n" for case in row["note"].split("; ")]
        elif row["wrong"]:
            lines.append(f"- {row['contender']}: {row['wrong']} of {row['answers']} in {row['task']}\n")
    text = "".join(dict.fromkeys(lines)) or "- none\n"
    return f"## Wrong answers\n\n{text}\n"


def _spell(case: str) -> str:
    name, _, answer = case.partition(": ")
    return f"{name} ({_SMALLEST[name]}): {answer}" if name in _SMALLEST else case


def _tables(kind: str, rows: Rows) -> Iterable[str]:
    if kind == "threads":
        return [_matrix(rows)]
    return [_table(_size(kind, task.partition("/")[2]), of_task) for task, of_task in _by_task(rows).items()]


def _size(kind: str, size: str) -> str:
    if size.isdigit():
        return f"{int(size):,} {'threads' if kind == 'threads' else 'tokens'}"
    return _PARTS.get(size, size)


def _own(rows: Rows, contender: str) -> dict[str, Any] | None:
    """Return the row that a contender is compared with: cachelb, over the same wire if there is one."""
    wire = contender[contender.index(_WIRE) :] if _WIRE in contender else ""
    return next((row for row in rows if row["contender"] == _OWN + wire), None)


def _table(what: str, rows: Rows) -> str:
    unit = rows[0]["unit"]
    answered = any(row["wrong"] is not None for row in rows)
    timed = any(row["p99"] is not None for row in rows)
    tenth = all(row.get("p10") is not None for row in rows)
    head = [
        what,
        unit if not timed else f"p50, {unit}",
        *(["p10"] if tenth else []),
        *(["p99"] if timed else []),
        *([] if unit == "wrong" else ["x"]),
    ]
    lines = [[*head, *(["wrong answers"] if answered else [])]]
    lines.append(["---", *["---:"] * (len(lines[0]) - 1)])
    for row in rows:
        line = [row["contender"], _figure(row["p50"])]
        line += [_figure(row["p10"])] if tenth else []
        line += [_figure(row["p99"])] if timed else []
        if unit != "wrong":
            own = _own(rows, row["contender"])
            ratio = None if own is None else times(row["p50"], own["p50"], unit)
            line.append("" if ratio is None else f"{ratio:.1f}" if ratio >= 0.95 else f"{ratio:.2f}")
        if answered:
            line.append("" if row["wrong"] is None else f"{row['wrong']} of {row['answers']}")
        lines.append(line)
    return _lines(lines) + "\n" + _notes(rows)


def _matrix(rows: Rows) -> str:
    """One line per contender, one column per number of threads."""
    tasks = _by_task(rows)
    contenders = list(dict.fromkeys(row["contender"] for row in rows))
    found = {(row["task"], row["contender"]): row["p50"] for row in rows}
    lines = [["calls/s, thousands", *(task.partition("/")[2] for task in tasks)], ["---", *["---:"] * len(tasks)]]
    lines += [[name, *(f"{found[task, name] / 1e3:,.1f}" for task in tasks)] for name in contenders]
    return _lines(lines) + "\n" + _notes(rows[:1])


def _notes(rows: Rows) -> str:
    """List the conditions of figures; wrong answers have a list of their own."""
    notes = {row["note"]: row["contender"] for row in reversed(rows) if row["note"] and row["task"] != "answers"}
    below = "".join(f"- {contender}: {note}\n" for note, contender in reversed(notes.items()))
    return below + "\n" if below else ""


def _lines(lines: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 or not value else f"{value:.2f}"


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
