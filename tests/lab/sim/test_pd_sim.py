"""Fleets whose prompts are computed on other workers than answers are generated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.models.own_policy import Own

from cachelb_lab.sim import FleetSpec, Incident, Signals, SimResult, Status, Workload, build, simulate
from cachelb_lab.sim.gpus import find_model
from cachelb_lab.sim.timing import Table
from cachelb_lab.sim.workloads.workload import make

FLEET = FleetSpec.parse("2xh100@prefill+3xh100@decode")
PREFILL, DECODE = {0, 1}, {2, 3, 4}
LAST = Own(lambda fleet: len(fleet) - 1)


def one_request(tokens: int, output: int) -> Workload:
    hashes = np.arange(1, tokens // 16 + 1, dtype=np.uint64)
    return make(
        "one",
        block_size=16,
        prompt_tokens=[tokens],
        output_tokens=[output],
        hashes=hashes,
        offsets=[0, len(hashes)],
        arrival_s=[0.0],
    )


def test_time_is_that_of_both_passes_and_the_transfer() -> None:
    timing = Table(prefill=((1, 0.1),), decode=((1, 0.01),))
    fleet = FleetSpec.parse(
        "1xh100@prefill+1xa100-80@decode", timing=timing, max_num_batched_tokens=10_000, link_latency_s=0.002
    )
    signals = Signals(net_delay_s=0.001)
    result = simulate(one_request(8_000, 11), fleet, seed=1, signals=signals, pd_uncached_token_threshold=0)
    transfer_s = 0.002 + 8_000 * find_model("llama-3-8b").kv_bytes / 25e9
    assert result.ttft_s[0] == pytest.approx(0.1 + transfer_s + 0.01 + 4 * 0.001)
    assert result.tpot_s[0] == pytest.approx(0.01)
    assert (result.prefill_worker[0], result.worker[0]) == (0, 1)


@pytest.mark.parametrize("prefill", ["adaptive", "cache-aware", "prefill-times-batch", "least-loaded", "kv-aware"])
@pytest.mark.parametrize("decode", [None, "least-loaded", "adaptive", "cache-aware"])
def test_each_half_goes_to_a_worker_of_its_role(prefill: str, decode: str | None, chats: Workload) -> None:
    result = simulate(chats, FLEET, seed=1, prefill_policy=prefill, decode_policy=decode)
    assert result.finished.all()
    assert set(result.prefill_worker) == PREFILL
    assert set(result.worker) == DECODE
    assert result.preemptions.sum() == 0


def test_a_prefix_aware_half_finds_what_its_workers_computed(chats: Workload) -> None:
    aware, blind = (
        simulate(chats, FleetSpec.parse("4xh100@prefill+4xh100@decode"), seed=1, prefill_policy=policy)
        for policy in ("cache-aware", "round-robin")
    )
    assert aware.cached_tokens.sum() > 1.2 * blind.cached_tokens.sum()
    assert aware.predicted_tokens.sum() > 0


def test_short_rests_are_computed_where_they_are_decoded(chats: Workload) -> None:
    result = simulate(chats, FLEET, seed=1, pd_uncached_token_threshold=300, decode_policy="cache-aware")
    local = result.prefill_worker < 0
    assert result.finished.all()
    assert 0 < local.sum() < len(chats)
    assert {result.reasons[code] for code in result.reason[local]} == {"local-decode"}
    uncached = chats.prompt_tokens[local].astype(int) - result.predicted_tokens[local]
    assert (uncached < 300).all()


@pytest.mark.parametrize("half", ["prefill_policy", "decode_policy"])
def test_a_policy_written_in_python_decides_one_half(half: str, chats: Workload) -> None:
    own: dict[str, Any] = {half: LAST}
    result = simulate(chats, FLEET, seed=1, **own)
    assert result.finished.all()
    halves = {"prefill_policy": result.prefill_worker, "decode_policy": result.worker}
    assert set(halves[half]) == {max(PREFILL if half == "prefill_policy" else DECODE)}
    other = halves["decode_policy" if half == "prefill_policy" else "prefill_policy"]
    assert set(other) == (DECODE if half == "prefill_policy" else PREFILL)


def columns(result: SimResult) -> bytes:
    return b"".join(each.tobytes() for each in (result.status, result.finish_s, result.worker, result.prefill_worker))


@pytest.mark.parametrize("decode", [None, LAST], ids=["native", "python"])
def test_both_halves_survive_crashes_and_clients_that_go_away(decode: Any) -> None:
    def one() -> SimResult:
        return simulate(
            build("chat", seed=3, count=300).impatient(0.2, 2.0),
            FLEET,
            seed=1,
            retries=2,
            decode_policy=decode,
            incidents=tuple(
                Incident(at_s, worker, what)
                for worker, begin_s in ((0, 5.0), (4, 8.0))
                for at_s, what in ((begin_s, "crash"), (begin_s + 10.0, "join"))
            ),
        )

    result = one()
    assert set(result.status) == {Status.FINISHED, Status.ABORTED}
    assert result.retries.sum() > 0
    assert columns(result) == columns(one())


def test_without_a_prefill_worker_nobody_is_served_unless_decode_may(chats: Workload) -> None:
    crash = (Incident(0.0, 0, "crash"), Incident(0.0, 1, "crash"))
    late = replace(chats, arrival_s=chats.arrival_s + 5.0)
    alone, helped = (
        simulate(late, FLEET, seed=1, incidents=crash, pd_fallback=fallback, until_s=10_000.0)
        for fallback in (False, True)
    )
    assert (alone.status == Status.REJECTED).all()
    assert helped.finished.all()
    assert (helped.prefill_worker == -1).all()


def test_roles_are_read_and_described() -> None:
    fleet = FleetSpec.parse("2xh100:tp2@prefill + 1xa30")
    assert [worker.role for worker in fleet] == ["prefill", "prefill", "both"]
    assert fleet.pairs
    assert not FleetSpec.parse("2xh100@decode").pairs
    assert fleet.describe() == "2 x h100-80:tp2@prefill + 1 x a30"
    assert [one["link_bytes_per_s"] for one in fleet.native()] == [100e9, 100e9, 25e9]
    with pytest.raises(ValueError, match="cannot read '2xh100@fast'"):
        FleetSpec.parse("2xh100@fast")
