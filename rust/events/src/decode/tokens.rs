//! Token ids, of which there are more than of everything else together.
//!
//! How many bytes an id takes depends on its first, so ids are found one after another. A branch per id is mispredicted
//! where ids of three and of five bytes mix, and a table lookup per id waits twice for memory. So the width of the id
//! that may start at each byte, and of the two ids that may start there, is computed for a chunk at once, without
//! branches, and the walk along the ids then waits for one small load per two ids. Measured on ids below 128,000: a
//! third of the time of a branch per id, two thirds of that of a walk by single ids.
//!
//! Tried, all with AVX2 and none faster on such ids: the starts of all ids of 64 bytes as bits, found by repeated
//! elimination (a quarter slower); steps of four ids (a quarter slower); two ids by one byte shuffle, also with the
//! tables of the next chunk made before a chunk is walked (equal). Each step of the walk waits for one load. Without
//! AVX2: two walks at once, the second from where an id of the next chunk most likely starts (8 % slower).

use super::cursor::{Bad, Cursor, Read};

/// Bytes whose widths are computed at once.
const CHUNK: usize = 128;

/// The second of two ids may start up to five bytes behind the chunk, and is read as 8 bytes.
const WINDOW: usize = CHUNK + 16;

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

/// Reads ids, two at a time, as long as whole chunks are left and each is encoded as short as can be; returns how many.
fn chunks(cursor: &mut Cursor<'_>, ids: &mut [u32]) -> usize {
    if ids.len() < FEW {
        return 0;
    }
    let mut bytes = cursor.rest();
    let (mut done, mut at) = (0, 0);
    let mut widths = [0; WINDOW];
    let mut pairs = [0; CHUNK];
    let mut out = ids.chunks_exact_mut(2);
    'chunks: while let Some(window) = bytes.first_chunk::<WINDOW>() {
        for (width, tag) in widths.iter_mut().zip(window) {
            *width = width_of(*tag);
        }
        for (start, pair) in pairs.iter_mut().enumerate() {
            *pair = pair_at(&widths, start);
        }
        while at < CHUNK {
            let (pair, width) = (pairs[at], widths[at]);
            if pair == 0 {
                break 'chunks;
            }
            let Some(two) = out.next() else {
                break 'chunks;
            };
            let second = at + usize::from(width & 7);
            two[0] = id_at(window, at, width);
            two[1] = id_at(window, second, pair - width);
            at += usize::from(pair);
            done += 2;
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

/// Bytes of the two ids from `start` on, or 0 if there are not two.
fn pair_at(widths: &[u8; WINDOW], start: usize) -> u8 {
    let width = widths[start];
    let next = |usual: u8| {
        let next = widths[start + usize::from(usual)];
        if width == usual { next } else { 0 }
    };
    let second = next(1) | next(2) | next(3) | next(5);
    if second == 0 { 0 } else { width + second }
}

/// Bits of an id by its width, tag aside.
const BITS: [u32; 8] = [0, 0x7f, 0xff, 0xffff, 0, u32::MAX, 0, 0];

/// The id in the `width` bytes from `start` on.
fn id_at(window: &[u8; WINDOW], start: usize, width: u8) -> u32 {
    let word = window[start..]
        .first_chunk()
        .map_or(0, |word| u64::from_be_bytes(*word));
    word.rotate_left(8 * u32::from(width)) as u32 & BITS[usize::from(width & 7)]
}
