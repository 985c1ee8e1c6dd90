"""Snapshots of the workers' cached prefixes, for a router that starts later."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from cachelb._core import Router as NativeRouter
from cachelb.arguments import number
from cachelb.errors import SnapshotError
from cachelb.secret import VARIABLE
from cachelb.types import Restored

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from cachelb._core import SnapshotPieces
    from cachelb.secret import Secret

W = TypeVar("W")

TTL_S = 3600.0
"""Seconds that restored prefixes are trusted, unless a request finds them again."""


class Snapshots(NativeRouter[W]):
    """The part of a router that writes and reads snapshots."""

    _secrets: tuple[Secret, ...]

    def snapshot(self) -> bytes:
        """Write every worker's cached prefixes, of all models, as block hashes of 8 to 10 bytes each.

        Requests are left out, since they end with the process. Selections go on meanwhile, and their placements may be
        included. Holders of the `secret` can test whether a given prompt was routed.

        Returns:
            The snapshot.

        Raises:
            SnapshotError: The router has no `secret`, so no other could use it.

        Example:
            >>> from cachelb import Router
            >>> router = Router(["gpu0", "gpu1"], secret="known to all gateways")
            >>> router.select_worker(tokens=range(64)).on_complete()
            >>> again = Router(["gpu0", "gpu1"], secret="known to all gateways")
            >>> again.restore(router.snapshot()).blocks
            4
            >>> again.select_worker(tokens=range(64)).matched_tokens
            48
        """
        return b"".join(self._pieces())

    def restore(self, data: Buffer, *, ttl_s: float = TTL_S) -> Restored:
        """Restore the workers' cached prefixes from a snapshot. Workers are matched by key.

        The order of eviction is kept. Restored prefixes are trusted like remote state: for `ttl_s`, longer once a
        request finds them again, and on a worker with KV events only as expected blocks.

        Args:
            data: The result of `snapshot`, in this process or another.
            ttl_s: Seconds that the prefixes are trusted.

        Returns:
            Counts of restored and skipped entries.

        Raises:
            SnapshotError: It is damaged, of another version, or of a router with another `secret`, `hash_seed` or block
                size; or this router has no `secret`. Nothing was changed then.
            TypeError: It is not bytes, or `ttl_s` is not a number.
            ValueError: `ttl_s` is not above 0.

        Example:
            >>> from cachelb import Router
            >>> Router(["gpu0"], secret="known to all gateways").restore(b"?")
            Traceback (most recent call last):
            cachelb.errors.SnapshotError: snapshot refused: it is too short
        """
        ttl_s = number("ttl_s", ttl_s)
        self._need_secret()
        found = self._fleet.restore(data, ttl_s)
        age_s = max(0.0, time.time() - found.pop("kept_ms") / 1e3)
        return Restored(**found, age_s=age_s)

    def _pieces(self) -> SnapshotPieces:
        """Begin a snapshot that is produced as it is read, so that it is never in memory as a whole."""
        self._need_secret()
        return self._fleet.keep(time.time_ns() // 1_000_000)

    def _need_secret(self) -> None:
        """Refuse a router whose hashes no other router can use."""
        if not self._secrets:
            raise SnapshotError(
                "this router has no secret, so a snapshot fits no other router: build it with secret=..., or set"
                f" {VARIABLE}, the same at every start"
            )
