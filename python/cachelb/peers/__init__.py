"""Peers to copy cached blocks from: what a proxy sends with a request.

`Router.peer_groups` has the workers that copy from each other, and how fast they do. Where that pays,
`Decision.kv_source` is the peer. A proxy takes the fields off that clients sent, since an address from outside would
have an engine connect there, and adds those of the decision (`outgoing`). A source belongs to one decision: a retry has
another one, or none.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from cachelb.decision import Decision

Form: TypeAlias = Literal["vllm", "llm-d"]
"""How a source is named to an engine: vLLM's `remote_kv_source`, or the headers of llm-d's sidecar."""

HEADERS: Final = ("x-kv-cache-source-host-port", "x-kv-cache-source-p2p-port")
"""Headers that name a source; a proxy takes those of clients off."""

_PARAMS: Final = "kv_transfer_params"
_SOURCES: Final = {"remote_kv_source", "kv_hint", "kv_hints"}
_AROUND: Final = (_PARAMS, "extra_body", "extra_args", "sampling_params", "vllm_xargs")
"""Fields inside of which engines and hosts look for sources, each inside of others at most once."""


@dataclass(frozen=True, slots=True)
class KvSource:
    """A peer that holds blocks of a prompt, and where it sends them from.

    Attributes:
        key: Key of the peer.
        dp_rank: Its data-parallel rank, None if it has one.
        group: Name of the peer group.
        medium: Where it holds the last of the blocks: "gpu" or "cpu".
        start_tokens: Leading prompt tokens that the picked worker needs no copy of.
        end_tokens: Leading prompt tokens that it has after the copy.
        load_ms: Milliseconds until it has them, an estimate: for links to be free, and by the terms of the group as
            copies were observed.
        address: ``host:port`` to copy from: of its host memory, or where it serves for llm-d's sidecar.
        form: How it is named to an engine.

    Example:
        >>> source = KvSource("http://gpu1:8000", None, "rack", "cpu", 0, 4096, 70.4, "gpu1:7777", "vllm")
        >>> source.apply({"prompt": "..."}, "1")["kv_transfer_params"]
        {'remote_kv_source': {'kv_request_id': '1', 'remote_host': 'gpu1', 'remote_port': 7777}}
    """

    key: str
    dp_rank: int | None
    group: str
    medium: str
    start_tokens: int
    end_tokens: int
    load_ms: float
    address: str
    form: Form

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers to send: those of llm-d's sidecar, none in the form of vLLM."""
        values = [self.address] if self.dp_rank is None else [self.address, str(self.dp_rank)]
        return {} if self.form == "vllm" else dict(zip(HEADERS, values, strict=False))

    def apply(self, body: Mapping[str, Any], request_id: str | None = None) -> dict[str, Any]:
        """Return a request's body that names the source in place of any that its client named.

        Args:
            body: The JSON object; it stays as it is.
            request_id: Names the copy, which must be unique; a fresh UUID by default.

        Returns:
            The body to send.

        Raises:
            ValueError: The body decodes what another worker has computed, and copies nothing.
        """
        sent = without_sources(body)
        if self.form != "vllm":
            return sent
        params = given if isinstance(given := sent.get(_PARAMS), Mapping) else {}
        if "remote_prefiller" in params:
            raise ValueError("kv_transfer_params has remote_prefiller: a request that decodes alone copies no prompt")
        host, _, port = self.address.rpartition(":")
        named = {"kv_request_id": request_id or str(uuid.uuid4()), "remote_host": host.strip("[]")}
        return {**sent, _PARAMS: {**params, "remote_kv_source": {**named, "remote_port": int(port)}}}


def without_sources(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's body without the sources that its client named.

    Args:
        body: The JSON object; it stays as it is.

    Returns:
        The body to send.

    Example:
        >>> without_sources({"prompt": "...", "kv_hints": {"actions": []}})
        {'prompt': '...'}
    """
    return _stripped(body, len(_AROUND))


def _stripped(body: Mapping[str, Any], depth: int) -> dict[str, Any]:
    sent = {name: value for name, value in body.items() if name not in _SOURCES}
    inner = {name: value for name in _AROUND if depth and isinstance(value := sent.get(name), Mapping)}
    return {**sent, **{name: _stripped(value, depth - 1) for name, value in inner.items()}}


def outgoing(
    decision: Decision[Any] | None, body: Mapping[str, Any], headers: Iterable[tuple[str, str]] = ()
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Name the source of a decision, if it has one, in place of those that a client named.

    Args:
        decision: The decision, None for a worker that another one picked.
        body: The JSON object of the request; it stays as it is.
        headers: Its headers.

    Returns:
        Body and headers to send.

    Example:
        >>> import cachelb
        >>> decision = cachelb.Router(["http://gpu0:8000"]).select_worker(tokens=range(64))
        >>> outgoing(decision, {"prompt": "...", "kv_hints": {}}, [("X-KV-Cache-Source-Host-Port", "10.0.0.1:80")])
        ({'prompt': '...'}, [])
    """
    kept = [header for header in headers if header[0].lower() not in HEADERS]
    source = None if decision is None else decision.kv_source
    decodes = isinstance(params := body.get(_PARAMS), Mapping) and "remote_prefiller" in params
    if source is None or decodes:
        return without_sources(body), kept
    return source.apply(body), [*kept, *source.headers.items()]
