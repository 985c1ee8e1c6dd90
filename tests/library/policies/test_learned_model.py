"""`cachelb.learned.LearnedModel` against plain matrices, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.models.learned_network import NaiveModel

from cachelb.errors import SnapshotError
from cachelb.learned import FEATURES, LearnedModel

GPUS = ["A100", "H100", None]
KINDS = ["mlp", "linear", "trees"]
SCALES = np.array([1, 40, 10, 8e3, 2e5, 1, 8e3, 8e3, 40], np.float32)


def samples(n: int, seed: int) -> tuple[NDArray[np.float32], list[str | None], NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    shares = rng.random((n, len(FEATURES)), np.float32)
    costs = 0.1 + shares[:, 0] * shares[:, 1] + np.where(shares[:, 2] > 0.5, shares[:, 3] ** 2, 0)
    return shares * SCALES, [GPUS[at] for at in rng.integers(0, 3, n)], costs.astype(np.float32)


def fit(n: int = 400, seed: int = 1, **settings: Any) -> LearnedModel:
    return LearnedModel.fit(*samples(n, seed), seed=seed, **settings)


@pytest.mark.parametrize("feature_set", ["extended", "paper"])
def test_forward_pass_is_that_of_plain_matrices(feature_set: str) -> None:
    model = fit(feature_set=feature_set)
    naive = NaiveModel.from_bytes(model.to_bytes())
    features, gpus, _ = samples(300, 2)
    for rows in (1, 5, 32, 33, 300):
        costs = model.predict(features[:rows], gpus[:rows])
        np.testing.assert_allclose(costs, naive.predict(features[:rows], gpus[:rows]), rtol=1e-4, atol=1e-5)


def test_normaliser_is_that_of_the_samples() -> None:
    features, _, costs = samples(500, 3)
    mean, std = fit(500, 3, holdout=0, kind="linear").normaliser
    np.testing.assert_allclose(mean, features.mean(0), rtol=1e-5)
    np.testing.assert_allclose(std, features.std(0), rtol=1e-5)
    naive = NaiveModel.from_bytes(fit(500, 3, holdout=0, epochs=1).to_bytes())
    np.testing.assert_array_equal(naive.low, features.min(0))
    np.testing.assert_array_equal(naive.high, features.max(0))
    assert naive.cost == pytest.approx((costs.mean(), costs.std()), rel=1e-5)


MODEL = fit(60, 4, epochs=1)
NAIVE = NaiveModel.from_bytes(MODEL.to_bytes())


@given(
    st.lists(st.floats(-0.5, 1.5, width=32), min_size=len(FEATURES), max_size=len(FEATURES)),
    st.sampled_from([*GPUS, "B200"]),
    st.integers(-1, len(FEATURES) - 1),
    st.booleans(),
)
def test_rows_outside_what_was_seen_are_told(shares: list[float], gpu: str | None, edge: int, at_top: bool) -> None:
    row = np.clip(np.array(shares, np.float32), 0.1, 0.9 if at_top else 1.1) * SCALES
    if edge >= 0:
        row[edge] = (NAIVE.high if at_top else NAIVE.low)[edge]
    assert MODEL.outside(row[None], [gpu]) == [NAIVE.outside(row, gpu, FEATURES)]


def test_a_device_without_samples_is_outside() -> None:
    features, _, costs = samples(50, 5)
    model = LearnedModel.fit(features, ["H100"] * 50, costs, kind="linear")
    assert model.gpus == ["H100"]
    assert model.outside(features[:3], ["H100", "A100", None]) == [None, "gpu", "gpu"]
    np.testing.assert_array_equal(model.predict(features[:1], ["A100"]), model.predict(features[:1]))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_give_equal_models_and_files_give_them_back(kind: str, tmp_path: Path) -> None:
    model = fit(kind=kind, version=7)
    assert fit(kind=kind, version=7).to_bytes() == model.to_bytes()
    model.save(tmp_path / "a.model")
    assert [path.name for path in tmp_path.iterdir()] == ["a.model"]
    loaded = LearnedModel.load(tmp_path / "a.model")
    assert (loaded.version, loaded.kind, loaded.gpus, loaded.errors) == (7, kind, ["A100", "H100"], model.errors)
    features, gpus, _ = samples(20, 6)
    np.testing.assert_array_equal(loaded.predict(features, gpus), model.predict(features, gpus))


def test_errors_are_those_of_what_was_held_out() -> None:
    errors = fit(500, kind="linear").errors
    assert (errors["n_train"], errors["n_holdout"]) == (400, 100)
    features, gpus, costs = samples(500, 1)
    model = fit(500, kind="linear", holdout=0)
    off = model.predict(features, gpus) - costs
    assert model.errors["rmse"] == pytest.approx(np.sqrt(np.mean(off**2)), rel=1e-4)
    assert model.errors["mae"] == pytest.approx(np.abs(off).mean(), rel=1e-4)
    assert model.errors["mean_rmse"] == pytest.approx(costs.std(), rel=1e-4)
    assert model.errors["n_holdout"] == 0


def test_columns_may_come_by_name_and_in_any_type() -> None:
    features, gpus, costs = samples(40, 7)
    model = LearnedModel.fit(features, gpus, costs, kind="linear")
    named = {name: features[:, at].astype(float).tolist() for at, name in enumerate(FEATURES)}
    np.testing.assert_array_equal(model.predict(named, gpus), model.predict(features, gpus))
    np.testing.assert_array_equal(model.predict(features[::2].astype(float)), model.predict(features)[::2])
    paper = LearnedModel.fit(features[:, :7], None, costs, kind="linear", feature_set="paper")
    np.testing.assert_array_equal(paper.predict(features), paper.predict(features[:, :7]))
    assert model.predict(np.zeros((0, 9))).shape == (0,)


def wrong(**change: Any) -> dict[str, Any]:
    features, gpus, costs = samples(10, 8)
    return {"features": features, "gpus": gpus, "costs": costs} | change


BAD = np.full((10, 9), np.nan)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (wrong(features=BAD), ValueError, "samples must be finite numbers, got NaN in sample 0"),
        (wrong(costs=[np.inf] * 10), ValueError, "got inf in sample 0"),
        (wrong(costs=[1.0]), ValueError, "costs has 1 rows, features has 10"),
        (wrong(gpus=["H100"]), ValueError, "gpus has 1 names, features has 10 rows"),
        (wrong(gpus="H100"), TypeError, "got one str"),
        (wrong(gpus=[1] * 10), TypeError, "sequence of str or None"),
        (wrong(features=BAD[:, :3]), ValueError, r"got shape \[10, 3\]"),
        (wrong(features=[["a"] * 9] * 10), TypeError, "features must hold numbers"),
        (wrong(features={"queue": [1.0]}), ValueError, "no column 'queue'"),
        (wrong(features={"running": [1.0]}), ValueError, "lacks 'kv_hit_ratio'"),
        (wrong(kind="forest"), ValueError, 'kind must be one of "mlp", "linear", "trees", got "forest"'),
        (wrong(feature_set="all"), ValueError, 'feature_set must be one of "paper", "extended"'),
        (wrong(epochs=0), ValueError, "epochs must be from 1 to 4294967295, got 0"),
        (wrong(dropout=1.0), ValueError, "dropout must be at least 0 and below 1, got 1"),
        (wrong(rate=float("nan")), ValueError, "rate must be above 0 and finite, got NaN"),
    ],
)
def test_bad_samples_and_settings_are_refused(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LearnedModel.fit(**given)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError):
        LearnedModel.from_bytes(MODEL.to_bytes()[:-1])
    (tmp_path / "other").write_bytes(b"cachelb\0")
    with pytest.raises(SnapshotError, match="does not start like a model"):
        LearnedModel.load(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        LearnedModel.load(tmp_path / "none")
