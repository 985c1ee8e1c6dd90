"""Messages of KV events: those of real engines, and generated ones against the obvious reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.kv_events import REMOVED, STORED, meaning, same_names

from cachelb._core import decode_kv_events

CLEAR = ["AllBlocksCleared"]


def unhex(value: Any) -> Any:
    """Turn `{"bytes": hex}` of the index into bytes."""
    if isinstance(value, list):
        return [unhex(item) for item in value]
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"]) if set(value) == {"bytes"} else {k: unhex(v) for k, v in value.items()}
    return value


def assert_means(payload: bytes, batch: Any, names: dict[bytes, str] | None = None) -> None:
    time, rank, events = decode_kv_events(payload)
    expected_time, expected_rank, expected = meaning(batch)
    assert (time, rank) == (expected_time, expected_rank)
    assert same_names(events, expected, {} if names is None else names), f"{events} for {batch}"


def test_captured_messages_mean_what_their_index_says(captures: Path) -> None:
    index = json.loads((captures / "index.json").read_text("utf-8"))
    names: dict[bytes, str] = {}
    for message in index["messages"]:
        assert_means((captures / message["payload"]).read_bytes(), unhex(message["decoded"]), names)
    for message in index["legacy"]:
        assert_means((captures / message["file"]).read_bytes(), unhex(message["decoded"]), names)
    assert len(index["messages"]) > 40
    assert len(index["legacy"]) > 30
    assert {len(shown) for shown in names.values()} == {32}


def last_frame(frames: bytes) -> bytes:
    """Take the payload out of a stored multipart message: a count, then length and bytes of each, big-endian."""
    at, frame = 4, b""
    for _ in range(int.from_bytes(frames[:4], "big")):
        size = int.from_bytes(frames[at : at + 4], "big")
        at, frame = at + 4 + size, frames[at + 4 : at + 4 + size]
    assert at == len(frames)
    return frame


def test_replayed_messages_decode_and_the_end_marker_is_none(captures: Path) -> None:
    index = json.loads((captures / "index.json").read_text("utf-8"))
    live = {(message["stream"], message["seq"]): unhex(message["decoded"]) for message in index["messages"]}
    for message in index["replay"]:
        payload = last_frame((captures / message["frames"]).read_bytes())
        if message["end_marker"]:
            with pytest.raises(ValueError, match="no msgpack array"):
                decode_kv_events(payload)
        else:
            assert_means(payload, live[message["stream"], message["seq"]])
    assert sum(message["end_marker"] for message in index["replay"]) == 2


# === generated messages ===

NAMES = st.one_of(
    st.integers(0, 2**64 - 1), st.integers(-(2**63), -1), st.binary(min_size=8, max_size=32), st.sampled_from([0, 7])
)
TOKENS = st.integers(0, 2**32 - 1) | st.integers(0, 200_000)
MEDIA = st.sampled_from([None, "GPU", "gpu", "CPU", "CPU_PINNED", "Disk", "STORAGE", "EXTERNAL", "tape"])
LOCALITIES = st.sampled_from([None, "LOCAL", "REMOTE", "remote", "moon"])
KINDS = st.sampled_from([None, "full_attention", "mla_attention", "sliding_window", "mamba", "unknown"])
IDS = st.text("0123456789abcdef", min_size=16, max_size=40)
OBJECTS = st.one_of(st.binary(min_size=8, max_size=32), st.tuples(IDS, st.integers(-9, 99)).map(list))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def stores(draw: st.DrawFn) -> dict[str, Any]:
    blocks, size = draw(st.integers(0, 3)), draw(st.integers(1, 9))
    tokens = draw(st.lists(TOKENS, min_size=blocks * size, max_size=blocks * size))
    pairs = draw(st.booleans())
    lora, salt = draw(st.none() | st.text(max_size=8)), draw(st.none() | st.text(max_size=8))
    keys: list[Any] = [draw(st.lists(OBJECTS, max_size=3)) for _ in range(blocks)]
    root = draw(st.booleans())
    if blocks and root and salt:
        keys[0].append(salt)
    if lora is not None:
        keys = [[lora, *values] for values in keys]
    event: dict[str, Any] = {
        "type": "BlockStored",
        "block_hashes": draw(st.lists(NAMES, min_size=blocks, max_size=blocks)),
        "parent_block_hash": None if root else draw(NAMES),
        "token_ids": [[token, 1] for token in tokens] if pairs else tokens,
        "block_size": size,
        "lora_id": draw(st.none() | st.integers(0, 9)),
        "medium": draw(MEDIA),
        "lora_name": lora,
        "extra_keys": draw(st.sampled_from([None, [values or None for values in keys]])),
        "group_idx": draw(st.none() | st.integers(0, 9)),
        "kv_cache_spec_kind": draw(KINDS),
        "kv_cache_spec_sliding_window": draw(st.none() | st.integers(0, 2**32 - 1)),
        "locality": draw(LOCALITIES),
        "ownership": draw(ANYTHING),
        "session_id": draw(ANYTHING),
    }
    return event


@st.composite
def removals(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "type": "BlockRemoved",
        "block_hashes": draw(st.lists(NAMES, max_size=6)),
        "medium": draw(MEDIA),
        "group_idx": draw(st.none() | st.integers(0, 9)),
        "locality": draw(LOCALITIES),
        "ownership": draw(ANYTHING),
    }


def by_position(event: dict[str, Any], length: int) -> list[Any]:
    fields = {"BlockStored": STORED, "BlockRemoved": REMOVED}[event["type"]]
    return [event["type"], *(event[field] for field in fields[:length])]


@st.composite
def events(draw: st.DrawFn) -> Any:
    form = draw(st.sampled_from(["map", "array", "clear", "unknown"]))
    if form == "clear":
        return draw(st.sampled_from([CLEAR, {"type": "AllBlocksCleared"}]))
    if form == "unknown":
        tag = draw(st.text(max_size=9).map(lambda text: "Block" + text))
        return draw(st.sampled_from([[tag, draw(ANYTHING)], {"type": tag, "block_hashes": draw(ANYTHING)}]))
    event = draw(stores() | removals())
    least = 4 if event["type"] == "BlockStored" else 1
    if form == "array":
        return by_position(event, draw(st.integers(least, 14)))
    if event["type"] == "BlockStored":
        if draw(st.booleans()):
            event["cache_salt"] = draw(st.none() | st.text(max_size=8))
            event["extra_keys"] = None
        needed = {"type", "block_hashes", "token_ids", "block_size"}
    else:
        needed = {"type", "block_hashes"}
    omitted = {field for field, value in event.items() if value is None and field not in needed and draw(st.booleans())}
    more = draw(st.dictionaries(st.text(max_size=3) | st.integers(0, 9), ANYTHING, max_size=3))
    return dict(draw(st.permutations([*more.items(), *((k, v) for k, v in event.items() if k not in omitted)])))


BATCHES = st.builds(
    lambda time, events, rest: [time, events, *rest],
    st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 2**40),
    st.lists(events(), max_size=4),
    st.just([]) | st.tuples(st.none() | st.integers(0, 2**32 - 1)) | st.tuples(st.just(0), ANYTHING),
)


@given(BATCHES)
def test_a_generated_message_means_what_the_obvious_reader_says(batch: list[Any]) -> None:
    assert_means(msgpack.packb(batch), batch)


@given(st.binary(max_size=300) | BATCHES.map(msgpack.packb), st.integers(0, 300), st.binary(max_size=9))
def test_any_bytes_are_decoded_or_refused_as_msgpack_says(data: bytes, at: int, noise: bytes) -> None:
    payload = data[:at] + noise + data[at + len(noise) :]
    try:
        time, rank, decoded = decode_kv_events(payload)
    except ValueError as error:
        assert str(error).startswith("payload is no batch of KV events: ")  # noqa: PT017 - either is fine
        return
    said = msgpack.unpackb(payload, strict_map_key=False, unicode_errors="replace", object_pairs_hook=list)
    assert (time, rank) == (said[0], said[2] if len(said) > 2 else None)
    counts = sum(event.get("count", 1) for event in decoded)
    assert counts == len(said[1])


# === misuse ===


def test_payload_may_be_any_buffer() -> None:
    payload = msgpack.packb([1.5, [CLEAR], 3])
    expected = (1.5, 3, [{"type": "AllBlocksCleared"}])
    for form in (payload, bytearray(payload), memoryview(payload)):
        assert decode_kv_events(form) == expected
    with pytest.raises(TypeError, match="payload must be bytes, got str"):
        decode_kv_events("text")  # type: ignore[arg-type]


def test_error_says_what_is_wrong_and_where() -> None:
    with pytest.raises(ValueError, match=r"no batch of KV events: bytes follow the batch \(byte 3\)"):
        decode_kv_events(msgpack.packb([1, []]) + b"x")
