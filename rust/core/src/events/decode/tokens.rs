//! Token ids, of which there are more than of everything else together.
//!
//! How many bytes an id takes depends on its first, so ids are found one after another. A branch per id is guessed wrong
//! where ids of three and of five bytes mix, and a table asked per id waits twice for memory. So the width of whatever
//! might start at each byte is computed for a chunk at once, without branches, and the walk along the ids then waits
//! for one small load per id. Measured on ids below 128,000: half the time of a branch per id, which is faster (by an
//! eighth) only where nearly all ids have one width; a third of the time of the `rmp` crate.

use super::cursor::{Bad, Cursor, Read};

/// Bytes whose widths are computed at once.
const CHUNK: usize = 128;

/// An id that starts in the chunk's last byte is read as 8 bytes.
const WINDOW: usize = CHUNK + 8;

/// Fewer ids than this are not worth a chunk.
const FEW: usize = 8;

/// Appends the token ids of the array that stands here. An engine that drafts with EAGLE lists pairs, each token with
/// the one that follows it; the first of each pair is the token.
pub(super) fn read(cursor: &mut Cursor<'_>, out: &mut Vec<u32>) -> Read<()> {
    let items = cursor.array()?;
    let start = out.len();
    out.resize(start + items, 0);
    let ids = &mut out[start..];
    match cursor.peek() {
        Ok(0x90..=0x9f | 0xdc | 0xdd) if items > 0 => {
            for id in ids {
                if cursor.array()? != 2 {
                    return Err(Bad);
                }
                *id = cursor.number()?;
                cursor.number()?;
            }
        }
        _ => {
            let done = chunks(cursor, ids);
            for id in &mut ids[done..] {
                *id = cursor.number()?;
            }
        }
    }
    Ok(())
}

/// Reads ids as long as whole chunks are left and each is encoded as short as can be; returns how many.
fn chunks(cursor: &mut Cursor<'_>, ids: &mut [u32]) -> usize {
    if ids.len() < FEW {
        return 0;
    }
    let mut bytes = cursor.rest();
    let (mut done, mut at) = (0, 0);
    let mut widths = [0; CHUNK];
    'chunks: while let Some(window) = bytes.first_chunk::<WINDOW>() {
        for (width, tag) in widths.iter_mut().zip(window) {
            *width = width_of(*tag);
        }
        while at < CHUNK {
            let width = widths[at];
            let (Some(id), Some(word)) = (ids.get_mut(done), window[at..].first_chunk()) else {
                break 'chunks;
            };
            if width == 0 {
                break 'chunks;
            }
            *id = id_of(u64::from_be_bytes(*word), u32::from(width));
            at += usize::from(width);
            done += 1;
        }
        at -= CHUNK;
        bytes = &bytes[CHUNK..];
    }
    cursor.go_to(&bytes[at..]);
    done
}

/// Bytes of an id that starts with `tag`, or 0 if none usually does.
fn width_of(tag: u8) -> u8 {
    let one = u8::from(tag < 0x80);
    let two = u8::from(tag == 0xcc) * 2;
    let three = u8::from(tag == 0xcd) * 3;
    let five = u8::from(tag == 0xce) * 5;
    one | two | three | five
}

/// The id that the first `width` bytes of a word are, tag included. Shifts wrap: for one byte there is no tag to cut off.
fn id_of(word: u64, width: u32) -> u32 {
    let bytes = word.wrapping_shr(64 - 8 * width) as u32;
    bytes & u32::MAX.wrapping_shr(40 - 8 * width)
}
