//! Tools: each an object in the order of its keys, since templates print them so.

use crate::canon::{CLOSE, KEY, OBJECT, Span, TEXT};
use crate::error::Result;
use crate::profile::{Engine, Profile};
use crate::scan::{Reader, Token};
use crate::writer::{Dialect, Writer};

/// Fields of a function in the order in which engines put those that they know.
const NAMES: [&[u8]; 4] = [b"name", b"description", b"parameters", b"strict"];
const PARAMETERS: usize = 2;

/// Where the tools lie: what begins a tool, its known fields, and its end.
type Parts = [Span; NAMES.len() + 2];

/// The tools of a body.
#[derive(Debug, Default)]
pub(crate) struct Tools(Span);

impl Tools {
    /// Where they lie; empty if there is none.
    pub(crate) fn span(&self) -> Span {
        self.0
    }

    /// `tools`: nothing for null or none.
    pub(crate) fn read(
        &mut self,
        w: &mut Writer,
        reader: &mut Reader<'_>,
        dialect: Dialect,
    ) -> Result<()> {
        let begin = w.canon().begin(b'T');
        match reader.peek()? {
            Token::Array => {
                reader.open()?;
                while reader.element()? {
                    put_tool(w, reader, dialect)?;
                }
            }
            Token::Null => reader.skip()?,
            _ => w.put_other(reader)?,
        }
        self.0 = w.canon().since(begin.start);
        if self.0 == begin {
            self.0 = Span::default();
        }
        Ok(())
    }
}

/// A tool as a chat has it. Those of other APIs become one if they have its fields only; so do a chat's own for vLLM,
/// which prints the fields of a function in its own order.
fn put_tool(w: &mut Writer, reader: &mut Reader<'_>, dialect: Dialect) -> Result<()> {
    let flat = dialect != Dialect::Chat;
    if (flat || w.profile.engine == Engine::Vllm) && reader.peek()? == Token::Object {
        let (start, again) = (w.canon().end(), *reader);
        if put_known_tool(w, reader, dialect)? {
            return Ok(());
        }
        w.canon().cut(start);
        *reader = again;
    }
    let (start, is_object) = (w.canon().end(), reader.peek()? == Token::Object);
    if flat {
        w.canon().begin(b't');
    }
    w.canon().put_value(reader)?;
    // An engine may print its fields in another order. With an unknown place, all tools are a whole anyway.
    let Profile {
        engine,
        tools_place,
        is_likely,
        ..
    } = w.profile;
    let reorders = is_object && !is_likely && (flat || engine != Engine::Sglang);
    if reorders && tools_place.is_some() {
        let tool = w.canon().since(start);
        let whole = w.canon().put_whole(b'g', [tool]);
        w.canon().arrange(start, &[whole, tool]);
    }
    Ok(())
}

/// Whether the tool has only the fields that are known; stops at the first other. The last of equal ones counts.
fn put_known_tool(w: &mut Writer, reader: &mut Reader<'_>, dialect: Dialect) -> Result<bool> {
    let mut parts = Parts::default();
    parts[0] = put_opening(w);
    let start = parts[0].start;
    let mut kind = None;
    let mut inside = false;
    reader.open()?;
    while w.next_key(reader)? {
        match (dialect, w.key()) {
            (_, b"type") => {
                w.read_word(reader)?;
                let custom = dialect == Dialect::Messages && w.word() == b"custom";
                kind = Some(custom || w.word() == b"function");
            }
            (Dialect::Chat, b"function") if reader.peek()? == Token::Object => {
                inside = true;
                parts[1..].fill(Span::default());
                reader.open()?;
                while w.next_key(reader)? {
                    if !put_field(w, reader, dialect, &mut parts)? {
                        return Ok(false);
                    }
                }
            }
            (Dialect::Chat, _) => return Ok(false),
            (Dialect::Messages, b"cache_control") => reader.skip()?,
            _ => {
                if !put_field(w, reader, dialect, &mut parts)? {
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
    parts[NAMES.len() + 1] = w.canon().put(&[CLOSE, CLOSE]);
    w.canon().arrange(start, &parts);
    Ok(expected)
}

/// Whether the field is one that is known.
fn put_field(
    w: &mut Writer,
    reader: &mut Reader<'_>,
    dialect: Dialect,
    parts: &mut Parts,
) -> Result<bool> {
    let names = NAMES.iter().enumerate();
    let mut names = names.map(|(at, name)| match at {
        PARAMETERS if dialect == Dialect::Messages => b"input_schema",
        _ => *name,
    });
    let Some(field) = names.position(|name| *name == *w.key()) else {
        return Ok(false);
    };
    let canon = w.canon();
    let at = canon.put(&[KEY]).start;
    canon.put(NAMES[field]);
    canon.put_value(reader)?;
    parts[field + 1] = canon.since(at);
    Ok(true)
}

/// `{"type": "function", "function": {`
fn put_opening(w: &mut Writer) -> Span {
    let canon = w.canon();
    let start = canon.put(&[OBJECT, KEY]).start;
    for part in [&b"type"[..], &[TEXT], b"function", &[KEY], b"function"] {
        canon.put(part);
    }
    canon.put(&[OBJECT]);
    canon.since(start)
}
