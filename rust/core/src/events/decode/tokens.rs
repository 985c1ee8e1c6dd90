//! Token ids, of which there are more than of everything else together.

use super::cursor::{Bad, Cursor, Read};

/// Appends the token ids of the array that stands here. An engine that drafts with EAGLE lists pairs, each token with
/// the one that follows it; the first of each pair is the token.
pub(super) fn read(cursor: &mut Cursor<'_>, out: &mut Vec<u32>) -> Read<()> {
    let items = cursor.array()?;
    if items == 0 {
        return Ok(());
    }
    out.reserve(items);
    let pairs = matches!(cursor.peek()?, 0x90..=0x9f | 0xdc | 0xdd);
    for _ in 0..items {
        if pairs {
            if cursor.array()? != 2 {
                return Err(Bad);
            }
            out.push(cursor.number()?);
            cursor.number()?;
        } else {
            out.push(cursor.number()?);
        }
    }
    Ok(())
}
