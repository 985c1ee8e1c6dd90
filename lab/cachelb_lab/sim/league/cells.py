"""Cells: the settings on which all policies of a league are run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import Any

import cachelb
from cachelb.common.arguments import listed, number, whole
from cachelb_lab.sim.fleet import DEFAULT_MODEL, FleetSpec
from cachelb_lab.sim.league.realism import Realism, find_realism
from cachelb_lab.sim.league.traces import PARTS, Trace

LOADS = (0.5, 0.7, 0.85, 0.95, 1.05)
"""Loads, as shares of a fleet's capacity."""

FIRST_SEED = 1
_MOST = 65_536
_MOST_LOAD = 100.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One trace on one fleet at one load, under one realism switch, with one seed.

    Attributes:
        trace: Source of the requests.
        part: Part of them: ``all``, ``develop`` or ``report``.
        fleet: The workers, in the short form.
        model: The model they serve.
        load: Share of the fleet's capacity.
        realism: Its disturbances.
        seed: Seed of requests, policies and losses.

    Example:
        >>> cell = League(("chat(count=100)",), ("4xl40s",)).cells()[0]
        >>> cell.facts()["load"], cell.facts()["realism"]
        (0.5, 'none')
    """

    trace: Trace
    part: str
    fleet: str
    model: str
    load: float
    realism: Realism
    seed: int

    def facts(self) -> dict[str, Any]:
        """Return its description in lines of a store and documents.

        Returns:
            JSON values.
        """
        return {each.name: getattr(self, each.name) for each in fields(self)} | {
            "trace": self.trace.label,
            "realism": self.realism.name,
        }

    def workers(self, block_size: int) -> FleetSpec:
        """Return the fleet.

        Args:
            block_size: Tokens per block of the requests.

        Returns:
            The fleet, as fast as the realism switch has it.

        Raises:
            ValueError: There is no such device or model.
        """
        realism = self.realism
        return FleetSpec.parse(
            self.fleet, model=self.model, mfu=realism.mfu, all_reduce=realism.all_reduce, block_size=block_size
        )

    def key(self, fingerprint: str, fleet: FleetSpec, speed: float) -> str:
        """Return the key of this cell's runs among all others.

        Args:
            fingerprint: Digest of the requests at their own speed.
            fleet: The fleet.
            speed: Divisor of arrival times.

        Returns:
            32 hexadecimal digits, of everything that figures depend on but the policy.
        """
        return digest(
            {
                "requests": fingerprint,
                "fleet": fleet.native(),
                "gpus": [worker.gpu.name for worker in fleet],
                "speed": speed,
                "realism": {**asdict(self.realism), "name": "", "summary": ""},
                "seed": self.seed,
            }
        )


@dataclass(frozen=True, slots=True)
class League:
    """Settings whose product are cells.

    Attributes:
        traces: Generators or files, with options in parentheses; see `Trace`.
        fleets: As `FleetSpec.parse` takes them.
        loads: Shares of each fleet's capacity.
        realism: Names of `REALISM`.
        seeds: One run each.
        part: ``all``, ``develop`` or ``report``.
        model: The model of all fleets.

    Raises:
        ValueError: A name is unknown, a number out of range, or a setting empty; the message names it.

    Example:
        >>> league = League(("chat(count=100)", "rag(count=100)"), ("4xl40s",), loads=(0.5, 0.9))
        >>> [(cell.trace.label, cell.load) for cell in league.cells()]
        [('chat(count=100)', 0.5), ('chat(count=100)', 0.9), ('rag(count=100)', 0.5), ('rag(count=100)', 0.9)]
    """

    traces: Sequence[str]
    fleets: Sequence[str]
    loads: Sequence[float] = LOADS
    realism: Sequence[str] = ("none",)
    seeds: Sequence[int] = (FIRST_SEED,)
    part: str = "all"
    model: str = DEFAULT_MODEL

    def __post_init__(self) -> None:
        for name in ("traces", "fleets", "loads", "realism", "seeds"):
            given = listed(name, getattr(self, name), _MOST)
            if not given or len(set(given)) != len(given):
                raise ValueError(f"{name} must be at least one, each once, got {given}")
            object.__setattr__(self, name, tuple(given))
        for load in self.loads:
            number("loads", load, most=_MOST_LOAD)
        for seed in self.seeds:
            whole("seeds", seed, 0, (1 << 64) - 1)
        if self.part not in PARTS:
            raise ValueError(f"part must be one of {', '.join(PARTS)}, got {self.part!r}")

    def cells(self) -> tuple[Cell, ...]:
        """Return all cells.

        Returns:
            By trace, seed, fleet, realism and load.

        Raises:
            ValueError: There is no such trace, fleet or realism, or two traces have one label.
        """
        traces = [Trace.parse(text) for text in self.traces]
        labels = [trace.label for trace in traces]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"two traces are called {twice[0]!r} in tables; rename a file")
        switches = [find_realism(name) for name in self.realism]
        for fleet in self.fleets:
            FleetSpec.parse(fleet, model=self.model)
        return tuple(
            Cell(trace, self.part, fleet, self.model, float(load), switch, seed)
            for trace, seed, fleet, switch, load in product(traces, self.seeds, self.fleets, switches, self.loads)
        )


def digest(facts: Any) -> str:  # noqa: ANN401 - JSON values
    """Return 32 hexadecimal digits that identify JSON values in this version of cachelb.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
    """
    text = json.dumps({"version": cachelb.__version__, "facts": facts}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
