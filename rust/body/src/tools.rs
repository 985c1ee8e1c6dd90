//! Tools: each an object in the order of its keys, since templates print them so.

use crate::canon::{CLOSE, KEY, OBJECT, PIECE, Span, TEXT};
use crate::error::Result;
use crate::profile::Engine;
use crate::scan::{Reader, Token};
use crate::state::{BodyReader, Dialect};

/// Fields of a function in the order in which engines put those that they know.
const NAMES: [&[u8]; 4] = [b"name", b"description", b"parameters", b"strict"];
const PARAMETERS: usize = 2;

impl BodyReader {
    /// `tools`: nothing for null or none.
    pub(crate) fn read_tools(&mut self, reader: &mut Reader<'_>, dialect: Dialect) -> Result<()> {
        let start = self.canon.bytes.len();
        self.canon.bytes.extend_from_slice(&[PIECE, b'T']);
        let begun = self.canon.bytes.len();
        match reader.peek()? {
            Token::Array => {
                reader.open()?;
                while reader.element()? {
                    self.put_tool(reader, dialect)?;
                }
            }
            Token::Null => reader.skip()?,
            _ => self.put_other(reader)?,
        }
        let any = self.canon.bytes.len() > begun;
        self.head.tools = any.then(|| self.canon.since(start));
        Ok(())
    }

    /// A tool as a chat has it. Those of other APIs become one if they have its fields only; so do a chat's own for
    /// vLLM, which prints the fields of a function in its own order.
    fn put_tool(&mut self, reader: &mut Reader<'_>, dialect: Dialect) -> Result<()> {
        let flat = dialect != Dialect::Chat;
        if (flat || self.profile.engine == Engine::Vllm) && reader.peek()? == Token::Object {
            let (start, again) = (self.canon.bytes.len(), *reader);
            if self.put_known_tool(reader, dialect)? {
                return Ok(());
            }
            self.canon.bytes.truncate(start);
            *reader = again;
        }
        if flat {
            self.canon.bytes.extend_from_slice(&[PIECE, b't']);
        }
        self.canon.put_value(reader)
    }

    /// Whether the tool has only the fields that are known, each once; stops at the first other.
    fn put_known_tool(&mut self, reader: &mut Reader<'_>, dialect: Dialect) -> Result<bool> {
        let start = self.canon.bytes.len();
        let mut parts = [Span::default(); NAMES.len() + 2];
        parts[0] = self.put_opening();
        let mut kind = None;
        let mut inside = false;
        reader.open()?;
        while self.next_key(reader)? {
            match (dialect, self.key.as_slice()) {
                (_, b"type") if kind.is_none() => {
                    self.read_word(reader)?;
                    let custom = dialect == Dialect::Messages && self.word == b"custom";
                    kind = Some(custom || self.word == b"function");
                }
                (Dialect::Chat, b"function") if !inside && reader.peek()? == Token::Object => {
                    inside = true;
                    reader.open()?;
                    while self.next_key(reader)? {
                        if !self.put_tool_field(reader, dialect, &mut parts)? {
                            return Ok(false);
                        }
                    }
                }
                (Dialect::Chat, _) => return Ok(false),
                (Dialect::Messages, b"cache_control") => reader.skip()?,
                _ => {
                    if !self.put_tool_field(reader, dialect, &mut parts)? {
                        return Ok(false);
                    }
                }
            }
        }
        let expected = match dialect {
            Dialect::Chat => kind == Some(true) && inside,
            Dialect::Responses => kind == Some(true),
            Dialect::Messages => kind != Some(false),
        };
        parts[NAMES.len() + 1] = self.canon.written(&[CLOSE, CLOSE]);
        self.canon.arrange(start, &parts);
        Ok(expected)
    }

    fn put_tool_field(
        &mut self,
        reader: &mut Reader<'_>,
        dialect: Dialect,
        parts: &mut [Span],
    ) -> Result<bool> {
        let names = NAMES.iter().enumerate();
        let mut names = names.map(|(at, name)| match at {
            PARAMETERS if dialect == Dialect::Messages => b"input_schema",
            _ => *name,
        });
        let field = names.position(|name| *name == *self.key);
        let Some(field) = field.filter(|field| parts[field + 1].len() == 0) else {
            return Ok(false);
        };
        let at = self.canon.bytes.len();
        self.canon.bytes.push(KEY);
        self.canon.bytes.extend_from_slice(NAMES[field]);
        self.canon.put_value(reader)?;
        parts[field + 1] = self.canon.since(at);
        Ok(true)
    }

    /// `{"type": "function", "function": {`
    fn put_opening(&mut self) -> Span {
        let start = self.canon.bytes.len();
        let parts: [&[u8]; 6] = [
            &[OBJECT, KEY],
            b"type",
            &[TEXT],
            b"function",
            &[KEY],
            b"function",
        ];
        for part in parts {
            self.canon.bytes.extend_from_slice(part);
        }
        self.canon.bytes.push(OBJECT);
        self.canon.since(start)
    }
}
