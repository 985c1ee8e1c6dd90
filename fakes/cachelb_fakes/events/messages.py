"""KV cache events as engines encode them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import msgpack  # type: ignore[import-untyped]

Form: TypeAlias = Literal["map", "array"]
"""How an event is encoded: vLLM sends maps since 0.24, arrays before."""

# Positions in the array form, which vLLM had before 0.24; later fields exist in maps only.
_POSITIONS: Final = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}


def stored(
    hashes: Iterable[int | bytes],
    tokens: Iterable[int],
    *,
    block_size: int = 16,
    parent: int | bytes | None = None,
    **fields: object,
) -> dict[str, Any]:
    """Make a BlockStored event.

    Args:
        hashes: The engine's names of the blocks.
        tokens: Their tokens.
        block_size: Tokens per block.
        parent: Name of the block before the first one.
        fields: Further fields, such as ``lora_name``, or others than vLLM's usual values.

    Returns:
        The event.

    Example:
        >>> from cachelb_fakes.events import stored
        >>> stored([7], range(16))["medium"]
        'GPU'
    """
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": [int(token) for token in tokens],
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **fields,
    }


def removed(hashes: Iterable[int | bytes], **fields: object) -> dict[str, Any]:
    """Make a BlockRemoved event.

    Args:
        hashes: The engine's names of the blocks.
        fields: Further fields, or others than vLLM's usual values.

    Returns:
        The event.

    Example:
        >>> from cachelb_fakes.events import removed
        >>> removed([7], medium="CPU")
        {'type': 'BlockRemoved', 'block_hashes': [7], 'medium': 'CPU'}
    """
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **fields}


def cleared() -> dict[str, Any]:
    """Make an AllBlocksCleared event.

    Returns:
        The event.

    Example:
        >>> from cachelb_fakes.events import cleared
        >>> cleared()
        {'type': 'AllBlocksCleared'}
    """
    return {"type": "AllBlocksCleared"}


def encode_batch(events: Iterable[dict[str, Any]], *, ts: float, dp_rank: int | None = 0, form: Form = "map") -> bytes:
    """Encode a batch of events.

    Args:
        events: The events, as `stored`, `removed` and `cleared` make them.
        ts: Unix time in seconds.
        dp_rank: The rank; None leaves it out, so that the batch has two elements.
        form: "map" as vLLM since 0.24, "array" as before.

    Returns:
        The payload of a message.

    Example:
        >>> from cachelb_fakes.events import cleared, encode_batch
        >>> encode_batch([cleared()], ts=0.0, dp_rank=None, form="array")[-16:]
        b'AllBlocksCleared'
    """
    written = [event if form == "map" else _as_array(event) for event in events]
    batch: list[object] = [ts, written]
    if dp_rank is not None:
        batch.append(dp_rank)
    payload = msgpack.packb(batch)
    assert isinstance(payload, bytes)
    return payload


def _as_array(event: dict[str, Any]) -> list[Any]:
    """Write an event by position, without trailing fields that are not set."""
    fields = _POSITIONS[event["type"]]
    last = max((i for i, name in enumerate(fields, 1) if name in event), default=0)
    return [event["type"], *(event.get(name) for name in fields[:last])]
