//! The headers that count, from whatever form a web framework has them in.

use cachelb_body::{Clues, is_read};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::args::{Items, MAX_ITEMS, type_name};

/// vLLM's own priority, which outranks that of the body.
const PRIORITY: &str = "x-vllm-priority";
const ENCODING: &str = "content-encoding";
/// What the gateway names a session by.
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
        // The message classes of the standard library have items() but are no mapping.
        let pairs = match given.getattr_opt(intern!(given.py(), "items"))? {
            Some(items) => items.call0()?,
            None => given.clone(),
        };
        let mut found = Self::default();
        for pair in Items::of(&pairs, "headers", "a mapping or pairs", MAX_ITEMS)? {
            let pair = pair?;
            let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) =
                pair.extract().map_err(|_| wrong(&pair))?;
            let name = text(&name)?.to_ascii_lowercase();
            let value = text(&value)?;
            if own.contains(&name) {
                found.0.push((OWN.to_owned(), value));
            } else if is_read(&name) || name == PRIORITY || name == ENCODING {
                found.0.push((name, value));
            }
        }
        Ok(found)
    }

    /// What they say of the conversation.
    pub fn clues(&self) -> Clues<'_> {
        let mut clues = Clues::default();
        for (name, value) in &self.0 {
            clues.note(name, value);
        }
        clues
    }

    /// Priority, the lower first.
    pub fn priority(&self) -> Option<i64> {
        self.get(PRIORITY)?.parse().ok()
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

/// Text, or bytes as HTTP has them.
fn text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_string_lossy().into_owned());
    }
    match value.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes
            .as_bytes()
            .iter()
            .map(|byte| char::from(*byte))
            .collect()),
        Err(_) => Err(wrong(value)),
    }
}

fn wrong(found: &Bound<'_, PyAny>) -> PyErr {
    let found = type_name(found);
    PyTypeError::new_err(format!(
        "headers must be a mapping or pairs of str or bytes, got {found}"
    ))
}
