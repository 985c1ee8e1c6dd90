"""The requests of a league: a generator or a file, one half or all of it, with turns that come by the clock or not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cachelb.common.arguments import whole
from cachelb.common.calls import Call
from cachelb.errors import did_you_mean
from cachelb_lab.sim.fleet import FleetSpec
from cachelb_lab.sim.simulation import NO_REPORTS, simulate
from cachelb_lab.sim.trace_files.mixing import mix
from cachelb_lab.sim.workloads import WORKLOADS, Workload, build, read_agent_sessions, read_sessions, read_workload
from cachelb_lab.sim.workloads.files.reading import guess_format

PARTS = ("all", "develop", "report")
"""The parts of a trace that a league can run on."""

LOOPS = ("open", "closed")
"""Whether turns arrive by the clock, or after the answer before."""

_OWN_OPTIONS = ("copies", "jitter", "loop")
_FILE_OPTIONS = ("block_size", "limit")
_IDLE = "64xh100-80"
"""The fleet without waits that times the turns of generators and recorded sessions."""

_LEAST_REQUESTS = 30
_MOST_COPIES = 1_000


@dataclass(frozen=True, slots=True)
class Trace:
    """A source of requests.

    Attributes:
        source: Name of a generator, or a file.
        options: Options of the generator, or ``block_size`` and ``limit`` of a file.
        loop: ``open``: turns that follow answers arrive when they do on an idle fleet, or at the file's times, so that
            all policies are offered equal load; ``closed``: they follow the answer, as in the trace.
        jitter: Seconds by which each arrival is delayed at most.
        copies: Copies of a file's sessions, so that a few of them load a fleet; see `copied`.

    Example:
        >>> trace = Trace.parse("chat(count=200)")
        >>> trace.label, trace.loop, len(trace.requests(1))
        ('chat(count=200)', 'open', 200)
        >>> len(trace.requests(1, "develop")) + len(trace.requests(1, "report"))
        200
    """

    source: str
    options: tuple[tuple[str, Any], ...] = ()
    loop: Literal["open", "closed"] = "open"
    jitter: float = 0.0
    copies: int = 1

    @classmethod
    def parse(cls, text: str) -> Trace:
        """Read the short form.

        Args:
            text: A generator or a file; options in parentheses, as in ``chat(count=500,loop=closed)``.

        Returns:
            The trace; a file is looked for, but not read.

        Raises:
            ValueError: There is neither, or no such option.
        """
        call = Call(text) if Path(text).is_file() else Call.parse(text)
        own = {key: call.options[key] for key in _OWN_OPTIONS if key in call.options}
        rest = {key: value for key, value in call.options.items() if key not in own}
        if own.get("loop", LOOPS[0]) not in LOOPS:
            raise ValueError(f"trace {text!r}: loop must be one of {', '.join(LOOPS)}, got {own['loop']!r}")
        if call.end or not (call.name in WORKLOADS or Path(call.name).is_file()):
            known = did_you_mean(call.name, WORKLOADS)
            raise ValueError(f"trace {text!r} is neither a file nor a generator{known}")
        unknown = [key for key in rest if call.name not in WORKLOADS and key not in _FILE_OPTIONS]
        if unknown:
            raise ValueError(f"trace {text!r}: a file has no option {unknown[0]!r}; use {', '.join(_FILE_OPTIONS)}")
        if "copies" in own:
            whole("copies", own["copies"], 1, _MOST_COPIES)
            if call.name in WORKLOADS:
                raise ValueError(f"trace {text!r}: copies is for files with sessions; a generator takes count")
        return cls(call.name, tuple(rest.items()), **own)  # type: ignore[arg-type] # checked where it is used

    @property
    def label(self) -> str:
        """Return its name in tables: without the folder and the suffix of a file."""
        own = {"copies": (self.copies, 1), "loop": (self.loop, LOOPS[0]), "jitter": (self.jitter, 0.0)}
        options = dict(self.options) | {key: value for key, (value, usual) in own.items() if value != usual}
        name = self.source if self.source in WORKLOADS else Path(self.source).name.split(".")[0]
        return str(Call(name, options))

    def requests(self, seed: int, part: str = "all") -> Workload:
        """Return the requests of a seed.

        Args:
            seed: Seed of a generator, of the starts of recorded sessions, and of the jitter.
            part: One of `PARTS`.

        Returns:
            The workload, from its first arrival at 0.

        Raises:
            ValueError: The part has too few requests, or an option is out of range.
            TypeError: The generator has no such option.
            TraceError: The file is malformed.
            OSError: The file cannot be opened.
        """
        # Each copy begins its sessions at other times.
        parts = [part_of(self._read(seed * self.copies + copy), part) for copy in range(self.copies)]
        workload = parts[0] if self.copies == 1 else copied(parts)
        if len(workload) < _LEAST_REQUESTS:
            raise ValueError(
                f"trace {self.label}: part {part!r} has {len(workload)} requests, at least {_LEAST_REQUESTS} are needed"
            )
        if self.loop == "open" and (workload.parent >= 0).any():
            workload = opened(workload)
        workload = replace(workload, arrival_s=workload.arrival_s - np.nanmin(workload.arrival_s))
        return workload.jitter(self.jitter, seed) if self.jitter else workload

    def _read(self, seed: int) -> Workload:
        """Return all requests of a seed, as the source has them."""
        options: dict[str, Any] = dict(self.options)
        if self.source in WORKLOADS:
            return build(self.source, seed=seed, **options)
        match guess_format(self.source):
            case "agents":
                return read_agent_sessions(self.source, loop=self.loop, seed=seed, **options)
            case "sessions":
                limit = options.pop("limit", None)
                return read_sessions(self.source, seed=seed, **options).slice(0, limit)
            case kind:
                return read_workload(self.source, kind=kind, **options)


def part_of(workload: Workload, part: str) -> Workload:
    """Return one half of a workload, to develop on or to report; `part` is one of `PARTS`.

    Sessions go by a hash of their names, so that they stay whole and a half depends on nothing else. Requests without a
    session go by time: the first half of them is there to develop on. A request that follows another goes with that
    one.
    """
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}, got {part!r}")
    if part == "all":
        return workload
    root = roots(workload)
    names = workload.session or [""] * len(workload)
    places = np.arange(len(workload))[root]
    unnamed = np.array([not names[row] for row in root])
    # Rows stand in order of arrival.
    middle = np.median(places[unnamed]) if unnamed.any() else 0.0
    by_name = {name: hashlib.blake2b(name.encode(), digest_size=1).digest()[0] % 2 == 0 for name in set(names)}
    develop = np.where(unnamed, places < middle, [by_name[names[row]] for row in root])
    return workload.take(np.flatnonzero(develop == (part == "develop")))


def copied(copies: Sequence[Workload]) -> Workload:
    """Lay copies of sessions over each other.

    Blocks that several sessions have, such as those of a system prompt, all copies have as well; those of one session
    are each copy's own.

    Example:
        >>> chats = build("chat", seed=1, count=60)
        >>> both = copied([chats, chats])
        >>> len(both), len(set(both.session)) == 2 * len(set(chats.session))
        (120, True)
    """
    first = copies[0]
    if first.session is None:
        raise ValueError(f"{first.name} has no sessions that could be copied; leave copies out")
    _, session = np.unique(first.session, return_inverse=True)
    by_row = [(offsets[1:] - offsets[:-1]).astype(np.int64) for offsets in (first.offsets, first.output_offsets)]
    of_block = np.concatenate([np.repeat(session, counts) for counts in by_row])
    hashes, place = np.unique(np.concatenate([first.hashes, first.output_hashes]), return_inverse=True)
    sessions = int(session.max()) + 1
    pairs = np.unique(place.astype(np.int64) * sessions + of_block)
    shared = hashes[np.bincount(pairs // sessions, minlength=len(hashes)) > 1]

    def own(column: npt.NDArray[np.uint64], copy: int) -> npt.NDArray[np.uint64]:
        salted = mix(column ^ mix(np.array([copy], dtype=np.uint64)))
        return column if copy == 0 else np.where(np.isin(column, shared), column, salted)

    return Workload.concat(
        [
            replace(
                each,
                hashes=own(each.hashes, copy),
                output_hashes=own(each.output_hashes, copy),
                session=[name and f"{name}#{copy}" for name in each.session or ()],
            )
            for copy, each in enumerate(copies)
        ],
        name=first.name,
    )


def roots(workload: Workload) -> npt.NDArray[np.int64]:
    """Return for each row the request that begins its chain."""
    root = np.where(workload.parent < 0, np.arange(len(workload)), workload.parent)
    while (root[root] != root).any():
        root = root[root]
    return root


def opened(workload: Workload) -> Workload:
    """Let turns arrive when they do on an idle fleet, whenever the answer before comes; sorted by arrival."""
    fleet = FleetSpec.parse(_IDLE, block_size=workload.block_size)
    policy = "session(base=least-loaded)"
    idle = simulate(workload, fleet, policy, seed=1, signals=NO_REPORTS, sample_interval_s=float("inf"))
    # One that fits into no cache has no answer that others could follow.
    came = np.flatnonzero(np.isfinite(idle.arrival_s))
    free = np.full(len(came), -1, dtype=np.int64)
    timed = replace(workload.take(came), arrival_s=idle.arrival_s[came], parent=free, think_s=np.zeros(len(came)))
    return timed.in_order()


def fingerprint(workload: Workload) -> str:
    """Return 32 hexadecimal digits that identify the requests of a workload; name and seed do not count."""
    digest = hashlib.blake2b(str(workload.block_size).encode(), digest_size=16)
    for key, column in workload.columns().items():
        digest.update(f"\0{key}\0{len(column)}\0".encode())
        digest.update(column.tobytes())
    digest.update("\0".join(workload.session or ()).encode())
    return digest.hexdigest()
