"""verl: a load balancer of its rollout servers, by cached prefix and load.

verl asks an actor of the class for a server before each turn of a trajectory. It is `load_balancer_cls` of verl's
`LLMServerManager`, or, in versions that have `router_config_path`, named in that file:

```yaml
router_class: cachelb.integrations.verl.CachelbLoadBalancer
seed: 1                 # and other options of cachelb.Router
```
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from cachelb.common.arguments import whole
from cachelb.errors import NoWorkerAvailable
from cachelb.router import Router

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cachelb.decision import Decision

_TRAJECTORIES = 10_000


class CachelbLoadBalancer:
    """The load balancer of verl's rollout servers.

    Turns of a trajectory stay together unless waiting there takes longer than computing the prompt elsewhere. Samples
    of one prompt share its prefix, and spread once it is in use on many. Versions of verl that send no prompt have
    each trajectory on one server. As in an actor, one method runs at a time.

    Args:
        servers: Handles by the names of servers, which may be none yet.
        router_kwargs: Options of `cachelb.Router`. `full_determinism` gives it a seed.
        config: Those options, by the name that some versions of verl have.
        max_cache_size: Trajectories whose latest server is remembered, at most.

    Raises:
        TypeError: An option has the wrong type, or there is no such option.
        ValueError: An option is out of range.

    Attributes:
        router: The router: its statistics, and `attach` for sources of KV events.

    Example:
        >>> balancer = CachelbLoadBalancer({"10.0.0.1:8000": "handle 1", "10.0.0.2:8000": "handle 2"}, {"seed": 1})
        >>> server, handle = balancer.acquire_server("trajectory-1", prompt_ids=list(range(1000)))
        >>> balancer.release_server(server, request_id="trajectory-1")
        >>> balancer.acquire_server("trajectory-1", prompt_ids=list(range(1200))) == (server, handle)
        True
    """

    def __init__(
        self,
        servers: Mapping[str, Any],
        router_kwargs: Mapping[str, Any] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        max_cache_size: int = _TRAJECTORIES,
    ) -> None:
        options = {"max_cache_size": max_cache_size, **(router_kwargs or config or {})}
        options.pop("router_class", None)
        self._most = whole("max_cache_size", options.pop("max_cache_size"), 1, 1 << 32)
        if options.pop("full_determinism", False):
            options.setdefault("seed", 0)
        self.router: Router[str] = Router(list(servers), **options)
        self._handles = dict(servers)
        # Decisions by server and trajectory, the oldest first.
        self._open: dict[str, dict[str, list[Decision[str]]]] = {name: {} for name in servers}
        # The latest server of each trajectory, that of the longest unused one first.
        self._latest: OrderedDict[str, str] = OrderedDict()
        self._generation = 0
        self._salt: str | None = None

    def require_acquire_fields(self) -> list[str]:
        """Return the arguments of a generation that `acquire_server` takes."""
        return ["prompt_ids"]

    def require_release_fields(self) -> list[str]:
        """Return the arguments that `release_server` takes beside the server."""
        return ["request_id"]

    def acquire_server(self, request_id: str, prompt_ids: Sequence[int] | None = None) -> tuple[str, Any]:
        """Pick a server for a turn and count the turn there.

        Args:
            request_id: Name of the trajectory.
            prompt_ids: Token ids of the prompt. Without any, the latest server of the trajectory is picked, or one by
                load.

        Returns:
            The name of the server, and its handle.

        Raises:
            RuntimeError: No server can be picked.
            TypeError: An id is no whole number, or the trajectory has no name.
            ValueError: An id is negative, or 2**32 or more.
        """
        prompt: dict[str, Any] = {"tokens": prompt_ids}
        if prompt_ids is None or len(prompt_ids) == 0:
            latest = self._latest.get(request_id)
            prompt = {"by_load": True, "among": [latest] if latest in self._handles else None}
        try:
            decision = self.router.select_worker(session=request_id, cache_salt=self._salt, **prompt)
        except NoWorkerAvailable as error:
            raise RuntimeError(f"No available servers among {len(self._handles)}: {error}") from error
        name = decision.worker
        self._open[name].setdefault(request_id, []).append(decision)
        self._latest[request_id] = name
        self._latest.move_to_end(request_id)
        if len(self._latest) > self._most:
            self._latest.popitem(last=False)
        return name, self._handles[name]

    def release_server(self, server_id: str, prompt_len: int = 0, request_id: str | None = None) -> None:  # noqa: ARG002
        """Count a turn as over. Does nothing if the server has left, or has no such turn.

        Args:
            server_id: Name of the server.
            prompt_len: Not used: the prompt is known.
            request_id: Name of the trajectory. Without it, the oldest one there is meant.
        """
        turns = self._open.get(server_id, {})
        name = next(iter(turns), None) if request_id is None else request_id
        decisions = turns.get(name, []) if name is not None else []
        if decisions:
            decisions.pop(0).on_complete()
        if name is not None and not decisions:
            turns.pop(name, None)

    def add_servers(self, servers: Mapping[str, Any]) -> None:
        """Add servers, or replace the handles of those that are there.

        Args:
            servers: Handles by name.
        """
        for name, handle in servers.items():
            if name not in self._handles:
                self.router.add_worker(name)
                self._open[name] = {}
            self._handles[name] = handle

    def remove_servers(self, server_ids: Sequence[str]) -> None:
        """Remove servers with their turns and what they cached; unknown ones are ignored.

        Args:
            server_ids: Their names.
        """
        for name in server_ids:
            self.router.remove_worker(name)
            self._handles.pop(name, None)
            self._open.pop(name, None)

    def clear_sticky_cache(self) -> dict[str, Any]:
        """Forget what all servers cached, as after an update of weights. Those with KV events announce that themselves.

        Returns:
            Trajectories that were forgotten, as "cleared_entries", and turns by server, as "server_loads".
        """
        if all(worker.kv_events is None for worker in self.router.stats().workers):
            # Prompts match only within their salt.
            self._generation += 1
            self._salt = str(self._generation)
        cleared = len(self._latest)
        self._latest.clear()
        return {"cleared_entries": cleared, "server_loads": self._loads()}

    def get_all_servers(self) -> list[str]:
        """Return the names of all servers."""
        return list(self._handles)

    def get_inflight_count(self, server_id: str) -> int:
        """Return the turns of a server, 0 of an unknown one."""
        return sum(map(len, self._open.get(server_id, {}).values()))

    def get_total_inflight(self) -> int:
        """Return the turns of all servers."""
        return sum(self._loads().values())

    def get_status(self) -> dict[str, Any]:
        """Return turns by server, their sum, and the names of servers."""
        return {
            "servers": self._loads(),
            "total_inflight": self.get_total_inflight(),
            "active_servers": len(self._handles),
            "registered_handles": self.get_all_servers(),
        }

    def _loads(self) -> dict[str, int]:
        return {name: self.get_inflight_count(name) for name in self._handles}
