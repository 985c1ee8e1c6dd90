//! Which ranks of a worker sleep, from Python.

use cachelb::selector::Sleep;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::args::ranged;
use crate::options::word;

fn state(value: &Bound<'_, PyAny>) -> PyResult<Sleep> {
    let name = word(&Sleep::ALL.map(Sleep::name), "sleep", value)?;
    Ok(Sleep::named(name).unwrap_or_default())
}

/// The states of as many ranks, `None` for those that are not named. A single candidate of several engines computes as
/// long as one of them does.
pub fn of(given: &Bound<'_, PyAny>, ranks: usize) -> PyResult<Vec<Option<Sleep>>> {
    let Ok(by_rank) = given.cast::<PyDict>() else {
        return Ok(vec![Some(state(given)?); ranks]);
    };
    let mut states = vec![None; ranks];
    for (rank, value) in by_rank {
        let (rank, state) = (
            ranged(&rank, "a rank of sleep", 0, u64::from(u32::MAX))?,
            state(&value)?,
        );
        let at = if ranks == 1 { 0 } else { rank as usize };
        if let Some(known) = states.get_mut(at) {
            *known = known.map_or(Some(state), |other: Sleep| Some(other.min(state)));
        }
    }
    Ok(states)
}
