"""The bench of the typical request: means over seeds, wrong sizes, and a page whose runs are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benches import typical
from benches.unlike import distance, unlike

from cachelb_lab.sim import FleetSpec, build, simulate
from cachelb_lab.sim.league import League, Row, Store

CHATS = League(("chat(count=140)",), ("2xl40s",), loads=(0.95,), seeds=(31, 32), part="report")
AGENTS = replace(CHATS, traces=("chat(count=140,loop=closed)",))
SETS = {
    "report": [CHATS],
    "agents": [AGENTS],
    "low": [replace(CHATS, loads=(0.2,))],
    "kv-blocks": [CHATS],
    "gateways": [replace(CHATS, realism=("none", "gateways-4"))],
    "faults": [replace(CHATS, realism=("no-reports",))],
}


def test_figures_are_means_over_seeds_of_one_cell() -> None:
    rows = [
        Row(f"{seed}", {"load": 0.5, "seed": seed}, "a", {"ttft_mean_s": float(seed), "e2e_mean_s": None})
        for seed in (1, 2)
    ]
    (row,) = typical.over_seeds([*rows, Row("3", {"load": 0.7, "seed": 3}, "a", {"ttft_mean_s": 9.0})])[:1]
    assert (row.facts, row.figures) == ({"load": 0.5}, {"ttft_mean_s": 1.5, "e2e_mean_s": None})


@pytest.mark.parametrize("policy", typical.DEFAULT)
def test_router_with_the_right_size_runs_as_any_other(policy: str) -> None:
    chats, fleet = build("chat", seed=1, count=150).speed_up(8), FleetSpec.parse("2xl40s")
    plain, true, low = (
        simulate(chats, fleet, policy, seed=3, gateway=router)
        for router in (None, *(typical.missized_router(policy, chats, fleet, factor, 3) for factor in (1.0, 0.01)))
    )
    assert np.array_equal(plain.worker, true.worker)
    assert np.array_equal(plain.finish_s, true.finish_s)
    assert not np.array_equal(plain.worker, low.worker)


def test_page_has_all_lines_and_a_second_one_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typical, "leagues", lambda _seeds: SETS)
    file = tmp_path / "runs.jsonl"

    def page() -> str:
        return typical.written(typical.Bench(Store(file), (31, 32), 2), list(SETS), curve=True)

    first = page()
    kept = file.read_bytes()
    assert page() == first
    assert file.read_bytes() == kept
    for line in (
        *("| TTFT p50 | 1.10 (1.6) |", "| load 0.9 and above: balanced |", "| closed loop: session | 1.05 |"),
        *("| low load: E2E beside cache-aware | 1.00 |", "| `kv_blocks` of 4 times the truth", "| disturbed: TPOT |"),
        *(
            "| 4 gateways that share nothing, beside one: E2E | 1.5 |",
            "| agents | `adaptive(objective=balanced)+events` |",
        ),
    ):
        assert line in first
    Store(file).forget(typical.DEFAULT)
    assert page() == first


def test_halves_are_compared_by_their_distributions() -> None:
    assert distance(np.array([1.0, 2.0, 3.0, 4.0]), np.array([3.0, 4.0, 5.0, 6.0])) == 0.5
    heads, (row,) = unlike(["chat(count=200)"], 1)
    assert len(row) == len(heads)
    assert row[0] == "chat(count=200)"
