"""Groups of workers that copy cached blocks from each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cachelb.common.arguments import listed, whole

if TYPE_CHECKING:
    from typing import Literal

    from cachelb._core import RouterFleet


@dataclass(frozen=True, slots=True)
class PeerGroups:
    """The peer groups of a router: `Router.peer_groups`."""

    _fleet: RouterFleet = field(repr=False)

    def add(
        self,
        name: str,
        *,
        model: str | None = None,
        workers: Iterable[Any] | None = None,
        sources: Iterable[Any] | None = None,
        media: Iterable[Literal["gpu", "cpu"]] = ("cpu",),
        load_ms_per_token: float | None = None,
        startup_ms: float = 0.0,
        form: Literal["vllm", "llm-d"] = "vllm",
        port: int | None = None,
        addresses: Mapping[str, str] | None = None,
    ) -> None:
        """Register workers that copy cached blocks from each other, or update their terms.

        A decision then names the member from which its worker gets the prompt soonest, if that is sooner than to
        compute it (`Decision.kv_source`). Which worker is picked stays as it is. Only blocks that KV events of a live
        stream announced are copied, and none before a first token has shown how fast workers compute.

        Args:
            name: Its name, which no worker and no shared cache has.
            model: The model whose blocks are copied; None is the first one.
            workers: The members or their keys, registered or yet to come; None is all workers of the model.
            sources: The members that may be sources; None is all of them.
            media: Where blocks of a source must lie: vLLM sends them from host memory, "cpu".
            load_ms_per_token: Milliseconds of a copy per token; None names no source.
            startup_ms: Milliseconds before the first token.
            form: "vllm" for `remote_kv_source`, "llm-d" for the headers of its sidecar.
            port: Port of a member's host memory on the host of its URL, plus its data-parallel rank; for "vllm".
            addresses: ``host:port`` by key, in place of those.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range, `workers` or `media` is empty, the name is taken, or a member has
                no address; the message has the remedy.

        Example:
            >>> from cachelb import Router
            >>> router = Router(["http://gpu0:8000", "http://gpu1:8000"])
            >>> router.peer_groups.add("rack", load_ms_per_token=0.0106, startup_ms=27.0, port=7777)
            >>> router.peer_groups.names()
            ['rack']
        """
        given = {**locals()}
        del given["self"]
        given["media"] = [media] if isinstance(media, str) else listed("media", media)
        if not given["media"]:
            raise ValueError('media is empty: name "cpu", "gpu" or both')
        given["workers"] = None if workers is None else listed("workers", workers)
        given["sources"] = None if sources is None else listed("sources", sources)
        given["port"] = None if port is None else whole("port", port, 1, 65_535)
        given["addresses"] = dict(addresses or {})
        self._fleet.add_peer_group(given)

    def remove(self, name: str) -> bool:
        """Forget a peer group.

        Args:
            name: Its name.

        Returns:
            Whether it was registered.

        Raises:
            TypeError: The name is no text.
        """
        return self._fleet.remove_peer_group(name)

    def names(self) -> list[str]:
        """List the peer groups.

        Returns:
            Their names, in order.
        """
        return self._fleet.peer_groups()
