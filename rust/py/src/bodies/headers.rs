//! The headers that count, from whatever form a web framework has them in.

use std::borrow::Cow;

use cachelb::selector::Headers;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::args::{Items, MAX_ITEMS, wrong_type};

/// Reads a mapping, or pairs of str or bytes. `own` are names of the gateway's that hold a session.
pub fn read(given: &Bound<'_, PyAny>, own: &[String]) -> PyResult<Headers> {
    if given.is_instance_of::<PyString>() || given.is_instance_of::<PyBytes>() {
        return Err(wrong(given));
    }
    let pairs = if let Ok(given) = given.cast_exact::<PyDict>() {
        given.items().into_any()
    } else if let Some(items) = given.getattr_opt(intern!(given.py(), "items"))? {
        // The message classes of the standard library have items() but are no mapping.
        items.call0()?
    } else {
        given.clone()
    };
    let mut found = Headers::default();
    for pair in Items::of(&pairs, "headers", "a mapping or pairs", MAX_ITEMS)? {
        let (key, value) = pair_of(&pair?)?;
        found.note(&text(&key)?, &text(&value)?, own);
    }
    Ok(found)
}

fn pair_of<'py>(pair: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    if let Ok(pair) = pair.cast::<PyTuple>()
        && pair.len() == 2
    {
        return Ok((pair.get_item(0)?, pair.get_item(1)?));
    }
    match pair.cast::<PyList>() {
        Ok(pair) if pair.len() == 2 => Ok((pair.get_item(0)?, pair.get_item(1)?)),
        _ => Err(wrong(pair)),
    }
}

/// Text, or bytes as HTTP has them.
fn text<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, str>> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_string_lossy());
    }
    let Ok(bytes) = value.cast::<PyBytes>() else {
        return Err(wrong(value));
    };
    let bytes = bytes.as_bytes();
    Ok(match std::str::from_utf8(bytes) {
        Ok(text) if text.is_ascii() => text.into(),
        _ => bytes
            .iter()
            .copied()
            .map(char::from)
            .collect::<String>()
            .into(),
    })
}

fn wrong(found: &Bound<'_, PyAny>) -> PyErr {
    let expected = "a mapping or pairs of str or bytes";
    wrong_type(found, "headers", expected)
}
