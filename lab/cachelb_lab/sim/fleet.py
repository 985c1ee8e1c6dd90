"""The simulated fleet: which workers there are and how their engines are set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from cachelb.cache_groups import CacheLayout
from cachelb.common.arguments import listed, require, whole
from cachelb_lab.sim.checks import check_fields, pairs
from cachelb_lab.sim.gpus import GIB, MOST_DEVICES, GpuProfile, ModelProfile, find_gpu, find_model, kv_tokens
from cachelb_lab.sim.memory import PeerSpec, PoolSpec, describe_layout, describe_memory, parse_layout, split_memory
from cachelb_lab.sim.timing import Polynomial, Roofline, Scaled, Table

DEFAULT_MODEL = "llama-3-8b"

_BLOCK_SIZE = 16

_NATIVE = (
    *("block_size", "kv_blocks", "long_prefill_token_threshold", "watermark", "scheduler_reserve_full_isl"),
    *("hold_after_preemption", "commit", "prefill_only", "role", "link_latency_s"),
)
"""Settings that the engine model takes as they are."""

_LARGE_BYTES, _HUGE_BYTES = 70 * GIB, 160 * GIB
_SMALL_BUDGET, _LARGE_BUDGET, _HUGE_BUDGET = 2_048, 8_192, 16_384
_SMALL_SEQS, _LARGE_SEQS = 256, 1_024
_TP4_PASS_SECONDS = 0.004  # inferred: four devices take longer to start a pass
_TP4 = 4
_MOST_WORKERS = 65_536
_GROUP = re.compile(r"(?:(\d{1,9})\s*[xX*]\s*)?([A-Za-z0-9.\-]+?)(?::tp(\d{1,9}))?(?:@(prefill|decode))?(/.*)?")
# Between nodes, per device: one NIC of 200 Gbit/s, and of 400 Gbit/s beside later devices.
_LINK_BYTES_PER_S, _FAST_LINK_BYTES_PER_S = 25e9, 50e9
_FAST_LINK_GPUS = ("h100", "h200", "b200")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker. Settings left at None get the engine's default for the device.

    Attributes:
        gpu: The device.
        model: The model.
        tensor_parallel: Devices that share the model.
        timing: The time of a pass.
        block_size: Tokens per block; with ``cache_layout``, the greatest common divisor of its blocks.
        kv_tokens: Tokens the cache holds if it keeps them all; by default those the memory leaves room for.
        cache_layout: Cache groups of a hybrid model, such as one with sliding windows, which share the memory; None for
            full attention in every layer.
        max_num_batched_tokens: Tokens of a pass.
        max_num_seqs: Sequences that may run at once.
        long_prefill_token_threshold: Most tokens of one prompt per pass; None for no such limit.
        watermark: Share of the blocks that admission leaves free.
        scheduler_reserve_full_isl: Whether a request is admitted only when all of it fits.
        hold_after_preemption: Whether a pass that preempted admits no request.
        prefix_caching: Whether prefixes are cached; by default as usual on the device.
        commit: When computed blocks can be found: as soon as they are scheduled, as engines do,
            or when the pass has ended.
        prefill_only: Whether requests end with their first token.
        role: ``prefill`` computes prompts for others, which ``decode`` workers generate from; ``both``
            does either. One prefill worker in a fleet makes pairs of requests.
        link_bytes_per_s: Bytes per second to other workers; by default of a NIC per device, as is
            usual beside it.
        link_latency_s: Until the first byte of a transfer.
        slowdown: From which second on passes take how many times as long.
        pool: The pool that it shares with the others of the fleet that have one; None for none. Not with
            ``cache_layout``, nor without ``prefix_caching``.
        tier: Its own host memory, in place of a pool.
        peers: How it takes blocks from the tiers of others; None for not at all.

    Raises:
        ValueError: A setting makes no sense, or the model does not fit.

    Example:
        >>> worker = WorkerSpec(find_gpu("h100"), find_model("llama-3-8b"))
        >>> native = worker.native()
        >>> native["kv_blocks"], native["max_num_batched_tokens"], native["timing"]["kind"]
        (28614, 8192, 'roofline')
    """

    gpu: GpuProfile
    model: ModelProfile
    tensor_parallel: int = 1
    timing: Roofline | Polynomial | Table | Scaled = field(default_factory=Roofline)
    block_size: int = _BLOCK_SIZE
    kv_tokens: int | None = None
    cache_layout: CacheLayout | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    long_prefill_token_threshold: int | None = None
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    hold_after_preemption: bool = True
    prefix_caching: bool | None = None
    commit: Literal["schedule", "step_end"] = "schedule"
    prefill_only: bool = False
    role: Literal["both", "prefill", "decode"] = "both"
    link_bytes_per_s: float | None = None
    link_latency_s: float = 0.001
    slowdown: tuple[tuple[float, float], ...] = ()
    pool: PoolSpec | None = None
    tier: PoolSpec | None = None
    peers: PeerSpec | None = None

    def __post_init__(self) -> None:
        whole("tensor_parallel", self.tensor_parallel, 1, MOST_DEVICES)
        check_fields(self)
        counts = ("block_size", "max_num_batched_tokens", "max_num_seqs")
        for key in (*counts, "long_prefill_token_threshold"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"{key} must be at least 1, got {value}")
        if self.watermark >= 1:
            raise ValueError(f"watermark must be from 0 to below 1, got {self.watermark}")
        if self.link_bytes_per_s == 0:
            raise ValueError("link_bytes_per_s must be above 0, got 0")
        times = [second for second, _ in pairs("slowdown", self.slowdown)]
        if times != sorted(set(times)) or any(not factor for _, factor in self.slowdown):
            raise ValueError(f"slowdown needs ascending seconds and positive factors, got {self.slowdown}")
        self._check_layout()
        self._check_pool()
        if self.kv_blocks < 1:
            raise ValueError(f"kv_tokens {self.kv_tokens} holds no block of {self.block_size} tokens; raise it")

    def _check_layout(self) -> None:
        layout = self.cache_layout
        if layout is None:
            return
        require("cache_layout", layout, CacheLayout, "a CacheLayout or None")
        if layout.hash_block != self.block_size:
            raise ValueError(
                f"block_size is {self.block_size}, but the blocks of cache_layout are multiples of "
                f"{layout.hash_block}: pass block_size={layout.hash_block}"
            )

    def _check_pool(self) -> None:
        for name, kind in (("pool", PoolSpec), ("tier", PoolSpec), ("peers", PeerSpec)):
            if getattr(self, name) is not None:
                require(name, getattr(self, name), kind, f"a {kind.__name__} or None")
        if self.pool is not None and self.tier is not None:
            raise ValueError("a worker has a pool or a tier: leave one of them out")
        if self.peers is not None and self.tier is None:
            raise ValueError("peers serve each other from their tiers: give the worker one")
        memory = next(iter(self.memory), None)
        if memory and (self.cache_layout is not None or not self._caches_prefixes):
            raise ValueError(
                f"{memory} is for workers that cache prefixes, with full attention in every layer; leave it out"
            )

    @property
    def memory(self) -> dict[str, PoolSpec | PeerSpec]:
        """Return what it has beyond the memory of its devices: pool, tier and peers, by name."""
        parts = {"pool": self.pool, "tier": self.tier, "peers": self.peers}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def _caches_prefixes(self) -> bool:
        return self.gpu.prefix_caching if self.prefix_caching is None else self.prefix_caching

    @property
    def cache_tokens(self) -> int:
        """Return the tokens its cache holds, in full blocks of every group."""
        step, blocks = self._alignment
        return self.kv_blocks // blocks * step

    @property
    def kv_blocks(self) -> int:
        """Return the blocks its cache holds, of all groups together."""
        tokens = self.kv_tokens
        if tokens is None:
            tokens = kv_tokens(self.gpu, self.model, tensor_parallel=self.tensor_parallel)
        step, blocks = self._alignment
        return tokens // step * blocks

    @property
    def _alignment(self) -> tuple[int, int]:
        """Return the tokens after which blocks of all groups end, and how many blocks that takes."""
        layout = self.cache_layout
        if layout is None:
            return self.block_size, 1
        return layout.alignment, sum(layout.alignment // group.block_size for group in layout.groups)

    def native(self) -> dict[str, Any]:
        """Return the form the engine model takes.

        Returns:
            All settings by name, without a None where the engine has a default.
        """
        budget, seqs = _engine_defaults(self.gpu)
        timing = self.timing
        own = timing.timing if isinstance(timing, Scaled) else timing
        if isinstance(own, Roofline) and own.pass_seconds is None and self.tensor_parallel >= _TP4:
            own = replace(own, pass_seconds=_TP4_PASS_SECONDS)
            timing = replace(timing, timing=own) if isinstance(timing, Scaled) else own
        return {
            **{name: getattr(self, name) for name in _NATIVE},
            "max_num_batched_tokens": self.max_num_batched_tokens or budget,
            "max_num_seqs": self.max_num_seqs or seqs,
            "prefix_caching": self._caches_prefixes,
            "kv_bytes": float(self.model.kv_bytes),
            "link_bytes_per_s": self.link_bytes_per_s or _link(self.gpu) * self.tensor_parallel,
            "slowdown": list(self.slowdown),
            "timing": timing.native(self.gpu, self.model, self.tensor_parallel, self.cache_tokens),
            **({} if self.cache_layout is None else {"cache_layout": asdict(self.cache_layout)}),
            **{name: memory.native(self.block_size) for name, memory in self.memory.items()},
        }


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """Workers of one or more kinds.

    Attributes:
        workers: Each of them.

    Raises:
        ValueError: There is none, or their pools differ.
    """

    workers: tuple[WorkerSpec, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", tuple(listed("workers", self.workers, _MOST_WORKERS)))
        if not self.workers:
            raise ValueError("a fleet needs at least one worker")
        pools = {(worker.pool, worker.block_size) for worker in self.workers if worker.pool is not None}
        if len(pools) > 1:
            raise ValueError("the workers of a fleet share one pool: give those that have one the same")

    def __len__(self) -> int:
        return len(self.workers)

    def __iter__(self) -> Iterator[WorkerSpec]:
        return iter(self.workers)

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        model: str = DEFAULT_MODEL,
        mfu: float = 1.0,
        all_reduce: bool = False,
        **settings: Any,  # noqa: ANN401 - WorkerSpec's
    ) -> FleetSpec:
        """Make a fleet from a short description.

        Args:
            text: Groups of ``COUNTxGPU``, joined by ``+``; ``:tpN`` behind a device lets N of them
                share the model, ``@prefill`` or ``@decode`` behind that gives the group a role. A hybrid model's
                cache groups end it, as `parse_layout` reads them, or the pool that its workers share, as
                ``/pool=0.01``: milliseconds per token that loading takes, ``:TOKENS`` behind them what it holds. The
                host memory of each is ``/tier=``, written alike; ``/peers=0.0106:27`` lets them take blocks from each
                other's, in milliseconds per token and before the first.
            model: Name of the model.
            mfu: Factor on every device's share of its peak; not together with ``timing``.
            all_reduce: Whether devices that share a model lose time to each other, as in `Roofline`; not together
                with ``timing``.
            settings: Further settings of every `WorkerSpec`.

        Returns:
            The fleet.

        Raises:
            ValueError: The description cannot be read, or names something unknown.
            TypeError: There is no such setting.

        Example:
            >>> fleet = FleetSpec.parse("8xa30+8xv100", block_size=64)
            >>> len(fleet), fleet.describe(), fleet.workers[8].native()["prefix_caching"]
            (16, '8 x a30 + 8 x v100-32', False)
            >>> FleetSpec.parse("4xh100:tp4", model="llama-3.1-70b").describe()
            '4 x h100-80:tp4'
            >>> FleetSpec.parse("2xh100/window=1024*5").describe()
            '2 x h100-80/window=1024*5'
            >>> FleetSpec.parse("2xa30/pool=0.01:65536+2xa30").describe()
            '2 x a30/pool=0.01:65536 + 2 x a30'
            >>> FleetSpec.parse("4xh100/tier=0.003/peers=0.0106:26").describe()
            '4 x h100-80/tier=0.003/peers=0.0106:26'
            >>> FleetSpec.parse("2xh100@prefill+6xh100@decode").describe()
            '2 x h100-80@prefill + 6 x h100-80@decode'
        """
        settings.setdefault("timing", Roofline(mfu=mfu, all_reduce=all_reduce))
        workers: list[WorkerSpec] = []
        for group in text.split("+"):
            found = _GROUP.fullmatch(group.strip())
            if not found or found[1] == "0" or found[3] == "0":
                raise ValueError(f"fleet {text!r}: cannot read {group.strip()!r}; write groups like 8xa30+8xv100")
            own = {**settings, "tensor_parallel": int(found[3] or 1)}
            if found[4]:
                own["role"] = found[4]
            memory, layout = split_memory(found[5] or "")
            own.update(memory)
            if layout:
                own["cache_layout"] = parse_layout(layout, own.get("block_size", _BLOCK_SIZE))
            worker = WorkerSpec(find_gpu(found[2]), find_model(model), **own)
            count = int(found[1] or 1)
            if len(workers) + count > _MOST_WORKERS:
                raise ValueError(f"fleet {text!r}: {_MOST_WORKERS} workers at most")
            workers += [worker] * count
        return cls(tuple(workers))

    @property
    def pairs(self) -> bool:
        """Return whether prompts are computed on other workers than answers are generated."""
        return any(worker.role == "prefill" for worker in self.workers)

    @property
    def pool(self) -> tuple[PoolSpec, list[str]] | None:
        """Return the pool that workers share, with its workers; None if there is none."""
        members = [(worker.pool, name) for worker, name in zip(self.workers, self.names, strict=True) if worker.pool]
        return (members[0][0], [name for _, name in members]) if members else None

    @property
    def tier(self) -> PoolSpec | None:
        """Return the host memory of its first worker that has one of its own."""
        return next((worker.tier for worker in self.workers if worker.tier), None)

    @property
    def peers(self) -> PeerSpec | None:
        """Return how its first worker that does so takes blocks from others."""
        return next((worker.peers for worker in self.workers if worker.peers), None)

    @property
    def names(self) -> list[str]:
        """Return a name for each worker."""
        return [f"worker-{number}" for number in range(len(self.workers))]

    @property
    def cache_tokens(self) -> int:
        """Return the tokens that all caches together hold."""
        return sum(worker.cache_tokens for worker in self.workers)

    def native(self) -> list[dict[str, Any]]:
        """Return the form the engine model takes.

        Returns:
            One dict per worker.
        """
        return [worker.native() for worker in self.workers]

    def describe(self) -> str:
        """Describe the fleet.

        Returns:
            Counts and devices, in order of first mention.
        """
        kinds = Counter(
            worker.gpu.name
            + (f":tp{worker.tensor_parallel}" if worker.tensor_parallel > 1 else "")
            + (f"@{worker.role}" if worker.role != "both" else "")
            + describe_layout(worker.cache_layout)
            + describe_memory(**worker.memory)
            for worker in self.workers
        )
        return " + ".join(f"{count} x {kind}" for kind, count in kinds.items())


def _engine_defaults(gpu: GpuProfile) -> tuple[int, int]:
    """Return the tokens and the sequences of a pass that vLLM 0.32 gives a device."""
    if gpu.memory_bytes >= _HUGE_BYTES:
        return _HUGE_BUDGET, _LARGE_SEQS
    if gpu.memory_bytes >= _LARGE_BYTES and not gpu.name.startswith("a100"):
        return _LARGE_BUDGET, _LARGE_SEQS
    return _SMALL_BUDGET, _SMALL_SEQS


def _link(gpu: GpuProfile) -> float:
    """Return the bytes per second of the NIC that is usual beside a device."""
    return _FAST_LINK_BYTES_PER_S if gpu.name.startswith(_FAST_LINK_GPUS) else _LINK_BYTES_PER_S
