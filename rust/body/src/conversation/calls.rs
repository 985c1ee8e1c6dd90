//! Calls of tools in a message of a chat.

use super::contents::Contents;
use crate::canon::Span;
use crate::error::Result;
use crate::scan::{Reader, Token};
use crate::writer::Writer;

impl Contents {
    /// `tool_calls`: nothing for null or none.
    pub(super) fn put_calls(&mut self, w: &mut Writer, reader: &mut Reader<'_>) -> Result<()> {
        match reader.peek()? {
            Token::Array => {
                reader.open()?;
                while reader.element()? {
                    self.count(w, reader)?;
                    if reader.peek()? == Token::Object {
                        put_call(w, reader)?;
                    } else {
                        w.put_other(reader)?;
                    }
                }
                Ok(())
            }
            Token::Null => reader.skip(),
            _ => w.put_other(reader),
        }
    }
}

fn put_call(w: &mut Writer, reader: &mut Reader<'_>) -> Result<()> {
    let (start, fields) = (w.canon().end(), w.fields());
    let mut id = Span::default();
    let mut function = [Span::default(); 2];
    reader.open()?;
    while w.next_key(reader)? {
        match w.key() {
            b"id" => id = w.put_piece(reader, b'd')?,
            b"function" => {
                function = Default::default();
                if reader.peek()? == Token::Object {
                    function = put_function(w, reader)?;
                } else {
                    w.read_field(reader)?;
                }
            }
            b"type" => {
                let digest = w.read_word(reader)?;
                let other = w.word() != b"function";
                w.add_field(b"type", digest.filter(|_| other));
            }
            b"index" | b"cache_control" => reader.skip()?,
            _ => w.read_field(reader)?,
        }
    }
    let [name, arguments] = whole_call(w, function);
    w.canon().arrange(start, &[id, name, arguments]);
    w.put_fields(fields, b'y');
    Ok(())
}

/// Name and arguments of a call.
fn put_function(w: &mut Writer, reader: &mut Reader<'_>) -> Result<[Span; 2]> {
    let [mut name, mut arguments] = [Span::default(); 2];
    let fields = w.fields();
    reader.open()?;
    while w.next_key(reader)? {
        match w.key() {
            b"name" => name = w.put_piece(reader, b'c')?,
            b"arguments" => {
                let at = w.canon().end();
                w.put_arguments(reader)?;
                arguments = w.canon().since(at);
            }
            _ => w.read_field(reader)?,
        }
    }
    let others = w.take_fields(fields);
    w.add_field(b"function", others);
    Ok([name, arguments])
}

/// Name and arguments, each of which a call has.
pub(super) fn whole_call(w: &mut Writer, [mut name, mut arguments]: [Span; 2]) -> [Span; 2] {
    if name.len() == 0 {
        name = w.canon().begin(b'c');
    }
    if arguments.len() == 0 {
        arguments = w.canon().put_empty_object();
    }
    [name, arguments]
}
