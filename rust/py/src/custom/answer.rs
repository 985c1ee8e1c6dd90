//! Reads what `choose` returned.

use cachelb_policy::Reason;
use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString, PyTuple};

use crate::args::{self, type_name};

/// A row out of `rows`, at least one, and why: from an int, or from an int and a reason.
pub fn read_answer(answer: &Bound<'_, PyAny>, rows: usize) -> PyResult<(usize, Reason)> {
    match answer.cast::<PyTuple>() {
        Ok(pair) if pair.len() == 2 => {
            let reason = reason(&pair.get_item(1)?)?;
            Ok((row(&pair.get_item(0)?, rows)?, reason))
        }
        _ => Ok((row(answer, rows)?, Reason::Custom)),
    }
}

fn reason(given: &Bound<'_, PyAny>) -> PyResult<Reason> {
    if !given.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!(
            "choose() must give its reason as str, got {}",
            type_name(given)
        )));
    }
    let text = args::text(given, "the reason that choose() gives")?;
    Reason::named(text).ok_or_else(|| {
        PyValueError::new_err(format!(
            "choose() gave {text:?}, which is no reason; cachelb.types.Reason has them"
        ))
    })
}

/// Anything with `__index__`, as numpy's integers have, but not a bool: that is a comparison that was not finished.
fn row(given: &Bound<'_, PyAny>, rows: usize) -> PyResult<usize> {
    let py = given.py();
    if given.is_instance_of::<PyBool>() || !given.hasattr(intern!(py, "__index__"))? {
        return Err(PyTypeError::new_err(format!(
            "choose() must return an int, or an int and a reason, got {}",
            type_name(given)
        )));
    }
    match given.extract::<usize>() {
        Ok(row) if row < rows => Ok(row),
        Err(error) if !error.is_instance_of::<PyOverflowError>(py) => Err(error),
        _ => Err(PyIndexError::new_err(format!(
            "choose() must return a candidate from 0 to {}, got {}",
            rows - 1,
            given.str()?
        ))),
    }
}
