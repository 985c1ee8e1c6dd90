//! What rules that learn tell of themselves, as plain Python values.

use cachelb_learned::LearnedStats;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::items::set_items;

/// The fields of `cachelb.types.LearnedStats`.
pub fn stats_dict<'py>(
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
