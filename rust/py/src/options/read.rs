//! Reading one option: type, range, choice, each named in its error.
//!
//! Nothing here is inlined: options are read once a router, in a hundred places.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::args::{Range, flag, number, ranged, text, wrong_type};

/// Seconds that are positive and finite, in milliseconds: what is longer than [`LONGEST_S`] lasts that long.
pub fn millis(seconds: f64) -> u64 {
    #[expect(clippy::cast_sign_loss, reason = "checked to be positive")]
    let millis = (seconds.min(LONGEST_S) * 1000.0).ceil() as u64;
    millis
}

/// Over 30,000 years: no sum of two times overflows.
pub const LONGEST_S: f64 = 1e12;

pub const FRACTION: Range = ("between 0 and 1", |v| (0.0..=1.0).contains(&v));
pub const NOT_NEGATIVE: Range = ("a finite number, 0 or more", |v| v.is_finite() && v >= 0.0);
pub const ABOVE_ZERO: Range = ("a finite number above 0", |v| v.is_finite() && v > 0.0);
pub const AT_LEAST_ONE: Range = ("a finite number, 1 or more", |v| v.is_finite() && v >= 1.0);

/// The keyword options of one policy.
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

    /// Routers that share the fleet: each sees its part of the load, so absolute margins are divided by it.
    pub fn replicas(&self) -> PyResult<f64> {
        if self.0.contains("replicas")? {
            Ok(self.integer("replicas", 1, u64::from(u32::MAX))? as f64)
        } else {
            Ok(1.0)
        }
    }

    /// As [`Options::choice`], for an option only some policies have.
    pub fn choice_or<T: Copy>(&self, name: &str, choices: &[(&str, T)], default: T) -> PyResult<T> {
        if self.0.contains(name)? {
            self.choice(name, choices)
        } else {
            Ok(default)
        }
    }

    /// One of the names of `choices`.
    pub fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> PyResult<T> {
        let value = self.required(name)?;
        let accepted = || {
            let names: Vec<String> = choices
                .iter()
                .map(|(name, _)| format!("{name:?}"))
                .collect();
            names.join(", ")
        };
        if !value.is_instance_of::<PyString>() {
            let expected = format!("one of {}", accepted());
            return Err(wrong_type(&value, name, &expected));
        }
        let text = text(&value, name)?;
        let found = choices
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, choice)| *choice);
        found.ok_or_else(|| {
            PyValueError::new_err(format!(
                "{name} must be one of {}, got {text:?}",
                accepted()
            ))
        })
    }
}
