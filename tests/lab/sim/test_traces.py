"""Reading traces: every container, every kind of bad row, and the expansion of ids."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.models.trace_rows import Row

from cachelb.errors import TraceError
from cachelb_lab.sim.trace_files.expand import blocks_per_id, expand_ids
from cachelb_lab.sim.workloads import Workload, read_mooncake

GOOD: dict[str, Any] = {"timestamp": 3000, "input_length": 1025, "output_length": 9, "hash_ids": [0, 4, 5]}
ROWS = [GOOD, {**GOOD, "timestamp": 3000.5, "hash_ids": [0, 4, 6], "session_id": "s1", "unknown": None}]


def check_read(workload: Workload) -> None:
    """Check that a workload has the two rows."""
    assert workload.arrival_s.tolist() == [3.0, 3.0005]
    assert workload.prompt_tokens.tolist() == [1025, 1025]
    assert workload.output_tokens.tolist() == [9, 9]
    assert workload.session == ["", "s1"]
    one, other = workload.prompt(0), workload.prompt(1)
    assert (len(one), common_prefix(one, other)) == (64, 64)


def lines(rows: list[Any]) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode() + b"\n"


def write(file: Path, data: bytes) -> Path:
    file.write_bytes(data)
    return file


def zst(data: bytes) -> bytes:
    half = data.index(b"\n") + 1
    frames = zstandard.ZstdCompressor()
    return frames.compress(data[:half]) + frames.compress(data[half:])


CONTAINERS: dict[str, Callable[[bytes], bytes]] = {
    "jsonl": bytes,
    "jsonl.gz": gzip.compress,
    "jsonl.xz": lzma.compress,
    "jsonl.zst": zst,
}


@pytest.mark.parametrize("suffix", CONTAINERS)
def test_every_container_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    file = write(tmp_path / f"trace.{suffix}", CONTAINERS[suffix](lines(ROWS)))
    check_read(read_mooncake(file))


def test_blank_lines_are_passed_over_and_still_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "trace.jsonl", b"\n" + lines(ROWS) + b" \n[]\n")
    check_read(read_mooncake(file, limit=2))
    with pytest.raises(TraceError, match=r"trace\.jsonl:5: expected a JSON object, got \[\]"):
        read_mooncake(file)


BAD_ROWS = {
    "not JSON": ("{", "not JSON"),
    "a number": (7, "expected a JSON object, got 7"),
    "a long list": ([0] * 99, r"expected a JSON object, got \[0, .*\.\.\.$"),
    "no input_length": ({**GOOD, "input_length": ...}, "input_length must be a whole number >= 0, got nothing"),
    "null input_length": ({**GOOD, "input_length": None}, "input_length must be .* got None"),
    "negative input_length": ({**GOOD, "input_length": -1}, "input_length must be .* got -1"),
    "fractional input_length": ({**GOOD, "input_length": 1.5}, "input_length must be .* got 1.5"),
    "boolean input_length": ({**GOOD, "input_length": True}, "input_length must be .* got True"),
    "no output_length": ({**GOOD, "output_length": ...}, "output_length must be .* got nothing"),
    "negative output_length": ({**GOOD, "output_length": -5}, "output_length must be .* got -5"),
    "no timestamp": ({**GOOD, "timestamp": ...}, "timestamp must be milliseconds >= 0, got nothing"),
    "negative timestamp": ({**GOOD, "timestamp": -0.5}, "timestamp must be .* got -0.5"),
    "text timestamp": ({**GOOD, "timestamp": "1"}, "timestamp must be .* got '1'"),
    "endless timestamp": ({**GOOD, "timestamp": float("inf")}, "timestamp must be .* got inf"),
    "no hash_ids": ({**GOOD, "hash_ids": ...}, "hash_ids must be a list of integers"),
    "text id": ({**GOOD, "hash_ids": [0, 4, "5"]}, "hash_ids must be a list of integers"),
    "negative id": ({**GOOD, "hash_ids": [0, 4, -5]}, "hash_ids must be a list of integers"),
    "id above u64": ({**GOOD, "hash_ids": [0, 4, 2**64]}, "hash_ids must be a list of integers"),
    "no prompt": ({**GOOD, "input_length": 0, "hash_ids": []}, "input_length must be at least 1, got 0"),
    "no answer": ({**GOOD, "output_length": 0}, "output_length must be at least 1, got 0"),
    "too few ids": ({**GOOD, "hash_ids": [0, 4]}, "2 hash_ids, but input_length 1025 makes 3 blocks of 512 tokens"),
    "too many ids": ({**GOOD, "input_length": 1024}, "3 hash_ids, but input_length 1024 makes 2 blocks"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_row_is_named_by_line_value_and_rule(tmp_path: Path, name: str) -> None:
    row, message = BAD_ROWS[name]
    if isinstance(row, dict):
        row = {key: value for key, value in row.items() if value is not ...}
    file = write(tmp_path / "trace.jsonl", lines([GOOD]) + (row.encode() if isinstance(row, str) else lines([row])))
    with pytest.raises(TraceError, match=r"trace\.jsonl:2: " + message):
        read_mooncake(file)


@pytest.mark.parametrize(
    ("suffix", "data", "message"),
    [(f"jsonl.{end}", lines(ROWS), "damaged, or its compression does not match") for end in ("gz", "xz", "zst")]
    + [(f"jsonl.{end}", CONTAINERS[f"jsonl.{end}"](lines(ROWS * 50))[:-6], "damaged") for end in ("gz", "xz")]
    + [("jsonl", lzma.compress(lines(ROWS)), r"not UTF-8 text .* is it compressed")],
    ids=["no gz", "no xz", "no zst", "cut gz", "cut xz", "plain name"],
)
def test_file_that_is_not_what_its_suffix_says_is_refused(
    tmp_path: Path, suffix: str, data: bytes, message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        read_mooncake(write(tmp_path / f"trace.{suffix}", data))


if sys.version_info < (3, 14):  # later ones read zstd with the standard library

    def test_zst_without_the_extra_names_the_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "zstandard", None)
        file = write(tmp_path / "trace.jsonl.zst", zst(lines(ROWS)))
        with pytest.raises(ModuleNotFoundError, match=r"install it, or cachelb-lab\[traces\]"):
            read_mooncake(file)


def test_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_mooncake(tmp_path / "none.jsonl")


def test_real_trace_reads_whole(conversation_trace: Path) -> None:
    rows = read_mooncake(conversation_trace)
    assert len(rows) == 12_031
    assert int(rows.prompt_tokens.sum(dtype=np.int64)) == 144_793_823
    assert rows.prompt_tokens.max() == 126_195
    assert rows.arrival_s[-1] == pytest.approx(3537, abs=1)


# === expansion ===


def common_prefix(one: Any, other: Any) -> int:
    length = min(len(one), len(other))
    differs = np.flatnonzero(np.asarray(one[:length]) != np.asarray(other[:length]))
    return int(differs[0]) if len(differs) else length


@st.composite
def chained_requests(draw: st.DrawFn) -> list[Row]:
    """Rows over a tiny tree of chained ids: a child's id names its parent."""
    rows = []
    for _ in range(draw(st.integers(2, 6))):
        ids, node = [], 1
        for _ in range(draw(st.integers(1, 4))):
            node = node * 3 + draw(st.integers(0, 2))
            ids.append(node)
        tail = draw(st.integers(1, 8))
        rows.append(Row(0.0, (len(ids) - 1) * 8 + tail, 1, tuple(ids)))
    return rows


