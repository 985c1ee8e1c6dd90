"""Writes docs/images/architecture.svg, the picture of docs/maintainers/architecture.md; `--check` only compares.

usage: architecture.py [--check | --dark FILE]

`--dark FILE` writes the dark colours as the only ones, for renderers without media queries.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

PICTURE: Final = Path(__file__).parents[1] / "docs" / "images" / "architecture.svg"
WIDTH, HEIGHT = 1160, 726

# Ink, muted ink, page, band, box, line; then one colour per flow.
NAMES: Final = ("ink", "muted", "page", "band", "box", "line", "request", "events", "load", "state")
LIGHT: Final = ("#1f2328", "#59636e", "#fff", "#f3f5f8", "#fff", "#b9c1cb", "#0b5cad", "#1a7f37", "#b35900", "#7a3fc4")
DARK: Final = (
    "#e6edf3",
    "#9ba5b0",
    "#0d1117",
    "#161c24",
    "#0d1117",
    "#47515d",
    "#6cb6ff",
    "#57c267",
    "#f0964a",
    "#c297ff",
)
FLOWS: Final = ("request", "events", "load", "state")

FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
MONO: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

Point = tuple[float, float]


def colours(palette: Iterable[str]) -> str:
    """Rules that give every class its colour."""
    by = dict(zip(NAMES, palette, strict=True))
    rules = [
        f".page{{fill:{by['page']}}} .band{{fill:{by['band']}}} .box{{fill:{by['box']};stroke:{by['line']}}}",
        f".frame{{stroke:{by['ink']}}} .pool{{stroke:{by['line']}}} .owns{{stroke:{by['muted']}}}",
        f".ink{{fill:{by['ink']}}} .muted{{fill:{by['muted']}}}",
        f".halo{{stroke:{by['band']}}} .number{{fill:{by['page']}}}",
    ]
    rules += [f".{flow}{{stroke:{by[flow]}}} .{flow}-fill{{fill:{by[flow]}}}" for flow in FLOWS]
    return "\n".join(rules)


def text(x: float, y: float, words: str, kind: str = "ink", *, size: float = 13, anchor: str = "start") -> str:
    """One line of text; `kind` is a list of classes."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'
    )


