"""Samples out of logs, and figures of how well predictors do on them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from benches import predictors
from benches.predictors import evaluate, evaluate_model
from tests.models.decision_records import decision_record

import cachelb
from cachelb.cli.main import main
from cachelb.learned import FEATURES, LearnedModel
from cachelb.records import JsonlRecords
from cachelb.types import DecisionRecord
from cachelb_lab.lodestar import read_lodestar
from cachelb_lab.samples import Samples, samples_of

COMP = "comp__latency_predictor_model_output_pod_specific_data.csv.xz"
P2048 = "p2048__processed_dataset.csv.xz"


def record(time_s: float, ttft_s: float | None, tokens: tuple[int, float], inflight: int | None) -> DecisionRecord:
    sizes = {"prompt_tokens": tokens[0], "credited_tokens": tokens[1], "inflight": inflight}
    state = {"pending_prefill_tokens": 30, "decode_tokens": 300}
    return decision_record(key="a", time_s=time_s, ttft_s=ttft_s, **sizes, **state)


def column(samples: Samples, name: str) -> list[float]:
    return [round(float(value), 6) for value in samples.features[:, FEATURES.index(name)]]


RECORDS = [
    record(10.0, 1.0, (100, 60.0), 0),
    record(10.5, 2.0, (200, 0.5), 1),
    record(12.0, None, (30, 0.0), 2),
    record(12.8, 0.1, (80, 90.0), 3),
    record(13.0, 0.1, (80, 80.0), None),
    record(30.0, 0.1, (0, 0.0), 0),
]


def test_samples_have_the_state_of_the_worker_in_order_of_time() -> None:
    samples = samples_of(RECORDS[::-1])
    assert samples.costs.tolist() == pytest.approx([1.0, 2.0, 0.1, 0.1])
    assert column(samples, "kv_hit_ratio") == [0.6, 0.0025, 1.0, 0.0]
    assert column(samples, "input_tokens") == [100, 200, 80, 0]
    assert column(samples, "uncached_tokens") == [40, 200, 0, 0]
    assert column(samples, "inflight") == [0, 1, 3, 0]
    assert column(samples, "prefill_tokens") == [30] * 4
    assert column(samples, "decode_tokens") == [300] * 4
    assert samples.missing == ("running", "waiting", "kv_usage")
    for name in samples.missing:
        assert not any(column(samples, name))


def test_the_half_that_decodes_is_no_sample() -> None:
    pair = [replace(RECORDS[0], part="prefill"), replace(RECORDS[1], part="decode")]
    assert samples_of(pair).costs.tolist() == [1.0]


# === Lodestar's tables ===

HEAD = ["kv_hit_ratio", "inflight_requests", "gpu_kv_cache", "running_requests", "waiting_requests"]
HEAD += ["prefill_tokens", "decode_tokens", "gpu_model"]


def table(path: Path, header: Sequence[str], *rows: Sequence[object]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_a_table_of_selected_workers_is_read_in_its_order(tmp_path: Path) -> None:
    rows = [75, 3, 0.5, 2, 1, 40, 900, "L20", 400, 250], [0, 1, 0, 0, 0, 0, 0, "A", 8, 9]
    path = table(tmp_path / "a.csv", [*HEAD, "input_tokens", "ttft"], *rows)
    samples = read_lodestar(path)
    assert samples.features.tolist() == [[0.75, 2, 1, 40, 900, 0.5, 400, 100, 3], [0, 0, 0, 0, 0, 0, 8, 8, 1]]
    assert (samples.gpus, samples.costs.round(3).tolist()) == (["L20", "A"], pytest.approx([0.25, 0.009]))


def test_a_table_of_all_workers_is_read_by_time_and_selected_worker(tmp_path: Path) -> None:
    header = ["selected_pod", "request_start_time", "input_tokens", "ttft"]
    header += [f"pod_{pod}-{name}" for pod in ("10_0", "10_1") for name in HEAD]
    cold, warm = [0, 9, 0, 9, 9, 9, 9, "A"], [50, 1, 0, 1, 0, 7, 8, "B"]
    path = table(tmp_path / "a.csv", header, ["10.1", 20, 10, 5, *cold, *warm], ["10.0", 10, 10, 6, *cold, *warm])
    samples = read_lodestar(path)
    assert (samples.gpus, samples.costs.round(4).tolist()) == (["A", "B"], pytest.approx([0.006, 0.005]))
    assert column(samples, "prefill_tokens") == [9, 7]


def test_other_tables_and_bad_lines_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no column decode_tokens, gpu_kv_cache"):
        read_lodestar(table(tmp_path / "a.csv", ["ttft", "input_tokens"]))
    header = [*HEAD, "input_tokens", "ttft"]
    path = table(tmp_path / "b.csv", header, [0, 1, 0, 0, 0, 0, 0, "A", 8, 9], [0, 1, "x", 0, 0, 0, 0, "A", 8, 9])
    with pytest.raises(ValueError, match=r"b\.csv:3: .*'x'"):
        read_lodestar(path)


# === figures ===


def bent(n: int, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    features = rng.random((n, len(FEATURES)), np.float32)
    return Samples(features, [None] * n, np.where(features[:, 0] > 0.5, features[:, 1], 0).astype(np.float32))


def test_figures_are_what_their_names_say() -> None:
    samples = bent(200, 1)
    scores = evaluate(samples, predictors=("mean", "trees"), splits=("time",), seeds=(3,))
    train, test = samples.take(range(160)), samples.take(range(160, 200))
    off = test.costs - train.costs.mean()
    mean = scores["mean", "time"]
    assert mean.rmse.mean == pytest.approx(np.sqrt(np.mean(off**2)), rel=1e-4)
    assert mean.mae.mean == pytest.approx(np.abs(off).mean(), rel=1e-4)
    assert (mean.spearman.mean, mean.rmse.std) == (0.0, 0.0)
    model = LearnedModel.fit(train.features, train.gpus, train.costs, kind="trees", holdout=0, seed=3)
    assert evaluate_model(test, model) == scores["trees", "time"]
    explained = 1 - scores["trees", "time"].rmse.mean ** 2 / test.costs.var()
    assert scores["trees", "time"].explained.mean == pytest.approx(explained, rel=1e-4)


def test_rank_correlation_shares_ranks_among_equals() -> None:
    features = np.zeros((6, len(FEATURES)), np.float32)
    features[:, 0] = [1, 2, 3, 4, 5, 6]
    model = LearnedModel.fit(features, None, features[:, 0], kind="linear", holdout=0)
    costs = np.array([1, 1, 2, 5, 4, 9], np.float32)
    # Ranks 1.5 1.5 3 5 4 6 against 1..6: 1 - 6 * 2.5 / 210 = 0.9286, and 0.9276 by Pearson, as ties demand.
    score = evaluate_model(Samples(features, [None] * 6, costs), model)
    ranks = np.array([1.5, 1.5, 3, 5, 4, 6])
    assert score.spearman.mean == pytest.approx(np.corrcoef(ranks, features[:, 0])[0, 1])


def test_unknown_names_and_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown forest; there are mean, linear"):
        evaluate(bent(20, 1), predictors=("forest",))
    with pytest.raises(ValueError, match="needs 5 samples"):
        evaluate(bent(4, 1))


# === the command ===


def log(path: Path) -> Path:
    with cachelb.Router(["gpu0", "gpu1"]) as router:
        router.attach(JsonlRecords(path))
        for at in range(40):
            decision = router.select_worker(tokens=range(16 * (1 + at % 7)))
            decision.on_first_token()
            decision.on_complete()
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["learn", *arguments])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def test_a_model_is_trained_on_decision_records_and_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, model = str(log(tmp_path / "decisions.jsonl")), str(tmp_path / "costs.model")
    status, out, _ = run(capsys, "fit", records, "-o", model, "--kind", "linear", "--model-version", "5")
    assert (status, "trained on 32 samples" in out) == (0, True)
    assert LearnedModel.load(model).version == 5
    assert "the log does not have running, waiting, kv_usage" in out
    predictors.main([records, "--seeds", "1", "--epochs", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "40 samples; 0 throughout: running, waiting, kv_usage"
    splits = product(("random", "time"), ("mean", "linear", "mlp", "trees"))
    assert [line.partition(":")[0] for line in lines[1:]] == [f"{split} {name}" for split, name in splits]


def test_what_cannot_be_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    good = str(log(tmp_path / "decisions.jsonl"))
    other = table(tmp_path / "a.csv", ["ttft"])
    for said, *words in [
        ("none.jsonl", tmp_path / "none.jsonl", "-o", tmp_path / "model"),
        ("holds no request with a time to the first token", empty, "-o", tmp_path / "model"),
        ("is no table of Lodestar", other, "-o", tmp_path / "model"),
        ("No such file", good, "-o", tmp_path / "no" / "folder"),
    ]:
        status, _, err = run(capsys, "fit", *map(str, words))
        assert status != 0
        assert str(said) in err


# === published data ===


@pytest.mark.parametrize(("file", "rows", "best"), [(COMP, 3242, 0.7), (P2048, 1199, 0.5)])
def test_published_latencies_are_predicted_better_than_by_a_line(
    traces: Path, file: str, rows: int, best: float
) -> None:
    samples = read_lodestar(traces / "lodestar" / file)
    assert (len(samples), set(samples.gpus)) == (rows, {"NVIDIA-L20"})
    scores = evaluate(samples, splits=("random",), seeds=range(2))
    rmse = {name: score.rmse.mean for (name, _), score in scores.items()}
    assert rmse["trees"] < rmse["linear"] < rmse["mean"]
    assert scores["trees", "random"].explained.mean > best
    assert scores["mlp", "random"].spearman.mean > 0.5
