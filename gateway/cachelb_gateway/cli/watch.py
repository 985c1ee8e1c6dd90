"""`cachelb watch`: a live table of a running router, from its metrics page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cachelb.cli.errors import shown
from cachelb.cli.options import COUNT, FILE, option
from cachelb.cli.table import console, fitted, new_table, printable
from cachelb.sources.http import PageError, metrics_address
from cachelb_gateway.page import Figures, SharingFigures, WorkerFigures, read_page, seconds_within, shares

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from rich.console import Console, RenderableType

    from cachelb.sources.http import Address
    from cachelb.sources.pages import PageClient

_TIMEOUT_S = 5.0
_MILLI, _MICRO = 1e3, 1e6
_MEGABYTE = 1 << 20
_DIRECTIONS = ("sent", "received")
_TROUBLES = ("gaps", "snapshots", "refused", "failures", "stranger", "orphan", "stale", "dropped")
_EXAMPLES = """\b
Examples:
  cachelb watch http://127.0.0.1:9090
  cachelb watch http://127.0.0.1:9090/metrics --once --json
  cachelb watch http://gateway:9090 --token-file token --interval 5
"""


@click.command(epilog=_EXAMPLES, short_help="Show the router of a running gateway.")
@click.argument("url")
@option("--interval interval_s", 1.0, click.FloatRange(min=0.05), "Seconds between two requests of the page.")
@click.option("--once", is_flag=True, help="Show the page once, then exit.")
@option("--count", None, COUNT, "Show the page this many times, then exit.")
@option(
    "--token-file", None, FILE, "File with the bearer token of the page: that of --admin-token-file of cachelb serve."
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each request of the page.")
def watch(
    *, url: str, interval_s: float, once: bool, count: int | None, token_file: Path | None, as_json: bool
) -> None:
    """Show the router of the gateway whose metrics page is at URL, until Ctrl-C.

    URL is http://, https:// or unix:///path/of.sock; without a path it means /metrics. For cachelb serve it is the
    admin address; another gateway must have a cachelb.metrics.PrometheusCollector on the page. Rates are averages
    between two requests of the page, and so are times to the first byte of streams.
    """
    with shown(OSError), shown(ValueError, by=partial(click.BadParameter, param_hint="URL")):
        headers = {} if token_file is None else {"Authorization": f"Bearer {token_file.read_text('utf-8').strip()}"}
        address = metrics_address(_with_path(url), headers)
    looks = _looks(address, interval_s, 1 if once else count)
    show = _print_json if as_json else _print_tables
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(show(looks))


def _with_path(url: str) -> str:
    """Add the usual path to a URL without one."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return url.rstrip("/") + "/metrics" if parts.scheme in ("http", "https") and parts.path in ("", "/") else url


class _Look:
    """One look at the page: figures or a problem, and the rates since the last time there were figures."""

    def __init__(self, figures: Figures | None, problem: str | None, before: _Look | None) -> None:
        self.figures, self.problem = figures, problem
        self.time_s, self.monotonic_s = time.time(), time.monotonic()
        self.decisions_per_s: float | None = None
        self.messages_per_s: dict[str, float] = {}
        # First bytes of streams since the look before, and since the start on the first one.
        self.first_bytes = {} if figures is None else figures.first_byte_buckets
        if figures is not None and before is not None and before.figures is not None:
            passed_s = max(self.monotonic_s - before.monotonic_s, 1e-3)
            self.decisions_per_s = _rate(before.figures.decided, figures.decided, passed_s)
            then = before.figures.first_byte_buckets
            grown = {bound: count - then.get(bound, 0.0) for bound, count in self.first_bytes.items()}
            self.first_bytes = {} if min(grown.values(), default=0.0) < 0 else grown
            earlier = _messages(before.figures)
            rates = {way: _rate(earlier.get(way, 0.0), count, passed_s) for way, count in _messages(figures).items()}
            self.messages_per_s = {way: rate for way, rate in rates.items() if rate is not None}

    def as_dict(self) -> dict[str, Any]:
        """Give it as values that JSON has."""
        if self.figures is None:
            return {"time_s": self.time_s, "error": self.problem}
        document = {"time_s": self.time_s, "decisions_per_s": self.decisions_per_s, **self.figures.as_dict()}
        document["first_byte_seconds"] = shares(self.first_bytes)
        if document["sharing"] is not None:
            rates = {f"{way}_per_s": self.messages_per_s.get(way) for way in _DIRECTIONS}
            document["sharing"] = {**document["sharing"], **rates}
        return document


