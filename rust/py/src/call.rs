//! The arguments of one `select_worker` call, kept so that a decision can be retried.

use std::sync::Arc;

use cachelb_core::hashing::{Hasher, Identity, Namespace};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::args::{self, ranged};
use crate::hashing::objects;
use crate::prompt::{Prompt, Reader, Scratch};

/// A trillion tokens: what no request reaches, and what no sum of loads overflows by.
pub const MAX_TOKENS: u64 = 1 << 40;

/// The arguments as they were given.
#[derive(Debug, Default)]
pub struct Call {
    /// The caller's list; a router has its own.
    pub workers: Option<Py<PyAny>>,
    pub tokens: Option<Py<PyAny>>,
    pub text: Option<Py<PyString>>,
    pub messages: Option<Py<PyAny>>,
    pub blocks: Option<Py<PyAny>>,
    pub boundaries: Option<Py<PyAny>>,
    pub prompt_tokens: Option<u64>,
    pub model: Option<Py<PyString>>,
    pub lora: Option<Py<PyString>>,
    pub cache_salt: Option<Py<PyString>>,
    pub mm: Option<Py<PyAny>>,
    pub session: Option<Py<PyString>>,
    pub tenant: Option<Py<PyString>>,
    pub priority: i64,
    pub max_output_tokens: Option<u64>,
    pub expected_output_tokens: Option<u64>,
    pub among: Option<Py<PyAny>>,
    pub exclude: Option<Py<PyAny>>,
}

/// What the name of a model says about the identity of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Model<'a> {
    /// Nothing: it has an index of its own, or is what all engines of the index serve.
    #[default]
    Own,
    /// It shares the index with others.
    Mixed(&'a str),
    /// It is an adapter.
    Adapter(&'a str),
    /// Every worker names the models it serves, and this is none of them: its prompts are neither matched nor remembered.
    Unknown,
}

fn text<'py>(
    py: Python<'py>,
    name: &str,
    value: Option<&'py Py<PyString>>,
) -> PyResult<Option<&'py str>> {
    value
        .map(|text| args::text(text.bind(py), name))
        .transpose()
}

