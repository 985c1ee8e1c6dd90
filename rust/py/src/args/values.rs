//! Numbers, flags, texts and items: every argument that is not a row of words is read here.
//!
//! A value of the wrong type is a `TypeError`, any other value that is not accepted a `ValueError`, and both name the
//! argument. `bool` is no number. An iterable is read to a stated length and no further.

use std::fmt::Display;
use std::ops::RangeInclusive;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyIterator, PyString};

use super::{text, type_name};

/// Token ids or block hashes of one argument: longer than any context.
pub(crate) const MAX_WORDS: usize = 1 << 24;
/// Workers, requests or other objects of one argument.
pub(crate) const MAX_ITEMS: usize = 1 << 20;
/// Characters of a value that a message shows.
const SHOWN: usize = 80;

pub(crate) use cachelb_policy::Range;

/// A whole number in a range.
pub(crate) fn integer<'py, T>(
    value: &Bound<'py, PyAny>,
    name: &str,
    range: RangeInclusive<T>,
) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr> + PartialOrd + Display,
{
    if value.is_instance_of::<PyBool>() {
        return Err(wrong_type(value, name, "int"));
    }
    match value.extract::<T>() {
        Ok(number) if range.contains(&number) => Ok(number),
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
            Err(wrong_type(value, name, "int"))
        }
        Err(error) if !error.is_instance_of::<PyOverflowError>(value.py()) => Err(error),
        _ => Err(PyValueError::new_err(format!(
            "{name} must be from {} to {}, got {}",
            range.start(),
            range.end(),
            shown(value)
        ))),
    }
}

/// A whole number of a range that begins at 0 or more.
pub(crate) fn ranged(value: &Bound<'_, PyAny>, name: &str, low: u64, high: u64) -> PyResult<u64> {
    integer(value, name, low..=high)
}

/// A real number in a range: all that converts to float, except bool.
#[inline(never)]
pub(crate) fn number(
    value: &Bound<'_, PyAny>,
    name: &str,
    (expected, accepts): Range,
) -> PyResult<f64> {
    let read = value.extract::<f64>();
    let of_wrong_type = |error: &PyErr| error.is_instance_of::<PyTypeError>(value.py());
    if value.is_instance_of::<PyBool>() || read.as_ref().is_err_and(of_wrong_type) {
        return Err(wrong_type(value, name, "a number"));
    }
    read.ok().filter(|v| accepts(*v)).ok_or_else(|| {
        PyValueError::new_err(format!("{name} must be {expected}, got {}", shown(value)))
    })
}

/// A real number in a range, or nothing.
pub(crate) fn number_or_none(
    value: Option<&Bound<'_, PyAny>>,
    name: &str,
    range: Range,
) -> PyResult<Option<f64>> {
    value.map(|value| number(value, name, range)).transpose()
}

/// True or False, nothing that merely counts as either.
pub(crate) fn flag(value: &Bound<'_, PyAny>, name: &str) -> PyResult<bool> {
    let flag = value.cast::<PyBool>();
    flag.map(PyBoolMethods::is_true)
        .map_err(|_| wrong_type(value, name, "bool"))
}

/// A `str` as it is.
pub(crate) fn string<'a, 'py>(
    value: &'a Bound<'py, PyAny>,
    name: &str,
) -> PyResult<&'a Bound<'py, PyString>> {
    value
        .cast::<PyString>()
        .map_err(|_| wrong_type(value, name, "str"))
}

/// The words of a choice, as a message has them.
pub(crate) fn quoted(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    quoted.join(", ")
}

/// The value of the choice called `given`.
pub(crate) fn chosen<T: Copy>(
    given: &str,
    name: &str,
    choices: &[(&'static str, T)],
) -> PyResult<T> {
    let found = choices.iter().find(|(word, _)| *word == given);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let expected = expected(choices);
        PyValueError::new_err(format!("{name} must be {expected}, got {given:?}"))
    })
}

/// As [`chosen`], by a value of any type.
pub(crate) fn choice<T: Copy>(
    value: &Bound<'_, PyAny>,
    name: &str,
    choices: &[(&'static str, T)],
) -> PyResult<T> {
    if !value.is_instance_of::<PyString>() {
        return Err(wrong_type(value, name, &expected(choices)));
    }
    chosen(text(value, name)?, name, choices)
}

fn expected<T>(choices: &[(&'static str, T)]) -> String {
    let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
    format!("one of {}", quoted(&words))
}

/// Error for an argument of a wrong type.
pub(crate) fn wrong_type(value: &Bound<'_, PyAny>, name: &str, expected: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "{name} must be {expected}, got {}",
        type_name(value)
    ))
}

/// The items of something that can be iterated; one more than `most` is an error.
pub(crate) struct Items<'a, 'py> {
    iterator: Bound<'py, PyIterator>,
    name: &'a str,
    left: usize,
    most: usize,
}

impl<'a, 'py> Items<'a, 'py> {
    pub(crate) fn of(
        value: &Bound<'py, PyAny>,
        name: &'a str,
        expected: &str,
        most: usize,
    ) -> PyResult<Self> {
        let iterator = value
            .try_iter()
            .map_err(|_| wrong_type(value, name, expected))?;
        Ok(Self {
            iterator,
            name,
            left: most,
            most,
        })
    }
}

impl<'py> Iterator for Items<'_, 'py> {
    type Item = PyResult<Bound<'py, PyAny>>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.iterator.next()?;
        if self.left == 0 {
            return Some(Err(too_many(self.name, self.most)));
        }
        self.left -= 1;
        Some(item)
    }
}

