"""Workers and the addresses that a proxy knows them by: `ip:port`, or `[ip]:port` for IPv6."""

from __future__ import annotations

import logging
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cachelb.router import Router

_PORTS = {"http": 80, "https": 443}

_log = logging.getLogger("cachelb.ext_proc")


def address_of(key: str) -> str | None:
    """Return the address in a worker's key: a URL, or an address itself.

    None for a name in place of an IP address, a key without a port, or a socket's path.

    Example:
        >>> address_of("http://10.0.0.1:8000"), address_of("10.0.0.1:8000"), address_of("https://[fd00::1]")
        ('10.0.0.1:8000', '10.0.0.1:8000', '[fd00::1]:443')
        >>> address_of("http://gpu0:8000") is None
        True
    """
    try:
        parts = urlsplit(key if "://" in key else f"//{key}")
        ip = ip_address(parts.hostname or "")
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    if port is None:
        return None
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"  # noqa: PLR2004 - the version


def warn_of(key: str) -> None:
    """Log that a worker has no address."""
    _log.warning(
        "worker %s is never picked: it has no IP address and port; register it by address, or pass `address=` to "
        "EndpointPicker",
        key,
    )


class Addresses:
    """Maps workers to addresses and back. It follows the router's list of workers.

    A worker without an address cannot be named to the proxy: it is never picked, and a warning is logged once.
    """

    def __init__(self, router: Router[Any], address: Callable[[Any], str] | None) -> None:
        self._router = router
        self._address = address
        self._keys: list[str] = []
        self._by_key: dict[str, str] = {}
        self._by_address: dict[str, str] = {}

    def among(self, subset: Iterable[str] | None) -> list[str] | None:
        """Return the keys of the workers at these addresses; an address without a port means every worker there.

        None means all workers, so that no list is needed.
        """
        self._refresh()
        if subset is None:
            return None if len(self._by_key) == len(self._keys) else list(self._by_key)
        wanted = {address_of(entry.strip()) or entry.strip().strip("[]") for entry in subset}
        return [
            key
            for key, address in self._by_key.items()
            if address in wanted or address.rpartition(":")[0].strip("[]") in wanted
        ]

    def of(self, key: str) -> str | None:
        """Return the address of a worker, None if it has none or is gone."""
        if key not in self._by_key:
            self._refresh()
        return self._by_key.get(key)

    def key_at(self, address: str) -> str | None:
        """Return the worker at an address, None if there is none."""
        self._refresh()
        return self._by_address.get(address)

    def _refresh(self) -> None:
        keys = self._router.keys()
        if keys == self._keys:
            return
        known = set(self._keys)
        self._keys = keys
        self._by_key = {}
        for key, worker in zip(keys, self._router.workers(), strict=False):
            address = address_of(key if self._address is None else self._address(worker))
            if address is not None:
                self._by_key[key] = address
            elif key not in known:
                warn_of(key)
        self._by_address = {address: key for key, address in self._by_key.items()}
