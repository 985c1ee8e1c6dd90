//! Monotonic time: the caller's clock or the process's own.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use cachelb_core::ids::Millis;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::args::type_name;

/// A source of monotonic seconds.
#[derive(Debug)]
pub struct Clock {
    callable: Option<Py<PyAny>>,
    /// Latest value of the callable.
    last: AtomicU64,
}

impl Clock {
    /// The clock `callable`, or the native one.
    pub(crate) fn new(callable: Option<Bound<'_, PyAny>>) -> PyResult<Self> {
        match callable {
            Some(callable) if !callable.is_callable() => Err(PyTypeError::new_err(format!(
                "clock must be callable and return seconds, got {}",
                type_name(&callable)
            ))),
            callable => Ok(Self {
                callable: callable.map(Bound::unbind),
                last: AtomicU64::new(0),
            }),
        }
    }

    /// The time now. Runs Python code if the caller gave a clock.
    pub(crate) fn now(&self, py: Python<'_>) -> PyResult<Millis> {
        let Some(clock) = &self.callable else {
            return Ok(native());
        };
        let told = clock.bind(py).call0()?;
        let seconds: f64 = told.extract().map_err(|_| {
            PyTypeError::new_err(format!(
                "clock must return seconds, got {}",
                type_name(&told)
            ))
        })?;
        if !(0.0..=MAX_SECONDS).contains(&seconds) {
            return Err(PyValueError::new_err(format!(
                "clock must return seconds from 0 to {MAX_SECONDS}, got {seconds}"
            )));
        }
        let now = millis((seconds * 1000.0).floor());
        self.last.store(now.0, Ordering::Relaxed);
        Ok(now)
    }

    /// The time now without running Python code: that of the latest [`Clock::now`] if the caller gave a clock.
    pub(crate) fn last(&self) -> Millis {
        match &self.callable {
            Some(_) => Millis(self.last.load(Ordering::Relaxed)),
            None => native(),
        }
    }

    /// Whether it is the process's own.
    pub(crate) fn is_native(&self) -> bool {
        self.callable.is_none()
    }

    /// When an entry made now ends.
    pub(crate) fn after(&self, py: Python<'_>, ttl_s: f64) -> PyResult<Millis> {
        if !(ttl_s > 0.0 && ttl_s <= MAX_SECONDS) {
            return Err(PyValueError::new_err(format!(
                "ttl_s must be more than 0 and at most {MAX_SECONDS} seconds, got {ttl_s}"
            )));
        }
        Ok(Millis(
            self.now(py)?.0 + millis((ttl_s * 1000.0).round_ties_even()).0,
        ))
    }

    /// Shows the collector the callable.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.callable)
    }
}

fn native() -> Millis {
    static START: OnceLock<Instant> = OnceLock::new();
    Millis(START.get_or_init(Instant::now).elapsed().as_millis() as u64)
}

/// Over 30,000 years: sums of two stay exact.
const MAX_SECONDS: f64 = 1e12;

#[allow(clippy::cast_sign_loss, reason = "callers pass 0 to 1e15")]
fn millis(value: f64) -> Millis {
    Millis(value as u64)
}
