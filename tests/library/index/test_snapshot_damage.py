"""Why a damaged snapshot is refused; `rust/core/tests/snapshot_fuzz.rs` damages them everywhere."""

from __future__ import annotations

import pytest

from cachelb import CachelbError
from cachelb.errors import SnapshotError
from cachelb.index import BlockTracker

DATA = BlockTracker().snapshot()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (b"", "does not start like a snapshot"),
        (b"\x80\x04K\x01.", "does not start like a snapshot"),
        (DATA[:8] + b"\x63\0\0\0" + DATA[12:], "version is 99"),
        (DATA[:-1], "checksum does not match"),
        (DATA + b"\0", "checksum does not match"),
    ],
)
def test_a_refused_snapshot_says_why(wrong: bytes, why: str) -> None:
    with pytest.raises(SnapshotError, match=why) as caught:
        BlockTracker.restore(wrong)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, CachelbError)
