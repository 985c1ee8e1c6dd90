"""A replay's report as a table for people, and what other tables need too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from cachelb.sim.report import PolicyResult, Report

_PIPE_WIDTH = 120
_MILLION = 1e6


def printable(text: str) -> str:
    r"""Replace what a terminal would take for a command: text from files and pages may hold anything.

    Args:
        text: What to show.

    Returns:
        The same length of text, of characters that only show.

    Example:
        >>> printable("gpu0\x1b[2J")
        'gpu0?[2J'
    """
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def print_table(report: Report) -> None:
    """Print one row per policy, the best hit rate first and in bold.

    Args:
        report: What to print.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    console.print(_table(report))


def _table(report: Report) -> Table:
    """Build the table."""
    source, bound = report.source, report.bound
    table = Table(
        title=(
            f"{source.name}: {source.requests:,} requests in {source.duration_s:,.0f} s, {report.workers} workers x "
            f"{report.kv_tokens:,} tokens, block {report.block_size}"
        ),
        caption=(
            f"bound: one LRU pool of {bound.capacity_tokens:,} tokens hits {bound.pool.block_rate:.1%} of blocks, "
            f"an infinite one {bound.infinite.block_rate:.1%}\nmax/mean: the busiest worker over the mean"
        ),
    )
    table.add_column("policy", no_wrap=True)
    for header in (
        "block\nhits",
        "token\nhits",
        "of\nbound",
        "prefill\nsaved",
        "requests\nmax/mean",
        "busy time\nmax/mean",
        "peak in\nflight",
        "decisions\nper s",
    ):
        table.add_column(header, justify="right", no_wrap=True)
    best_first = sorted(report.policies, key=lambda result: -result.hits.hit_blocks)
    most = best_first[0].hits.hit_blocks if best_first else 0
    for result in best_first:
        table.add_row(*_cells(result), style="bold" if result.hits.hit_blocks == most else None)
    return table


def _cells(result: PolicyResult) -> tuple[str, ...]:
    """Format one policy's figures."""
    return (
        result.policy,
        f"{result.hits.block_rate:.1%}",
        f"{result.hits.token_rate:.1%}",
        f"{result.hit_vs_bound:.1%}",
        f"{result.saved_tokens / _MILLION:.2f} M",
        f"{result.requests_max_over_mean:.2f}",
        f"{result.busy_max_over_mean:.2f}",
        f"{result.peak_inflight:,}",
        f"{result.wall_clock.decisions_per_s:,.0f}",
    )
