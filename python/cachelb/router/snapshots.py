"""What workers hold, as bytes, for a router that starts later."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from cachelb._core import NativeRouter
from cachelb.errors import SnapshotError
from cachelb.types import Restored

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from cachelb._core import SnapshotPieces

W = TypeVar("W")

TTL_S = 3600.0
"""Seconds that what was restored is believed, unless a request finds it again."""


class Snapshots(NativeRouter[W]):
    """The part of a router that writes and reads snapshots."""

    _secret: bool

    def snapshot(self) -> bytes:
        """Write down what every worker holds, of all models, as hashes of blocks: 8 to 10 bytes each.

        Requests are not in it, for they end with the process. Others select meanwhile; what they place may be in it.
        Whoever knows the `hash_seed` can find out from it whether a given prompt was routed.

        Returns:
            The snapshot.

        Raises:
            SnapshotError: The router drew its `hash_seed` itself, so no other could use it.

        Example:
            >>> from cachelb import Router
            >>> router = Router(["gpu0", "gpu1"], hash_seed=7)
            >>> router.select_worker(tokens=range(64)).on_complete()
            >>> again = Router(["gpu0", "gpu1"], hash_seed=7)
            >>> again.restore(router.snapshot()).blocks
            4
            >>> again.select_worker(tokens=range(64)).matched_tokens
            48
        """
        return b"".join(self._pieces())

    def restore(self, data: Buffer, *, ttl_s: float = TTL_S) -> Restored:
        """Take in what workers held when a snapshot was written. Workers are known by their keys.

        What was used longest ago is evicted first, as before. It is believed like what other routers tell: for `ttl_s`,
        longer once a request finds it again, and on a worker whose own events tell only as expected.

        Args:
            data: What `snapshot` returned, in this router's process or another.
            ttl_s: Seconds that it is believed.

        Returns:
            What was taken in, and what was skipped.

        Raises:
            SnapshotError: It is damaged, of another version, or of a router with another `hash_seed` or block size;
                or this router drew its `hash_seed` itself. Nothing was changed then.
            TypeError: It is not bytes, or `ttl_s` is no number.
            ValueError: `ttl_s` is not above 0.

        Example:
            >>> from cachelb import Router
            >>> Router(["gpu0"], hash_seed=7).restore(b"?")
            Traceback (most recent call last):
            cachelb.SnapshotError: snapshot refused: it is too short
        """
        if isinstance(ttl_s, bool) or not isinstance(ttl_s, (int, float)):
            raise TypeError(f"ttl_s must be a number, got {type(ttl_s).__name__}")
        if not 0.0 < ttl_s < float("inf"):
            raise ValueError(f"ttl_s must be a number above 0, got {ttl_s}")
        self._need_shared_seed()
        found = self._restore(data, ttl_s)
        age_s = max(0.0, time.time() - found.pop("kept_ms") / 1e3)
        return Restored(**found, age_s=age_s)

    def _pieces(self) -> SnapshotPieces:
        """Begin a snapshot that is written as it is read, so that all of it need never be in memory."""
        self._need_shared_seed()
        return self._keep(time.time_ns() // 1_000_000)

    def _need_shared_seed(self) -> None:
        """Refuse a router whose hashes mean nothing to any other."""
        if self._secret:
            raise SnapshotError(
                "this router drew its hash_seed itself, so a snapshot fits no other router: build it with"
                " hash_seed=..., the same after every start"
            )
