//! The walk over the fields of a body.

use std::fmt;

use crate::body::Body;
use crate::conversation::Conversation;
use crate::endpoint::Endpoint;
use crate::error::{ErrorKind, Result};
use crate::facts::{Facts, Kind};
use crate::head::Head as Beside;
use crate::layout::Layout;
use crate::pairs::Pairs;
use crate::profile::{Limits, Profile};
use crate::prompts::Prompts;
use crate::scan::{Reader, Token};
use crate::tools::Tools;
use crate::writer::{Dialect, Writer};

/// Reads bodies, one after another, into memory that it keeps.
#[derive(Default)]
pub struct BodyReader {
    writer: Writer,
    head: Beside,
    tools: Tools,
    conversation: Conversation,
    prompts: Prompts,
    pairs: Pairs,
}

/// Without content.
impl fmt::Debug for BodyReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reader = f.debug_struct("BodyReader");
        reader
            .field("profile", &self.writer.profile)
            .field("limits", &self.writer.limits);
        reader.finish_non_exhaustive()
    }
}

impl BodyReader {
    /// A reader for bodies to engines of `profile` that hold at most `limits`.
    #[must_use]
    pub fn new(profile: Profile, limits: Limits) -> Self {
        let mut reader = Self::default();
        reader.set(profile, limits);
        reader
    }

    /// Reads the next bodies so, in the same memory.
    pub fn set(&mut self, profile: Profile, limits: Limits) {
        self.writer.set(profile, limits);
    }

    /// Bytes that canonical text takes.
    #[cfg(test)]
    pub(crate) fn room(&mut self) -> usize {
        self.writer.canon().room()
    }

    /// Reads the body of a request to `path`.
    ///
    /// # Errors
    /// If the body is no valid JSON object or holds more than the limits. It is then routed by load.
    pub fn read(&mut self, path: &str, body: &[u8]) -> Result<Body<'_>> {
        self.read_by(path, body, |_| Layout::default())
    }

    /// Reads a body as [`read`](Self::read) does. `layout_of` a model is how a likely profile arranges its prompts.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_by(
        &mut self,
        path: &str,
        body: &[u8],
        layout_of: impl FnOnce(Option<&str>) -> Layout,
    ) -> Result<Body<'_>> {
        self.clear();
        let endpoint = Endpoint::of(path);
        let limits = self.writer.limits;
        let text = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body); // a byte order mark
        let mut reader = Reader::new(text, limits.depth);
        if body.len() > limits.bytes {
            return Err(reader.error(ErrorKind::TooLarge));
        }
        let mut facts = Facts::default();
        if endpoint == Endpoint::Audio {
            facts.kind = Kind::Audio;
        } else {
            if let [0, ..] | [_, 0, ..] | [0xFE, 0xFF, ..] | [0xFF, 0xFE, ..] = text {
                return Err(reader.error(ErrorKind::Encoding));
            }
            if reader.peek()? != Token::Object {
                reader.skip()?;
                reader.end()?;
                return Err(reader.error(ErrorKind::NotObject));
            }
            reader.open()?;
            while self.writer.next_key(&mut reader)? {
                self.read_field(&mut reader, endpoint)?;
            }
            reader.end()?;
            self.finish(endpoint, &mut facts, layout_of);
        }
        let parts = (&self.prompts, &self.conversation, &self.head);
        Ok(Body::new(self.writer.bytes(), parts, facts))
    }

    /// Forgets the last body.
    fn clear(&mut self) {
        self.writer.restart();
        self.head.clear();
        self.tools = Tools::default();
        self.conversation.clear();
        self.prompts.clear();
        self.pairs.clear();
    }

    fn read_field(&mut self, reader: &mut Reader<'_>, endpoint: Endpoint) -> Result<()> {
        use Endpoint::{Chat, Completions, Generate, Messages, Pooling, Responses};
        let w = &mut self.writer;
        let dialect = dialect_of(endpoint);
        if endpoint == Pooling && self.pairs.read_field(w, reader)? {
            return Ok(());
        }
        match (endpoint, w.key()) {
            (Chat | Messages, b"messages") => self.conversation.read_messages(w, reader, dialect),
            (Messages, b"system") => self.conversation.read_system(w, reader),
            (Responses, b"instructions") => self.conversation.read_instructions(w, reader),
            (Responses, b"input") => self.conversation.read_items(w, reader),
            (Chat | Messages | Responses, b"tools") => self.tools.read(w, reader, dialect),
            (Completions, b"prompt")
            | (Generate, b"text" | b"inputs" | b"token_ids" | b"input_ids")
            | (Pooling, b"input") => self.prompts.read(w, reader),
            _ => self.head.read_field(w, reader, endpoint),
        }
    }

    /// Arranges the prompt of a conversation, if there is one.
    fn lay_out(
        &mut self,
        dialect: Dialect,
        layout_of: impl FnOnce(Option<&str>) -> Layout,
    ) -> bool {
        let w = &mut self.writer;
        if w.profile.is_likely {
            let model = self.head.model().map(|model| model.of(w.bytes()));
            let layout = layout_of(model.and_then(|model| std::str::from_utf8(model).ok()));
            let parts = (self.conversation).lay_out_by(w, &self.tools, dialect, layout);
            parts.map(|parts| self.prompts.put_text(parts)).is_some()
        } else {
            let parts = self.conversation.lay_out(w, &self.tools);
            parts.map(|parts| self.prompts.put_text(&parts)).is_some()
        }
    }

    /// Settles kind and prompts once the body has been read.
    fn finish(
        &mut self,
        endpoint: Endpoint,
        facts: &mut Facts,
        layout_of: impl FnOnce(Option<&str>) -> Layout,
    ) {
        self.head.finish(&mut self.writer);
        self.head.state(facts);
        facts.messages = self.conversation.turns.messages;
        let continues = self.head.continues();
        facts.kind = match endpoint {
            Endpoint::Chat | Endpoint::Messages | Endpoint::Responses => {
                if continues {
                    Kind::Continuation
                } else if self.lay_out(dialect_of(endpoint), layout_of) {
                    Kind::Chat
                } else {
                    Kind::Unknown
                }
            }
            Endpoint::Completions | Endpoint::Generate => {
                facts.beside = self.writer.take_fields(0);
                match self.prompts.kind() {
                    _ if continues => Kind::Continuation,
                    found => found.unwrap_or_default(),
                }
            }
            Endpoint::Pooling => {
                self.pairs.put(&mut self.prompts);
                Kind::Pooling
            }
            Endpoint::LoadOnly => Kind::LoadOnly,
            Endpoint::Audio => Kind::Audio,
            Endpoint::Unknown => Kind::Unknown,
        };
        [facts.parts, facts.media, facts.attribution] = self.conversation.counts();
        if facts.kind == Kind::Continuation {
            self.prompts.clear();
        }
        if self.head.truncates() {
            // Prompts that begin alike may be cut at different places.
            let whole = self.prompts.digest(&mut self.writer, facts.beside);
            facts.beside = Some(whole);
        }
    }
}

fn dialect_of(endpoint: Endpoint) -> Dialect {
    match endpoint {
        Endpoint::Messages => Dialect::Messages,
        Endpoint::Responses => Dialect::Responses,
        _ => Dialect::Chat,
    }
}
