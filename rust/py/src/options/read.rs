//! Reading one option: type, range, choice, each named in its error.
//!
//! Nothing here is inlined: options are read once a router, in a hundred places.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::args::{Range, choice, flag, number, ranged, text};

pub use cachelb_policy::{ABOVE_ZERO, AT_LEAST_ONE, FRACTION, NOT_NEGATIVE, millis};

/// Settings in a dictionary that the Python half made.
pub struct Options<'a, 'py>(pub &'a Bound<'py, PyDict>);

impl<'py> Options<'_, 'py> {
    /// An option that must be there.
    #[inline(never)]
    pub fn required(&self, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.0
            .get_item(name)?
            .ok_or_else(|| PyTypeError::new_err(format!("option {name} is missing")))
    }

    /// An option whose value may be None.
    #[inline(never)]
    pub fn optional(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(Some(self.required(name)?).filter(|value| !value.is_none()))
    }

    /// As `read` reads it, unless it is None.
    pub fn or_none<T>(
        &self,
        name: &str,
        read: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<T>,
    ) -> PyResult<Option<T>> {
        self.optional(name)?.map(|value| read(&value)).transpose()
    }

    /// A text, or None.
    #[inline(never)]
    pub fn text_or_none(&self, name: &str) -> PyResult<Option<String>> {
        self.or_none(name, |value| text(value, name).map(str::to_owned))
    }

    /// A number in a range, or None.
    #[inline(never)]
    pub fn number_or_none(&self, name: &str, range: Range) -> PyResult<Option<f64>> {
        self.or_none(name, |value| number(value, name, range))
    }

    /// A whole number in a range.
    #[inline(never)]
    pub fn integer(&self, name: &str, low: u64, high: u64) -> PyResult<u64> {
        ranged(&self.required(name)?, name, low, high)
    }

    /// A number in a range.
    #[inline(never)]
    pub fn number(&self, name: &str, range: Range) -> PyResult<f64> {
        number(&self.required(name)?, name, range)
    }

    /// True or False, nothing that merely counts as either.
    #[inline(never)]
    pub fn flag(&self, name: &str) -> PyResult<bool> {
        flag(&self.required(name)?, name)
    }

    /// One of the names of `choices`.
    pub fn choice<T: Copy>(&self, name: &str, choices: &[(&'static str, T)]) -> PyResult<T> {
        choice(&self.required(name)?, name, choices)
    }
}
