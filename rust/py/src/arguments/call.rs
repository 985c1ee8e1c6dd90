//! Prompt and hints in the arguments of a selection, and the workers tried for it.

use std::sync::Arc;

use cachelb::selector::{Hints, LONG, Model, Prompt, PromptReader, Scales};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::args;
use crate::args::unlocked;
use crate::arguments::Call;
use crate::arguments::prompt::{self, Scratch};
use crate::structures::hashing::objects;

/// An argument that is a text.
pub fn text<'py>(
    py: Python<'py>,
    name: &str,
    value: Option<&'py Py<PyString>>,
) -> PyResult<Option<&'py str>> {
    value
        .map(|text| args::text(text.bind(py), name))
        .transpose()
}

impl Call {
    /// Fields beside the prompt; those of the caller come first.
    pub fn hints<'a>(&'a self, py: Python<'a>) -> PyResult<Hints<'a>> {
        let read = Hints::of(self.read.as_deref());
        let or_read = |name: &str, given: &'a Option<Py<PyString>>, read: Option<&'a str>| {
            let given = text(py, name, given.as_ref())?;
            Ok::<_, PyErr>(given.or(read).filter(|text| !text.is_empty()))
        };
        Ok(Hints {
            model: or_read("model", &self.model, read.model)?,
            lora: or_read("lora", &self.lora, read.lora)?,
            cache_salt: text(py, "cache_salt", self.cache_salt.as_ref())?.or(read.cache_salt),
            prompt_tokens: self.prompt_tokens,
            expected_output_tokens: self.expected_output_tokens().or(self.max_output_tokens()),
            cache_ttl_ms: self.cache_ttl_s,
            is_counted: self.tokens.is_some() || self.blocks.is_some(),
            is_text: self.text.is_some(),
            ..read
        })
    }

    /// Reads the prompt as far as `reader` needs it; its hashes go to `scratch`.
    pub fn prompt(
        &self,
        py: Python<'_>,
        hints: &Hints<'_>,
        reader: &PromptReader,
        model: Model<'_>,
        scales: &Scales,
        scratch: &mut Scratch,
    ) -> PyResult<Prompt> {
        let namespace = hints.namespace(&reader.hasher, model);
        if self.prompts() > 1 {
            return Err(PyTypeError::new_err(
                "give only one of tokens=, text=, messages= and blocks=",
            ));
        }
        let mm = match &self.mm {
            Some(mm) => objects(mm.bind(py))?,
            None => Vec::new(),
        };
        scratch.boundaries.clear();
        let given = self.boundaries.as_ref().map(|given| given.bind(py));
        let mut prompt = if let Some(tokens) = &self.tokens {
            prompt::tokens(reader, tokens.bind(py), namespace, &mm, scratch)?
        } else if let Some(text) = &self.text {
            prompt::text(reader, text.bind(py), namespace, scratch)?
        } else if let Some(blocks) = &self.blocks {
            prompt::blocks(reader, blocks.bind(py), self.prompt_tokens, scratch)?
        } else {
            if given.is_some() {
                return Err(PyTypeError::new_err(
                    "boundaries= goes with tokens=, text= or blocks=; those of messages= and body= are where they end",
                ));
            }
            match self.read.as_deref() {
                Some(read) => {
                    let work = || prompt::body(reader, read, namespace, scratch);
                    unlocked(py, read.length > LONG, work)
                }
                None => Prompt::without_tokens(0),
            }
        };
        if let Some(ends) = given {
            let text = self.text.as_ref().map(|text| text.bind(py));
            let of = match text {
                Some(text) => (text.len()? as u64, "characters"),
                None => (prompt.length, "tokens"),
            };
            prompt::boundaries(reader, ends, text, of, scratch)?;
        }
        if let (Some(_), Some(length)) = (&self.tokens, self.prompt_tokens) {
            let held = prompt.length;
            if length < held {
                return Err(PyValueError::new_err(format!(
                    "prompt_tokens is {length} but tokens holds {held}; leave prompt_tokens out"
                )));
            }
            // There is more to compute than the tokens given, such as further prompts.
            prompt.length = length;
        }
        hints.complete(&mut prompt, model, scales, scratch);
        if let Some(session) = &self.session {
            prompt.set_session(args::text(session.bind(py), "session")?);
        }
        Ok(prompt)
    }

    /// The higher first.
    pub fn priority(&self) -> i64 {
        let read = self.read.as_ref().and_then(|read| read.priority);
        if self.priority == 0 {
            read.unwrap_or(0)
        } else {
            self.priority
        }
    }

    pub fn max_output_tokens(&self) -> Option<u64> {
        let read = self.read.as_ref();
        self.max_output_tokens.or_else(|| read?.max_output_tokens)
    }

    /// Expected output tokens; a caller may have given the maximum alone.
    pub fn expected_output_tokens(&self) -> Option<u64> {
        let read = self
            .read
            .as_ref()
            .filter(|_| self.max_output_tokens.is_none());
        self.expected_output_tokens
            .or_else(|| read?.expected_output_tokens)
    }
}

/// A worker already tried for a request.
#[derive(Debug, Clone)]
pub struct Try {
    pub key: Arc<str>,
    /// Outcome in words.
    pub outcome: Arc<str>,
}

/// In the order of trying.
pub type Tried = Vec<Try>;
