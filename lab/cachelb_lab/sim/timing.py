"""Timing of an engine's passes, for the engine model."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cachelb.common.arguments import number
from cachelb_lab.sim.checks import check_fields
from cachelb_lab.sim.gpus import GpuProfile, ModelProfile
from cachelb_lab.sim.trace_files.textfile import shown

SEQUENCE_SECONDS = 8e-6
"""Host time per sequence and pass; the checks cannot distinguish 5 from 8 us."""

ATTENTION_SHARE = 0.6
"""Attention kernels reach this part of the rate of matrix products; inferred."""

PEER_SHARE = 0.8
"""All-reduces of many tokens reach this part of the link between devices; from memory, of NCCL's own benchmark."""

ALL_REDUCE_SECONDS = 10e-6
"""One all-reduce takes so long however small it is: the latency in aiconfigurator's `systems/`."""

_ALL_REDUCES_PER_LAYER = 2
_SUM_BYTES = 2  # of one number in 16 bits
_LEAST_FACTOR = 1e-3
_MOST_SCALE = 1e3


@dataclass(frozen=True, slots=True)
class Roofline:
    """Arithmetic or memory traffic, whichever takes longer, from the sizes of device and model.

    Without ``all_reduce``, N devices that share a model reach N times the speed of one. With it, after the attention
    and after the rest of each layer they wait for the sum of all, which goes round in a ring at `PEER_SHARE` of the
    device's ``peer_bytes_per_s`` and takes `ALL_REDUCE_SECONDS` besides.
    """

    mfu: float = 1.0  # factor on the device's share of its peak, for what-if runs
    attention_share: float = ATTENTION_SHARE  # of the rate of matrix products
    prefill_reads_context: bool = True  # prefill can wait for reading the KV it attends to
    pass_seconds: float | None = None  # fixed time of a pass; None for the device's own
    sequence_seconds: float = SEQUENCE_SECONDS  # host time per sequence and pass
    all_reduce: bool = False  # devices that share a model lose time to each other

    def __post_init__(self) -> None:
        check_fields(self)
        number("mfu", self.mfu, least=_LEAST_FACTOR)
        number("attention_share", self.attention_share, least=_LEAST_FACTOR)

    def native(self, gpu: GpuProfile, model: ModelProfile, tensor_parallel: int, kv_tokens: int) -> dict[str, Any]:  # noqa: ARG002 - one signature for all
        """Return the form the engine model takes: constants by name."""
        pass_seconds = gpu.pass_seconds if self.pass_seconds is None else self.pass_seconds
        exchange = {}
        if self.all_reduce and tensor_parallel > 1:
            pass_seconds += _ALL_REDUCES_PER_LAYER * model.layers * ALL_REDUCE_SECONDS
            exchange["exchange_seconds"] = exchange_seconds(gpu, model, tensor_parallel)
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
            "pass_seconds": pass_seconds,
            "sequence_seconds": self.sequence_seconds,
            **exchange,
        }


def exchange_seconds(gpu: GpuProfile, model: ModelProfile, tensor_parallel: int) -> float:
    """Return how long devices that share a model exchange sums per token of a pass, beside the latency.

    It is ``2 L * 2 (N - 1) / N * 2 h / (0.8 b)`` of N devices, L layers, a hidden state of h and b bytes per second.
    """
    sum_bytes = 2 * (tensor_parallel - 1) / tensor_parallel * _SUM_BYTES * model.hidden
    return _ALL_REDUCES_PER_LAYER * model.layers * sum_bytes / (PEER_SHARE * gpu.peer_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Polynomial:
    """The default of Dynamo's simulator (ai-dynamo-runtime 1.6.1), for any device: for cross-checks."""

    def native(self, gpu: GpuProfile, model: ModelProfile, tensor_parallel: int, kv_tokens: int) -> dict[str, Any]:  # noqa: ARG002 - one signature for all
        """Return the form the engine model takes; see `Roofline.native`."""
        return {"kind": "polynomial", "kv_tokens": float(kv_tokens)}


@dataclass(frozen=True, slots=True)
class Table:
    """Measured times; between two rows is interpolated. Prefill and decode add up."""

    prefill: tuple[tuple[float, float], ...]  # new prefill tokens of a pass and its seconds, ascending
    decode: tuple[tuple[float, float], ...]  # tokens that the decodes of a pass attend to and its seconds, ascending

    def __post_init__(self) -> None:
        for key, rows in {"prefill": self.prefill, "decode": self.decode}.items():
            ascending = all(one[0] < other[0] for one, other in pairwise(rows))
            if not rows or not ascending or any(tokens < 0 or seconds <= 0 for tokens, seconds in rows):
                raise ValueError(f"{key} needs rows of ascending tokens and positive seconds, got {shown(rows)}")

    def native(self, gpu: GpuProfile, model: ModelProfile, tensor_parallel: int, kv_tokens: int) -> dict[str, Any]:  # noqa: ARG002 - one signature for all
        """Return the form the engine model takes; see `Roofline.native`."""
        return {"kind": "table", "prefill": list(self.prefill), "decode": list(self.decode)}


@dataclass(frozen=True, slots=True)
class Scaled:
    """Another timing with factors, which `fit_scale` fits to measurements; not scaled itself."""

    timing: Roofline | Polynomial | Table
    prefill: float = 1.0  # factor on the time that prompts add to the decodes of a pass
    decode: float = 1.0  # factor on the time of decodes

    def __post_init__(self) -> None:
        if not isinstance(self.timing, (Roofline, Polynomial, Table)):
            raise TypeError(f"timing must be a Roofline, a Polynomial or a Table, got {type(self.timing).__name__}")
        number("prefill", self.prefill, least=_LEAST_FACTOR, most=_MOST_SCALE)
        number("decode", self.decode, least=_LEAST_FACTOR, most=_MOST_SCALE)

    def native(self, gpu: GpuProfile, model: ModelProfile, tensor_parallel: int, kv_tokens: int) -> dict[str, Any]:
        """Return the form the engine model takes; see `Roofline.native`."""
        native = self.timing.native(gpu, model, tensor_parallel, kv_tokens)
        return {**native, "prefill_scale": self.prefill, "decode_scale": self.decode}
