"""The page about a run, and its image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_HEAD = """# Half an hour of everything

Written by `python -m benches.soak --out docs/maintainers/soak.md`, which fails when a line of the first table does not
hold.

Two gateways, the Starlette example and `cachelb serve`, a process each, share bookings and placements over `ZmqMesh`,
receive the KV cache events of {workers} fake engines and poll their metrics; `cachelb serve` holds requests by an
`Admission`. The engines answer over HTTP as vLLM does, {hybrid} of them with a hybrid model (sliding windows), with
streams that last half a second. Conversations of 576 to 1,088 tokens come as token ids at random times. A ramp
found that {capacity} of them a second get 99 of 100 first bytes within a second; {rate:.0f} a second were sent for
{minutes:.0f} minutes. 6 % of the clients left early; 0.9 % of the requests met a refused connection, an error 500 or
an answer that breaks off; every {restart_s:g} seconds a worker, each in turn, was killed and came back empty,
{restarts} times; the Starlette gateway was restarted at half time. {hostile:,} more clients of `cachelb serve` sent
malformed heads, broke off in a head or a body, pipelined and left, or read their answers slowly.

The machine: {machine}; {least:.0f} to {most:.0f} processes wanted to run, as
it had other work to do. So times depend more on it than on cachelb. The yardstick is a fixed piece of work of the
interpreter, timed after every selection: a delay of both is not the router's. Selections are timed in the Starlette
gateway; those of an admission include its wait.

"""

_FOOT = """
Booked is what the gateway has in its book, open what clients had open there just before it was asked; while a request
is on its way to the gateway, or a client has just left, the two differ. Lag is that of KV cache events.

## Growth of memory

Resident memory moves in steps: when other work takes the machine for seconds, dozens of requests are open at once, and
neither malloc nor the interpreter gives back the pages that they took then. In use is no more than before: in a run
with many such stalls (`--minutes 18 --rate 40`), the malloc of an aiohttp server had handed out 22.1 MiB after three
and a half minutes, with 9 requests open, and 22.1 MiB after 17, with 4; the router's native memory was 3.2 and 3.1 MiB.
Resident memory went from 81.8 to 84.5 MiB meanwhile, by 1.7 and 0.9 MiB in two of the stalls.
"""


_TIMES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("select_p50_us", "p50", {}),
    ("select_p99_us", "p99", {"ls": "--"}),
    ("yardstick_p99_us", "yardstick p99", {"lw": 0.6, "ls": ":"}),
)


def write_page(found: dict[str, Any], path: Path) -> None:
    """Write the page, and the image beside it.

    Args:
        found: Result of `benches.soak.verdict.figures`.
        path: Where.
    """
    plan, faults = found["plan"], found["faults"]
    borne = [rate for rate, _, borne in found["probes"] if borne]
    loads = [look["machine_load"] for look in found["looks"]]
    image = path.parent / "images" / f"{path.stem}.svg"
    columns = (
        "minute",
        "gateway",
        "memory",
        "booked / open",
        "select p50 / p99",
        "yardstick p99",
        "first byte p99",
        "lag",
    )
    verdict = [
        (point["what"], point["found"], "" if point["holds"] else "**does not hold**") for point in found["verdict"]
    ]
    parts = [
        _HEAD.format(
            workers=plan["workers"],
            hybrid=plan["hybrid"],
            capacity=f"{max(borne):.0f}" if borne else "an unknown number",
            rate=found["rate"],
            minutes=found["seconds"] / 60,
            restart_s=plan["restart_s"],
            restarts=faults.get("restart", 0),
            hostile=sum(found["hostile"].values()),
            machine=found["machine"],
            least=min(loads),
            most=max(loads),
        ),
        f"![Memory, times of selections and requests in flight]({image.relative_to(path.parent)})\n\n",
        "## The verdict\n\n",
        _table(("what must hold", "what was found", ""), verdict),
        "\n## On the way\n\n",
        _table(columns, [_row(look) for look in _every_five_minutes(found["looks"], plan["every_s"])]),
        _FOOT,
    ]
    path.write_text("".join(parts), "utf-8")
    image.parent.mkdir(parents=True, exist_ok=True)
    _draw(found["looks"], image)


def _every_five_minutes(looks: Sequence[dict[str, Any]], every_s: float) -> list[dict[str, Any]]:
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for look in looks:
        found.setdefault((int((look["at_s"] + every_s) // 300), look["name"]), look)
    return [look for (at, _), look in found.items() if at]


def _row(look: dict[str, Any]) -> tuple[str, ...]:
    report = look["report"]
    return (
        f"{look['at_s'] / 60:.0f}",
        look["name"],
        f"{report['resident_bytes'] / 2**20:.1f} MiB",
        f"{report['bookings']} / {look['open_before']}",
        f"{report['select_p50_us']:.0f} / {report['select_p99_us']:.0f} us" if report["selections"] else "",
        f"{report['yardstick_p99_us']:.0f} us" if report["selections"] else "",
        f"{1e3 * look['first_p99_s']:.0f} ms",
        f"{1e3 * report['lag_s']:.0f} ms",
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *rows))


def _draw(looks: Sequence[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    # Equal figures give equal files, and text is text.
    plt.rcParams.update({"svg.hashsalt": "cachelb", "svg.fonttype": "none"})
    figure, (memory, times, flight) = plt.subplots(3, sharex=True, figsize=(8, 8), layout="constrained")
    for name, life in sorted({(look["name"], look["life"]) for look in looks}):
        own = [look for look in looks if (look["name"], look["life"]) == (name, life)]
        at = [look["at_s"] / 60 for look in own]
        color = {"starlette": "C0", "serve": "C1"}[name]
        label = name if life == 1 else None
        memory.plot(at, [look["report"]["resident_bytes"] / 2**20 for look in own], color=color, label=label)
        if any(look["report"]["selections"] for look in own):
            for figure_name, what, style in _TIMES:
                found = [look["report"][figure_name] for look in own]
                times.plot(at, found, color=color, label=label and f"{name}, {what}", **style)
        flight.plot(at, [look["report"]["bookings"] for look in own], color=color, label=label and f"{name}, booked")
        opened = [look["open_before"] for look in own]
        flight.plot(at, opened, color=color, lw=0.6, ls=":", label=label and f"{name}, open at clients")
    memory.set(ylabel="MiB resident", ylim=(0, None))
    times.set(ylabel="us", yscale="log", title="select_worker", ylim=(10, None))
    flight.set(ylabel="requests", xlabel="minutes", ylim=(0, None))
    for axes in (memory, times, flight):
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small", ncols=3)
    figure.savefig(path, metadata={"Date": None})
