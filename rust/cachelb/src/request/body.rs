//! Fields read from a body and the headers beside it, in the memory of a thread.

use std::sync::Arc;

use cachelb_body::{
    Basis, Body, BodyReader, Endpoint, Identity, Kind, Layout, Lesson, Limits, Profile, Prompt,
    Session, convention_names,
};
use cachelb_core::hashing::NamespaceKey;

use crate::request::token_scales::Sample;
use crate::request::{Family, FamilyName};

/// Unit in which texts are measured: tokens as a rough mean over tokenizers and languages.
pub const BYTES_PER_TOKEN: usize = 4;
/// Names of the conventions by which conversations are known.
pub const CONVENTIONS: [&str; convention_names().len()] = convention_names();
/// Where salts stand, in order.
const SALTS: [&str; 3] = ["/cache_salt", "/extra_key", "/nvext/cache_salt"];

/// The memory of a longer body is not kept for the next one.
const KEPT_BYTES: usize = 1 << 20;

/// The memory of a thread for bodies.
#[derive(Debug, Default)]
pub struct Room {
    /// In a box, since it is large and buffers are moved.
    reader: Option<Box<BodyReader>>,
    /// Where its prompt goes.
    pub prompt: PromptRoom,
    /// Fields read from an earlier body, to be reused.
    read: Option<Box<Read>>,
    /// Bytes of the body read last.
    last: usize,
}

/// The memory of a thread for the prompt of a body.
#[derive(Debug, Default)]
pub struct PromptRoom {
    /// Canonical text.
    pub text: Vec<u8>,
    /// The text that later requests look up, if it is another.
    pub stored: Vec<u8>,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Where messages end, in bytes of the text.
    pub ends: Vec<u32>,
}

impl Room {
    /// The reader for a body of `bytes` bytes, and where its prompt goes.
    pub fn reader(
        &mut self,
        profile: Profile,
        limits: Limits,
        bytes: usize,
    ) -> (&mut BodyReader, &mut PromptRoom) {
        self.last = bytes;
        let reader = self.reader.get_or_insert_default();
        reader.set(profile, limits);
        (reader, &mut self.prompt)
    }

    /// Memory for the fields read of a request.
    pub fn read(&mut self) -> Box<Read> {
        let mut read = self.read.take().unwrap_or_default();
        *read = Read::default();
        read
    }

    /// Takes that back.
    pub fn take_back(&mut self, read: &mut Option<Box<Read>>) {
        self.read = read.take().or(self.read.take());
    }

    /// Whether the last body was so long that its memory is given back: threads keep theirs for as long as they live.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.last > KEPT_BYTES
    }
}

/// Form of the prompt in the [`Room`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// There is none.
    #[default]
    Nothing,
    /// A text.
    Text,
    /// Token ids.
    Tokens,
}

/// Fields of body and headers that a decision keeps.
#[derive(Debug, Clone, Default)]
pub struct Client {
    /// Name of the convention by which the conversation is known.
    pub convention: Option<&'static str>,
    /// Names the responses that the engine stores, if it does.
    pub responses: Option<NamespaceKey>,
    /// The conversation of which this is the last request.
    pub last: Option<FamilyName>,
    /// The text whose tokens the engine counts.
    pub sample: Option<Sample>,
    /// On what ground the prompt counts as shared, and its layout if that is the ground.
    pub basis: Basis,
    /// How the prompt was arranged.
    pub layout: Option<Layout>,
    /// The prompt, to learn its layout from the answer.
    pub lesson: Option<Arc<Lesson>>,
}

/// Fields read from body and headers.
#[derive(Debug, Default)]
pub struct Read {
    /// Form of the prompt.
    pub shape: Shape,
    /// Tokens of all prompts; of texts units of [`BYTES_PER_TOKEN`].
    pub length: u64,
    kind: Kind,
    /// Whether an engine counts the tokens of these texts, once, and of nothing else.
    is_measured: bool,
    /// Answers per prompt, if the prompt is a single text that token ids can stand for: those of media are equal for all.
    pub answers: Option<u64>,
    /// Digest that separates the prompt from others beside model, adapter and salt.
    pub beside: Option<String>,
    /// Whose request it is.
    pub family: Family,
    /// Whether the conversation may stand for more than one, so that nothing is to be bound to it.
    pub is_soft: bool,
    /// Fields that the decision keeps.
    pub client: Client,
    /// Name of the model.
    pub model: Option<String>,
    /// Name of the adapter.
    pub lora: Option<String>,
    /// The cache salt.
    pub cache_salt: Option<String>,
    /// Most output tokens.
    pub max_output_tokens: Option<u64>,
    /// Output tokens that the client expects.
    pub expected_output_tokens: Option<u64>,
    /// As the client gives it.
    pub priority: Option<i64>,
}

