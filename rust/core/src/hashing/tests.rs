//! Golden vectors. Block hashes: ai-dynamo-runtime 1.6.1, `compute_block_hash_for_seq` (chained hashes: the chain rule
//! over those, computed with python-xxhash 4.1.0). Old vectors never change.

use proptest::prelude::*;
use xxhash_rust::const_xxh3;

use super::*;

fn hashes(
    scheme: Scheme,
    tokens: &[u32],
    block_size: usize,
    namespace: Namespace,
    mm: &[MmObject],
) -> Vec<u64> {
    let hasher = Hasher::new(scheme, block_size, DEFAULT_SEED).unwrap();
    let mut out = Vec::new();
    hasher.hash(tokens, namespace, mm, &mut out);
    out.into_iter().map(|hash| hash.0).collect()
}

fn chained(tokens: &[u32], block_size: usize) -> Vec<u64> {
    hashes(
        Scheme::Chained,
        tokens,
        block_size,
        Namespace::default(),
        &[],
    )
}

/// The chain rule over block hashes, from another implementation of XXH3.
fn chain_of(blocks: &[u64]) -> Vec<u64> {
    let mut out: Vec<u64> = Vec::new();
    for block in blocks {
        let sequence = match out.last() {
            None => *block,
            Some(previous) => {
                let pair = [previous.to_le_bytes(), block.to_le_bytes()].concat();
                const_xxh3::xxh3_64_with_seed(&pair, DEFAULT_SEED)
            }
        };
        out.push(sequence);
    }
    out
}

fn first(n: u32) -> Vec<u32> {
    (0..n).collect()
}

#[test]
fn chained_hashes_of_plain_tokens() {
    let cases: [(&str, Vec<u32>, usize, &[u64]); 6] = [
        (
            "three blocks",
            first(48),
            16,
            &[
                0xd47a_8f41_c833_328a,
                0xbf15_dffb_1644_7f38,
                0xa4dd_a066_f3c1_e1a0,
            ],
        ),
        ("V1", first(16), 16, &[0xd47a_8f41_c833_328a]),
        (
            "V2",
            first(33),
            16,
            &[0xd47a_8f41_c833_328a, 0xbf15_dffb_1644_7f38],
        ),
        (
            "V3",
            (1..=8).collect(),
            4,
            &[0xcb38_e4d7_fb2d_ca5c, 0x44a2_b237_9d6d_3c3d],
        ),
        ("V4", vec![u32::MAX; 4], 4, &[0xac3b_1b11_59a1_e879]),
        (
            "V5",
            vec![1; 32],
            16,
            &[0xbb9a_fac0_e6fd_46ef, 0x589f_5f32_d04f_21d9],
        ),
    ];
    for (name, tokens, block_size, expected) in cases {
        assert_eq!(chained(&tokens, block_size), expected, "{name}");
    }
}

#[test]
fn namespace_seeds() {
    assert_eq!(
        Namespace::new(Some("adapter-a"), None).seeds(1337).block,
        0x7ab7_7913_e9c9_18d6
    );
    assert_eq!(
        Namespace::new(None, Some("tenant-1")).seeds(1337).block,
        0xb63c_9e42_2c37_0a56
    );
    assert_eq!(
        Namespace::new(Some("adapter-a"), Some("tenant-1"))
            .seeds(1337)
            .block,
        0x30f4_1756_1600_1df3
    );
    assert_eq!(Namespace::new(Some(""), Some("")), Namespace::default());
}

#[test]
fn namespaces_move_the_block_hashes_and_not_the_chain() {
    let cases: [(Option<&str>, Option<&str>, [u64; 3]); 3] = [
        (
            Some("adapter-a"),
            Some("tenant-1"),
            [
                0xd28e_16ad_df3b_a71c,
                0xf844_c6fc_2db2_624f,
                0xcf8a_8670_847a_a23b,
            ],
        ),
        (
            Some("adapter-a"),
            None,
            [
                0xf1e2_0c61_558f_16bb,
                0x17ea_b460_7c24_352e,
                0x35be_62ed_7fc2_fd5d,
            ],
        ),
        (
            None,
            Some("tenant-1"),
            [
                0x5518_88c6_218a_d80d,
                0x32e0_3cca_8e60_d8d6,
                0x50fa_70b7_e169_1fee,
            ],
        ),
    ];
    for (lora, salt, blocks) in cases {
        let got = hashes(
            Scheme::Chained,
            &first(48),
            16,
            Namespace::new(lora, salt),
            &[],
        );
        assert_eq!(got, chain_of(&blocks), "{lora:?} {salt:?}");
    }
}

