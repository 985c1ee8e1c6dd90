"""Snapshots whose content was changed."""

from __future__ import annotations

from cachelb import hash_blocks


def signed(content: bytes) -> bytes:
    """The content, cut to whole words, with a right checksum: a block hash with seed 0 is XXH3-64 of its bytes."""
    words = min(len(content) // 4, 1024)
    content = content[: 4 * words]
    return content + hash_blocks(content, words, seed=0).tobytes()
