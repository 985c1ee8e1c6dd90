"""Requests and arrivals as columns, the input of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cachelb.common.arguments import listed, number
from cachelb_lab.sim.checks import check_arguments
from cachelb_lab.sim.workloads.arrivals import microseconds, positive
from cachelb_lab.sim.workloads.files.columns import check_ends, check_rows, gather, joined_offsets, runs

_MOST_PARTS = 65_536
_COLUMNS = {
    "arrival_s": np.float64,
    "parent": np.int64,
    "think_s": np.float64,
    "prompt_tokens": np.uint32,
    "output_tokens": np.uint32,
    "hashes": np.uint64,
    "offsets": np.uint64,
    "output_hashes": np.uint64,
    "output_offsets": np.uint64,
}
_OPTIONAL = {"abort_s": np.float64, "boundaries": np.uint32, "boundary_offsets": np.uint64}
_BY_ROW = ("arrival_s", "think_s", "prompt_tokens", "output_tokens", "abort_s")
_RUNS = {"hashes": "offsets", "output_hashes": "output_offsets", "boundaries": "boundary_offsets"}
"""Columns of any length per row, with those of their offsets."""


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests of one run, in order of arrival as far as it is known.

    A request either arrives at a time of its own, or follows a parent: it arrives when that one
    has finished and a pause has passed. Blocks have chained 64-bit hashes: an equal hash means an
    equal whole prefix.

    Attributes:
        name: Name in reports.
        block_size: Tokens per block.
        seed: Seed it was made from; 0 for a trace.
        arrival_s: Seconds from the start; NaN for a request with a parent.
        parent: Row of the request each one follows, an earlier one; -1 for none.
        think_s: Seconds between the end of the parent and the arrival.
        prompt_tokens: Lengths of the prompts, at least 1.
        output_tokens: Lengths of the answers, at least 1.
        hashes: Hashes of the full blocks of the prompts, row after row.
        offsets: Where each row's hashes begin, and where the last one's end.
        output_hashes: Hashes of the blocks that the answers fill, from the one that the prompt left
            partial on; none where they are unknown.
        output_offsets: As ``offsets``.
        session: Session ids, "" of a request without one; None where they are unknown.
        abort_s: Seconds after its arrival at which each client goes away, NaN for one that waits;
            None if all do.
        boundaries: Where the messages of the prompts end, in tokens, row after row; None where
            they are unknown.
        boundary_offsets: As ``offsets``; None with ``boundaries``.

    Example:
        >>> from cachelb_lab.sim.workloads import build
        >>> chats = build("chat", seed=1, count=200)
        >>> len(chats), chats.infinite_hits() > 0.9
        (200, True)
    """

    name: str
    block_size: int
    seed: int
    arrival_s: npt.NDArray[np.float64]
    parent: npt.NDArray[np.int64]
    think_s: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[np.uint32]
    output_tokens: npt.NDArray[np.uint32]
    hashes: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.uint64]
    output_hashes: npt.NDArray[np.uint64]
    output_offsets: npt.NDArray[np.uint64]
    session: list[str] | None = None
    abort_s: npt.NDArray[np.float64] | None = None
    boundaries: npt.NDArray[np.uint32] | None = None
    boundary_offsets: npt.NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Workload):
            return NotImplemented
        mine, theirs = ((*attrgetter(*_COLUMNS)(each), _patience(each), *_ends(each)) for each in (self, other))
        return all(
            getattr(self, key) == getattr(other, key) for key in ("name", "block_size", "seed", "session")
        ) and all(
            np.array_equal(one, two, equal_nan=one.dtype == np.float64) for one, two in zip(mine, theirs, strict=True)
        )

    __hash__ = None  # type: ignore[assignment] # columns can be changed in place

    def __repr__(self) -> str:
        return f"Workload({self.name!r}, {len(self)} requests, block_size={self.block_size}, seed={self.seed})"

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name.

        Returns:
            All columns but ``session``, contiguous.
        """
        keys = [*_COLUMNS, *(key for key in _OPTIONAL if getattr(self, key) is not None)]
        return {key: np.ascontiguousarray(getattr(self, key)) for key in keys}

    def prompt(self, row: int) -> npt.NDArray[np.uint64]:
        """Return the hashes of a prompt's full blocks.

        Args:
            row: Which request.

        Returns:
            A view.
        """
        return self.hashes[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def message_ends(self, row: int) -> npt.NDArray[np.uint32]:
        """Return where the messages of a prompt end, as far as it is known.

        Args:
            row: Which request.

        Returns:
            Positions in tokens; none where they are unknown.
        """
        ends, offsets = _ends(self)
        return ends[int(offsets[row]) : int(offsets[row + 1])]

    def answer(self, row: int) -> npt.NDArray[np.uint64]:
        """Return the hashes of the blocks that an answer fills, as far as they are known.

        Args:
            row: Which request.

        Returns:
            A view.
        """
        return self.output_hashes[int(self.output_offsets[row]) : int(self.output_offsets[row + 1])]

    def validate(self) -> Workload:
        """Check that the columns agree.

        Returns:
            The workload itself.

        Raises:
            ValueError: They do not; the message names the first row that is wrong.
        """
        for key, kind in _COLUMNS.items():
            if getattr(self, key).dtype != kind or getattr(self, key).ndim != 1:
                raise ValueError(f"{key} must be one column of {np.dtype(kind)}, got {getattr(self, key).dtype}")
        count = len(self)
        for key in ("parent", "think_s", "prompt_tokens", "output_tokens", "session", "abort_s"):
            column = getattr(self, key)
            if column is not None and len(column) != count:
                raise ValueError(f"{key} has {len(column)} rows, arrival_s has {count}")
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {self.block_size}")
        check_rows(self.prompt_tokens >= 1, "prompt_tokens must be at least 1", self.prompt_tokens)
        check_rows(self.output_tokens >= 1, "output_tokens must be at least 1", self.output_tokens)
        root = self.parent < 0
        check_rows(self.parent >= -1, "parent must be -1 or an earlier row", self.parent)
        check_rows(self.parent < np.arange(count), "parent must be an earlier row", self.parent)
        timed = np.isfinite(self.arrival_s) & (np.nan_to_num(self.arrival_s) >= 0)
        check_rows(timed | ~root, "arrival_s must be 0 or more", self.arrival_s)
        check_rows(root | np.isnan(self.arrival_s), "arrival_s must be NaN with a parent", self.arrival_s)
        thinks = np.isfinite(self.think_s) & (np.nan_to_num(self.think_s) >= 0)
        check_rows(thinks, "think_s must be 0 or more", self.think_s)
        patience = _patience(self)
        waits = np.isnan(patience) | (np.isfinite(patience) & (patience >= 0))
        check_rows(waits, "abort_s must be 0 or more, or NaN", patience)
        full = self.prompt_tokens // np.uint32(self.block_size)
        check_rows(runs(self.offsets, self.hashes, count) == full, "a hash per full block is needed of", full)
        total = self.prompt_tokens.astype(np.int64) + self.output_tokens
        filled = total // self.block_size - full
        given = runs(self.output_offsets, self.output_hashes, count)
        check_rows(given <= filled, "more output_hashes than blocks an answer fills,", filled)
        if (self.boundaries is None) != (self.boundary_offsets is None):
            raise ValueError("boundaries and boundary_offsets go together; give both or neither")
        check_ends(*_ends(self), self.prompt_tokens)
        return self

    # === other workloads from this one ===

    def slice(self, start: int = 0, stop: int | None = None) -> Workload:
        """Return some rows in a row. One whose parent is left out is left out too.

        Args:
            start: The first row.
            stop: The row behind the last; None for all.

        Returns:
            A workload; arrivals are as they were.
        """
        begin, end, _ = slice(start, stop).indices(len(self))
        keep = np.zeros(len(self), dtype=bool)
        keep[begin:end] = True
        for row in np.flatnonzero(keep & (self.parent >= 0)):
            keep[row] = keep[self.parent[row]]
        return self.take(np.flatnonzero(keep))

    def take(self, rows: npt.NDArray[np.int64]) -> Workload:
        """Return some rows, in the order given.

        Args:
            rows: Which; parents before their children.

        Returns:
            A workload.

        Raises:
            ValueError: A row comes before its parent, or without it.
        """
        place = np.full(len(self) + 1, -2, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        place[-1] = -1  # no parent is row -1
        parent = place[self.parent[rows]]
        check_rows(parent < np.arange(len(rows)), "a parent must come before its child; it is at", parent)
        check_rows(parent >= -1, "a parent is left out of", rows)
        changed = {key: column[rows] for key in _BY_ROW if (column := getattr(self, key)) is not None}
        for values, offsets in _RUNS.items():
            if getattr(self, values) is not None:
                changed[values], changed[offsets] = gather(getattr(self, values), getattr(self, offsets), rows)
        session = None if self.session is None else [self.session[row] for row in rows]
        return replace(self, parent=parent, session=session, **changed)

    def in_order(self) -> Workload:
        """Sort by arrival.

        Returns:
            The rows by arrival, those with a parent by the earliest time at which they can arrive.
        """
        arrival = self.arrival_s.copy()
        waits = np.flatnonzero(np.isnan(arrival))
        while len(waits):
            parents = self.parent[waits]
            arrival[waits] = arrival[parents] + self.think_s[waits]
            waits = waits[np.isnan(arrival[waits])]
        order = np.argsort(arrival, kind="stable")
        return self if np.array_equal(order, np.arange(len(self))) else self.take(order)

    @staticmethod
    def concat(parts: Sequence[Workload], *, name: str | None = None, one_after_the_other: bool = False) -> Workload:
        """Lay workloads over each other, or one behind the other.

        Args:
            parts: At least one; all of one block size.
            name: Name of the result; the parts' names with a plus by default.
            one_after_the_other: Let each begin at the last arrival of the one before, not at 0.

        Returns:
            The requests of all, by arrival. A session keeps its name, so parts must not share any.

        Raises:
            ValueError: There is no part, or block sizes differ.
        """
        parts = listed("parts", parts, _MOST_PARTS)
        if not parts:
            raise ValueError("concat needs at least one workload")
        if len({part.block_size for part in parts}) > 1:
            raise ValueError(f"block sizes differ: {sorted({part.block_size for part in parts})}; expand to one")
        shifted, rows, start_s = [], 0, 0.0
        for part in parts:
            moved = part.parent + np.where(part.parent < 0, 0, rows)
            shifted.append(replace(part, parent=moved, arrival_s=part.arrival_s + start_s))
            rows += len(part)
            if one_after_the_other and len(part):
                start_s = float(np.nanmax(shifted[-1].arrival_s))
        joined: dict[str, Any] = {
            key: np.concatenate([getattr(part, key) for part in shifted]).astype(kind)
            for key, kind in _COLUMNS.items()
            if not key.endswith("offsets")
        }
        joined |= {key: joined_offsets([getattr(part, key) for part in parts]) for key in _COLUMNS.keys() - joined}
        if any(part.session is not None for part in parts):
            joined["session"] = [name for part in parts for name in part.session or [""] * len(part)]
        if any(part.abort_s is not None for part in parts):
            joined["abort_s"] = np.concatenate(list(map(_patience, parts)))
        if any(part.boundaries is not None for part in parts):
            each, offsets = zip(*map(_ends, parts), strict=True)
            joined |= {"boundaries": np.concatenate(each), "boundary_offsets": joined_offsets(offsets)}
        whole = replace(parts[0], name=name or "+".join(part.name for part in parts), **joined)
        return whole.in_order()

    def speed_up(self, factor: float) -> Workload:
        """Speed up arrivals; pauses between the turns of a session stay.

        Args:
            factor: Divisor of arrival times.

        Returns:
            A workload.

        Raises:
            ValueError: ``factor`` is not positive.
        """
        positive("factor", factor)
        return replace(self, arrival_s=self.arrival_s / factor)

    def jitter(self, seconds: float, seed: int = 0) -> Workload:
        """Delay each arrival by a random time, for traces whose timestamps come in batches.

        Args:
            seconds: Most of the delay; uniform from 0.
            seed: Seed of the delays.

        Returns:
            A workload, in order of its new arrivals.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        check_arguments(self.jitter, {"seconds": seconds, "seed": seed})
        number("seconds", seconds, least=0.0, most=1e9)
        delay = microseconds(np.random.default_rng(seed).random(len(self)) * seconds)
        return replace(self, arrival_s=microseconds(self.arrival_s + delay)).in_order()

    def impatient(self, share: float, mean_s: float, seed: int = 0) -> Workload:
        """Make some clients leave before they have their answer.

        Args:
            share: Share of the requests whose clients have a limit to their patience.
            mean_s: Its mean in seconds; exponential.
            seed: Seed of the choice of clients and of their patience.

        Returns:
            A workload with ``abort_s``.

        Raises:
            ValueError: ``share`` is not between 0 and 1, or ``mean_s`` not positive.

        Example:
            >>> from cachelb_lab.sim.workloads import build
            >>> hasty = build("chat", seed=1, count=1_000).impatient(0.1, 5.0)
            >>> int(np.isfinite(hasty.abort_s).sum())
            89
        """
        check_arguments(self.impatient, {"share": share, "mean_s": mean_s, "seed": seed})
        positive("mean_s", mean_s)
        rng = np.random.default_rng(seed)
        leaves, patience = rng.random(len(self)) < share, rng.exponential(mean_s, len(self))
        return replace(self, abort_s=np.where(leaves, microseconds(patience), np.nan))

    # === facts ===

    def infinite_hits(self) -> float:
        """Return which part of the prompt tokens one cache without limit would have.

        Returns:
            Tokens in full blocks seen before, of earlier prompts or answers, by all prompt tokens.
        """
        tokens = int(self.prompt_tokens.sum(dtype=np.int64))
        if not tokens:
            return 0.0
        # Hashes are chained, so a block is new exactly once, unless an answer has brought it.
        distinct = np.sort(self.hashes)
        distinct = distinct[np.concatenate([[True], distinct[1:] != distinct[:-1]])] if len(distinct) else distinct
        new = len(distinct)
        if len(self.output_hashes):
            new -= int(np.isin(distinct, self.output_hashes).sum())
        return (len(self.hashes) - new) * self.block_size / tokens

    def save(self, path: str | Path) -> None:
        """Write the workload as generic JSON Lines, which `read_workload` reads back equal.

        Args:
            path: Where to; ``.gz`` and ``.xz`` compress. Equal workloads give equal bytes.

        Raises:
            ValueError: There is no request.
            OSError: The file cannot be written.
        """
        from cachelb_lab.sim.workloads.files.writing import write_workload

        write_workload(self, path)


