//! Text to sequence hashes, for prompts that come without tokens.
//!
//! A chunk is `chunk_bytes` consecutive bytes of UTF-8; a tail that does not fill one has no hash. Bytes are compared,
//! so a chunk may begin or end inside a character. The hashes are chained like those of tokens and live in the same
//! index, yet never meet them: both seeds are hashes of a tag that tokens do not have. The chain and the chunks have
//! different tags, so that a chunk of 16 bytes is no step of the chain either.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Namespace, chained};
use crate::ids::SequenceHash;

const CHUNK_TAG: &[u8] = b"cachelb text chunk";
const CHAIN_TAG: &[u8] = b"cachelb text chain";

/// Chained hashes of the full chunks of `text`, replacing the content of `out`.
///
/// Chunks of 0 bytes give no hashes.
pub fn hash_text(
    text: &[u8],
    chunk_bytes: usize,
    namespace: Namespace,
    seed: u64,
    out: &mut Vec<SequenceHash>,
) {
    // Growth alone is zero-filled: a buffer that is reused costs nothing here.
    out.resize(
        text.len().checked_div(chunk_bytes).unwrap_or(0),
        SequenceHash(0),
    );
    hash_text_into(text, chunk_bytes, namespace, seed, out);
}

/// Writes one hash per full chunk of `text` to `out`.
///
/// If `out` is shorter than `text.len() / chunk_bytes`, the chunks beyond it are not hashed.
pub fn hash_text_into(
    text: &[u8],
    chunk_bytes: usize,
    namespace: Namespace,
    seed: u64,
    out: &mut [SequenceHash],
) {
    let seeds = namespace.seeds(seed);
    let seeds = chained::Seeds {
        block: xxh3_64_with_seed(CHUNK_TAG, seeds.block),
        chain: xxh3_64_with_seed(CHAIN_TAG, seeds.chain),
    };
    chained::hash_bytes(None, text, chunk_bytes.max(1), seeds, out);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use xxhash_rust::const_xxh3;

    use super::*;
    use crate::hashing::{DEFAULT_SEED, Hasher, Scheme};

    fn hashes(text: &[u8], chunk_bytes: usize, namespace: Namespace, seed: u64) -> Vec<u64> {
        let mut out = Vec::new();
        hash_text(text, chunk_bytes, namespace, seed, &mut out);
        out.into_iter().map(|hash| hash.0).collect()
    }

    fn plain(text: &[u8], chunk_bytes: usize) -> Vec<u64> {
        hashes(text, chunk_bytes, Namespace::default(), DEFAULT_SEED)
    }

    /// The rule, step by step, over an implementation of XXH3 that never takes a precomputed secret.
    fn model(text: &[u8], chunk_bytes: usize, namespace: Namespace, seed: u64) -> Vec<u64> {
        let chunk_seed =
            const_xxh3::xxh3_64_with_seed(b"cachelb text chunk", namespace.seeds(seed).block);
        let chain_seed =
            const_xxh3::xxh3_64_with_seed(b"cachelb text chain", namespace.seeds(seed).chain);
        let mut out: Vec<u64> = Vec::new();
        for chunk in text.chunks_exact(chunk_bytes) {
            let chunk = const_xxh3::xxh3_64_with_seed(chunk, chunk_seed);
            let sequence = out.last().map_or(chunk, |previous| {
                let pair = [previous.to_le_bytes(), chunk.to_le_bytes()].concat();
                const_xxh3::xxh3_64_with_seed(&pair, chain_seed)
            });
            out.push(sequence);
        }
        out
    }

    /// Computed by the rule with python-xxhash 4.1.0. Old vectors never change: routers that share state agree on them.
    #[test]
    fn golden_vectors() {
        let text: Vec<u8> = (0..48).collect();
        assert_eq!(
            plain(&text, 16),
            [
                0x86a7_e249_7b4a_75cf,
                0x6643_c9a6_f714_1095,
                0x57a8_cc8e_2d8c_d788
            ]
        );
        assert_eq!(
            plain("é".repeat(200).as_bytes(), 256),
            [0x8df6_0139_0672_369d]
        );
        let namespace = Namespace::new(Some("adapter-a"), Some("tenant-1"));
        assert_eq!(
            hashes("é".repeat(40).as_bytes(), 64, namespace, 7),
            [0x3fca_2ae5_9929_84b7]
        );
    }

    #[test]
    fn the_tail_has_no_hash_and_a_buffer_with_old_content_is_replaced() {
        let counts = [0, 1, 63, 64, 65, 127, 128].map(|len| plain(&vec![b'x'; len], 64).len());
        assert_eq!(counts, [0, 0, 0, 1, 1, 1, 2]);
        let mut out = vec![SequenceHash(7); 9];
        hash_text(b"abcde", 2, Namespace::default(), DEFAULT_SEED, &mut out);
        assert_eq!(
            out.iter().map(|hash| hash.0).collect::<Vec<_>>(),
            plain(b"abcd", 2)
        );
        hash_text(b"abcde", 0, Namespace::default(), DEFAULT_SEED, &mut out);
        assert_eq!(out, []);
    }

    #[test]
    fn hashes_of_text_never_meet_those_of_the_same_bytes_as_tokens() {
        let tokens: Vec<u32> = (0..4096).map(|at| at % 7).collect();
        let text: &[u8] = bytemuck::cast_slice(&tokens);
        let mut seen = HashSet::new();
        let mut count = 0;
        for block_size in [1, 2, 4, 16, 64] {
            let mut out = Vec::new();
            for scheme in Scheme::ALL {
                Hasher::new(scheme, block_size, DEFAULT_SEED).unwrap().hash(
                    &tokens,
                    Namespace::default(),
                    &[],
                    &mut out,
                );
                seen.extend(out.iter().map(|hash| hash.0));
            }
            let hashes = plain(text, block_size * 4);
            count += hashes.len();
            assert!(hashes.iter().all(|hash| !seen.contains(hash)));
        }
        assert_eq!(count, 4096 + 2048 + 1024 + 256 + 64);
    }

    #[test]
    fn a_chunk_that_spells_a_step_of_the_chain_has_another_hash() {
        let two = plain(&[b'x'; 32], 16);
        let chunk_seed = const_xxh3::xxh3_64_with_seed(CHUNK_TAG, DEFAULT_SEED);
        let second = const_xxh3::xxh3_64_with_seed(&[b'x'; 16], chunk_seed);
        let forged = [two[0].to_le_bytes(), second.to_le_bytes()].concat();
        assert_ne!(plain(&forged, 16)[0], two[1]);
    }

    #[test]
    fn namespaces_and_seeds_share_no_hash() {
        let text = [b'x'; 256];
        let hashes: HashSet<u64> = [
            (Namespace::default(), 1),
            (Namespace::default(), 2),
            (Namespace::new(None, Some("s")), 1),
            (Namespace::new(Some("s"), None), 1),
            (Namespace::new(Some("s"), Some("s")), 1),
        ]
        .into_iter()
        .flat_map(|(namespace, seed)| hashes(&text, 64, namespace, seed))
        .collect();
        assert_eq!(hashes.len(), 5 * 4);
    }

    proptest! {
        /// Every length class of XXH3.
        #[test]
        fn any_chunk_size_equals_the_rule(
            chunk_bytes in prop_oneof![1_usize..=300, Just(512), Just(4096)],
            text in proptest::collection::vec(any::<u8>(), 0..6000),
            seed in prop_oneof![Just(DEFAULT_SEED), any::<u64>()],
            salt in prop_oneof![Just(String::new()), "[a-z]{1,5}"],
        ) {
            let namespace = Namespace::new(None, Some(&salt));
            prop_assert_eq!(
                hashes(&text, chunk_bytes, namespace, seed),
                model(&text, chunk_bytes, namespace, seed)
            );
        }

        #[test]
        fn equal_hashes_mean_equal_prefixes(
            one in "[ab]{0,40}",
            other in "[ab]{0,40}",
            chunk_bytes in 1_usize..8,
        ) {
            let (left, right) = (plain(one.as_bytes(), chunk_bytes), plain(other.as_bytes(), chunk_bytes));
            for at in 0..left.len().min(right.len()) {
                let end = (at + 1) * chunk_bytes;
                prop_assert_eq!(left[at] == right[at], one[..end] == other[..end]);
            }
        }

        #[test]
        fn one_changed_byte_changes_every_hash_from_its_chunk_on(
            mut text in proptest::collection::vec(any::<u8>(), 1..600),
            at in any::<prop::sample::Index>(),
            flip in 1_u8..,
            chunk_bytes in 1_usize..70,
        ) {
            let before = plain(&text, chunk_bytes);
            let at = at.index(text.len());
            text[at] ^= flip;
            let after = plain(&text, chunk_bytes);
            let first = (at / chunk_bytes).min(before.len());
            prop_assert_eq!(&before[..first], &after[..first]);
            prop_assert!(before[first..].iter().zip(&after[first..]).all(|(old, new)| old != new));
        }
    }
}