def _rate(before: float, now: float, passed_s: float) -> float | None:
    """Give what a counter grew by per second, None if it fell: the gateway was restarted."""
    return (now - before) / passed_s if now >= before else None


def _messages(figures: Figures) -> dict[str, float]:
    counts = {} if figures.sharing is None else figures.sharing.counts
    return {way: counts[way] for way in _DIRECTIONS if way in counts}


async def _looks(address: Address, interval_s: float, count: int | None) -> AsyncIterator[_Look]:
    """Look at the page until enough; what is wrong the first time ends it."""
    from cachelb.sources.pages import PageClient

    last: _Look | None = None
    looked = 0
    async with PageClient(address, None) as client:
        while True:
            figures, problem = await _fetch(client)
            if problem is not None and looked == 0:
                raise click.ClickException(problem)
            look = _Look(figures, problem, last)
            last = look if figures is not None else last
            yield look
            looked += 1
            if looked == count:
                return
            await asyncio.sleep(interval_s)


async def _fetch(client: PageClient) -> tuple[Figures | None, str | None]:
    """Fetch and read the page, or return the problem. The URL is not repeated: it may hold a password."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            page = await client.get()
    except PageError as error:
        return None, f"could not fetch the metrics page: {error}"
    except OSError as error:
        return None, f"could not fetch the metrics page: {type(error).__name__}"
    figures = read_page(page)
    if figures is None:
        return None, "the page shows no router: register cachelb.metrics.PrometheusCollector(router) there"
    return figures, None


async def _print_json(looks: AsyncIterator[_Look]) -> None:
    async for look in looks:
        click.echo(json.dumps(look.as_dict()))


async def _print_tables(looks: AsyncIterator[_Look]) -> None:
    """Redraw in place on a terminal, else print one after the other."""
    out = console()
    if not out.is_terminal:
        async for look in looks:
            out.print(_drawn(look, out))
        return
    shown: RenderableType = Text("")
    with Live(console=out, auto_refresh=False) as live:
        async for look in looks:
            # A page that cannot be fetched leaves the last figures on the screen, with the problem above them.
            shown = _drawn(look, out) if look.figures is not None else Group(_problem(look), *_last(shown))
            live.update(shown, refresh=True)


def _last(shown: RenderableType) -> list[RenderableType]:
    """Return what is on the screen, without an earlier problem."""
    if isinstance(shown, Group):
        return [part for part in shown.renderables if not (isinstance(part, Text) and part.style == "red")]
    return [shown]


def _drawn(look: _Look, out: Console) -> RenderableType:
    if look.figures is None:
        return _problem(look)
    table = fitted(out, partial(_workers, look.figures.workers), _LEAST)
    parts: list[RenderableType] = [_summary(look, look.figures), table]
    sharing = look.figures.sharing
    if sharing is not None:
        parts.append(Text(printable(_shared(look, sharing))))
        if sharing.peers:
            parts.append(_peers(sharing))
    return Group(*parts)


def _problem(look: _Look) -> Text:
    return Text(look.problem or "", style="red")


def _summary(look: _Look, figures: Figures) -> Text:
    """Summarize the whole router in a few lines."""
    rate = "" if look.decisions_per_s is None else f" ({look.decisions_per_s:,.1f}/s)"
    totals = figures.totals
    counts = (
        f"{figures.decided:,.0f} decisions{rate}, {totals.get('open_requests', 0):,.0f} open, "
        f"{totals.get('no_worker', 0):,.0f} without a worker, {totals.get('abandoned', 0):,.0f} abandoned"
    )
    reasons: defaultdict[str, float] = defaultdict(float)
    for (_, reason), count in figures.decisions.items():
        reasons[reason] += count
    lines = [counts, _listed("reasons", reasons), _listed("ended", figures.requests), _funnel(figures)]
    half, most = (figures.select_seconds(share) for share in (0.5, 0.99))
    if half is not None and most is not None:
        lines.append(f"selection: half within {half * _MICRO:,.0f} us, 99 % within {most * _MICRO:,.0f} us")
    half, most = (seconds_within(look.first_bytes, share) for share in (0.5, 0.99))
    if half is not None and most is not None:
        lines.append(f"first byte: half within {half * _MILLI:,g} ms, 99 % within {most * _MILLI:,g} ms")
    for policy, shadow in figures.shadows.items():
        agreed, decisions = shadow.get("agreed", 0), shadow.get("decisions", 0)
        share = f"{agreed / decisions:.0%}" if decisions else "-"
        lines.append(f"shadow {policy}: agrees {share}")
    lines.append(f"index {totals.get('index_bytes', 0) / _MEGABYTE:,.1f} MB")
    return Text("\n".join(printable(line) for line in lines if line))


def _listed(name: str, counts: dict[str, float]) -> str:
    """List what is not 0, the most first."""
    shown = sorted(((count, label) for label, count in counts.items() if count), reverse=True)
    return f"{name}: " + ", ".join(f"{label} {count:,.0f}" for count, label in shown) if shown else ""


def _funnel(figures: Figures) -> str:
    steps = [figures.funnel.get(step, 0.0) for step in ("prompt", "best_matched", "selected_matched", "engine_cached")]
    if not steps[0]:
        return "tokens: no engine reported cached tokens yet"
    best, selected, cached = (f"{tokens / steps[0]:.1%}" for tokens in steps[1:])
    return f"tokens: prompt {steps[0]:,.0f} -> best {best} -> selected {selected} -> engine {cached}"


def _workers(workers: Sequence[WorkerFigures], hidden: Sequence[str]) -> Table:
    """Build the table with a row per worker. Where names of workers are cut, the least columns leave first."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
    table.add_column("worker", overflow="fold")
    columns = {name: cell for name, cell in _COLUMNS.items() if name not in hidden}
    for header in columns:
        table.add_column(header, justify="left" if header == "state" else "right", no_wrap=True)
    for worker in workers:
        rank = f"#{worker.dp_rank}" if worker.dp_rank else ""
        cells = (printable(worker.worker + rank), *(cell(worker) for cell in columns.values()))
        table.add_row(*map(Text, cells), style=None if worker.state == "ready" else "yellow")
    return table


