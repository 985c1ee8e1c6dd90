"""The error of an answer that cannot be used."""

from __future__ import annotations

from cachelb.errors import CachelbError


class DiscoveryError(CachelbError, ValueError):
    """An answer about workers that cannot be used; the router keeps those of the answer before.

    The text is short: it is shown in statistics and in the log.

    Example:
        >>> from cachelb_gateway.discovery import DiscoveryError
        >>> issubclass(DiscoveryError, ValueError)
        True
    """
