//! Messages as bytes to [`Batch`]: one pass, no allocation once the buffers have grown.
//!
//! Senders differ in shape and agree in meaning, so the shape alone is looked at, never a version: a message is a
//! msgpack array of a time, events and perhaps a rank; an event is a map in any order of keys, or an array by position
//! of any length; a name is an integer of either sign or bytes.
//!
//! A message that is not well-formed msgpack, or no batch, is refused whole. A field that is not known, or whose value is
//! of another type, is counted by its name and the rest of its event is used. Only an event that lacks a required field
//! is passed over, alone and counted: its reading is undone, and the nesting of msgpack decides where the next one
//! starts.
//!
//! | file | holds |
//! |---|---|
//! | `cursor` | reading msgpack |
//! | `tokens` | reading token ids, where the time goes |
//! | `fields` | one event's fields, by name and by position |
//! | `keys` | keys hashed beside tokens: adapters, salts, images, embeddings |

mod cursor;
mod fields;
mod keys;
mod tokens;

#[cfg(test)]
pub(crate) mod tests;

use cursor::{Bad, Cursor, Read};
use fields::{Fields, Kind};

use crate::batch::{Batch, Event};

/// Largest message that is read. An engine's step comes to a few megabytes at the very most.
pub const MAX_PAYLOAD: usize = 64 << 20;

/// Items of a buffer that are kept from message to message; one huge message does not hold its memory for ever.
const KEPT: usize = 1 << 16;

/// Why a message was refused whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} (byte {at})")]
pub struct Undecodable {
    /// Description of the error.
    pub what: &'static str,
    /// Where reading ended.
    pub at: usize,
}

/// Reads a message into `batch`, whose former content is dropped.
///
/// # Errors
/// [`Undecodable`] for anything that is not a batch in well-formed msgpack; `batch` is empty then.
pub fn decode(payload: &[u8], batch: &mut Batch) -> Result<(), Undecodable> {
    reset(batch);
    let mut cursor = Cursor::new(payload);
    read(&mut cursor, payload.len(), batch).map_err(|what| {
        reset(batch);
        Undecodable {
            what,
            at: payload.len() - cursor.rest().len(),
        }
    })
}

fn reset(batch: &mut Batch) {
    batch.clear();
    batch.events.shrink_to(KEPT);
    batch.names.shrink_to(KEPT);
    batch.tokens.shrink_to(KEPT);
    batch.extras.shrink_to(KEPT);
    batch.text.shrink_to(KEPT);
}

fn read(cursor: &mut Cursor<'_>, len: usize, batch: &mut Batch) -> Result<(), &'static str> {
    if len > MAX_PAYLOAD {
        return Err("the message is larger than 64 MiB");
    }
    let parts = cursor
        .array()
        .map_err(|Bad| "the message is no msgpack array")?;
    if parts < 2 {
        return Err(
            "the message has no events: it must be an array of time, events and perhaps rank",
        );
    }
    batch.ts = cursor
        .float()
        .map_err(|Bad| "the first part, the time, is no finite number")?;
    let events = cursor
        .array()
        .map_err(|Bad| "the second part, the events, is no array")?;
    for _ in 0..events {
        event(cursor, batch).map_err(|Bad| "the message ends early or is no valid msgpack")?;
    }
    if parts > 2 {
        batch.rank = cursor
            .unless_nil(Cursor::number)
            .map_err(|Bad| "the third part, the rank, is no integer from 0 to 4294967295")?;
    }
    for _ in 3..parts {
        cursor
            .skip()
            .map_err(|Bad| "the message ends early or is no valid msgpack")?;
    }
    if !cursor.rest().is_empty() {
        return Err("bytes follow the batch");
    }
    Ok(())
}

/// Lengths of a batch's buffers, to undo a read.
struct Mark {
    names: usize,
    tokens: usize,
    extras: usize,
    text: usize,
    fields: usize,
}

impl Mark {
    fn set(batch: &Batch) -> Self {
        Self {
            names: batch.names.len(),
            tokens: batch.tokens.len(),
            extras: batch.extras.len(),
            text: batch.text.len(),
            fields: batch.fields.len(),
        }
    }

    fn back(&self, batch: &mut Batch) {
        batch.names.truncate(self.names);
        batch.tokens.truncate(self.tokens);
        batch.extras.truncate(self.extras);
        batch.text.truncate(self.text);
        batch.fields.truncate(self.fields);
    }
}

/// Reads one event, or passes over it and counts why. Fails only if the bytes here are no valid msgpack.
fn event(cursor: &mut Cursor<'_>, batch: &mut Batch) -> Read<()> {
    let start = *cursor;
    let mark = Mark::set(batch);
    match known(cursor, batch) {
        Ok(Some(event)) => batch.events.push(event),
        Ok(None) => {
            batch.unknown_events += 1;
            *cursor = start;
            cursor.skip()?;
        }
        Err(Bad) => {
            mark.back(batch);
            batch.malformed_events += 1;
            *cursor = start;
            cursor.skip()?;
        }
    }
    Ok(())
}

/// Reads one event; `None` if its type is unknown.
fn known(cursor: &mut Cursor<'_>, batch: &mut Batch) -> Read<Option<Event>> {
    let mut fields = Fields::default();
    let kind = if matches!(cursor.peek()?, 0x80..=0x8f | 0xde | 0xdf) {
        let pairs = cursor.map()?;
        let Some(kind) = Kind::of_map(cursor, pairs)? else {
            return Ok(None);
        };
        for _ in fields.usual(kind, pairs, cursor, batch)?..pairs {
            let field = kind.field_named(cursor, batch)?;
            fields.take(kind, field, cursor, batch)?;
        }
        kind
    } else {
        let items = cursor.array()?;
        if items == 0 {
            return Err(Bad);
        }
        let Some(kind) = Kind::named(cursor.raw_text()?) else {
            return Ok(None);
        };
        for at in 0..items - 1 {
            fields.at(kind, at, cursor, batch)?;
        }
        kind
    };
    fields.event(kind, batch).map(Some)
}
