"""The meaning of a message of KV events, read off the decoded message in the most obvious way.

Names given as bytes stay bytes: only the hash that stands for them is the decoder's own affair.
"""

from __future__ import annotations

from typing import Any

STORED = (
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
    "locality",
    "ownership",
    "session_id",
)
REMOVED = ("block_hashes", "medium", "group_idx", "locality", "ownership")
FIELDS: dict[str, tuple[str, ...]] = {"BlockStored": STORED, "BlockRemoved": REMOVED, "AllBlocksCleared": ()}
MEDIA = {"gpu": "gpu", "cpu": "cpu", "cpu_pinned": "cpu", "disk": "disk", "storage": "disk", "external": "shared"}
FULL = ("full_attention", "mla_attention", "sink_full_attention")
WORD = 1 << 64


def as_map(event: Any) -> dict[str, Any]:
    """Give an event of either form as a map."""
    if isinstance(event, dict):
        return event
    tag, *values = event
    return {"type": tag} | dict(zip(FIELDS.get(tag, ()), values, strict=False))


def meaning(batch: Any) -> tuple[float, int | None, list[dict[str, Any]]]:
    """Return the expected result of `decode_kv_events` for a message without malformed events."""
    time, events, rank = batch[0], batch[1], batch[2] if len(batch) > 2 else None
    maps = [as_map(event) for event in events]
    told = [_TYPES[event["type"]](event) for event in maps if event["type"] in _TYPES]
    unknown = len(maps) - len(told)
    return float(time), rank, told + ([{"type": "Unknown", "count": unknown}] if unknown else [])


def _name(name: Any) -> Any:
    return name % WORD if isinstance(name, int) else name


def _medium(event: dict[str, Any]) -> str | None:
    locality = event.get("locality")
    if locality is not None and locality.lower() != "local":
        return "shared" if locality.lower() == "remote" else "unknown"
    medium = event.get("medium")
    return None if medium is None else MEDIA.get(medium.lower(), "unknown")


def _object(value: Any) -> int:
    if isinstance(value, bytes):
        return int.from_bytes(value[:8], "little")
    name = value if isinstance(value, str) else value[0]
    return int(name[:16], 16)


def _identity(event: dict[str, Any]) -> tuple[str | None, list[tuple[int, int]]]:
    """Sort the values of `extra_keys`: adapter, salt, and the objects, which `_object` understands."""
    lora, salt, root = event.get("lora_name"), event.get("cache_salt"), event.get("parent_block_hash") is None
    objects: list[tuple[int, int]] = []
    for block, values in enumerate((event.get("extra_keys") or [])[: len(event["block_hashes"])]):
        rest = list(values or [])
        if rest and isinstance(rest[0], str) and rest[0] == lora:
            rest = rest[1:]
        if block == 0 and root:
            if event.get("cache_salt") is not None:
                rest = [value for value in rest if value != salt]
            elif texts := [at for at, value in enumerate(rest) if isinstance(value, str)]:
                salt = rest.pop(texts[-1])
        objects += [(block, _object(value)) for value in rest]
    return (salt or None) if root else None, objects


def _stored(event: dict[str, Any]) -> dict[str, Any]:
    salt, objects = _identity(event)
    number = event.get("lora_id")
    kind = event.get("kv_cache_spec_kind")
    name = event.get("lora_name")
    if name is None and number:
        name = f"lora_id={number}"
    return {
        "type": "BlockStored",
        "block_hashes": [_name(name) for name in event["block_hashes"]],
        "parent_block_hash": _name(event.get("parent_block_hash")),
        "token_ids": [token if isinstance(token, int) else token[0] for token in event["token_ids"]],
        "block_size": event["block_size"],
        "medium": _medium(event),
        "lora_name": name or None,
        "cache_salt": salt,
        "extras": objects,
        "group_idx": event.get("group_idx"),
        "attention": None if kind is None else "full" if kind in FULL else "partial",
    }


def _removed(event: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "BlockRemoved",
        "block_hashes": [_name(name) for name in event["block_hashes"]],
        "medium": _medium(event),
        "group_idx": event.get("group_idx"),
    }


def _cleared(event: dict[str, Any]) -> dict[str, Any]:
    return {"type": event["type"]}


_TYPES = {"BlockStored": _stored, "BlockRemoved": _removed, "AllBlocksCleared": _cleared}


def same_names(got: list[dict[str, Any]], expected: list[dict[str, Any]], names: dict[bytes, str]) -> bool:
    """Compare events, where each name of bytes is one text and no two are the same; `names` remembers which."""

    def shown(name: Any, other: Any) -> Any:
        return names.setdefault(name, other) if isinstance(name, bytes) else name

    def with_shown_names(event: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        if "block_hashes" in event:
            others = zip(event["block_hashes"], other["block_hashes"], strict=True)
            event = event | {"block_hashes": [shown(*pair) for pair in others]}
        if "parent_block_hash" in event:
            event = event | {"parent_block_hash": shown(event["parent_block_hash"], other["parent_block_hash"])}
        return event

    if [event["type"] for event in got] != [event["type"] for event in expected]:
        return False
    same = [with_shown_names(*pair) for pair in zip(expected, got, strict=True)] == got
    return same and len(set(names.values())) == len(names)
