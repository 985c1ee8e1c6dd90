"""The columns of a workload: what they must agree on, and what can be made of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benches.learned.shrinking import shrunk
from hypothesis import given
from hypothesis import strategies as st
from tests.models.trace_rows import Row, workload_of

from cachelb_lab.sim.figures.lru_bound import PoolProfile
from cachelb_lab.sim.trace_files.mixing import mix, unmix
from cachelb_lab.sim.workloads import Workload, build, read_mooncake
from cachelb_lab.sim.workloads.generic import read_generic
from cachelb_lab.sim.workloads.workload import make

CHATS = build("chat", seed=2, count=120)


def two_rows(**changes: Any) -> Workload:
    columns: dict[str, Any] = {
        "block_size": 16,
        "arrival_s": [0.0, np.nan],
        "parent": [-1, 0],
        "think_s": [0.0, 2.5],
        "prompt_tokens": [40, 64],
        "output_tokens": [10, 1],
        "hashes": np.arange(6, dtype=np.uint64),
        "offsets": [0, 2, 6],
        "output_hashes": np.array([2], dtype=np.uint64),
        "output_offsets": [0, 1, 1],
    }
    return make("two", **(columns | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parent": [-1, 1]}, "row 1: parent must be an earlier row, got 1"),
        ({"parent": [-2, 0]}, "row 0: parent must be -1 or an earlier row"),
        ({"arrival_s": [-1.0, np.nan]}, "row 0: arrival_s must be 0 or more"),
        ({"arrival_s": [np.nan, np.nan]}, "row 0: arrival_s must be 0 or more"),
        ({"arrival_s": [0.0, 1.0]}, "row 1: arrival_s must be NaN with a parent"),
        ({"think_s": [0.0, -1.0]}, "row 1: think_s must be 0 or more"),
        ({"think_s": [0.0]}, "think_s has 1 rows, arrival_s has 2"),
        ({"prompt_tokens": [40, 0]}, "row 1: prompt_tokens must be at least 1"),
        ({"output_tokens": [0, 1]}, "row 0: output_tokens must be at least 1"),
        ({"prompt_tokens": [48, 64]}, "row 0: a hash per full block"),
        ({"offsets": [0, 6, 2]}, "offsets must be 3 ascending numbers from 0 to 6"),
        ({"offsets": [0, 6]}, "offsets must be 3 ascending numbers from 0 to 6"),
        ({"output_tokens": [7, 1]}, "row 0: more output_hashes than blocks an answer fills"),
        ({"session": ["a"]}, "session has 1 rows"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"boundaries": [16], "boundary_offsets": [0, 1]}, "offsets must be 3 ascending numbers from 0 to 1"),
        ({"boundaries": [16, 9, 64], "boundary_offsets": [0, 2, 3]}, "row 0: boundaries must rise, got 9 behind 16"),
        ({"boundaries": [41, 64], "boundary_offsets": [0, 1, 2]}, "row 0: boundaries must lie in the prompt, got 41"),
        ({"boundaries": [16]}, "boundaries and boundary_offsets go together"),
        ({"hashes": np.arange(6, dtype=np.int64)}, "hashes must be one column of uint64, got int64"),
    ],
)
def test_columns_that_do_not_agree_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        two_rows(**changes)


def test_workload_equals_only_what_has_the_same_rows() -> None:
    assert two_rows() == two_rows()
    assert two_rows() != two_rows(think_s=[0.0, 2.0])
    assert two_rows() != replace(two_rows(), name="other")
    assert two_rows() != two_rows(session=["a", "a"])


def test_boundaries_follow_their_rows(tmp_path: Path) -> None:
    ends = {"boundaries": [16, 40, 16, 48, 64], "boundary_offsets": [0, 2, 5]}
    told, untold = two_rows(**ends), two_rows()
    assert told != untold
    assert told != two_rows(**{**ends, "boundaries": [16, 40, 16, 50, 64]})
    assert untold.message_ends(1).tolist() == []
    assert told.take(np.array([0])).message_ends(0).tolist() == [16, 40]
    both = Workload.concat([untold, told])
    assert sorted(both.message_ends(row).tolist() for row in range(4)) == [[], [], [16, 40], [16, 48, 64]]
    told.save(tmp_path / "told.jsonl")
    assert read_generic(tmp_path / "told.jsonl") == told
    assert shrunk(told, rate=1.0).boundaries is None


def test_generators_know_where_messages_end() -> None:
    for row in range(len(CHATS)):
        ends, parent = CHATS.message_ends(row).tolist(), int(CHATS.parent[row])
        assert ends[-1] == CHATS.prompt_tokens[row]
        if parent < 0:
            assert len(ends) == 2, "a system prompt and a question"
        else:
            before = CHATS.message_ends(parent).tolist()
            answered = before[-1] + int(CHATS.output_tokens[parent])
            assert ends[:-1] == [*before, answered]


def test_speed_up_divides_arrivals_and_leaves_pauses() -> None:
    fast = CHATS.speed_up(4)
    roots = CHATS.parent < 0
    assert np.array_equal(fast.arrival_s[roots], CHATS.arrival_s[roots] / 4)
    assert np.array_equal(fast.think_s, CHATS.think_s)
    with pytest.raises(ValueError, match="factor must be above 0, got 0"):
        CHATS.speed_up(0)


def test_jitter_delays_by_at_most_its_width_and_keeps_families_together() -> None:
    rows = [Row(float(3 * (n // 10)), 32, 1, (n, n + 1000)) for n in range(200)]
    batches = workload_of(rows, id_tokens=16)
    moved = batches.jitter(3.0, seed=1)
    before = dict(zip(batches.hashes[::2].tolist(), batches.arrival_s.tolist(), strict=True))
    delays = [
        at - before[first] for first, at in zip(moved.hashes[::2].tolist(), moved.arrival_s.tolist(), strict=True)
    ]
    assert 0 <= min(delays) < 0.3
    assert 2.7 < max(delays) <= 3.0
    assert (np.diff(moved.arrival_s) >= 0).all()
    assert moved == batches.jitter(3.0, seed=1)
    assert moved != batches.jitter(3.0, seed=2)
    shaken = CHATS.jitter(50.0, seed=0)
    for row in np.flatnonzero(shaken.parent >= 0):
        assert shaken.session is not None
        assert shaken.session[row] == shaken.session[shaken.parent[row]]


def test_slice_keeps_the_rows_whose_parents_are_in_it() -> None:
    chats = build("chat", seed=2, count=600)
    part = chats.slice(100, 500).validate()
    assert 100 < len(part) < 400
    assert len(chats.slice(0, 500)) == 500
    assert chats.session is not None
    assert part.session is not None
    assert set(part.session).isdisjoint(chats.session[:100])
    assert CHATS.slice() == CHATS


def test_row_without_its_parent_cannot_be_taken() -> None:
    with pytest.raises(ValueError, match="a parent is left out"):
        two_rows().take(np.array([1]))
    with pytest.raises(ValueError, match="a parent must come before its child"):
        two_rows().take(np.array([1, 0]))


def test_concat_lays_workloads_over_each_other() -> None:
    other = build("rag", seed=1, count=80)
    both = Workload.concat([CHATS, other], name="both").validate()
    assert len(both) == 200
    assert np.array_equal(np.sort(both.hashes), np.sort(np.concatenate([CHATS.hashes, other.hashes])))
    for row in np.flatnonzero(both.parent >= 0):
        assert both.session is not None
        assert both.session[row] == both.session[both.parent[row]] != ""
    hits = CHATS.infinite_hits() * CHATS.prompt_tokens.sum() + other.infinite_hits() * other.prompt_tokens.sum()
    assert both.infinite_hits() == pytest.approx(hits / both.prompt_tokens.sum())


def test_concat_can_put_one_behind_the_other() -> None:
    rag = build("rag", seed=1, count=50)
    twice = Workload.concat([rag, rag], one_after_the_other=True)
    assert np.allclose(twice.arrival_s[50:], rag.arrival_s + rag.arrival_s[-1])
    with pytest.raises(ValueError, match=r"block sizes differ: \[16, 32\]"):
        Workload.concat([rag, build("rag", count=5, block_size=32)])


def test_shrinking_keeps_the_shared_fraction() -> None:
    shared = build("prefix-50", seed=1, count=775)
    small = shrunk(shared, rate=10.0, seed=3, prompt=(1, 4), max_prompt_tokens=100_000).validate()
    assert small.infinite_hits() == pytest.approx(shared.infinite_hits(), abs=0.02)
    assert small.prompt_tokens.mean() == pytest.approx(shared.prompt_tokens.mean() / 4, rel=0.001)
    assert np.array_equal(small.output_tokens, np.maximum(1, shared.output_tokens // 2))
    assert len(small) / small.arrival_s[-1] == pytest.approx(10.0, rel=0.1)


def test_shrinking_cuts_long_prompts() -> None:
    rows = [Row(0.0, 512 * 400, 1, tuple(range(400))), Row(1.0, 512 * 400, 9, tuple(range(400)))]
    small = shrunk(workload_of(rows, id_tokens=512), rate=1.0)
    assert small.prompt_tokens.tolist() == [10_000, 10_000]
    assert small.output_tokens.tolist() == [1, 4]
    assert small.infinite_hits() == 0.5
    with pytest.raises(ValueError, match="prompt must be a fraction of at most 1, got 2/1"):
        shrunk(small, rate=1.0, prompt=(2, 1))


def test_shrinking_keeps_a_token_of_the_shortest_prompt() -> None:
    rows = [Row(float(n), 5, 1, (n, n + 10, n + 20, n + 30, n + 40)) for n in range(2)]
    small = shrunk(workload_of(rows, id_tokens=1, block_size=1), rate=1.0).validate()
    assert small.prompt_tokens.tolist() == [1, 1]
    assert small.infinite_hits() == 0


def test_infinite_cache_has_what_answers_brought() -> None:
    # The second prompt is the first one, its answer, and one block more.
    one = two_rows(hashes=np.array([1, 2, 1, 2, 3, 4], dtype=np.uint64), output_hashes=np.array([3], dtype=np.uint64))
    assert one.infinite_hits() == 3 * 16 / 104
    unnamed = replace(one, output_hashes=np.empty(0, np.uint64), output_offsets=np.zeros(3, np.uint64))
    assert unnamed.infinite_hits() == 2 * 16 / 104


def test_last_token_is_always_computed() -> None:
    rows = [Row(float(n), tokens, 1, (1, 2)) for n, tokens in enumerate((32, 32, 31))]
    workload = workload_of(rows, id_tokens=16)
    assert workload.infinite_hits() == (2 + 1) * 16 / 95
    assert PoolProfile(workload).hits().token_rate == (1 + 1) * 16 / 95


# === files ===


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_mixing_can_be_undone(values: list[int]) -> None:
    column = np.array(values, dtype=np.uint64)
    assert unmix(mix(column)).tolist() == values


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    size = draw(st.sampled_from([1, 7, 16]))
    count = draw(st.integers(1, 6))
    parents = [draw(st.integers(-1, row - 1)) for row in range(count)]
    seconds = st.floats(0, 1e6)
    prompts = draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    outputs = draw(st.lists(st.integers(1, 40), min_size=count, max_size=count))
    word = st.integers(0, 2**64 - 1)
    hashes = [draw(st.lists(word, min_size=n // size, max_size=n // size)) for n in prompts]
    filled = [(p + o) // size - p // size for p, o in zip(prompts, outputs, strict=True)]
    answers = [draw(st.lists(word, max_size=n)) for n in filled]
    patience = st.lists(seconds | st.just(np.nan), min_size=count, max_size=count)
    names = st.lists(st.text(max_size=5), min_size=count, max_size=count)
    return make(
        draw(st.text(max_size=8)),
        block_size=size,
        seed=draw(st.integers(0, 2**40)),
        arrival_s=[np.nan if parent >= 0 else draw(seconds) for parent in parents],
        parent=parents,
        think_s=[draw(seconds) if parent >= 0 else 0.0 for parent in parents],
        prompt_tokens=prompts,
        output_tokens=outputs,
        hashes=np.array(list(chain(*hashes)), dtype=np.uint64),
        offsets=np.cumsum([0, *map(len, hashes)]),
        output_hashes=np.array(list(chain(*answers)), dtype=np.uint64),
        output_offsets=np.cumsum([0, *map(len, answers)]),
        session=draw(st.none() | names.filter(any)),
        abort_s=draw(st.none() | patience.filter(lambda each: not np.isnan(each).all())),
    ).in_order()


@given(workloads())
def test_saved_workload_is_read_back_equal(tmp_path_factory: pytest.TempPathFactory, workload: Workload) -> None:
    file = tmp_path_factory.mktemp("workload") / "any.jsonl"
    workload.save(file)
    assert read_generic(file) == workload


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.xz"])
def test_equal_workloads_give_equal_files(tmp_path: Path, suffix: str) -> None:
    for name in ("one", "other"):
        build("chat", seed=2, count=120).save(tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"other.{suffix}").read_bytes()
    assert read_generic(tmp_path / f"one.{suffix}") == CHATS


def test_workload_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without requests"):
        CHATS.slice(0, 0).save(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match=r"cannot write chat\.jsonl\.zst: use \.jsonl"):
        CHATS.save(tmp_path / "chat.jsonl.zst")
    assert not list(tmp_path.iterdir())


def test_real_trace_has_its_known_figures(conversation_trace: Path) -> None:
    by_64, by_16 = (read_mooncake(conversation_trace, block_size=size) for size in (64, 16))
    assert len(by_16) == 12_031
    assert by_16.prompt_tokens.sum(dtype=np.int64) == 144_793_823
    assert len(by_16.hashes) == int((by_16.prompt_tokens // 16).sum()) == 9_044_013
    assert by_64.infinite_hits() == pytest.approx(0.3736, abs=5e-5)
    assert by_16.infinite_hits() == pytest.approx(0.3736, abs=5e-5)
    assert len(np.unique(by_16.arrival_s)) == 1_180
    assert by_16.speed_up(2).arrival_s[-1] == pytest.approx(3537 / 2, abs=1)
    small = shrunk(by_64, rate=10.0)
    assert small.prompt_tokens.max() == 10_000
    assert small.infinite_hits() == pytest.approx(0.3736, abs=0.05)