impl Call {
    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        let any = |value: &Option<Py<PyAny>>| value.as_ref().map(|v| v.clone_ref(py));
        let text = |value: &Option<Py<PyString>>| value.as_ref().map(|v| v.clone_ref(py));
        Self {
            workers: any(&self.workers),
            tokens: any(&self.tokens),
            text: text(&self.text),
            messages: any(&self.messages),
            blocks: any(&self.blocks),
            boundaries: any(&self.boundaries),
            prompt_tokens: self.prompt_tokens,
            model: text(&self.model),
            lora: text(&self.lora),
            cache_salt: text(&self.cache_salt),
            mm: any(&self.mm),
            session: text(&self.session),
            tenant: text(&self.tenant),
            priority: self.priority,
            max_output_tokens: self.max_output_tokens,
            expected_output_tokens: self.expected_output_tokens,
            among: any(&self.among),
            exclude: any(&self.exclude),
        }
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let objects = [
            &self.workers,
            &self.tokens,
            &self.messages,
            &self.blocks,
            &self.boundaries,
            &self.mm,
            &self.among,
            &self.exclude,
        ];
        objects.into_iter().try_for_each(|value| visit.call(value))
    }

    /// Reads the prompt as far as `reader` needs it; its hashes go to `scratch`.
    pub fn prompt(
        &self,
        py: Python<'_>,
        reader: &Reader,
        model: Model<'_>,
        scratch: &mut Scratch,
    ) -> PyResult<Prompt> {
        let namespace = self.namespace(py, &reader.hasher, model)?;
        let given = [
            self.tokens.is_some(),
            self.text.is_some(),
            self.messages.is_some(),
            self.blocks.is_some(),
        ];
        if given.into_iter().filter(|given| *given).count() > 1 {
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
            let mut prompt = reader.tokens(tokens.bind(py), namespace, &mm, scratch)?;
            let held = prompt.length;
            if let Some(ends) = given {
                reader.boundaries(ends, None, (held, "tokens"), scratch)?;
            }
            if let Some(length) = self.prompt_tokens {
                if length < held {
                    return Err(PyValueError::new_err(format!(
                        "prompt_tokens is {length} but tokens holds {held}; leave prompt_tokens out"
                    )));
                }
                // There is more to compute than the tokens given, such as further prompts.
                prompt.length = length;
            }
            prompt
        } else if let Some(text) = &self.text {
            let text = text.bind(py);
            let prompt = reader.text(text, self.prompt_tokens, namespace, scratch)?;
            if let Some(ends) = given {
                let length = text.len()? as u64;
                reader.boundaries(ends, Some(text), (length, "characters"), scratch)?;
            }
            prompt
        } else if let Some(messages) = &self.messages {
            if given.is_some() {
                return Err(PyTypeError::new_err(
                    "boundaries= goes with tokens=, text= or blocks=; those of messages= are where they end",
                ));
            }
            let (text, ends) = render(messages.bind(py), reader.need.boundaries)?;
            let prompt = reader.text(&text, self.prompt_tokens, namespace, scratch)?;
            if let Some(ends) = ends {
                let length = text.len()? as u64;
                reader.boundaries(&ends, Some(&text), (length, "characters"), scratch)?;
            }
            prompt
        } else if let Some(blocks) = &self.blocks {
            let prompt = reader.blocks(blocks.bind(py), self.prompt_tokens, scratch)?;
            if let Some(ends) = given {
                reader.boundaries(ends, None, (prompt.length, "tokens"), scratch)?;
            }
            prompt
        } else {
            if given.is_some() {
                return Err(PyTypeError::new_err(
                    "boundaries= needs tokens=, text= or blocks=",
                ));
            }
            Prompt::without_tokens(self.prompt_tokens.unwrap_or(0))
        };
        if model == Model::Unknown {
            prompt.hide();
            scratch.boundaries.clear();
        }
        if let Some(session) = &self.session {
            prompt.set_session(args::text(session.bind(py), "session")?);
        }
        Ok(prompt)
    }

    fn namespace(&self, py: Python<'_>, hasher: &Hasher, model: Model<'_>) -> PyResult<Namespace> {
        let (model, adapter) = match model {
            Model::Own | Model::Unknown => (None, None),
            Model::Mixed(name) => (Some(name), None),
            Model::Adapter(name) => (None, Some(name)),
        };
        let lora = text(py, "lora", self.lora.as_ref())?.filter(|name| !name.is_empty());
        Ok(hasher.namespace(Identity {
            lora: lora.or(adapter),
            salt: text(py, "cache_salt", self.cache_salt.as_ref())?,
            model,
        }))
    }
}

/// Messages as text, and where each ends in characters: the one rendering there is lives in Python.
fn render<'py>(
    messages: &Bound<'py, PyAny>,
    with_ends: bool,
) -> PyResult<(Bound<'py, PyString>, Option<Bound<'py, PyAny>>)> {
    let py = messages.py();
    let module = py.import(intern!(py, "cachelb.text"))?;
    if with_ends {
        let render = module.getattr(intern!(py, "render_with_ends"))?;
        let (text, ends): (Bound<'py, PyString>, Bound<'py, PyAny>) =
            render.call1((messages,))?.extract()?;
        return Ok((text, Some(ends)));
    }
    let render = module.getattr(intern!(py, "render_messages"))?;
    Ok((render.call1((messages,))?.cast_into::<PyString>()?, None))
}

/// An argument that is a `str`, or nothing.
pub fn string(name: &str, value: Option<Bound<'_, PyAny>>) -> PyResult<Option<Py<PyString>>> {
    let Some(value) = value else {
        return Ok(None);
    };
    Ok(Some(args::string(&value, name)?.clone().unbind()))
}

/// A count of tokens, or nothing.
pub fn tokens(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    value.map(|v| ranged(v, name, 0, MAX_TOKENS)).transpose()
}

/// A worker already tried for a request.
#[derive(Debug, Clone)]
pub struct Try {
    pub key: Arc<str>,
    /// What came of it, in words.
    pub outcome: Arc<str>,
}

/// In the order of trying.
pub type Tried = Vec<Try>;
