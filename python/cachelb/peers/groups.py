"""Groups of workers that copy cached blocks from each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

from cachelb.common.arguments import listed, whole
from cachelb.peers import Form, KvSource

if TYPE_CHECKING:
    from typing import Literal

    from cachelb._core import RouterFleet

_ADDRESS = r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):\d{1,5}"


@dataclass(frozen=True, slots=True)
class Naming:
    """How the members of a group are named to engines."""

    form: Form
    port: int | None
    addresses: Mapping[str, str]

    def address(self, key: str, rank: int | None) -> str | None:
        """Return where a member sends blocks from, None if that is not known."""
        if key in self.addresses:
            return self.addresses[key]
        url = urlsplit(key if "//" in key else f"//{key}")
        port = url.port if self.form == "llm-d" else self.port and self.port + (rank or 0)
        if url.hostname is None or port is None:
            return None
        return f"[{url.hostname}]:{port}" if ":" in url.hostname else f"{url.hostname}:{port}"


@dataclass(frozen=True, slots=True)
class PeerGroups:
    """The peer groups of a router: `Router.peer_groups`."""

    _fleet: RouterFleet = field(repr=False)
    _naming: dict[str, Naming] = field(repr=False)

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
        form: Form = "vllm",
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
        if form not in get_args(Form):
            raise ValueError(f"form is {form!r}, it must be one of {', '.join(map(repr, get_args(Form)))}")
        if form == "vllm" and port is None and addresses is None:
            raise ValueError("port is missing: pass that of the workers' host memory, or their addresses=")
        port = None if port is None else whole("port", port, 1, 65_535)
        naming = Naming(form, port, dict(addresses or {}))
        for key, address in naming.addresses.items():
            if not re.fullmatch(_ADDRESS, address):
                raise ValueError(f"the address of {key!r} is {address!r}, it must be host:port")
        places = [media] if isinstance(media, str) else listed("media", media)
        if not places:
            raise ValueError('media is empty: name "cpu", "gpu" or both')
        members = None if workers is None else listed("workers", workers)
        keys = [row[0] for row in self._fleet.cache_sizes()] if members is None else self._fleet.named(members)[1]
        lost = [repr(key) for key in dict.fromkeys(keys) if naming.address(key, None) is None]
        if lost:
            raise ValueError(f"no address for {', '.join(lost)}: name them in addresses=")
        self._fleet.add_peer_group(
            name,
            model=model,
            load_ms_per_token=load_ms_per_token,
            startup_ms=startup_ms,
            media=places,
            workers=members,
            sources=None if sources is None else listed("sources", sources),
        )
        self._naming[name] = naming

    def remove(self, name: str) -> bool:
        """Forget a peer group.

        Args:
            name: Its name.

        Returns:
            Whether it was registered.

        Raises:
            TypeError: The name is no text.
        """
        self._naming.pop(name, None)
        return self._fleet.remove_peer_group(name)

    def names(self) -> list[str]:
        """List the peer groups.

        Returns:
            Their names, in order.
        """
        return sorted(self._naming)

    def _source(self, group: str, peer: tuple[str, int | None], facts: tuple[str, int, int, float]) -> KvSource | None:
        """Make the source of a decision; None if its group is gone, or it has no address."""
        naming = self._naming.get(group)
        address = None if naming is None else naming.address(*peer)
        if naming is None or address is None:
            return None
        (key, rank), (medium, start, end, load_ms) = peer, facts
        return KvSource(key, rank, group, medium, start, end, load_ms, address, naming.form)