#[test]
fn eagle_windows_see_one_token_more() {
    let blocks = [0x9e88_375a_6f6e_426f, 0x5af7_d904_020a_5678];
    let eagle = |n| hashes(Scheme::Eagle, &first(n), 16, Namespace::default(), &[]);
    assert_eq!(eagle(48), chain_of(&blocks));
    assert_eq!(
        [0, 1, 16, 17, 32, 33, 49].map(|n| eagle(n).len()),
        [0, 0, 0, 1, 1, 2, 3]
    );
}

#[test]
fn multimodal_hashes_join_every_block_they_overlap_in_ascending_order() {
    let object = |hash, start, len| MmObject { hash, start, len };
    let cases: [(&str, Vec<MmObject>, [u64; 3]); 3] = [
        (
            "order of the list does not matter",
            vec![object(7, 15, 1), object(5, 40, 100), object(3, 0, 16)],
            [
                0xdd40_f1bc_1e1c_c4ed,
                0xd439_3917_8abd_00db,
                0xb3c1_cae2_774f_4855,
            ],
        ),
        (
            "an object listed twice counts twice",
            vec![
                object(7, 0, 20),
                object(3, 4, 1),
                object(7, 20, 12),
                object(5, 32, 1),
            ],
            [
                0xdd40_f1bc_1e1c_c4ed,
                0xeb20_49c4_df95_80f8,
                0xb3c1_cae2_774f_4855,
            ],
        ),
        (
            "objects of no length or beyond the prompt touch nothing",
            vec![
                object(9, 3, 0),
                object(9, 48, 5),
                object(9, usize::MAX, usize::MAX),
            ],
            [
                0xd47a_8f41_c833_328a,
                0xd439_3917_8abd_00db,
                0x4cc8_f942_aaf4_01a2,
            ],
        ),
    ];
    for (name, mm, blocks) in cases {
        let got = hashes(Scheme::Chained, &first(48), 16, Namespace::default(), &mm);
        assert_eq!(got, chain_of(&blocks), "{name}");
    }
    let mm = [object(7, 0, 20), object(3, 4, 1), object(7, 20, 12)];
    let got = hashes(Scheme::Eagle, &first(48), 16, Namespace::default(), &mm);
    assert_eq!(
        got,
        chain_of(&[0xde72_d069_498f_9064, 0xd634_dc58_fc01_ace8])
    );
}

#[test]
fn scheme_names_round_trip() {
    for scheme in Scheme::ALL {
        assert_eq!(Scheme::parse("scheme", scheme.name()), Ok(scheme));
    }
    let error = Scheme::parse("scheme", "Chained").unwrap_err();
    assert_eq!(
        error.to_string(),
        "scheme must be \"chained\", \"eagle\" or \"positional\", got \"Chained\""
    );
}

#[test]
fn positional_hashes_do_not_see_what_comes_before() {
    let positional =
        |tokens: &[u32]| hashes(Scheme::Positional, tokens, 2, Namespace::default(), &[]);
    let a = positional(&[1, 1, 2, 2, 3, 3]);
    let b = positional(&[9, 9, 2, 2, 9, 9]);
    assert_ne!(a[0], b[0]);
    assert_eq!(a[1], b[1]);
    assert_ne!(positional(&[5, 5, 5, 5])[0], positional(&[5, 5, 5, 5])[1]);
    let chain = |tokens: &[u32]| chained(tokens, 2);
    assert_ne!(chain(&[1, 1, 2, 2])[1], chain(&[9, 9, 2, 2])[1]);
}

