//! Fields beside the conversation: those that change how it is rendered, and those that say what to do with it.

mod hints;
mod noted;
mod rendering;

use self::hints::Hints;
use self::noted::Noted;
use self::rendering::Rendering;
use crate::canon::Span;
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::facts::Facts;
use crate::scan::{Reader, Token};
use crate::writer::Writer;

/// The fields found beside the conversation.
#[derive(Debug, Default)]
pub(crate) struct Head {
    model: Option<Span>,
    stream: bool,
    hints: Hints,
    rendering: Rendering,
    noted: Noted,
    /// Ids of what the body continues: response, conversation, stored prompt, session.
    continues: [Option<Span>; 4],
}

impl Head {
    /// Forgets the last body.
    pub(crate) fn clear(&mut self) {
        self.noted.clear();
        (self.model, self.stream) = Default::default();
        (self.hints, self.rendering, self.continues) = Default::default();
    }

    /// A field that is no part of the conversation; most are only checked.
    pub(crate) fn read_field(
        &mut self,
        w: &mut Writer,
        reader: &mut Reader<'_>,
        endpoint: Endpoint,
    ) -> Result<()> {
        use Endpoint::{Generate, Responses};
        match (endpoint, w.key()) {
            (_, b"model") => self.model = read_id(w, reader)?,
            (_, b"stream") if reader.peek()? == Token::Bool => {
                self.stream = reader.literal()? == b"true";
            }
            (_, b"stream") => {
                self.stream = false;
                reader.skip()?;
            }
            (Responses, b"previous_response_id") => self.continues[0] = read_id(w, reader)?,
            (Responses, b"conversation") => self.continues[1] = read_id(w, reader)?,
            (Responses, b"prompt") => self.continues[2] = read_id(w, reader)?,
            (Generate, b"session_params") => self.continues[3] = read_id(w, reader)?,
            _ => {
                let known = self.hints.read_field(w, reader)?
                    || self.noted.read_field(w, reader, &mut self.hints)?
                    || self.rendering.read_field(w, reader, endpoint)?;
                if !known {
                    reader.skip()?;
                }
            }
        }
        Ok(())
    }

    /// Settles what several fields say.
    pub(crate) fn finish(&mut self, w: &mut Writer) {
        self.rendering.finish(w);
        for (at, path) in [(1, "/conversation"), (3, "/session_params/id")] {
            if let Some(span) = self.continues[at] {
                self.noted.set(path, span);
            }
        }
    }

    /// Adds its fields to `facts`.
    pub(crate) fn state(&self, facts: &mut Facts) {
        facts.stream = self.stream;
        self.hints.state(facts);
    }

    /// Whether prompts may be cut.
    pub(crate) fn truncates(&self) -> bool {
        self.rendering.truncates
    }

    /// `model`.
    pub(crate) fn model(&self) -> Option<Span> {
        self.model
    }

    /// Whether the body continues something.
    pub(crate) fn continues(&self) -> bool {
        self.continues.iter().any(Option::is_some)
    }

    /// Id of a response that it continues.
    pub(crate) fn previous_response(&self) -> Option<Span> {
        self.continues[0]
    }

    /// Strings beside the prompt, by their path.
    pub(crate) fn noted(&self) -> impl Iterator<Item = (&'static str, Span)> {
        self.noted.iter()
    }
}

/// A string, or the `id` of an object; an empty one for anything else but null.
fn read_id(w: &mut Writer, reader: &mut Reader<'_>) -> Result<Option<Span>> {
    let start = w.canon().end();
    match reader.peek()? {
        Token::Null => {
            reader.literal()?;
            return Ok(None);
        }
        Token::String => w.canon().put_string(reader)?,
        Token::Object => {
            reader.open()?;
            while w.next_key(reader)? {
                if w.key() == b"id" {
                    w.canon().cut(start);
                    if reader.peek()? == Token::String {
                        w.canon().put_string(reader)?;
                        continue;
                    }
                }
                reader.skip()?;
            }
        }
        _ => reader.skip()?,
    }
    Ok(Some(w.canon().since(start)))
}
