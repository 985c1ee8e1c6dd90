//! Extra keys that engines hash beside the tokens: adapter, salt, images, prompt embeddings.
//!
//! vLLM lists the values of a block without their types, in the order adapter, images, salt, embeddings. A value of
//! uncertain type becomes an object of the block by the hash of its bytes: blocks that differ stay apart, and no
//! request matches them.

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
    let whole = *cursor;
    let Ok(blocks) = cursor.array() else {
        *cursor = whole;
        add(out, context, 0, opaque(&whole, cursor)?);
        return Ok(salt);
    };
    for block in 0..blocks as u32 {
        let start = *cursor;
        if cursor.nil() {
            continue;
        }
        // A value alone is a list of one.
        let values = cursor.array().unwrap_or_else(|Bad| {
            *cursor = start;
            1
        });
        let mut last_text = None;
        for at in 0..values {
            let start = *cursor;
            let hash = match cursor.peek()? {
                _ if cursor.is_text() && cursor.clone().text().is_ok() => {
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
    let mut add = |block, hash| {
        if block < blocks {
            out.push(Extra { block, hash });
        }
    };
    let whole = *cursor;
    let Ok(infos) = cursor.array() else {
        *cursor = whole;
        add(0, opaque(&whole, cursor)?);
        return Ok(());
    };
    for block in 0..infos as u32 {
        if cursor.nil() {
            continue;
        }
        let start = *cursor;
        cursor.skip()?;
        let mut inner = start;
        if objects(&mut inner, |hash| add(block, hash)).is_err() {
            add(block, xxh3_64(start.until(cursor)));
        }
    }
    Ok(())
}

/// The objects of a block.
fn objects(cursor: &mut Cursor<'_>, mut each: impl FnMut(u64)) -> Read<()> {
    for _ in 0..cursor.map()? {
        if cursor.raw_text()? != b"mm_objects" {
            cursor.skip()?;
            continue;
        }
        for _ in 0..cursor.array()? {
            each(object(cursor)?);
        }
    }
    Ok(())
}

fn object(cursor: &mut Cursor<'_>) -> Read<u64> {
    let mut hash = None;
    for _ in 0..cursor.map()? {
        if cursor.raw_text()? == b"mm_hash" {
            hash = Some(id(cursor)?);
        } else {
            cursor.skip()?;
        }
    }
    hash.ok_or(Bad)
}

/// An image's id, however it is encoded: the number of its first 16 hex digits, or of its first 8 bytes.
fn id(cursor: &mut Cursor<'_>) -> Read<u64> {
    match cursor.peek()? {
        0xc4..=0xc6 => {
            let bytes = cursor.binary()?;
            let head = bytes.first_chunk().map(|head| u64::from_be_bytes(*head));
            Ok(head.unwrap_or_else(|| xxh3_64(bytes)))
        }
        _ if cursor.is_text() => cursor.text().map(image),
        _ => cursor.bits(),
    }
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
        && let Ok(id) = id(&mut pair)
        && pair.bits().is_ok()
    {
        *cursor = pair;
        return Ok(id);
    }
    opaque(&start, cursor)
}

/// A value of unknown type, by the hash of its bytes.
fn opaque(start: &Cursor<'_>, cursor: &mut Cursor<'_>) -> Read<u64> {
    cursor.skip()?;
    Ok(xxh3_64(start.until(cursor)))
}
