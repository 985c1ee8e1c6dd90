//! Reading one option: type, range, choice, each named in its error.
//!
//! Nothing here is inlined: options are read once a router, in a hundred places.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};

use crate::args::{ranged, type_name};

/// Seconds that are positive and finite; beyond five hundred million years they saturate.
pub fn millis(seconds: f64) -> u64 {
    #[expect(clippy::cast_sign_loss, reason = "checked to be positive")]
    let millis = (seconds * 1000.0).ceil() as u64;
    millis
}

/// A range of numbers, in words and as a test.
pub type Range = (&'static str, fn(f64) -> bool);
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
        whole(name, &self.required(name)?, low, high)
    }

    /// A number in a range.
    #[inline(never)]
    pub fn number(&self, name: &str, range: Range) -> PyResult<f64> {
        number(name, &self.required(name)?, range)
    }

    /// True or False, nothing that merely counts as either.
    #[inline(never)]
    pub fn flag(&self, name: &str) -> PyResult<bool> {
        let value = self.required(name)?;
        let flag = value.cast::<PyBool>().map_err(|_| {
            PyTypeError::new_err(format!("{name} must be bool, not {}", type_name(&value)))
        })?;
        Ok(flag.is_true())
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
        let Ok(text) = value.cast::<PyString>() else {
            let text = format!(
                "{name} must be one of {}, not {}",
                accepted(),
                type_name(&value)
            );
            return Err(PyTypeError::new_err(text));
        };
        let text = text.to_str()?;
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

/// A whole number in a range; bool does not count.
#[inline(never)]
pub fn whole(name: &str, value: &Bound<'_, PyAny>, low: u64, high: u64) -> PyResult<u64> {
    if value.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!(
            "{name} must be int, got bool"
        )));
    }
    ranged(value, name, low, high)
}

/// A real number in a range; whatever converts to float counts, except bool.
#[inline(never)]
pub fn number(name: &str, value: &Bound<'_, PyAny>, (expected, accepts): Range) -> PyResult<f64> {
    let read = value.extract::<f64>();
    let wrong_type = |error: &PyErr| error.is_instance_of::<PyTypeError>(value.py());
    if value.is_instance_of::<PyBool>() || read.as_ref().is_err_and(wrong_type) {
        return Err(PyTypeError::new_err(format!(
            "{name} must be a number, not {}",
            type_name(value)
        )));
    }
    read.ok().filter(|v| accepts(*v)).ok_or_else(|| {
        let got = value
            .str()
            .map_or_else(|_| String::from("a huge number"), |text| text.to_string());
        PyValueError::new_err(format!("{name} must be {expected}, got {got}"))
    })
}
