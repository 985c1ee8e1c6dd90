"""How long a pass of an engine takes: what a worker hands to the engine model."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from cachelb.arguments import number
from cachelb.errors import TraceError
from cachelb.sim.checks import check_fields
from cachelb.sim.textfile import read_lines, shown

if TYPE_CHECKING:
    from pathlib import Path

    from cachelb.sim.gpus import GpuProfile, ModelProfile

SEQUENCE_SECONDS = 8e-6
"""Host time per sequence and pass; 5 and 8 us cannot be told apart in the checks."""

ATTENTION_SHARE = 0.6
"""Attention kernels reach this part of the rate of matrix products; inferred."""

_LEAST_FACTOR = 1e-3
_TABLE_HEADER = "part,tokens,seconds"


@dataclass(frozen=True, slots=True)
class Roofline:
    """Arithmetic or memory traffic, whichever takes longer, from the sizes of device and model.

    Attributes:
        mfu: Factor on the device's share of its peak, for what-if runs.
        attention_share: Part of the rate of matrix products that attention reaches.
        prefill_reads_context: Whether prefill can wait for reading the KV it attends to.
        pass_seconds: Fixed time of a pass; None for the device's own.
        sequence_seconds: Host time per sequence and pass.
    """

    mfu: float = 1.0
    attention_share: float = ATTENTION_SHARE
    prefill_reads_context: bool = True
    pass_seconds: float | None = None
    sequence_seconds: float = SEQUENCE_SECONDS

    def __post_init__(self) -> None:
        check_fields(self)
        number("mfu", self.mfu, least=_LEAST_FACTOR)
        number("attention_share", self.attention_share, least=_LEAST_FACTOR)

    def native(self, gpu: GpuProfile, model: ModelProfile, tensor_parallel: int, kv_tokens: int) -> dict[str, Any]:  # noqa: ARG002 - one signature for all
        """Return the form the engine model takes.

        Args:
            gpu: The device.
            model: The model.
            tensor_parallel: Devices that share the model.
            kv_tokens: Tokens the cache holds.

        Returns:
            Constants by name.
        """
        return {
            "kind": "roofline",
            "body_parameters": model.body_parameters,
            "head_parameters": model.head_parameters,
            "attention_flops": model.attention_flops,
            "kv_bytes": float(model.kv_bytes),
            "flops": gpu.peak_flops * gpu.mfu * self.mfu * tensor_parallel,
            "bandwidth": gpu.bandwidth * gpu.bandwidth_share * tensor_parallel,
            "attention_share": self.attention_share,
            "prefill_reads_context": self.prefill_reads_context,
            "pass_seconds": gpu.pass_seconds if self.pass_seconds is None else self.pass_seconds,
            "sequence_seconds": self.sequence_seconds,
        }


@dataclass(frozen=True, slots=True)
class Polynomial:
    """The default of Dynamo's simulator (ai-dynamo-runtime 1.6.1), whatever the device: for cross-checks."""

    def native(self, gpu: GpuProfile, model: ModelProfile, tensor_parallel: int, kv_tokens: int) -> dict[str, Any]:  # noqa: ARG002 - one signature for all
        """Return the form the engine model takes; see `Roofline.native`."""
        return {"kind": "polynomial", "kv_tokens": float(kv_tokens)}


@dataclass(frozen=True, slots=True)
class Table:
    """Measured times; between two rows is interpolated. Prefill and decode add up.

    Attributes:
        prefill: New prefill tokens of a pass and its seconds, ascending.
        decode: Tokens that the decodes of a pass attend to and its seconds, ascending.

    Raises:
        ValueError: A column is empty or not ascending, or a time not positive.
    """

    prefill: tuple[tuple[float, float], ...]
    decode: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        for key, rows in {"prefill": self.prefill, "decode": self.decode}.items():
            ascending = all(one[0] < other[0] for one, other in pairwise(rows))
            if not rows or not ascending or any(tokens < 0 or seconds <= 0 for tokens, seconds in rows):
                raise ValueError(f"{key} needs rows of ascending tokens and positive seconds, got {shown(rows)}")

    @classmethod
    def read(cls, path: str | Path) -> Table:
        """Read a table from a file.

        Args:
            path: CSV with the header ``part,tokens,seconds``, where part is ``prefill`` or
                ``decode``; plain or compressed.

        Returns:
            The table.

        Raises:
            TraceError: A row is malformed; the message names file and line.
            OSError: The file cannot be opened.
        """
        parts: dict[str, list[tuple[float, float]]] = {"prefill": [], "decode": []}
        lines = read_lines(path)
        where, header = next(lines, (f"{path}:1", ""))
        if header.strip() != _TABLE_HEADER:
            raise TraceError(f"{where}: expected the header {_TABLE_HEADER}, got {shown(header.strip())}")
        for where, line in lines:
            try:
                part, tokens, seconds = line.strip().split(",")
                parts[part].append((float(tokens), float(seconds)))
            except (KeyError, ValueError):
                raise TraceError(
                    f"{where}: expected prefill or decode, tokens, seconds; got {shown(line.strip())}"
                ) from None
        try:
            return cls(tuple(sorted(parts["prefill"])), tuple(sorted(parts["decode"])))
        except ValueError as error:
            raise TraceError(f"{path}: {error}") from error

    def native(self, gpu: GpuProfile, model: ModelProfile, tensor_parallel: int, kv_tokens: int) -> dict[str, Any]:  # noqa: ARG002 - one signature for all
        """Return the form the engine model takes; see `Roofline.native`."""
        return {"kind": "table", "prefill": list(self.prefill), "decode": list(self.decode)}