/// Name of a response that an engine stores.
#[must_use]
pub fn response_name(key: NamespaceKey, id: &str) -> FamilyName {
    key.session(&[Some("response"), Some(id)])
}

impl Read {
    /// Notes a body of `bytes` bytes whose prompt is not known.
    pub fn unread(&mut self, bytes: usize) {
        self.shape = Shape::Nothing;
        self.length = bytes.div_ceil(BYTES_PER_TOKEN) as u64;
    }

    /// Notes the prompts: the longest as it is, of all the sum.
    pub fn prompt(&mut self, body: &Body<'_>, room: &mut PromptRoom) {
        let Some(longest) = body.longest() else {
            return;
        };
        let facts = body.facts();
        let length = |prompt: Prompt<'_>| match prompt {
            Prompt::Text(text) => text.len().div_ceil(BYTES_PER_TOKEN),
            Prompt::Tokens(ids) => ids.len(),
        };
        let all: usize = body.prompts().map(length).sum();
        let answers = u64::from(facts.answers.unwrap_or(1).max(1));
        self.kind = facts.kind;
        self.is_measured = answers == 1 && facts.media == 0 && facts.beside.is_none();
        self.length = all as u64 * answers;
        if !matches!(facts.kind, Kind::Chat | Kind::Text | Kind::Tokens) {
            return;
        }
        let PromptRoom {
            text, tokens, ends, ..
        } = room;
        ends.clear();
        match longest {
            Prompt::Text(longest) => {
                self.shape = Shape::Text;
                let is_text_only = facts.media == 0 && facts.beside.is_none();
                self.answers = (is_text_only && body.prompts().count() == 1).then_some(answers);
                text.clear();
                longest
                    .slices()
                    .for_each(|slice| text.extend_from_slice(slice));
                ends.extend(body.ends().map(|end| end as u32));
            }
            Prompt::Tokens(ids) => {
                self.shape = Shape::Tokens;
                tokens.clear();
                tokens.extend_from_slice(ids);
            }
        }
    }

    /// Kind of its text, and whether its token count is a measure of such texts.
    #[must_use]
    pub fn measure(&self) -> (Kind, bool) {
        (self.kind, self.is_measured)
    }

    /// Keeps the other fields of the body. A salt beside the gateway's is kept apart from it.
    pub fn hints(&mut self, body: &Body<'_>, has_salt: bool) {
        let facts = body.facts();
        let owned = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        let salt = owned(SALTS.into_iter().find_map(|path| body.noted(path)));
        let media = facts.beside.map(|digest| format!("{digest:032x}"));
        self.beside = match (salt.as_deref().filter(|_| has_salt), media) {
            (None, media) => media,
            (Some(salt), media) => Some(format!("{}/{salt}", media.unwrap_or_default())),
        };
        self.cache_salt = salt.filter(|_| !has_salt);
        self.model = owned(body.model());
        self.lora = owned(body.noted("/lora_path"));
        self.max_output_tokens = facts.max_output.map(u64::from);
        self.expected_output_tokens = facts.expected_output.map(u64::from);
        self.priority = facts.priority;
    }

    /// Notes which stored response a body to `path` continues, and whether its answer is stored; `key` names responses.
    pub fn responses(&mut self, body: &Body<'_>, path: &str, key: NamespaceKey) {
        if Endpoint::of(path) == Endpoint::Responses {
            self.client.responses = Some(key);
        }
        let previous = body.previous_response();
        self.family.response = previous.map(|id| response_name(key, id));
        self.family.continues = body.kind() == Kind::Continuation;
    }

    /// Notes whose conversation it is; `key` names conversations, each apart from those of other tenants.
    pub fn identify(&mut self, identity: Identity<'_>, tenant: Option<&str>, key: NamespaceKey) {
        let convention = CONVENTIONS[identity.convention];
        self.client.convention = Some(convention);
        let name = |session: Session<'_>| {
            key.session(&[tenant, Some(convention), Some(session.id), session.agent])
        };
        self.family.own = Some(name(identity.session));
        self.family.parent = identity.parent.map(name);
        self.is_soft = identity.soft;
        self.client.last = self.family.own.filter(|_| identity.ends);
    }
}
