"""A router learns from the rows of its decision log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.routers import flat_router

from cachelb import Decision
from cachelb.learned import FEATURES, LearnedModel
from cachelb.records import JsonlRecords, read_records
from cachelb_lab.samples import Samples, samples_of

WORKERS = {"new0": "a30", "old0": "v100", "old1": "v100", "other0": None}
"""Devices in the order of their names, as `LearnedModel.fit` numbers them; a router numbers them by registration."""

OPEN = 6
LEARNED_FROM = 400
SEED = 3
REPORTED = ("running", "waiting", "kv_usage")
NEWER = (*REPORTED, "stale_load", "inflight", "pending_prefill_tokens", "decode_tokens", "credited_tokens", "gpu")


class Fleet:
    """Workers that answer in turn, some requests later, and report their loads; a router that learns, and its log."""

    def __init__(self, log: Path, *, reports: bool = True) -> None:
        self.now = 100.0
        self.reports = reports
        training = {"n_min": LEARNED_FROM, "theta": 10**6, "model_kind": "linear", "training": "inline"}
        usual: dict[str, Any] = {"seed": SEED, "clock": lambda: self.now, "fifo_size": 10**5}
        self.router = flat_router((), training, policy="learned", **usual)
        for worker, gpu in WORKERS.items():
            self.router.add_worker(worker, gpu=gpu)
        self.log = log
        self.random = np.random.default_rng(1)

    def serve(self, requests: int) -> None:
        """Route requests; the oldest open one is answered while the newest wait."""
        waiting: list[Decision[str]] = []
        decoding: list[Decision[str]] = []
        for _ in range(requests):
            self.now += 0.05
            if self.reports:
                self.report()
            begin = int(self.random.integers(20)) * 1_000
            waiting.append(self.router.select_worker(tokens=range(begin, begin + int(self.random.integers(20, 700)))))
            if len(waiting) > OPEN:
                decoding.append(self.answer(waiting.pop(0)))
            if len(decoding) > OPEN:
                self.now += 0.01
                decoding.pop(0).on_complete()
        decoding += [self.answer(decision) for decision in waiting]
        for decision in decoding:
            decision.on_complete()

    def answer(self, decision: Decision[str]) -> Decision[str]:
        """The first token comes once the prompt is computed."""
        self.now += 0.01 + 0.001 * (decision.prompt_tokens - decision.matched_tokens)
        decision.on_first_token()
        return decision

    def report(self) -> None:
        """One worker reports, another has not for long, one never does."""
        worker = "new0" if self.random.random() < 0.9 else "old0"
        running, waiting = (int(n) for n in self.random.integers(0, 9, 2))
        usage = None if running == 3 else float(self.random.random())
        self.router.load_sink.update_load(worker, running=running, waiting=waiting, kv_usage=usage)

    def samples(self) -> Samples:
        """Write the log and read it."""
        with self.router:
            self.router.attach(JsonlRecords(self.log))
        return samples_of(read_records(self.log).decisions())


def column(samples: Samples, name: str) -> npt.NDArray[np.float32]:
    return samples.features[:, FEATURES.index(name)]


def test_a_model_of_the_log_is_the_routers_own_to_the_byte(tmp_path: Path) -> None:
    """Which it is only if every number of every row is: weights, bounds and errors follow from all of them."""
    fleet = Fleet(tmp_path / "log.jsonl")
    fleet.serve(LEARNED_FROM + 200)
    (stats,) = fleet.router.policy.learned_stats()
    assert (stats.version, stats.rounds["swapped"]) == (1, 1)
    fleet.router.policy.save_model(tmp_path / "own.model")
    samples = fleet.samples()
    # The router keeps every tenth back, to compare models on.
    used = [at for at in range(LEARNED_FROM) if at % 10 != 5]
    taken = samples.take(used)
    model = LearnedModel.fit(taken.features, taken.gpus, np.minimum(taken.costs, 15), kind="linear", seed=SEED)
    assert model.to_bytes() == (tmp_path / "own.model").read_bytes()
    for name in FEATURES:
        assert np.ptp(column(taken, name)) > 0, f"{name} never changed"


def test_a_worker_that_reports_no_more_teaches_neither_the_router_nor_the_log(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "log.jsonl", reports=False)
    fleet.router.load_sink.update_load("old0", running=4, waiting=1, kv_usage=0.5)
    fleet.now += 3_600
    fleet.serve(200)
    (stats,) = fleet.router.policy.learned_stats()
    samples = fleet.samples()
    records = list(read_records(fleet.log).decisions())
    stale = sum(bool(record.stale_load) for record in records)
    assert 0 < stale < len(records) == 200
    assert {record.key for record in records if record.stale_load} == {"old0"}
    assert len(samples) == 200 - stale == stats.samples
    assert samples.missing == REPORTED


def cut(log: Path, lines: int) -> None:
    """Make the first lines those of a version that kept less."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    for row in rows[:lines]:
        for name in NEWER:
            del row[name]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_records_of_versions_without_the_workers_state_give_no_sample(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "log.jsonl")
    fleet.serve(100)
    new = fleet.samples()
    cut(fleet.log, 50)
    mixed = samples_of(read_records(fleet.log).decisions())
    assert mixed.missing == ()
    assert 0 < len(mixed) < len(new)
    assert (mixed.features == new.features[-len(mixed) :]).all()
