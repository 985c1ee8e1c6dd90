//! The walk over the fields of a body.

use crate::body::{Body, Kind};
use crate::endpoint::Endpoint;
use crate::error::{ErrorKind, Result};
use crate::scan::{Reader, Token};
use crate::state::{BodyReader, Dialect};

impl BodyReader {
    /// Reads the body of a request to `path`.
    ///
    /// # Errors
    /// If the body is no valid JSON object or holds more than the limits. It is then routed by load.
    pub fn read(&mut self, path: &str, body: &[u8]) -> Result<Body<'_>> {
        self.clear();
        let endpoint = Endpoint::of(path);
        let mut reader = Reader::new(body, self.limits.depth);
        if body.len() > self.limits.bytes {
            return Err(reader.error(ErrorKind::TooLarge));
        }
        if endpoint == Endpoint::Audio {
            self.facts.kind = Kind::Audio;
        } else {
            if reader.peek()? != Token::Object {
                reader.skip()?;
                reader.end()?;
                return Err(reader.error(ErrorKind::NotObject));
            }
            reader.open()?;
            while self.next_key(&mut reader)? {
                self.read_body_field(&mut reader, endpoint)?;
            }
            reader.end()?;
            self.lay_out(endpoint);
        }
        Ok(Body {
            arena: &self.canon.bytes,
            tokens: &self.tokens,
            stream: &self.stream,
            prompts: &self.places,
            model: self.head.model,
            continues: &self.continues,
            noted: &self.noted,
            system: self.turns.system,
            starts: &self.turns.starts,
            facts: self.facts,
            bytes: body.len(),
        })
    }

    fn read_body_field(&mut self, reader: &mut Reader<'_>, endpoint: Endpoint) -> Result<()> {
        match (endpoint, self.key.as_slice()) {
            (Endpoint::Chat, b"messages") => self.read_messages(reader, Dialect::Chat),
            (Endpoint::Messages, b"messages") => self.read_messages(reader, Dialect::Messages),
            (Endpoint::Messages, b"system") => self.read_system(reader),
            (Endpoint::Responses, b"instructions") => self.read_instructions(reader),
            (Endpoint::Responses, b"input") => self.read_items(reader),
            (Endpoint::Chat, b"tools") => self.read_tools(reader, Dialect::Chat),
            (Endpoint::Messages, b"tools") => self.read_tools(reader, Dialect::Messages),
            (Endpoint::Responses, b"tools") => self.read_tools(reader, Dialect::Responses),
            (Endpoint::Completions, b"prompt")
            | (Endpoint::Generate, b"text" | b"inputs" | b"token_ids" | b"input_ids")
            | (Endpoint::Pooling, b"input") => self.read_prompts(reader),
            _ => self.read_head_field(reader, endpoint),
        }
    }
}
