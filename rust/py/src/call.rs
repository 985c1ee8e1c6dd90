//! What the arguments of a selection say of its prompt, and what was tried for it.

use std::sync::Arc;

use cachelb_body::Kind;
use cachelb_core::hashing::{Hasher, Identity, Namespace};
use cachelb_router::{Request, Sample, Scales};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::args;
use crate::arguments::Call;
use crate::body::{Client, Read};
use crate::hashing::objects;
use crate::prompt::{Prompt, Reader, Scratch};

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
    /// Reads the prompt as far as `reader` needs it; its hashes go to `scratch`.
    pub fn prompt(
        &self,
        py: Python<'_>,
        reader: &Reader,
        model: Model<'_>,
        scales: &Scales,
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
        let read = self.read.as_deref();
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
            let prompt = reader.text(text, namespace, scratch)?;
            if let Some(ends) = given {
                let length = text.len()? as u64;
                reader.boundaries(ends, Some(text), (length, "characters"), scratch)?;
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
                    "boundaries= goes with tokens=, text= or blocks=; those of messages= and body= are where they end",
                ));
            }
            match read {
                Some(read) => reader.body(py, read, namespace, scratch),
                None => Prompt::without_tokens(0),
            }
        };
        self.measure(py, &mut prompt, scales)?;
        if model == Model::Unknown {
            prompt.hide();
            scratch.boundaries.clear();
        }
        if let Some((key, read)) = read.and_then(|read| Some((read.family.own?, read))) {
            prompt.set_key(key, read.is_soft);
        }
        if let Some(session) = &self.session {
            prompt.set_session(args::text(session.bind(py), "session")?);
        }
        Ok(prompt)
    }

    /// Notes how many tokens the `prompt` has: as many as the caller says, or as a text like it most likely has.
    fn measure(&self, py: Python<'_>, prompt: &mut Prompt, scales: &Scales) -> PyResult<()> {
        if self.tokens.is_some() || self.blocks.is_some() {
            return Ok(());
        }
        let units = prompt.units();
        if units == 0 {
            prompt.length = prompt.length.max(self.prompt_tokens.unwrap_or(0));
            return Ok(());
        }
        let read = self.read.as_deref().filter(|_| self.text.is_none());
        let (kind, is_measured) = read.map_or((Kind::Text, true), Read::measure);
        let model = self.model(py)?;
        let sample = Sample::new(model, kind as u8, units);
        prompt.sample = is_measured.then_some(sample);
        prompt.length = self.prompt_tokens.unwrap_or_else(|| scales.tokens(sample));
        Ok(())
    }

    /// The core's request for its `prompt`, whose hashes are in `scratch`.
    pub fn request<'a>(
        &'a self,
        prompt: &'a Prompt,
        tried: &[Try],
        scratch: &'a Scratch,
    ) -> Request<'a> {
        Request {
            convention: self.client(prompt).convention,
            family: self.read.as_ref().map(|read| &read.family),
            expected_output_tokens: self.expected_output_tokens().or(self.max_output_tokens()),
            attempt: tried.len() as u32,
            ..prompt.request(scratch)
        }
    }

    /// The model's name, by the caller or what was read.
    pub fn model<'a>(&'a self, py: Python<'a>) -> PyResult<Option<&'a str>> {
        let name = self.given_or_read(py, "model", self.model.as_ref(), |read| {
            read.model.as_deref()
        });
        Ok(name?.filter(|name| !name.is_empty()))
    }

    /// The adapter's name.
    pub fn lora<'a>(&'a self, py: Python<'a>) -> PyResult<Option<&'a str>> {
        let name = self.given_or_read(py, "lora", self.lora.as_ref(), |read| read.lora.as_deref());
        Ok(name?.filter(|name| !name.is_empty()))
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

    /// Of the caller, who may have given the maximum alone.
    pub fn expected_output_tokens(&self) -> Option<u64> {
        let read = self
            .read
            .as_ref()
            .filter(|_| self.max_output_tokens.is_none());
        self.expected_output_tokens
            .or_else(|| read?.expected_output_tokens)
    }

    /// An argument, or what body and headers say in its place.
    fn given_or_read<'a>(
        &'a self,
        py: Python<'a>,
        name: &str,
        given: Option<&'a Py<PyString>>,
        read: impl FnOnce(&'a Read) -> Option<&'a str>,
    ) -> PyResult<Option<&'a str>> {
        match given {
            Some(given) => args::text(given.bind(py), name).map(Some),
            None => Ok(self.read.as_deref().and_then(read)),
        }
    }

    /// What the decision keeps of body and headers.
    pub fn client(&self, prompt: &Prompt) -> Client {
        let read = self.read.as_ref();
        Client {
            sample: prompt.sample,
            ..read.map_or_else(Client::default, |read| read.client)
        }
    }

    fn namespace(&self, py: Python<'_>, hasher: &Hasher, model: Model<'_>) -> PyResult<Namespace> {
        let (model, adapter) = match model {
            Model::Own | Model::Unknown => (None, None),
            Model::Mixed(name) => (Some(name), None),
            Model::Adapter(name) => (None, Some(name)),
        };
        Ok(hasher.namespace(Identity {
            lora: self.lora(py)?.or(adapter),
            salt: self.given_or_read(py, "cache_salt", self.cache_salt.as_ref(), |read| {
                read.cache_salt.as_deref()
            })?,
            model,
            beside: self.read.as_ref().and_then(|read| read.beside.as_deref()),
        }))
    }
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
