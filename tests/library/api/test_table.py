"""Results as tables: every format gives the values back, and each result has the rows it should."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from benches.structures import Report
from benches.structures import Row as BenchRow
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import cachelb
from cachelb.common.table import Table, Tabular
from cachelb.records import JsonlRecords, read_records
from cachelb_lab.analysis import analyse
from cachelb_lab.sim import Comparison, FleetSpec, SimResult, Slo, Status, Sweep, build, compare, simulate
from cachelb_lab.sim.league import Row, Standings

VALUES = {
    "whole": st.integers(-(1 << 63), (1 << 63) - 1),
    "unsigned": st.integers(0, (1 << 64) - 1),
    "real": st.floats(allow_nan=False),
    "truth": st.booleans(),
    "text": st.text(st.characters(exclude_categories=["Cs"])),
    "maybe_real": st.none() | st.floats(allow_nan=False),
    "maybe_count": st.none() | st.integers(0, 1 << 53),
    "maybe_truth": st.none() | st.booleans(),
    "maybe_text": st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
}
READ: dict[str, Callable[[str], object]] = {
    "whole": int,
    "unsigned": int,
    "truth": "True".__eq__,
    "maybe_truth": "True".__eq__,
}
READ |= {"real": float, "maybe_real": float, "maybe_count": float}


@pytest.fixture(scope="module")
def crowded() -> SimResult:
    """A run in which some requests are never served."""
    return simulate(build("chat", seed=5, count=300), FleetSpec.parse("2xa30"), "cache-aware", seed=4, until_s=20.0)


@pytest.fixture(scope="module")
def compared() -> Comparison:
    """Two policies, two seeds, two speeds."""
    return compare(
        lambda seed: build("chat", seed=seed, count=60),
        FleetSpec.parse("2xa30"),
        ["cache-aware", "round-robin"],
        seeds=(1, 2),
        sweep=Sweep("speed", (1, 2)),
        slo=Slo(ttft_s=1.0),
    )


def rows_of(result: Tabular) -> list[dict[str, Any]]:
    """Read a result through its Arrow stream, as any library does."""
    rows: list[dict[str, Any]] = pa.table(result).to_pylist()
    return rows


@given(rows=st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=8))
def test_every_format_gives_equal_values_back(
    rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("table")
    table = Table.of(rows)
    table.to_parquet(folder / "t.parquet")
    table.to_csv(folder / "t.csv")
    assert rows_of(table) == rows
    assert parquet.read_table(folder / "t.parquet").to_pylist() == rows
    with (folder / "t.csv").open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    none_of_text = [{name: row[name] if row[name] is not None else "" for name in row} for row in rows]
    assert [
        {name: READ[name](value) if name in READ and value else value for name, value in row.items()} for row in read
    ] == none_of_text


def test_rows_that_lack_a_name_and_mixed_values_are_kept() -> None:
    table = Table.of([{"a": 1}, {"b": "x", "a": None}, {"a": np.int64(3), "c": 0.5}, {"c": "none"}])
    assert repr(table) == "Table(4 rows: a, b, c)"
    assert rows_of(table) == [
        {"a": 1.0, "b": None, "c": None},
        {"a": None, "b": "x", "c": None},
        {"a": 3.0, "b": None, "c": "0.5"},
        {"a": None, "b": None, "c": "none"},
    ]
    with pytest.raises(ValueError, match=r"columns must be of one length, got \{'a': 1, 'b': 2\}"):
        Table({"a": np.zeros(1), "b": np.zeros(2)})


def test_requests_of_a_run_are_rows(crowded: SimResult) -> None:
    rows = rows_of(crowded)
    assert {row["status"] for row in rows} >= {"finished", "unfinished"}
    for at, row in enumerate(rows):
        worker = int(crowded.worker[at])
        served = row["status"] == "finished"
        assert row["status"] == Status(int(crowded.status[at])).name.lower()
        assert (row["policy"], row["seed"], row["request"]) == ("cache-aware", 4, at)
        assert row["worker"] == (crowded.workers[worker] if worker >= 0 else None)
        assert row["reason"] == (crowded.reasons[crowded.reason[at]] if worker >= 0 else None)
        assert (row["ttft_s"] is None, row["e2e_s"] is None) == (not served, not served)
        if served:
            assert row["ttft_s"] == row["first_token_s"] - row["arrival_s"]
            assert row["e2e_s"] == row["finish_s"] - row["arrival_s"]
            several = row["output_tokens"] > 1
            tpot_s = (row["finish_s"] - row["first_token_s"]) / (row["output_tokens"] - 1) if several else None
            assert row["tpot_s"] == tpot_s
    assert sum(row["cached_tokens"] for row in rows) == crowded.cached_tokens.sum()
    assert [row["session"] for row in rows] == crowded.workload.session


def test_cells_and_runs_of_a_comparison_are_rows(compared: Comparison) -> None:
    document = compared.as_dict()
    runs, cells = rows_of(compared), rows_of(compared.table("cells"))
    assert [(row["policy"], row["value"], row["seed"]) for row in runs] == [
        (cell["policy"], cell["value"], run["seed"]) for cell in document["cells"] for run in cell["runs"]
    ]
    metrics = [run["metrics"] for cell in document["cells"] for run in cell["runs"]]
    assert [row["ttft_s.p99"] for row in runs] == [each["ttft_s"]["p99"] for each in metrics]
    assert [row["goodput_per_s"] for row in runs] == [each["goodput_per_s"] for each in metrics]
    assert [(row["hit_rate.mean"], row["hit_rate.std"]) for row in cells] == [
        (cell["spread"]["hit_rate"]["mean"], cell["spread"]["hit_rate"]["std"]) for cell in document["cells"]
    ]
    with pytest.raises(ValueError, match="of must be one of 'runs', 'cells', got 'seeds'"):
        compared.table("seeds")


def test_predicted_rate_is_of_the_requests_with_a_first_token(compared: Comparison) -> None:
    run = compared.cells[0].runs[0]
    assert run.result is not None
    assert run.metrics.unfinished == 0
    expected = run.result.predicted_tokens.sum() / run.result.workload.prompt_tokens.sum()
    assert run.metrics.predicted_rate == pytest.approx(expected)


def test_runs_and_scores_of_a_league_are_rows() -> None:
    found = Standings(
        [
            Row("c", {"load": 0.5}, "a", {"ttft_mean_s": 0.2, "hit_rate": 0.7}),
            Row("c", {"load": 0.5}, "b", {"ttft_mean_s": 0.5, "hit_rate": None}),
        ]
    )
    assert rows_of(found) == [
        {"load": 0.5, "policy": "a", "ttft_mean_s": 0.2, "hit_rate": 0.7},
        {"load": 0.5, "policy": "b", "ttft_mean_s": 0.5, "hit_rate": None},
    ]
    scores = rows_of(found.table("scores"))
    assert [(row["policy"], row["ttft_mean_s.mean"], row["session_mean_s.mean"]) for row in scores] == [
        ("a", 1.0, None),
        ("b", 2.5, None),
    ]


def test_records_and_their_analysis_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    with cachelb.Router(["gpu0"]) as router:
        router.attach(JsonlRecords(path))
        router.select_worker(tokens=range(100)).on_complete(cached_tokens=30)
        router.select_worker(tokens=range(50)).on_complete()
    (first, second) = rows_of(read_records(path))
    assert (first["key"], first["prompt_tokens"], first["cached_tokens"], first["outcome"]) == (
        "gpu0",
        100,
        30,
        "completed",
    )
    assert (second["cached_tokens"], second["gpu"]) == (None, None)
    found = analyse(read_records(path).decisions())
    assert rows_of(found) == found.as_dict()["losses"]
    assert rows_of(found.table("workers"))[0] == {"worker": "gpu0"} | found.as_dict()["workers"]["gpu0"]
    assert rows_of(found.table("shadows")) == []


def test_measured_figures_are_rows() -> None:
    report = Report(
        [BenchRow("hash/512", "list", 1.5, 2.5, "us"), BenchRow("memory", "index", 3.0, None, "MiB")], "", {}
    )
    assert [(row["task"], row["p50"], row["p99"], row["wrong"]) for row in rows_of(report)] == [
        ("hash/512", 1.5, 2.5, None),
        ("memory", 3.0, None, None),
    ]


def test_frames_get_columns_as_their_libraries_take_them(crowded: SimResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(DataFrame=lambda data, nan_to_null: (data, nan_to_null)))
    frame = crowded.to_dataframe()
    assert list(frame) == list(crowded.table().columns)
    assert math.isnan(frame["ttft_s"][~crowded.finished][0])
    columns, nan_to_null = crowded.to_dataframe("polars")
    assert nan_to_null
    assert columns["worker"] == frame["worker"].tolist()
    assert columns["arrival_s"] is crowded.arrival_s


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_missing_library_is_named_with_its_install(
    library: str, crowded: SimResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError, match=f"^{library} is not installed; run: pip install {library}$"):
        crowded.to_parquet(tmp_path / "x.parquet") if library == "pyarrow" else crowded.to_dataframe(library)


def test_unknown_library_is_refused(crowded: SimResult) -> None:
    with pytest.raises(ValueError, match="library must be 'pandas' or 'polars', got 'spark'"):
        crowded.to_dataframe("spark")