def make(  # the one place that fills columns in
    name: str,
    *,
    block_size: int,
    arrival_s: npt.ArrayLike,
    session: list[str] | None = None,
    seed: int = 0,
    **columns: npt.ArrayLike | None,
) -> Workload:
    """Make a workload from the known columns, in the order given; None and the others get neutral values.

    By default no request follows another, pauses are 0 and answers have unknown blocks.
    """
    count = len(np.asarray(arrival_s))
    neutral: dict[str, npt.ArrayLike] = {
        "parent": np.full(count, -1),
        "think_s": np.zeros(count),
        "output_hashes": np.empty(0, dtype=np.uint64),
        "output_offsets": np.zeros(count + 1),
    }
    known = {key: column for key, column in columns.items() if column is not None}
    made: dict[str, Any] = {**neutral, **known, "arrival_s": arrival_s}
    for key in made.keys() - {"hashes", "output_hashes"}:
        made[key] = np.asarray(made[key], dtype=(_COLUMNS | _OPTIONAL)[key])
    return Workload(name, block_size, seed, session=session, **made).validate()


def _patience(workload: Workload) -> npt.NDArray[np.float64]:
    """Return when clients go away, NaN for those that wait."""
    return np.full(len(workload), np.nan) if workload.abort_s is None else workload.abort_s


def _ends(workload: Workload) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
    """Return the ends of messages and their offsets, nothing where they are unknown."""
    if workload.boundaries is None or workload.boundary_offsets is None:
        return np.empty(0, dtype=np.uint32), np.zeros(len(workload) + 1, dtype=np.uint64)
    return workload.boundaries, workload.boundary_offsets
