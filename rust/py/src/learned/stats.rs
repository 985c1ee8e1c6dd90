//! Statistics of rules that learn, as plain Python values.

use cachelb::selector::PoolId;
use cachelb_learned::LearnedStats;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::engine::Engine;
use crate::items::set_items;

/// Statistics of the learning rules of all models.
pub fn learned<'py>(
    py: Python<'py>,
    engine: &Engine,
    model: impl Fn(PoolId) -> Option<String>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let all = engine.locked(py, |selector| selector.pools().learned())?;
    let fields = |(pool, part, stats)| stats_dict(py, model(pool).as_deref(), part, &stats);
    all.into_iter().map(fields).collect()
}

/// The fields of `cachelb.types.LearnedStats`.
fn stats_dict<'py>(
    py: Python<'py>,
    model: Option<&str>,
    part: &str,
    stats: &LearnedStats,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let dropped = [
        ("missing", stats.dropped.missing),
        ("negative", stats.dropped.negative),
        ("absurd", stats.dropped.absurd),
        ("not-finite", stats.dropped.not_finite),
    ];
    let rounds = [
        ("swapped", stats.rounds),
        ("refused", stats.refused),
        ("failed", stats.failed),
    ];
    dict.set_item("model", model)?;
    dict.set_item("part", part)?;
    dict.set_item("dropped", dropped.into_py_dict(py)?)?;
    dict.set_item("rounds", rounds.into_py_dict(py)?)?;
    set_items!(dict, stats => version, samples, pooled, pending, training, round_s, rmse, mae, mean_rmse, mean_mae, drift, drifting);
    let decisions = stats.decisions.iter().filter(|(_, count)| *count > 0);
    dict.set_item("decisions", decisions.copied().into_py_dict(py)?)?;
    Ok(dict)
}
