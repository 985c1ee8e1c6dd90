//! Position hashes: `XXH3(le_u64(position) ‖ block)`, with no chain. The second half of a namespace moves positions.
//!
//! Two prompts with the same text at the same offset but different beginnings share hashes there, so a match proves
//! nothing about the blocks before it. With seed 0 and no namespace the hashes are those of the original proposal on a
//! 64-bit little-endian machine; the position is fixed-width here so that they are the same everywhere.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Hasher;
use super::chained::Seeds;
use super::multimodal::MmObject;
use crate::ids::SequenceHash;

pub(super) fn hash_windows(
    hasher: &Hasher,
    tokens: &[u32],
    seeds: Seeds,
    mm: &[MmObject],
    out: &mut [SequenceHash],
) {
    let mut content = Vec::new();
    let moved = seeds.chain.wrapping_sub(hasher.seed());
    for ((position, window), slot) in (0_u64..).zip(hasher.windows(tokens, mm)).zip(out) {
        content.clear();
        content.extend_from_slice(&position.wrapping_add(moved).to_le_bytes());
        window.append_to(&mut content);
        *slot = SequenceHash(xxh3_64_with_seed(&content, seeds.block));
    }
}