def block_hashes(row: Row, *, id_tokens: int, block_size: int) -> Any:
    ids, each = np.array(row.hash_ids, dtype=np.uint64), np.array([len(row.hash_ids)])
    return expand_ids(ids, each, np.array([row.prompt_tokens]), id_tokens=id_tokens, block_size=block_size)[0]


@given(chained_requests(), st.sampled_from([1, 2, 4, 8]))
def test_hashes_share_what_the_ids_share(rows: list[Row], block_size: int) -> None:
    hashes = [block_hashes(row, id_tokens=8, block_size=block_size) for row in rows]
    for i, row in enumerate(rows):
        assert len(hashes[i]) == row.prompt_tokens // block_size
        for j, other in enumerate(rows):
            shared = min(common_prefix(row.hash_ids, other.hash_ids) * 8, row.prompt_tokens, other.prompt_tokens)
            assert common_prefix(hashes[i], hashes[j]) == shared // block_size


def test_block_hashes_never_change() -> None:
    hashes = block_hashes(Row(0.0, 48, 1, (0, 2**64 - 1)), id_tokens=32, block_size=16)
    assert hashes.tolist() == [12035550249420947055, 3069472533636442495, 6755974106381971767]


@pytest.mark.parametrize("block_size", [3, 1024])
def test_block_size_must_divide_the_tokens_of_an_id(block_size: int) -> None:
    with pytest.raises(ValueError, match=f"block size {block_size} does not divide .* use one of 1, 2, 4, .* 512"):
        blocks_per_id(512, block_size)


@pytest.mark.parametrize("id_tokens", [0, -1])
def test_ids_must_stand_for_tokens(id_tokens: int) -> None:
    with pytest.raises(ValueError, match="id_tokens must be at least 1"):
        read_mooncake("any.jsonl", id_tokens=id_tokens)
