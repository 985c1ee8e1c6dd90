//! Images, audio and other objects whose placeholder tokens do not distinguish them.
//!
//! A block that overlaps an object's token range hashes the object's own hash too. Cost: one sweep over blocks and
//! objects, both in token order.

use xxhash_rust::xxh3::xxh3_64;

/// One object of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MmObject {
    /// Hash of the object's content.
    pub hash: u64,
    /// First placeholder token.
    pub start: usize,
    /// Placeholder tokens; an object of length 0 touches no block.
    pub len: usize,
}

impl MmObject {
    fn end(&self) -> usize {
        self.start.saturating_add(self.len)
    }
}

/// Replaces the placeholder tokens of objects by tokens that differ from object to object.
pub fn distinguish(tokens: &mut [u32], objects: &[MmObject]) {
    let count = tokens.len();
    for object in objects {
        let covered = object.start.min(count)..object.end().min(count);
        for token in &mut tokens[covered] {
            let pair = [u64::from(*token), object.hash];
            *token = xxh3_64(bytemuck::cast_slice(&pair)) as u32;
        }
    }
}

/// The content that one block's hash covers.
pub(super) struct Window<'a> {
    tokens: &'a [u32],
    /// Hashes of the overlapping objects, ascending; an object listed twice counts twice.
    objects: Vec<u64>,
}

impl Window<'_> {
    /// Appends tokens and object hashes as little-endian bytes.
    pub(super) fn append_to(&self, content: &mut Vec<u8>) {
        content.extend_from_slice(bytemuck::cast_slice(self.tokens));
        content.extend_from_slice(bytemuck::cast_slice(&self.objects));
    }
}

/// Every full window: `width` tokens each, one per `stride` tokens.
pub(super) fn windows<'a>(
    tokens: &'a [u32],
    stride: usize,
    width: usize,
    mm: &'a [MmObject],
) -> impl Iterator<Item = Window<'a>> {
    let mut coming: Vec<&MmObject> = mm.iter().filter(|object| object.len > 0).collect();
    coming.sort_by_key(|run| std::cmp::Reverse(run.start));
    let mut active: Vec<&MmObject> = Vec::new();
    tokens
        .windows(width)
        .step_by(stride)
        .enumerate()
        .map(move |(block, tokens)| {
            let start = block * stride;
            active.retain(|object| object.end() > start);
            while let Some(object) = coming.pop_if(|object| object.start < start + width) {
                if object.end() > start {
                    let at = active.partition_point(|other| other.hash < object.hash);
                    active.insert(at, object);
                }
            }
            Window {
                tokens,
                objects: active.iter().map(|object| object.hash).collect(),
            }
        })
}
