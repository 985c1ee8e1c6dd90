"""A checked configuration in canonical names."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cachelb._core import worker_name
from cachelb.events.endpoints import check_port

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cachelb.bodies import RequestBodies
    from cachelb.router import Router
    from cachelb_gateway.discovery import WorkerSource


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """A chosen policy.

    Attributes:
        name: Its canonical name.
        options: Its options that were set, by canonical name. Options of the router, such as the block size, are in
            `RouterConfig.options`.

    Example:
        >>> PolicyConfig("power-of-two", {"choices": 3}).name
        'power-of-two'
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """A worker.

    Attributes:
        key: Its url, or another unique name.
        role: "both", "prefill" or "decode".
        options: Other options that were set: `weight`, `dp_size` and any other of `Router.add_worker`.
        bootstrap_port: Port of a prefill worker where decode workers fetch the KV cache, for the gateway.

    Raises:
        TypeError: `bootstrap_port` is not an integer.
        ValueError: `bootstrap_port` is not a port.

    Example:
        >>> WorkerConfig("http://gpu0:8000", "prefill", {"weight": 2.0}, bootstrap_port=8998).role
        'prefill'
    """

    key: str
    role: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    bootstrap_port: int | None = None

    def __post_init__(self) -> None:
        if self.bootstrap_port is not None:
            check_port("bootstrap_port", self.bootstrap_port)

    def __repr__(self) -> str:
        """Name the worker without the credentials in its url."""
        return f"WorkerConfig({worker_name(self.key)!r}, {self.role!r})"


@dataclass(frozen=True, slots=True)
class SharedCacheConfig:
    """A cache that workers of a model read.

    Attributes:
        name: Its name.
        options: Options that were set, of `Router.shared_caches.add`.

    Example:
        >>> SharedCacheConfig("mooncake", {"load_ms_per_token": 0.01}).options["load_ms_per_token"]
        0.01
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class PeerGroupConfig(SharedCacheConfig):
    """A group of workers that copy cached blocks from each other.

    Attributes:
        name: Its name.
        options: Options that were set, of `Router.peer_groups.add`.

    Example:
        >>> PeerGroupConfig("rack", {"load_ms_per_token": 0.01, "port": 7777}).name
        'rack'
    """


@dataclass(frozen=True, slots=True)
class DiscoveryConfig:
    """A source of workers.

    Attributes:
        kind: "kubernetes", "dns" or "file".
        options: Options that were set, of the class in `cachelb_gateway.discovery`.

    Example:
        >>> DiscoveryConfig("dns", {"name": "vllm.example", "port": 8000}).make()
        <DnsWorkers dns:vllm.example:8000>
    """

    kind: str
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def make(self) -> WorkerSource:
        """Make the source.

        Returns:
            The source, for `Router.attach`.
        """
        from cachelb_gateway.discovery.text import KINDS

        return KINDS[self.kind](**self.options)


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """A whole configuration; unset values are left to the defaults of the objects.

    Attributes:
        source: The file, or "mapping".
        options: Options of the router that were set, under the names of its keyword arguments.
        policy: The policy.
        prefill_policy: The policy that picks prefill workers; None leaves it to the router.
        decode_policy: The policy that picks decode workers, likewise.
        shadow: Policies that decide beside the first, without effect.
        workers: The workers, in the order given.
        shared_caches: The caches that workers of a model read.
        peer_groups: The groups of workers that copy cached blocks from each other.
        discovery: Sources of further workers.
        kv_events: Options of the source of the engines' KV cache events; None if not given.
        load: Options of the source that polls the engines for their load; None for no such source.
        bodies: How request bodies are read; None for the defaults.
        model_path: Name of the model or its tokenizer, for the gateway.
        origins: Place of each value, by dotted path; others are defaults.
        unused: Reasons for values that take no effect, by dotted path.

    Example:
        >>> from cachelb_gateway import config
        >>> loaded = config.load({"routing": {"policy": "vllm_cache_aware"}}, environ={})
        >>> loaded.policy.name, loaded.origins["router.policy"]
        ('cache-aware', 'mapping as routing.policy')
    """

    source: str
    options: Mapping[str, Any]
    policy: PolicyConfig
    prefill_policy: PolicyConfig | None
    decode_policy: PolicyConfig | None
    shadow: tuple[PolicyConfig, ...]
    workers: tuple[WorkerConfig, ...]
    shared_caches: tuple[SharedCacheConfig, ...]
    peer_groups: tuple[PeerGroupConfig, ...]
    discovery: tuple[DiscoveryConfig, ...]
    kv_events: Mapping[str, Any] | None
    load: Mapping[str, Any] | None
    bodies: RequestBodies | None
    model_path: str | None
    origins: Mapping[str, str]
    unused: Mapping[str, str]

    def build(self) -> Router[str]:
        """Build the router with its workers.

        Sources of `discovery` find further workers. It polls the load of all if `load` is set, and receives their KV
        events if `kv_events` is set or a policy is kv-aware. `enabled = false` in one of these tables switches it off.

        Returns:
            The router; its workers are their keys.

        Raises:
            ModuleNotFoundError: Events are to be received and pyzmq, of the extra `events`, is not installed.

        Example:
            >>> from cachelb_gateway import config
            >>> with config.load({"workers": ["http://gpu0:8000", "http://gpu1:8000"]}, environ={}).build() as router:
            ...     router.keys(), router.policy.name
            (['http://gpu0:8000', 'http://gpu1:8000'], 'adaptive')
        """
        from cachelb_gateway.config.building import build

        return build(self)

    def __repr__(self) -> str:
        """Name source, policy and fleet; options may hold secrets."""
        return f"RouterConfig({self.source!r}, policy={self.policy.name!r}, workers={len(self.workers)})"
