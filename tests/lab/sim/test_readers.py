"""Trace and workload files: what each format means, and errors that name the line."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.trace_rows import Row, workload_of

from cachelb.errors import TraceError
from cachelb_lab.sim.workloads import Constant, build, read_azure, read_sessions, read_workload
from cachelb_lab.sim.workloads.generic import read_generic

GOOD: dict[str, Any] = {"arrival_s": 0.5, "input_length": 40, "output_length": 3}
IDS: dict[str, Any] = {"hash_ids": [7, 8], "block_size": 16}


def generic(folder: Path, *rows: Any, block_size: int | None = None) -> Any:
    file = folder / "rows.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return read_generic(file, block_size=block_size)


# === generic ===


def test_ids_say_what_prompts_share(tmp_path: Path) -> None:
    three = [7, 8, 9]  # the last one of a partial block, which is not cached
    workload = generic(tmp_path, GOOD | IDS, {**GOOD, **IDS, "hash_ids": three}, {**GOOD, **IDS, "hash_ids": [7, 6]})
    first, second, third = (workload.prompt(row).tolist() for row in range(3))
    assert len(first) == 2
    assert first == second
    assert (first[0], first[1] == third[1]) == (third[0], False)


def test_ids_of_larger_blocks_are_cut_into_those_asked_for(tmp_path: Path) -> None:
    rows = [{**GOOD, "hash_ids": [1, 2], "block_size": 32}, {**GOOD, "hash_ids": [1, 3], "block_size": 32}]
    workload = generic(tmp_path, *rows, block_size=8)
    assert workload.offsets.tolist() == [0, 5, 10]
    assert (workload.prompt(0) == workload.prompt(1)).tolist() == [True] * 4 + [False]


def test_tokens_and_texts_share_their_beginnings(tmp_path: Path) -> None:
    tokens = {"arrival_s": 0, "output_length": 1}
    one, other = list(range(40)), [*range(20), *range(50, 70)]
    workload = generic(tmp_path, {**tokens, "token_ids": one}, {**tokens, "token_ids": other})
    assert workload.prompt_tokens.tolist() == [40, 40]
    assert (workload.prompt(0) == workload.prompt(1)).tolist() == [True, False]
    # Four characters count as a token.
    texts = ["x" * 64 + "y" * 64, "x" * 64 + "z" * 60, "x" * 127]
    workload = generic(tmp_path, *({**tokens, "text": text} for text in texts))
    assert workload.prompt_tokens.tolist() == [32, 31, 32]
    assert [len(workload.prompt(row)) for row in range(3)] == [2, 1, 2]
    assert len({int(workload.prompt(row)[0]) for row in range(3)}) == 1
    assert workload.prompt(0)[1] != workload.prompt(2)[1]


def test_same_tokens_in_another_order_are_another_prompt(tmp_path: Path) -> None:
    row = {"arrival_s": 0, "output_length": 1}
    workload = generic(tmp_path, {**row, "token_ids": [1, 2] * 8}, {**row, "token_ids": [2, 1] * 8})
    assert workload.prompt(0) != workload.prompt(1)


def test_lengths_alone_share_nothing(tmp_path: Path) -> None:
    assert generic(tmp_path, GOOD, GOOD, {**GOOD, "input_length": 64}).infinite_hits() == 0


def test_children_follow_their_parents(tmp_path: Path) -> None:
    child = {"parent": 1, "think_s": 2.5, "input_length": 9, "output_length": 1, "session_id": 5}
    workload = generic(tmp_path, GOOD, {**GOOD, "arrival_s": 0.25, "session_id": 5}, child)
    assert workload.parent.tolist() == [-1, -1, 0]
    assert workload.think_s.tolist() == [0.0, 0.0, 2.5]
    assert workload.arrival_s[:2].tolist() == [0.25, 0.5]
    assert workload.session == ["5", "", "5"]


def test_block_size_is_that_of_the_file_or_16(tmp_path: Path) -> None:
    assert generic(tmp_path, GOOD).block_size == 16
    assert generic(tmp_path, {**GOOD, "hash_ids": [1], "block_size": 32}).block_size == 32


def test_answers_are_known_by_their_ids(tmp_path: Path) -> None:
    first = {**GOOD, **IDS, "output_length": 24, "output_hash_ids": [9, 10]}
    second = {"parent": 0, "think_s": 1, "input_length": 64, "output_length": 1, "hash_ids": [7, 8, 9, 10]}
    workload = generic(tmp_path, first, second | {"block_size": 16})
    assert workload.answer(0).tolist() == workload.prompt(1)[2:].tolist()
    assert workload.infinite_hits() == 4 * 16 / 104


BAD = {
    "not JSON": ("{", "not JSON"),
    "a list": ([], r"expected a JSON object, got \[\]"),
    "no time": ({"input_length": 4, "output_length": 1}, "arrival_s must be seconds >= 0, got nothing"),
    "both times": ({**GOOD, "parent": 0, "think_s": 1}, "arrival_s and parent exclude each other"),
    "late parent": ({"parent": 1, "think_s": 1, "input_length": 4, "output_length": 1}, "parent 1 must be the number"),
    "negative parent": ({"parent": -1, "think_s": 1}, "parent must be a whole number >= 0, got -1"),
    "no think_s": ({"parent": 0, "input_length": 4, "output_length": 1}, "think_s must be seconds >= 0, got nothing"),
    "no input_length": ({"arrival_s": 0, "output_length": 1}, "input_length must be .* got nothing"),
    "negative input_length": ({**GOOD, "input_length": -4}, "input_length must be .* got -4"),
    "empty prompt": ({**GOOD, "input_length": 0}, "input_length must be at least 1, got 0"),
    "huge prompt": ({**GOOD, "input_length": 2**32}, r"input_length must be below 2\*\*32"),
    "no output_length": ({"arrival_s": 0, "input_length": 1}, "output_length must be .* got nothing"),
    "two contents": ({**GOOD, **IDS, "text": "x"}, "hash_ids and text exclude each other"),
    "no block_size": ({**GOOD, "hash_ids": [1, 2]}, "block_size must be .* got nothing"),
    "too few ids": ({**GOOD, "hash_ids": [1], "block_size": 16}, "1 hash_ids, but input_length 40 makes 2 full blocks"),
    "odd block_size": ({**GOOD, "hash_ids": [1, 2], "block_size": 20}, "block size 16 does not divide the trace's 20"),
    "ids that end early": (
        {**GOOD, "input_length": 50, "hash_ids": [1], "block_size": 32},
        "do not name the last blocks of 16",
    ),
    "bad id": ({**GOOD, "hash_ids": [1, -2], "block_size": 16}, "hash_ids must be a list of integers"),
    "too many answers": ({**GOOD, **IDS, "output_hash_ids": [1]}, "1 output_hash_ids, but the answer fills 0"),
    "no tokens": ({**GOOD, "token_ids": []}, "token_ids must not be empty"),
    "other length": ({**GOOD, "token_ids": [1, 2]}, "2 token_ids, but input_length 40"),
    "number as text": ({**GOOD, "text": 5}, "text must be a string that is not empty, got int"),
    "negative abort_s": (GOOD | {"abort_s": -1}, "abort_s must be seconds >= 0"),
    "falling ends": (GOOD | {"boundaries": [32, 31]}, "boundaries must rise to at most the prompt's 40 tokens"),
    "ends beyond the prompt": (
        GOOD | {"boundaries": [32, 41]},
        "boundaries must rise to at most the prompt's 40 tokens",
    ),
    "text of other length": ({**GOOD, "text": "secret"}, "text of 6 characters counts as 2 tokens"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_row_is_named_by_line_and_rule(tmp_path: Path, name: str) -> None:
    row, message = BAD[name]
    with pytest.raises(TraceError, match=r"rows\.jsonl:3: .*" + message) as caught:
        generic(tmp_path, GOOD, "", row, block_size=16)
    assert "secret" not in str(caught.value)


def test_file_without_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"rows\.jsonl: no rows"):
        generic(tmp_path, "")


# === published traces ===


def test_azure_rows_keep_times_to_the_microsecond(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    rows = ["2023-11-16 18:15:59.9999990,40,2", "2023-11-16 18:16:00.0000015,4,1", "2023-11-16 18:16:01+00:00,3,1"]
    file.write_bytes("\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows, ""]).encode())
    workload = read_azure(file)
    assert workload.arrival_s.tolist() == [0.0, 2e-06, 1.000001]
    assert workload.prompt_tokens.tolist() == [40, 4, 3]
    assert workload.output_tokens.tolist() == [2, 1, 1]
    assert len(read_azure(file, limit=2)) == 2


TURN: dict[str, Any] = {"session_id": 1, "turn": 0, "offset_ms": 0, "input_length": 20, "output_length": 2}


def test_sessions_are_closed_loops(tmp_path: Path) -> None:
    rows = [
        TURN | {"hash_ids": [1]},
        TURN | {"session_id": 2, "hash_ids": [5]},
        TURN | {"offset_ms": 1500, "input_length": 33, "hash_ids": [1, 2]},
        TURN | {"offset_ms": 1750, "input_length": 33, "hash_ids": [1, 2]},
    ]
    file = tmp_path / "sessions.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    workload = read_sessions(file, arrivals=Constant(0.1))
    assert workload.arrival_s[workload.parent < 0].tolist() == [0.0, 10.0]
    assert workload.session == ["1", "1", "1", "2"]
    assert workload.parent.tolist() == [-1, 0, 1, -1]
    assert workload.think_s.tolist() == [0.0, 1.5, 0.25, 0.0]


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def turns(*changes: dict[str, Any]) -> str:
    """One turn that is right, and others of the same session."""
    return "\n".join(json.dumps(TURN | change) for change in ({"hash_ids": [1]}, *changes))


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_azure, "a,b,c\n", "1: the header lacks TIMESTAMP, ContextTokens, GeneratedTokens: a CSV trace has"),
        (read_azure, "TIMESTAMP,Context,GeneratedTokens\n", "1: the header lacks ContextTokens: a CSV trace has"),
        (read_azure, "", "1: the header lacks"),
        (read_azure, HEADER, " no rows below the header"),
        (read_azure, HEADER + "\n1,2\n", "3: expected 3 values, got 2"),
        (read_azure, HEADER + "yesterday,2,3\n", "2: TIMESTAMP must be like"),
        (read_azure, HEADER + "2023-11-16 18:15:46x,2,3\n", "2: TIMESTAMP must be"),
        (read_azure, HEADER + "2023-11-16 18:15:46,0,3\n", "2: ContextTokens must be"),
        (read_azure, HEADER + "2023-11-16 18:15:46,1,-\n", "2: GeneratedTokens must"),
        (read_sessions, turns({"hash_ids": [1], "offset_ms": -1}), "2: offset_ms must be milliseconds >= 0, got -1"),
        (read_sessions, turns({"hash_ids": [1, 2]}), "2: 2 hash_ids, but input_length 20 makes 1 full blocks"),
        (read_sessions, turns({}), "2: hash_ids must be a list"),
        (read_sessions, turns({"hash_ids": [1], "output_length": 0}), "2: output_length must be at least 1"),
        (
            read_sessions,
            turns({"hash_ids": [1], "offset_ms": 9}, {"hash_ids": [1], "offset_ms": 8}),
            "3: offset_ms 8 is before",
        ),
    ],
)
def test_bad_file_is_named(tmp_path: Path, read: Any, text: str, message: str) -> None:
    file = tmp_path / "trace.any"
    file.write_text(text)
    with pytest.raises(TraceError, match=r"trace\.any:" + message):
        read(file)


@pytest.mark.parametrize(
    ("file", "requests", "prompt_tokens", "hits"),
    [
        ("llmservingsim/sharegpt300_lengths_hash16.jsonl.xz", 300, 257_239, 0.0759),
        ("agents/taubench_sessions_block16.jsonl.xz", 471, 77_839, 0.8276),
        ("azure/AzureLLMInferenceTrace_code.csv.xz", 8_819, 18_059_974, 0.0),
        ("azure/AzureLLMInferenceTrace_conv.csv.xz", 19_366, 22_361_870, 0.0),
    ],
)
def test_published_traces_are_told_apart_and_read(
    traces: Path, file: str, requests: int, prompt_tokens: int, hits: float
) -> None:
    workload = read_workload(traces / file)
    assert len(workload) == requests
    assert workload.prompt_tokens.sum(dtype=np.int64) == prompt_tokens
    assert workload.infinite_hits() == pytest.approx(hits, abs=5e-5)


# === any file ===


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bytes])
def test_format_is_told_by_the_first_row(tmp_path: Path, pack: Any) -> None:
    suffix = {gzip.compress: ".gz", lzma.compress: ".xz", bytes: ""}[pack]
    file = tmp_path / f"trace.jsonl{suffix}"
    row = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
    file.write_bytes(pack(json.dumps(row).encode()))
    assert read_workload(file).offsets.tolist() == [0, 37]
    assert read_workload(file, block_size=512).offsets.tolist() == [0, 1]
    full = {"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [1, 2]}
    file.write_bytes(pack(json.dumps(full).encode()))
    assert read_workload(file).offsets.tolist() == [0, 2]


def test_limit_reads_the_first_rows(tmp_path: Path) -> None:
    workload = build("chat", seed=1, count=50)
    workload.save(tmp_path / "chat.jsonl")
    assert len(read_workload(tmp_path / "chat.jsonl", limit=20)) == 20


def test_unknown_formats_are_answered_with_those_there_are(tmp_path: Path) -> None:
    file = tmp_path / "any.jsonl"
    file.write_text('{"time": 3}\n')
    with pytest.raises(TraceError, match=r"any\.jsonl:1: neither timestamp, offset_ms nor arrival_s"):
        read_workload(file)
    with pytest.raises(ValueError, match="no format 'csv'; use one of mooncake"):
        read_workload(file, kind="csv")
    file.write_text("\n")
    with pytest.raises(TraceError, match="no rows"):
        read_workload(file)


def test_request_without_an_answer_cannot_be_run(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 5, "output_length": 0, "hash_ids": [1]}')
    with pytest.raises(TraceError, match=r"trace\.jsonl:1: output_length must be at least 1, got 0"):
        read_workload(file)


def test_larger_blocks_are_named_by_the_last_id_in_them() -> None:
    rows = [Row(0.0, 70, 1, (1, 2, 3, 4, 5)), Row(0.0, 70, 1, (1, 2, 3, 6, 7))]
    workload = workload_of(rows, id_tokens=16, block_size=32)
    assert workload.offsets.tolist() == [0, 2, 4]
    assert (workload.prompt(0) == workload.prompt(1)).tolist() == [True, False]