/// An argument has more than `most` items.
#[cold]
pub(crate) fn too_many(name: &str, most: usize) -> PyErr {
    PyValueError::new_err(format!("{name} must have {most} items at most, got more"))
}

/// A value for a message. Python refuses to print very large numbers.
pub(super) fn shown(value: &Bound<'_, PyAny>) -> String {
    let text = value.str().map(|text| text.to_string_lossy().into_owned());
    text.ok()
        .filter(|text| text.len() <= SHOWN)
        .unwrap_or_else(|| "a huge number".to_owned())
}

/// Nothing, or what `read` makes of a value.
fn or_none<'a, 'py, T>(
    value: &'a Bound<'py, PyAny>,
    read: impl FnOnce(&'a Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Option<T>> {
    (!value.is_none()).then(|| read(value)).transpose()
}

/// Readers for signatures, where errors are to have the argument's name: `from_py_with` gives them only the value.
pub(crate) mod named {
    use cachelb_core::hashing::MAX_BLOCK_SIZE;
    use cachelb_core::radix_tree::MAX_PAGE_SIZE;
    use pyo3::prelude::*;

    use super::{MAX_WORDS, Range, flag, integer, number, or_none};
    use crate::args::text;

    const SECONDS: Range = ("a number of seconds", |_| true);

    /// A number as what reads it next checks it: in single precision.
    fn single(value: &Bound<'_, PyAny>, name: &str) -> PyResult<f32> {
        number(value, name, ("a number", |_| true)).map(|value| value as f32)
    }

    macro_rules! readers {
        ($($name:ident: $type:ty = $read:expr;)*) => {
            $(#[allow(clippy::needless_lifetimes, reason = "those of texts need it")]
            pub(crate) fn $name<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<$type> {
                let name = stringify!($name).trim_end_matches("_or_none");
                $read(value, name)
            })*
        };
    }

    readers! {
        worker: &'a str = text;
        worker_or_none: Option<&'a str> = |value, name| or_none(value, |value| text(value, name));
        hashing: &'a str = text;
        matcher: &'a str = text;
        scheme: &'a str = text;
        medium: &'a str = text;
        medium_or_none: Option<&'a str> = |value, name| or_none(value, |value| text(value, name));
        lora_or_none: Option<&'a str> = |value, name| or_none(value, |value| text(value, name));
        salt_or_none: Option<&'a str> = |value, name| or_none(value, |value| text(value, name));
        session: &'a str = text;
        kind: &'a str = text;
        feature_set: &'a str = text;
        name: &'a str = text;
        model_or_none: Option<&'a str> = |value, name| or_none(value, |value| text(value, name));
        part: &'a str = text;
        dry_run: bool = flag;
        by_load: bool = flag;
        drain: bool = flag;
        ready: bool = flag;
        answered: bool = flag;
        restarted: bool = flag;
        remote: bool = flag;
        block_size: usize = |value, name| integer(value, name, 1..=MAX_BLOCK_SIZE);
        chunk_bytes: usize = |value, name| integer(value, name, 1..=4 * MAX_BLOCK_SIZE);
        page_size: usize = |value, name| integer(value, name, 1..=MAX_PAGE_SIZE);
        max_blocks_per_worker: u32 = |value, name| integer(value, name, 1..=u32::MAX);
        max_blocks: u64 = |value, name| integer(value, name, 0..=u64::MAX);
        min_units: u64 = |value, name| integer(value, name, 0..=u64::MAX);
        seed: u64 = |value, name| integer(value, name, 0..=u64::MAX);
        seed_or_none: Option<u64> = |value, name| or_none(value, |value| integer(value, name, 0..=u64::MAX));
        version: u64 = |value, name| integer(value, name, 0..=u64::MAX);
        priority: i64 = |value, name| integer(value, name, i64::MIN..=i64::MAX);
        epochs: u32 = |value, name| integer(value, name, 1..=u32::MAX);
        batch: usize = |value, name| integer(value, name, 1..=MAX_WORDS);
        rate: f32 = single;
        weight_decay: f32 = single;
        clip: f32 = single;
        dropout: f32 = single;
        holdout: f32 = single;
        cursor: u64 = |value, name| integer(value, name, 0..=u64::MAX);
        limit: usize = |value, name| integer(value, name, 0..=usize::MAX);
        ttl_s_or_none: Option<f64> = |value, name| or_none(value, |value| number(value, name, SECONDS));
        at_or_none: Option<f64> = |value, name| or_none(value, |value| number(value, name, SECONDS));
    }
}
