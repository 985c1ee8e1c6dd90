"""Exceptions raised by cachelb."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final


class CachelbError(Exception):
    """Base of every exception that cachelb defines.

    Wrong arguments raise the built-in TypeError or ValueError; this class covers errors that a caller cannot see from
    the arguments alone.

    Example:
        >>> import cachelb
        >>> issubclass(cachelb.errors.SnapshotError, cachelb.CachelbError)
        True
    """


class BodyError(CachelbError, ValueError):
    """A request body that cannot be read. It shows no content.

    `RequestBodies.strict` raises it for bodies that are no JSON object: "syntax", "truncated", "utf8", "trailing" or
    "not-object". The other kinds are limits of the reader.

    Attributes:
        kind: One of these, or "surrogate", "not-finite", "encoding", "too-large", "too-deep", "too-many-parts",
            "too-many-ids" or "token-id".
        offset: The byte of the body where it was noticed.

    Example:
        >>> import cachelb
        >>> str(cachelb.errors.BodyError("truncated", 12))
        'request body: truncated at byte 12'
    """

    def __init__(self, kind: str, offset: int) -> None:
        """Keep both."""
        super().__init__(f"request body: {kind} at byte {offset}")
        self.kind, self.offset = kind, offset

    def __reduce__(self) -> tuple[type[BodyError], tuple[str, int]]:
        return type(self), (self.kind, self.offset)


class SnapshotError(CachelbError, ValueError):
    """A snapshot is damaged, from another version, or of a kind that cannot be restored.

    Example:
        >>> import cachelb
        >>> issubclass(cachelb.errors.SnapshotError, ValueError)
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
        >>> issubclass(cachelb.errors.TraceError, ValueError)
        True
    """


class ConfigError(CachelbError, ValueError):
    """A configuration has an unknown key, a value that does not fit, or is malformed; the message names the place.

    Example:
        >>> from cachelb_gateway import config
        >>> config.load({"router": {"block_sise": 32}}, environ={})
        Traceback (most recent call last):
        cachelb.errors.ConfigError: mapping: router.block_sise: unknown key; did you mean 'block_size'?
    """


class NoWorkerAvailable(CachelbError):  # noqa: N818 - the name of the public contract
    """No worker can be picked: the list is empty, or no worker in it is ready.

    Attributes:
        reasons: Why each worker was left out, by key; empty for an empty list.
        retry_after_s: When to try again, in seconds.

    Example:
        >>> import cachelb
        >>> error = cachelb.NoWorkerAvailable({"gpu0": "not ready"})
        >>> print(error)
        no worker available: gpu0 is not ready
        >>> error.retry_after_s
        1.0
    """

    def __init__(self, reasons: Mapping[str, str], *, retry_after_s: float = 1.0) -> None:
        """Keep the reasons.

        Args:
            reasons: Why each worker was left out, by key.
            retry_after_s: When to try again, in seconds.
        """
        self.reasons: dict[str, str] = dict(reasons)
        self.retry_after_s = retry_after_s
        super().__init__(self.reasons)

    def __str__(self) -> str:
        """Name every worker and its reason."""
        if not self.reasons:
            return "no worker available: the list of workers is empty"
        return "no worker available: " + ", ".join(f"{key} is {why}" for key, why in self.reasons.items())


class Overloaded(NoWorkerAvailable):
    """An `Admission` refuses a request: every worker that may be picked has as much to do as the bounds allow.

    Attributes:
        reason: "no room", "queue full", "waited too long", "deadline passed" or "shutting down".
        reasons: Why each worker was left out, by key: "full", or what would keep it out at any load.
        retry_after_s: When one is about to have room for this request, in seconds from 1 to 60.
        room_in_s: As `retry_after_s`, without these bounds.
        waited_s: How long the request waited.
        status: HTTP status to answer with, 429.
        headers: HTTP headers to answer with.

    Example:
        >>> import cachelb
        >>> error = cachelb.Overloaded({"gpu0": "full"}, 2.4)
        >>> error.status, error.headers
        (429, {'retry-after': '3'})
    """

    status: Final = 429

    def __init__(
        self, reasons: Mapping[str, str], retry_after_s: float = 1.0, reason: str = "no room", waited_s: float = 0.0
    ) -> None:
        """Keep the reasons.

        Args:
            reasons: Why each worker was left out, by key.
            retry_after_s: When one is about to have room, in seconds.
            reason: Why the request is not held, or no longer.
            waited_s: How long it waited.
        """
        super().__init__(reasons, retry_after_s=min(max(retry_after_s, 1.0), 60.0))
        self.room_in_s = retry_after_s
        self.reason, self.waited_s = reason, waited_s

    def __reduce__(self) -> tuple[type[Overloaded], tuple[dict[str, str], float, str, float]]:
        return type(self), (self.reasons, self.room_in_s, self.reason, self.waited_s)

    def __str__(self) -> str:
        """Name the reason, then every worker and its own."""
        return f"{self.reason}: {super().__str__()}"

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers to answer with."""
        return {"retry-after": str(math.ceil(self.retry_after_s))}


for _class in (CachelbError, UnknownWorkerError, NoWorkerAvailable, Overloaded):
    _class.__module__ = "cachelb"


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """End a message about an unknown name with the nearest known one, or with all if none is near.

    Example:
        >>> did_you_mean("cache-awar", ["cache-aware", "random"])
        "; did you mean 'cache-aware'?"
        >>> did_you_mean("?", ["cache-aware", "random"])
        "; there are 'cache-aware', 'random'"
    """
    from difflib import get_close_matches

    names = sorted(set(known))
    close = get_close_matches(wrong, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(map(repr, names)) or 'none'}"