def box(x: float, y: float, width: float, height: float, title: str, *lines: str, kind: str = "box") -> str:
    """A box with a title, and lines below it, all centred."""
    middle, step = x + width / 2, 15.5
    top = y + height / 2 + 4.5 - step * len(lines) / 2
    parts = [f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>']
    parts.append(text(middle, top, title, "ink bold", size=13.5, anchor="middle"))
    parts += [
        text(middle, top + step * at, line, "muted", size=11.5, anchor="middle") for at, line in enumerate(lines, 1)
    ]
    return "\n".join(parts)


def band(y: float, height: float, name: str, *lines: str) -> str:
    """A layer over the whole width, with its name at the left."""
    parts = [f'<rect x="16" y="{y:g}" width="{WIDTH - 32}" height="{height:g}" rx="8" class="band"/>']
    parts.append(text(30, y + 27, name, "ink bold mono", size=13))
    parts += [text(30, y + 27 + 16.5 * at, line, "muted", size=11.5) for at, line in enumerate(lines, 1)]
    return "\n".join(parts)


def arrow(flow: str, *points: Point, dashed: bool = False, both: bool = False, over: bool = False) -> str:
    """A line through the points, with a head at its end, and at its start if `both`; `over` crosses another."""
    path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
    start = f' marker-start="url(#{flow}-head)"' if both else ""
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    halo = f'<path d="{path}" class="halo"/>' if over else ""
    return f'{halo}<path d="{path}" class="flow {flow}"{dashes}{start} marker-end="url(#{flow}-head)"/>'


def step(x: float, y: float, number: int) -> str:
    """The number of a step of a request."""
    disc = f'<circle cx="{x:g}" cy="{y:g}" r="9.5" class="request-fill"/>'
    return disc + text(x, y + 4, str(number), "number bold", size=11.5, anchor="middle")


def head() -> str:
    """Arrow heads, one colour each."""
    shape = '<path d="M0 0 L10 5 L0 10 z" class="{0}-fill"/>'
    marker = (
        '<marker id="{0}-head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto-start-reverse">' + shape + "</marker>"
    )
    return "<defs>" + "".join(marker.format(flow) for flow in FLOWS) + "</defs>"


def layers() -> list[str]:
    """Bands and boxes, from the outside to the structures."""
    return [
        text(30, 47, "other processes", "ink bold", size=13),
        box(180, 18, 350, 58, "Gateway", "your code, LiteLLM, Ray Serve, production-stack, Envoy"),
        box(600, 18, 280, 58, "Engines", "vLLM, SGLang, …"),
        box(910, 18, 220, 58, "Other routers", "of the same fleet"),
        band(126, 88, "python/cachelb", "sockets, threads,", "the user's objects"),
        box(196, 140, 110, 60, "Admission", "optional: holds", "or refuses"),
        box(330, 140, 184, 60, "Router, Decision", "on the caller's threads,", "or its event loop"),
        box(545, 140, 166, 60, "ZmqSource", "thread cachelb-kv-events"),
        box(730, 140, 166, 60, "MetricsSource", "thread cachelb-metrics"),
        box(930, 140, 190, 60, "ZmqMesh, RedisState", "thread cachelb-state"),
        band(228, 62, "rust/py", "cachelb._core"),
        box(196, 238, 924, 42, "conversion and errors, no algorithm"),
        band(
            304,
            382,
            "rust",
            "core, learned, policy,",
            "events, share, router:",
            "no Python, no I/O,",
            "no clock",
            "",
            "sim, the simulator,",
            "runs on them",
        ),
        box(196, 318, 318, 52, "hashing", "tokens to chained block hashes, before the lock"),
        box(545, 318, 166, 52, "events", "decode, order, gaps"),
        box(930, 318, 190, 52, "share", "entries, journal, snapshots"),
        '<rect x="186" y="394" width="944" height="280" rx="8" class="frame"/>',
        box(200, 432, 166, 76, "fleet", "workers, models, roles,", "health, engine facts"),
        box(386, 432, 166, 76, "candidates", "one row per eligible", "worker: overlap, load"),
        box(572, 432, 166, 76, "select", "the pass: choice,", "booking, placement"),
        box(758, 432, 166, 76, "trace", "rows of the latest", "256 decisions"),
        box(944, 432, 166, 76, "decisions", "bookings, counters,", "records"),
        box(200, 568, 166, 66, "registry", "names, ids, generations"),
        '<rect x="386" y="554" width="352" height="108" rx="6" class="pool"/>',
        text(562, 652, "pool: one per model", "muted", size=11.5, anchor="middle"),
        box(398, 568, 154, 66, "index or radix", "holders of every prefix"),
        box(572, 568, 154, 66, "policy", "rule, learned model"),
        text(841, 586, "Selector", "ink bold", size=14, anchor="middle"),
        text(841, 604, "one lock, never held", "muted", size=11.5, anchor="middle"),
        text(841, 620, "across a call into Python;", "muted", size=11.5, anchor="middle"),
        text(841, 636, "no public field", "muted", size=11.5, anchor="middle"),
        box(944, 568, 166, 66, "load", "requests in flight,", "queued tokens, reports"),
    ]


def owners() -> list[str]:
    """Lines from an owner to the structure that it keeps."""
    return [f'<path d="M{x} 508 L{x} 568" class="owns"/>' for x in (283, 1027)]


def request() -> list[str]:
    """The way of a request, and its numbered steps."""
    return [
        arrow("request", (222, 76), (222, 140)),
        step(222, 101, 1),
        text(238, 97, "select_worker,", "ink mono", size=11.5),
        text(238, 111, "or acquire", "ink mono", size=11.5),
        arrow("request", (306, 170), (330, 170)),
        arrow("request", (372, 140), (372, 76)),
        step(372, 101, 6),
        text(388, 105, "Decision", "ink mono", size=11.5),
        arrow("request", (470, 76), (470, 140), dashed=True),
        step(470, 101, 8),
        text(486, 97, "first token,", size=11.5),
        text(486, 111, "completion", size=11.5),
        arrow("request", (530, 47), (600, 47)),
        step(562, 47, 7),
        arrow("request", (355, 200), (355, 238)),
        step(355, 217, 2),
        arrow("request", (355, 280), (355, 318)),
        arrow("request", (469, 371), (469, 432), over=True),
        step(469, 406, 3),
        arrow("request", (366, 470), (386, 470), over=True),
        arrow("request", (552, 470), (572, 470)),
        arrow("request", (738, 470), (758, 470)),
        arrow("request", (924, 470), (944, 470)),
        arrow("request", (440, 568), (440, 508)),
        text(432, 541, "overlap", size=11.5, anchor="end"),
        arrow("request", (690, 568), (690, 508)),
        step(690, 538, 4),
        arrow("request", (620, 508), (620, 538), (510, 538), (510, 568)),
        step(565, 538, 5),
    ]


def feeds() -> list[str]:
    """The ways of events, load reports and shared state."""
    return [
        arrow("events", (628, 76), (628, 140)),
        text(640, 105, "KV events", "events-fill", size=11.5),
        arrow("events", (628, 200), (628, 238)),
        arrow("events", (628, 280), (628, 318)),
        arrow("events", (628, 370), (628, 384), (376, 384), (376, 601), (398, 601)),
        arrow("load", (813, 76), (813, 140)),
        text(825, 105, "load reports", "load-fill", size=11.5),
        arrow("load", (813, 200), (813, 238)),
        arrow("load", (813, 280), (813, 384), (985, 384), (985, 432)),
        arrow("state", (1025, 76), (1025, 140), both=True),
        text(1037, 105, "ZeroMQ, Redis", "state-fill", size=11.5),
        arrow("state", (1025, 200), (1025, 238), both=True),
        arrow("state", (1025, 280), (1025, 318), both=True),
        arrow("state", (1060, 370), (1060, 432), both=True),
    ]


def legend(y: float) -> list[str]:
    """One sample of every line."""
    words = {
        "request": "a request",
        "events": "KV events of engines",
        "load": "load reports",
        "state": "shared state",
    }
    parts, x = [], 196.0
    for flow, about in words.items():
        parts += [arrow(flow, (x, y), (x + 34, y)), text(x + 43, y + 4, about, size=11.5)]
        x += 80 + 6.6 * len(about)
    return [*parts, f'<path d="M{x:g} {y:g} L{x + 34:g} {y:g}" class="owns"/>', text(x + 43, y + 4, "owns", size=11.5)]


def document(palette: Iterable[str], dark: Iterable[str] | None) -> str:
    """The picture in one palette, and in another one for readers of dark pages."""
    switch = "" if dark is None else f"@media (prefers-color-scheme:dark){{{colours(dark)}}}"
    base = (
        f"text{{font-family:{FONT}}} .mono{{font-family:{MONO}}} .bold{{font-weight:600}} "
        ".box{stroke-width:1} .frame,.pool,.flow,.owns,.halo{fill:none} "
        ".halo{stroke-width:7} .frame{stroke-width:1.3} .flow{stroke-width:1.8} "
        ".owns{stroke-width:1.3;stroke-dasharray:2 3}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">',
            "<title>Architecture of cachelb</title>",
            f"<style>\n{base}\n{colours(palette)}\n{switch}\n</style>",
            head(),
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" class="page"/>',
            *layers(),
            *owners(),
            *feeds(),
            *request(),
            *legend(706),
            "</svg>\n",
        ]
    )


def main() -> int:
    """Write or compare."""
    match sys.argv[1:]:
        case ["--dark", file]:
            Path(file).write_text(document(DARK, None), "utf-8")
        case ["--check"]:
            if PICTURE.read_text("utf-8") != document(LIGHT, DARK):
                print(f"{PICTURE.name} is not what its script writes: run .ci/architecture.py")
                return 1
        case []:
            PICTURE.write_text(document(LIGHT, DARK), "utf-8")
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