def _shared(look: _Look, sharing: SharingFigures) -> str:
    """Summarize sharing in a line."""
    parts = [f"shared: {sharing.start}", f"{len(sharing.peers)} peers"]
    for way, count in sharing.counts.items():
        if way in _DIRECTIONS:
            rate = look.messages_per_s.get(way)
            parts.append(f"{way} {count:,.0f}" + ("" if rate is None else f" ({rate:,.1f}/s)"))
    troubles = [f"{name} {sharing.counts[name]:,.0f}" for name in _TROUBLES if sharing.counts.get(name)]
    return ", ".join(parts + troubles)


def _peers(sharing: SharingFigures) -> Table:
    table = new_table(None, ["peer"], ["silent", "lag", "bookings", "gaps", "snapshots"])
    for peer in sharing.peers:
        counts = map(_count, (peer.bookings, peer.gaps, peer.snapshots))
        table.add_row(*map(Text, (printable(peer.peer), _seconds(peer.silent_s), _seconds(peer.lag_s), *counts)))
    return table


def _seconds(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f} s"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


_COLUMNS: Final[Mapping[str, Callable[[WorkerFigures], str]]] = {
    "state": lambda worker: printable(worker.state or "-"),
    "in\nflight": lambda worker: _count(worker.inflight),
    "prefill\ntokens": lambda worker: _count(worker.pending_prefill_tokens),
    "decode\nblocks": lambda worker: _count(worker.decode_blocks),
    "index\nblocks": lambda worker: _count(sum(worker.index_blocks.values())),
    "run-\nning": lambda worker: _count(worker.running),
    "wait-\ning": lambda worker: _count(worker.waiting),
    "KV\nuse": lambda worker: "-" if worker.kv_usage is None else f"{worker.kv_usage:.0%}",
    "report\nage": lambda worker: _seconds(worker.report_age_s, 1),
}
_LEAST: Final = ("decode\nblocks", "prefill\ntokens", "index\nblocks", "report\nage")
