//! The headers that count, from whatever form a web framework has them in.

use std::borrow::Cow;

use cachelb_body::{Clues, is_read};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::args::{Items, MAX_ITEMS, type_name};

/// Priorities, which outrank that of the body: the first that is there, and whether it serves the higher first.
const PRIORITIES: [(&str, bool); 3] = [
    ("x-vllm-priority", false),
    ("x-dynamo-request-priority", true),
    ("x-litellm-priority", false),
];
const ENCODING: &str = "content-encoding";
/// Key of a session that the gateway named.
const OWN: &str = "/cachelb/session";

/// Headers by their names in lower case.
#[derive(Debug, Default)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// Reads a mapping, or pairs of str or bytes. `own` are names of the gateway's that hold a session.
    pub fn read(given: &Bound<'_, PyAny>, own: &[String]) -> PyResult<Self> {
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
        let mut found = Self::default();
        for pair in Items::of(&pairs, "headers", "a mapping or pairs", MAX_ITEMS)? {
            let (key, value) = pair_of(&pair?)?;
            found.note(&text(&key)?, &text(&value)?, own);
        }
        Ok(found)
    }

    /// As [`Self::read`], for pairs of texts.
    pub fn of<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>, own: &[String]) -> Self {
        let mut found = Self::default();
        for (name, value) in pairs {
            found.note(name, value, own);
        }
        found
    }

    fn note(&mut self, name: &str, value: &str, own: &[String]) {
        let name = if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            Cow::Owned(name.to_ascii_lowercase())
        } else {
            Cow::Borrowed(name)
        };
        if own.iter().any(|own| *own == name) {
            self.0.push((OWN.to_owned(), value.to_owned()));
        } else if is_read(&name) || is_priority(&name) || name == ENCODING {
            self.0.push((name.into_owned(), value.to_owned()));
        }
    }

    /// Clues to the conversation in them.
    pub fn clues(&self) -> Clues<'_> {
        let mut clues = Clues::default();
        for (name, value) in &self.0 {
            clues.note(name, value);
        }
        clues
    }

    /// Priority, the lower first.
    pub fn priority(&self) -> Option<i64> {
        PRIORITIES.iter().find_map(|(name, higher_first)| {
            let given: i64 = self.get(name)?.parse().ok()?;
            if *higher_first {
                given.checked_neg()
            } else {
                Some(given)
            }
        })
    }

    /// Whether the body is compressed.
    pub fn is_encoded(&self) -> bool {
        let encoding = self.get(ENCODING);
        encoding.is_some_and(|encoding| {
            !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity")
        })
    }

    fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(known, _)| known == name)?;
        Some(value.trim())
    }
}

fn is_priority(name: &str) -> bool {
    PRIORITIES.iter().any(|(known, _)| *known == name)
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
    let found = type_name(found);
    PyTypeError::new_err(format!(
        "headers must be a mapping or pairs of str or bytes, got {found}"
    ))
}
