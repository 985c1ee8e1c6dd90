//! Fields of a request beside its prompt.

use cachelb_body::{Basis, Kind};
use cachelb_core::hashing::{Hasher, Identity, Namespace};

use crate::request::Request;
use crate::request::body::{Client, Read, Shape};
use crate::request::prompt::{Prompt, PromptBuffers};
use crate::request::token_scales::{Sample, Scales};

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
    /// Every worker names the models it serves, and this is none of them: its prompts are neither matched nor
    /// remembered.
    Unknown,
}

/// Fields of a request beside its prompt.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hints<'a> {
    /// Name of the model.
    pub model: Option<&'a str>,
    /// Name of the adapter.
    pub lora: Option<&'a str>,
    /// The cache salt.
    pub cache_salt: Option<&'a str>,
    /// As the caller counted them.
    pub prompt_tokens: Option<u64>,
    /// Output tokens that the caller expects.
    pub expected_output_tokens: Option<u64>,
    /// How long the worker keeps the prompt.
    pub cache_ttl_ms: Option<u64>,
    /// Whether the prompt is tokens or blocks of the caller's.
    pub is_counted: bool,
    /// Whether it is a text of the caller's.
    pub is_text: bool,
    /// Hints from body and headers.
    pub read: Option<&'a Read>,
}

impl<'a> Hints<'a> {
    /// Hints from body and headers.
    #[must_use]
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
    #[must_use]
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
        buffers: &mut PromptBuffers,
    ) {
        self.measure(prompt, scales);
        if model == Model::Unknown {
            prompt.hide();
            buffers.boundaries.clear();
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
        let units = prompt.units;
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

    /// The request for its `prompt`, whose hashes are in `buffers`.
    #[must_use]
    pub fn request(
        &self,
        prompt: &'a Prompt,
        attempt: u32,
        buffers: &'a PromptBuffers,
    ) -> Request<'a> {
        Request {
            convention: self.read.and_then(|read| read.client.convention),
            family: self.read.map(|read| &read.family),
            expected_output_tokens: self.expected_output_tokens,
            cache_ttl_ms: self.cache_ttl_ms,
            attempt,
            ..prompt.request(buffers)
        }
    }

    /// Fields of body and headers that the decision keeps.
    #[must_use]
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
