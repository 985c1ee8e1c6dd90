"""Hostile numbers for the simulator's front: refused, or a run that ends."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from tests.hostile.tables import CHATS, FLEET, SIMULATOR, takes_numbers

from cachelb import sim, testing
from cachelb.sim import FleetSpec, Sweep, workloads
from cachelb.sim.checks import MOST_BLOCKS, MOST_REQUESTS

LEFT_OUT = {
    "Comparison": "made by `compare`",
    "Metrics": "made by `measure`",
    "SimResult": "made by `simulate`",
    "Workload": "its columns are checked by `validate`",
    "Generator": "an entry of a table, checked when it is built",
    "Piece": "made by `Draft.piece`",
}


@pytest.mark.parametrize("name", SIMULATOR)
def test_number_is_refused_or_works(name: str) -> None:
    assert SIMULATOR[name].vary() > 0


def test_every_public_name_that_takes_numbers_has_a_case() -> None:
    public = {name: getattr(module, name) for module in (sim, workloads) for name in module.__all__}
    kinds = {name: each for name, each in public.items() if callable(each) and not inspect.isabstract(each)}
    numeric = {name for name, each in kinds.items() if takes_numbers(each)}
    assert numeric == (SIMULATOR.keys() & public.keys()) | LEFT_OUT.keys()


HUGE: dict[str, tuple[Callable[[], object], str]] = {
    "fleet": (lambda: FleetSpec.parse("99999999xh100"), "65536 workers at most"),
    "fleet's groups": (lambda: FleetSpec.parse("+".join(["60000xh100"] * 2)), "65536 workers at most"),
    "tensor parallel": (lambda: FleetSpec.parse("1xh100:tp99999999"), "tensor_parallel must be at most 1024"),
    "sweep": (lambda: Sweep.parse("rate=1:1e30:1e-9"), "cannot read"),
    "requests": (lambda: sim.build("rag", count=2**31), f"count must be at most {MOST_REQUESTS}"),
    "duration": (lambda: sim.build("rag", duration_s=1e8), f"{MOST_REQUESTS} at most"),
    "blocks": (lambda: sim.build("rag", count=5_000, document_tokens=2**20, block_size=1), f"{MOST_BLOCKS} at most"),
    "stages": (lambda: sim.build("shared-prefix", stages=[(1e6, 1e6)]), "count must be at most"),
    "span": (lambda: sim.simulate(sim.build("rag", count=9, rate=1e-8), FLEET), "intervals at most; speed_up"),
    "seeds": (lambda: sim.compare(CHATS, FLEET, ["random"], seeds=range(10**12)), "seeds must have 65536 items"),
    "steps": (lambda: workloads.parse_arrivals("step:2@99999999999", 1.0), "must be from"),
    "worker names": (lambda: testing.worker_names(count=2**31), "count must be at most 65536"),
    "prompts": (lambda: testing.token_sequences(max_tokens=2**31), "max_tokens must be at most 65536"),
}


@pytest.mark.parametrize("name", HUGE)
def test_what_would_fill_memory_is_refused_before_it_does(name: str) -> None:
    make, message = HUGE[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_rare_documents_are_found_without_drawing_for_ever() -> None:
    steep = sim.build("rag", seed=1, count=20, documents=40, most_per_prompt=40, popularity=100.0)
    assert len(steep) == 20
