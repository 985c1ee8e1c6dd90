//! What engines hash beside the tokens: adapter, salt, images, prompt embeddings.
//!
//! vLLM lists the values of a block without saying what they are, in the order adapter, images, salt, embeddings. What
//! cannot be told for certain becomes an object of the block by the hash of its bytes: blocks that differ stay apart,
//! and no request is believed to have them.

use xxhash_rust::xxh3::xxh3_64;

use super::cursor::{Bad, Cursor, Read};
use crate::batch::Extra;

/// The other fields of a store that its `extra_keys` depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    /// Blocks of the store; values of further ones mean nothing.
    pub(super) blocks: u32,
    /// Adapter.
    pub(super) lora: Option<&'a str>,
    /// Salt, from a field of its own.
    pub(super) salt: Option<&'a str>,
    /// Whether the first block is a prompt's first.
    pub(super) root: bool,
}

/// Reads `extra_keys`: the objects of blocks go to `out`, the salt is returned.
///
/// Texts of a prompt's first block are images by id, but the last one is the salt unless the salt is known already.
/// Elsewhere engines do not repeat the salt, so texts are images.
pub(super) fn extra_keys<'a>(
    cursor: &mut Cursor<'a>,
    context: Context<'a>,
    out: &mut Vec<Extra>,
) -> Read<Option<&'a str>> {
    let mut salt = context.salt;
    for block in 0..cursor.array()? as u32 {
        let Some(values) = cursor.unless_nil(Cursor::array)? else {
            continue;
        };
        let mut last_text = None;
        for at in 0..values {
            let start = *cursor;
            let hash = match cursor.peek()? {
                0xa0..=0xbf | 0xd9..=0xdb => {
                    let text = cursor.text()?;
                    if at == 0 && context.lora == Some(text) {
                        continue;
                    }
                    if block == 0 && context.root {
                        if context.salt == Some(text) {
                            continue;
                        }
                        // The one before was not the last.
                        if let Some(text) = last_text.replace(text) {
                            add(out, context, block, image(text));
                        }
                        continue;
                    }
                    image(text)
                }
                0xc4..=0xc6 => embeds(cursor.binary()?),
                0x90..=0x9f | 0xdc | 0xdd => positioned(cursor)?,
                _ => opaque(&start, cursor)?,
            };
            add(out, context, block, hash);
        }
        if let Some(text) = last_text {
            if salt.is_none() {
                salt = Some(text);
            } else {
                add(out, context, block, image(text));
            }
        }
    }
    Ok(salt)
}

/// Reads `block_mm_infos`: per block nil, or a map with a list `mm_objects` of maps with a number `mm_hash`.
pub(super) fn mm_infos(cursor: &mut Cursor<'_>, blocks: u32, out: &mut Vec<Extra>) -> Read<()> {
    for block in 0..cursor.array()? as u32 {
        if cursor.nil() {
            continue;
        }
        for _ in 0..cursor.map()? {
            if cursor.raw_text()? != b"mm_objects" {
                cursor.skip()?;
                continue;
            }
            for _ in 0..cursor.array()? {
                let hash = object(cursor)?;
                if block < blocks {
                    out.push(Extra { block, hash });
                }
            }
        }
    }
    Ok(())
}

fn object(cursor: &mut Cursor<'_>) -> Read<u64> {
    let mut hash = None;
    for _ in 0..cursor.map()? {
        if cursor.raw_text()? == b"mm_hash" {
            hash = Some(cursor.bits()?);
        } else {
            cursor.skip()?;
        }
    }
    hash.ok_or(Bad)
}

fn add(out: &mut Vec<Extra>, context: Context<'_>, block: u32, hash: u64) {
    if block < context.blocks {
        out.push(Extra { block, hash });
    }
}

/// An image's id: as a rule the hex digits of a hash, of which the first 16 are taken; else any text.
fn image(id: &str) -> u64 {
    let digits = id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let head = id.get(..16).filter(|_| digits);
    head.and_then(|head| u64::from_str_radix(head, 16).ok())
        .unwrap_or_else(|| xxh3_64(id.as_bytes()))
}

/// The digest of prompt embeddings.
fn embeds(digest: &[u8]) -> u64 {
    digest
        .first_chunk()
        .map_or_else(|| xxh3_64(digest), |head| u64::from_le_bytes(*head))
}

/// An image's id with the offset at which it starts, which the tokens show too; or another array.
fn positioned(cursor: &mut Cursor<'_>) -> Read<u64> {
    let start = *cursor;
    let mut pair = start;
    if pair.array()? == 2
        && let Ok(id) = pair.text()
        && pair.bits().is_ok()
    {
        *cursor = pair;
        return Ok(image(id));
    }
    opaque(&start, cursor)
}

/// A value nobody knows, by its bytes.
fn opaque(start: &Cursor<'_>, cursor: &mut Cursor<'_>) -> Read<u64> {
    cursor.skip()?;
    Ok(xxh3_64(start.until(cursor)))
}
