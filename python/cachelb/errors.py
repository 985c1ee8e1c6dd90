"""Exceptions raised by cachelb."""

from __future__ import annotations


class CachelbError(Exception):
    """Base of every exception that cachelb defines.

    Wrong arguments raise the built-in TypeError or ValueError; this class covers what a caller cannot see from the
    arguments alone.

    Example:
        >>> import cachelb
        >>> issubclass(cachelb.SnapshotError, cachelb.CachelbError)
        True
    """


class SnapshotError(CachelbError, ValueError):
    """A snapshot is damaged, from another version, or of a kind that cannot be restored.

    Example:
        >>> import cachelb
        >>> issubclass(cachelb.SnapshotError, ValueError)
        True
    """


class UnknownWorkerError(CachelbError, KeyError):
    """A worker was named that is not registered.

    Example:
        >>> import cachelb
        >>> issubclass(cachelb.UnknownWorkerError, KeyError)
        True
    """

    def __str__(self) -> str:
        """Return the message itself; KeyError would put it in quotes."""
        return Exception.__str__(self)


class TraceError(CachelbError, ValueError):
    """A trace file has a malformed row or cannot be decoded; the message names file and line.

    Example:
        >>> import cachelb
        >>> issubclass(cachelb.TraceError, ValueError)
        True
    """


for _class in (CachelbError, SnapshotError, UnknownWorkerError, TraceError):
    _class.__module__ = "cachelb"
