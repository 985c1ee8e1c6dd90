"""URLs of workers from hosts and ports that others state, and the error for what they are not."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from cachelb.errors import CachelbError


class DiscoveryError(CachelbError, ValueError):
    """An answer about workers that cannot be used; the router keeps those of the answer before.

    The text is short: it is shown in statistics and in the log.

    Example:
        >>> from cachelb_gateway.discovery import DiscoveryError
        >>> issubclass(DiscoveryError, ValueError)
        True
    """


SCHEMES: Final = ("http", "https")
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_TARGET: Final = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]{1,5}))?")
_LONGEST_HOST: Final = 253
_PORTS: Final = range(1, 65_536)


def worker_url(scheme: str, host: str, port: int | None) -> str:
    """Return the URL of a worker, without a path.

    Example:
        >>> worker_url("http", "fd00::1", 8000), worker_url("https", "GPU0.example.", None)
        ('http://[fd00::1]:8000', 'https://gpu0.example')
    """
    if scheme not in SCHEMES:
        raise DiscoveryError(f"a scheme is http or https, got {_shown(scheme)}")
    if port is not None and port not in _PORTS:
        raise DiscoveryError(f"a port is from 1 to 65535, got {port}")
    return f"{scheme}://{_host(host)}" + ("" if port is None else f":{port}")


def target_url(scheme: str, target: str) -> str:
    """Return the URL of a worker written as `host`, `host:port` or `[address]:port`.

    Example:
        >>> target_url("http", "gpu0:8000"), target_url("http", "[::1]:8000")
        ('http://gpu0:8000', 'http://[::1]:8000')
    """
    parts = _TARGET.fullmatch(target)
    if parts is None:
        raise DiscoveryError(f"a target is host:port, got {_shown(target)}")
    host, port = parts["host"], parts["port"]
    if host.startswith("[") and ":" not in host:
        raise DiscoveryError(f"brackets hold an IPv6 address, got {_shown(target)}")
    return worker_url(scheme, host.strip("[]"), None if port is None else int(port))


def _shown(text: str) -> str:
    """Quote text of a source for an error, without the user, the password and the query that a URL may have."""
    user, at, place = text.rpartition("@")
    return repr(f"{'***' if user else ''}{at}{re.split('[?#]', place)[0][:80]}")


def _host(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.removesuffix(".")
        # Dotted numbers that are no address would be read as one by some resolvers.
        if len(name) > _LONGEST_HOST or not _HOST.fullmatch(name) or name.rpartition(".")[2].isdigit():
            raise DiscoveryError(f"neither a host name nor an address: {_shown(host)}") from None
        return name.lower()
    if address.version == 4:  # noqa: PLR2004 - of the protocol
        return str(address)
    if address.scope_id is not None:
        raise DiscoveryError(f"an address with a zone is of one machine only: {_shown(host)}")
    return f"[{address}]"