#[test]
fn a_buffer_with_old_content_is_replaced() {
    let hasher = Hasher::new(Scheme::Chained, 4, DEFAULT_SEED).unwrap();
    let mut out = vec![SequenceHash(7); 9];
    hasher.hash(
        &[1, 2, 3, 4, 5, 6, 7, 8, 9],
        Namespace::default(),
        &[],
        &mut out,
    );
    assert_eq!(
        out.iter().map(|hash| hash.0).collect::<Vec<_>>(),
        chained(&[1, 2, 3, 4, 5, 6, 7, 8], 4)
    );
    hash_blocks(&[1, 2, 3], 4, &Namespace::default(), DEFAULT_SEED, &mut out);
    assert_eq!(out, []);
}

proptest! {
    /// Objects are given whole to the whole prompt, and by their part in it to each piece.
    #[test]
    fn a_chain_that_is_continued_equals_the_whole(
        scheme in prop_oneof![Just(Scheme::Chained), Just(Scheme::Eagle)],
        block_size in prop_oneof![1_usize..=24, Just(64)],
        tokens in proptest::collection::vec(any::<u32>(), 0..600),
        cuts in proptest::collection::vec(0_usize..40, 0..5),
        objects in proptest::collection::vec((any::<u64>(), 0_usize..600, 0_usize..90), 0..4),
        salt in prop_oneof![Just(String::new()), "[a-z]{1,5}"],
    ) {
        let namespace = Namespace::new(None, Some(&salt));
        let hasher = Hasher::new(scheme, block_size, DEFAULT_SEED).unwrap();
        let mm: Vec<MmObject> = objects
            .iter()
            .map(|&(hash, start, len)| MmObject { hash, start, len })
            .collect();
        let (mut whole, mut piece, mut pieces) = (Vec::new(), Vec::new(), Vec::new());
        hasher.hash(&tokens, namespace, &mm, &mut whole);
        let mut from = 0;
        for blocks in cuts.into_iter().chain([usize::MAX]) {
            let end = blocks.saturating_mul(block_size).saturating_add(from).min(tokens.len());
            // A window of the next block's first token belongs to the last block of a piece.
            let seen = if scheme == Scheme::Eagle { (end + 1).min(tokens.len()) } else { end };
            let part: Vec<MmObject> = mm
                .iter()
                .filter(|object| object.start + object.len > from)
                .map(|object| MmObject {
                    hash: object.hash,
                    start: object.start.saturating_sub(from),
                    len: object.start + object.len - from.max(object.start),
                })
                .collect();
            hasher.hash_after(pieces.last().copied(), &tokens[from..seen], namespace, &part, &mut piece);
            from += piece.len() * block_size;
            pieces.append(&mut piece);
        }
        prop_assert_eq!(pieces, whole);
    }

    /// Every length class of XXH3, against the second implementation that never takes a precomputed secret.
    #[test]
    fn any_block_size_equals_the_rule(
        block_size in prop_oneof![1_usize..=70, Just(128), Just(1024)],
        tokens in proptest::collection::vec(any::<u32>(), 0..2100),
        seed in prop_oneof![Just(DEFAULT_SEED), any::<u64>()],
        salt in prop_oneof![Just(String::new()), "[a-z]{1,5}"],
    ) {
        let namespace = Namespace::new(None, Some(&salt));
        let mut expected: Vec<u64> = Vec::new();
        for block in tokens.chunks_exact(block_size) {
            let bytes: Vec<u8> = block.iter().flat_map(|token| token.to_le_bytes()).collect();
            let block = const_xxh3::xxh3_64_with_seed(&bytes, namespace.seeds(seed).block);
            let sequence = expected.last().map_or(block, |previous| {
                const_xxh3::xxh3_64_with_seed(&[previous.to_le_bytes(), block.to_le_bytes()].concat(), seed)
            });
            expected.push(sequence);
        }
        let mut out = Vec::new();
        Hasher::new(Scheme::Chained, block_size, seed).unwrap().hash(&tokens, namespace, &[], &mut out);
        let got: Vec<u64> = out.iter().map(|hash| hash.0).collect();
        prop_assert_eq!(&got, &expected);
        hash_blocks(&tokens, block_size, &namespace, seed, &mut out);
        prop_assert_eq!(out.iter().map(|hash| hash.0).collect::<Vec<_>>(), expected);
    }
}
