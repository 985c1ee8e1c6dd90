//! Prompt and hints in the arguments of a selection, and the workers tried for it.

use std::sync::Arc;

use cachelb::selector::{LONG, Request, Sample, Scales};
use cachelb_body::{Basis, Kind};
use cachelb_core::hashing::{Hasher, Identity, Namespace};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::args;
use crate::arguments::Call;
use crate::body::{Client, Read, Shape, unlocked};
use crate::hashing::objects;
use crate::prompt::{Prompt, Reader, Scratch};

/// How the name of a model affects the identity of its blocks.
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

/// Fields of a request beside its prompt.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hints<'a> {
    pub model: Option<&'a str>,
    lora: Option<&'a str>,
    cache_salt: Option<&'a str>,
    /// As the caller counted them.
    prompt_tokens: Option<u64>,
    expected_output_tokens: Option<u64>,
    /// How long the worker keeps the prompt.
    cache_ttl_ms: Option<u64>,
    /// Whether the prompt is tokens or blocks of the caller's.
    is_counted: bool,
    /// Whether it is a text of the caller's.
    is_text: bool,
    read: Option<&'a Read>,
}

impl<'a> Hints<'a> {
    /// Hints from body and headers.
    pub fn of(read: Option<&'a Read>) -> Self {
        let text = |text: Option<&'a String>| text.map(String::as_str);
        Self {
            model: text(read.and_then(|read| read.model.as_ref())),
            lora: text(read.and_then(|read| read.lora.as_ref())),
            cache_salt: text(read.and_then(|read| read.cache_salt.as_ref())),
            expected_output_tokens: read
                .and_then(|read| read.expected_output_tokens.or(read.max_output_tokens)),
            read,
            ..Self::default()
        }
    }

    /// The namespace of the prompt's hashes.
    pub fn namespace(&self, hasher: &Hasher, model: Model<'_>) -> Namespace {
        let (model, adapter) = match model {
            Model::Own | Model::Unknown => (None, None),
            Model::Mixed(name) => (Some(name), None),
            Model::Adapter(name) => (None, Some(name)),
        };
        hasher.namespace(Identity {
            lora: self.lora.or(adapter),
            salt: self.cache_salt,
            model,
            beside: self.read.and_then(|read| read.beside.as_deref()),
        })
    }

    /// Notes in a `prompt` that was read how long it is, and whose.
    pub fn complete(
        &self,
        prompt: &mut Prompt,
        model: Model<'_>,
        scales: &Scales,
        scratch: &mut Scratch,
    ) {
        self.measure(prompt, scales);
        if model == Model::Unknown {
            prompt.hide();
            scratch.boundaries.clear();
        }
        if let Some((key, read)) = self.read.and_then(|read| Some((read.family.own?, read))) {
            prompt.set_key(key, read.is_soft);
        }
    }

    /// Sets the length of the `prompt`: the caller's count, or an estimate for a text like it.
    fn measure(&self, prompt: &mut Prompt, scales: &Scales) {
        if self.is_counted {
            return;
        }
        let units = prompt.units();
        if units == 0 {
            prompt.length = prompt.length.max(self.prompt_tokens.unwrap_or(0));
            return;
        }
        let read = self.read.filter(|_| !self.is_text);
        let (kind, is_measured) = read.map_or((Kind::Text, true), Read::measure);
        let sample = Sample::new(self.model, kind as u8, units);
        prompt.sample = is_measured.then_some(sample);
        prompt.length = self.prompt_tokens.unwrap_or_else(|| scales.tokens(sample));
    }

    /// The core's request for its `prompt`, whose hashes are in `scratch`.
    pub fn request(&self, prompt: &'a Prompt, attempt: u32, scratch: &'a Scratch) -> Request<'a> {
        Request {
            convention: self.read.and_then(|read| read.client.convention),
            family: self.read.map(|read| &read.family),
            expected_output_tokens: self.expected_output_tokens,
            cache_ttl_ms: self.cache_ttl_ms,
            attempt,
            ..prompt.request(scratch)
        }
    }

    /// Fields of body and headers that the decision keeps.
    pub fn client(&self, prompt: &Prompt) -> Client {
        let mut client = self
            .read
            .map_or_else(Client::default, |read| read.client.clone());
        client.sample = prompt.sample;
        let is_tokens =
            self.is_counted || self.read.is_some_and(|read| read.shape == Shape::Tokens);
        if is_tokens || self.is_text {
            (client.layout, client.lesson) = (None, None);
            client.basis = if is_tokens {
                Basis::Tokens
            } else {
                Basis::Certain
            };
        }
        client
    }
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
        reader: &Reader,
        model: Model<'_>,
        scales: &Scales,
        scratch: &mut Scratch,
    ) -> PyResult<Prompt> {
        let namespace = hints.namespace(&reader.hasher, model);
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
            match self.read.as_deref() {
                Some(read) => {
                    let work = || reader.body(read, namespace, scratch);
                    unlocked(py, read.length > LONG, work)
                }
                None => Prompt::without_tokens(0),
            }
        };
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
