"""Devices and models of the cost model, each constant with its source.

The peak figures are those of dense 16-bit arithmetic. ``mfu`` and ``bandwidth_share`` are
end-to-end: what whole passes of an engine reach of the peak, below what single kernels do.
Anything that ranks policies should be repeated at ``mfu`` x 0.8 and x 1.25.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from cachelb.common.arguments import whole
from cachelb.errors import did_you_mean

GIB = 2**30

MOST_DEVICES = 1_024
"""That share a model."""

Profile = TypeVar("Profile")

Basis = Literal["calibrated", "published", "inferred"]
"""Source of a profile's shares: fitted to a log of a real run, published figures, or neither."""

_UTILISATION = 0.9
_OTHER_BYTES = 1.24e9  # activations and the like, backed out of a run on an RTX 4090 with 41,408 KV tokens


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """One kind of device.

    ``peer_bytes_per_s`` is the rate to the other devices of its machine, one way: of NVLink on A100, H100 (both by
    aiconfigurator's `systems/`, as the A30 and L40S without one) and V100, else of PCIe; those that aiconfigurator
    lacks are from memory.
    """

    name: str
    peak_flops: float  # 16-bit floating point operations per second, dense
    bandwidth: float  # bytes per second of its memory
    memory_bytes: int  # as an engine sees it
    mfu: float  # share of ``peak_flops`` that matrix products reach
    mfu_range: tuple[float, float]  # that other evidence would allow
    bandwidth_share: float  # that reading weights and KV reaches
    basis: Basis  # of the shares
    prefix_caching: bool = True  # whether engines cache prefixes on it
    pass_seconds: float = 0.002  # fixed time of a pass
    kv_tokens: int | None = None  # of its cache with Llama-3-8B where a run has shown it, else None for the formula
    peer_bytes_per_s: float = 32e9


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """One model, in 16-bit weights."""

    name: str
    body_parameters: float  # without the embeddings
    vocabulary: int  # in tokens
    hidden: int
    layers: int
    query_heads: int
    head_size: int
    kv_bytes: int  # of KV cache per token, all layers

    @property
    def head_parameters(self) -> float:
        """Return the parameters of the output head."""
        return float(self.vocabulary * self.hidden)

    @property
    def attention_flops(self) -> float:
        """Return the operations per pair of tokens that attention compares."""
        return float(4 * self.query_heads * self.head_size * self.layers)

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of the weights: the body, and embeddings for input and output."""
        return 2 * (self.body_parameters + 2 * self.head_parameters)


def kv_tokens(gpu: GpuProfile, model: ModelProfile, *, tensor_parallel: int = 1) -> int:
    """Return the tokens that an engine's KV cache holds: the measured number where there is one.

    Else ``(0.9 memory - weights - 1.24 GB) / bytes per token``.

    Example:
        >>> kv_tokens(GPUS["a100-80"], MODELS["llama-3-8b"])
        457825
        >>> kv_tokens(GPUS["rtx4090"], MODELS["llama-3-8b"])
        41408
    """
    whole("tensor_parallel", tensor_parallel, 1, MOST_DEVICES)
    if gpu.kv_tokens is not None and model.name == "llama-3-8b" and tensor_parallel == 1:
        return gpu.kv_tokens
    free = tensor_parallel * (_UTILISATION * gpu.memory_bytes - _OTHER_BYTES) - model.weight_bytes
    if free < model.kv_bytes:
        fitting = next(
            n for n in range(1, 1025) if n * (_UTILISATION * gpu.memory_bytes - _OTHER_BYTES) > model.weight_bytes
        )
        raise ValueError(
            f"{model.name} ({model.weight_bytes / 1e9:.1f} GB) does not fit on {tensor_parallel} x {gpu.name}; "
            f"use :tp{fitting} or more"
        )
    return int(free / model.kv_bytes)


def find_gpu(name: str) -> GpuProfile:
    """Return a device by its name or a short form of it, such as ``"a100-80"`` or ``"A100"``."""
    return _find(GPUS, _GPU_ALIASES, name, "GPU")


def find_model(name: str) -> ModelProfile:
    """Return a model by its name, such as ``"llama-3-8b"``."""
    return _find(MODELS, _MODEL_ALIASES, name, "model")


def _find(known: dict[str, Profile], aliases: dict[str, str], name: str, kind: str) -> Profile:
    """Look a profile up."""
    key = name.strip().lower()
    key = aliases.get(key, key)
    if key in known:
        return known[key]
    raise ValueError(f"no {kind} {name!r}{did_you_mean(key, [*known, *aliases])}")


# Columns as in `GpuProfile`; above each row the evidence for its shares.
_ALL_GPUS = (
    # Lodestar's repository: about 3,500 prefill tokens/s and 35 ms per output token, i.e. 49-56 TFLOP/s. Its 'about
    # 100 K KV tokens' contradicts 24 GiB; the formula gives 45 K.
    GpuProfile("a30", 165e12, 933e9, 24 * GIB, 0.34, (0.34, 0.55), 0.80, "published"),
    # Lodestar's logs of 8 L20: TTFT = 166 ms + 0.159 ms per uncached token over 445 requests at low load (6,280
    # tokens/s); 24 / 32 / 39.5 / 44 / 78 ms per output token at 1 / 8 / 16 / 32 / 64 running. The peak is from
    # memory.
    GpuProfile("l20", 119.5e12, 864e9, 48 * GIB, 0.70, (0.65, 0.80), 0.82, "calibrated"),
    # aiconfigurator's kernels reach .85 of the peak and .67 of the bandwidth; Vidur's profile .65; BLIS .38 in
    # prefill. The shares are inferred from these.
    GpuProfile("a100-80", 312e12, 2_039e9, 80 * GIB, 0.55, (0.38, 0.85), 0.75, "published", peer_bytes_per_s=300e9),
    # aiconfigurator's kernels reach .81 and .82; llm-d's peak prefill of Qwen3-32B on two, 15,928 and 20,480
    # tokens/s, is .53 and .68; BLIS .45. The shares are inferred from these; not measured here.
    GpuProfile("h100-80", 989e12, 3_350e9, 80 * GIB, 0.55, (0.45, 0.81), 0.85, "published", peer_bytes_per_s=450e9),
    # Single prompts of 512 to 60,000 tokens at vLLM 0.25.1, dimensions of Llama-3.1-8B and Llama-3.2-3B. The share of
    # the bandwidth is H100's, with which answers take 15 to 22 % longer than that vLLM's.
    GpuProfile("h200", 989e12, 4_800e9, 139 * GIB, 0.72, (0.67, 0.75), 0.85, "calibrated", peer_bytes_per_s=450e9),
    # aiconfigurator's kernels reach .65 and .82; BLIS .32. The shares are inferred from these.
    GpuProfile("l40s", 362e12, 864e9, 46_068 * 2**20, 0.50, (0.32, 0.65), 0.80, "published"),
    # No evidence; the peak (16-bit floats) is from memory. Engines run without prefix caching on it.
    GpuProfile(
        *("v100-32", 125e12, 900e9, 32 * GIB, 0.45, (0.36, 0.56), 0.75, "inferred"),
        prefix_caching=False,
        peer_bytes_per_s=150e9,
    ),
    # The two shares are fitted by hand to LLMServingSim's log of a real vLLM 0.19.0 run of Llama-3.1-8B, with the
    # engine set as in that log. The peak is from memory.
    GpuProfile("rtx4090", 165.2e12, 1_008e9, 25_250_627_584, 0.85, (0.75, 0.95), 0.90, "calibrated", kv_tokens=41_408),
    # Inferred from its neighbours; not calibrated. The peak is from memory.
    GpuProfile(
        "rtx-pro-6000", 503.8e12, 1_597e9, 96_000_000_000, 0.70, (0.55, 0.85), 0.80, "inferred", peer_bytes_per_s=64e9
    ),
)

GPUS: dict[str, GpuProfile] = {gpu.name: gpu for gpu in _ALL_GPUS}
"""The devices by name."""

_GPU_ALIASES = {
    "a100": "a100-80",
    "h100": "h100-80",
    "v100": "v100-32",
    "4090": "rtx4090",
    "rtx-4090": "rtx4090",
    "rtxpro6000": "rtx-pro-6000",
}

MODELS: dict[str, ModelProfile] = {
    model.name: model
    for model in (
        ModelProfile("llama-3-8b", 6.98e9, 128_256, 4_096, 32, 32, 128, 131_072),
        ModelProfile("qwen3-32b", 31.2e9, 151_936, 5_120, 64, 64, 128, 262_144),
        ModelProfile("llama-3.1-70b", 68.5e9, 128_256, 8_192, 80, 64, 128, 327_680),
    )
}
"""The models by name; sizes are those of their published configurations."""

_MODEL_ALIASES = {"llama-3.1-8b": "llama-3-8b", "llama3-8b": "llama-3-8b", "llama-3-70b": "llama-3.1-70b"}
