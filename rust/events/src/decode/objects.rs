//! Messages of the Mooncake master: which objects a pool that workers share holds.
//!
//! They name neither a worker nor tokens: keys of objects are computed from a prompt elsewhere. There is no replay, so a
//! hole in the numbers of messages means that nothing is known of the pool any more.
//!
//! Read by Dynamo's `lib/llm/src/kv_router/shared_cache.rs` (the batch, the empty tenant, what a removal without a group
//! means) and Mooncake's `docs/source/design/kv-event/subscriber-guide.md` (`cleared`, fields).

use super::cursor::{Bad, Cursor, Read};
use super::{MAX_PAYLOAD, Undecodable};

/// What happened to an object, or to all of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectChange<'a> {
    /// It is there.
    Stored(&'a str),
    /// It is gone.
    Removed(&'a str),
    /// All of the tenant are gone.
    Cleared,
}

/// An event of a shared pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectEvent<'a> {
    /// What happened, with the key of the object.
    pub change: ObjectChange<'a>,
    /// Whose objects they are; empty for the default tenant.
    pub tenant: &'a str,
    /// Objects of one page; old publishers leave it out.
    pub group: Option<&'a str>,
}

/// Reads a message; `take` gets its events in order. Returns how many events were passed over: of a type that is not known,
/// or without what it needs.
///
/// # Errors
/// [`Undecodable`] for anything that is not a batch in well-formed msgpack; what came before the mistake was given to
/// `take`, whose holdings cannot be relied on then any more than after a hole.
pub fn decode_objects<'a>(
    payload: &'a [u8],
    mut take: impl FnMut(ObjectEvent<'a>),
) -> Result<u32, Undecodable> {
    let mut cursor = Cursor::new(payload);
    let read = batch(&mut cursor, payload.len(), &mut take);
    read.map_err(|what| Undecodable {
        what,
        at: payload.len() - cursor.rest().len(),
    })
}

fn batch<'a>(
    cursor: &mut Cursor<'a>,
    len: usize,
    take: &mut dyn FnMut(ObjectEvent<'a>),
) -> Result<u32, &'static str> {
    const SHAPE: &str = "the message is no msgpack array of time, events and rank";
    const END: &str = "the message ends early or is no valid msgpack";
    if len > MAX_PAYLOAD {
        return Err("the message is larger than 64 MiB");
    }
    let parts = cursor.array().map_err(|Bad| SHAPE)?;
    if parts < 2 {
        return Err(SHAPE);
    }
    cursor.skip().map_err(|Bad| END)?;
    let events = cursor.array().map_err(|Bad| SHAPE)?;
    let mut passed_over = 0;
    for _ in 0..events {
        let start = *cursor;
        cursor.skip().map_err(|Bad| END)?;
        match event(&mut start.clone()) {
            Ok(Some(event)) => take(event),
            Ok(None) | Err(Bad) => passed_over += 1,
        }
    }
    for _ in 2..parts {
        cursor.skip().map_err(|Bad| END)?;
    }
    if cursor.rest().is_empty() {
        Ok(passed_over)
    } else {
        Err("bytes follow the batch")
    }
}

/// Reads one event; `None` if its type is not known.
fn event<'a>(cursor: &mut Cursor<'a>) -> Read<Option<ObjectEvent<'a>>> {
    let (mut kind, mut key, mut tenant, mut group) = (None, None, None, None);
    for _ in 0..cursor.map()? {
        match cursor.raw_text()? {
            b"event_type" => kind = Some(cursor.raw_text()?),
            b"object_key" => key = cursor.unless_nil(Cursor::text)?,
            b"tenant_id" => tenant = cursor.unless_nil(Cursor::text)?,
            b"group_id" => group = cursor.unless_nil(Cursor::text)?,
            _ => cursor.skip()?,
        }
    }
    let change = match kind.ok_or(Bad)? {
        b"stored" => ObjectChange::Stored(key.ok_or(Bad)?),
        b"removed" => ObjectChange::Removed(key.ok_or(Bad)?),
        b"cleared" => ObjectChange::Cleared,
        _ => return Ok(None),
    };
    let tenant = tenant.filter(|tenant| *tenant != "default");
    Ok(Some(ObjectEvent {
        change,
        tenant: tenant.unwrap_or_default(),
        group: group.filter(|group| !group.is_empty()),
    }))
}
