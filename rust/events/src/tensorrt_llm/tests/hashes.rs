//! Keys that are hashed beside tokens, whether or not events name them.

use super::*;

/// Objects by block, salt and adapter of a chain of two blocks with the same tokens.
fn found(scheme: &str, hashes: [&str; 2], more: &str, verify: bool) -> ([bool; 2], bool, bool) {
    let blocks = [
        block(hashes[0], &[1, 2, 3, 4], more),
        block(hashes[1], &[5, 6, 7, 8], more),
    ];
    let event = v1(0, 4096, &stored("null", &blocks)).replace("v1_block_key", scheme);
    let (batch, stores) = only(&mut with(1, None, verify), &[event]);
    let [store] = stores[..] else {
        panic!("{batch:?}")
    };
    let extras = &batch.extras[store.extras.range()];
    let with_objects = [0, 1].map(|block| extras.iter().any(|extra| extra.block == block));
    (with_objects, store.salt.is_some(), store.lora.is_some())
}

const SHA: [&str; 2] = [
    "\"e432228522a304ab556d66e6e40979ad05575f28b19b554264dd3c6277aaf073\"",
    "\"756b1d258c63ccc0cbd6284ab33b043c81175086163f9d2821f5764079efb75c\"",
];
const SHA_SALT: &str = "\"ea57bf9c38284bbb76de9d465cbfa3ae67006f8aaf9858b8003763877b61dd38\"";
const SHA_LORA: &str = "\"7e4ad4f8cb28400cd4c606251584643a4fb654d50f1bed85f967ec55f8b76946\"";

#[test]
fn a_block_is_plain_only_if_its_hash_shows_it() {
    let [root, next] = [ROOT.to_string(), NEXT.to_string()];
    let plain = [root.as_str(), next.as_str()];
    let lora = ["1405807694910447675", "13794850255392118621"];
    let salted = ["15825176477830515522", "3868064489945233883"];
    let short = ["16443243144690205867", "8460888372051954880"];
    let salt = r#", "cache_salt": "t""#;
    let id = r#", "lora_id": 7"#;
    let cases = [
        ("v1_block_key", plain, "", ([false; 2], false, false)),
        ("v1_block_key", lora, "", ([true; 2], false, false)),
        ("v1_block_key", lora, id, ([false; 2], false, true)),
        ("v1_block_key", plain, id, ([true; 2], false, true)),
        ("v1_block_key", salted, "", ([true, false], false, false)),
        ("v1_block_key", salted, salt, ([false; 2], true, false)),
        // Another hash of the salt, which the second block vouches for; and one that it does not.
        (
            "v1_block_key",
            [next.as_str(), "12"],
            salt,
            ([true; 2], true, false),
        ),
        ("v2_sha256", SHA, "", ([false; 2], false, false)),
        (
            "v2_sha256",
            [SHA_SALT, SHA[1]],
            "",
            ([true, false], false, false),
        ),
        (
            "v2_sha256",
            [SHA_SALT, SHA[1]],
            salt,
            ([false; 2], true, false),
        ),
        (
            "v2_sha256",
            [SHA_LORA, SHA[1]],
            "",
            ([true, false], false, false),
        ),
        (
            "v2_sha256",
            [SHA_LORA, SHA[1]],
            id,
            ([false; 2], false, true),
        ),
        ("v2_sha256_64", short, "", ([false; 2], false, false)),
        ("v3", plain, "", ([true; 2], false, false)),
    ];
    for (scheme, hashes, more, expected) in cases {
        let found_here = found(scheme, hashes, more, true);
        assert_eq!(found_here, expected, "{scheme} {hashes:?} {more}");
        let unchecked = found(scheme, hashes, more, false);
        assert_eq!(unchecked, ([false; 2], expected.1, expected.2));
    }
}

#[test]
fn a_salt_of_the_first_manager_is_believed_if_the_next_block_has_no_adapter() {
    let salted = "77";
    let blocks = |next: &str| {
        let root = block(salted, &[1, 2, 3, 4], r#", "cache_salt": "t""#);
        v1(
            0,
            4096,
            &stored("null", &[root, block(next, &[5, 6, 7, 8], "")]),
        )
    };
    // The hash of 77 and 5, 6, 7, 8, by the same formula as the others.
    let chained = "17136833042156588856";
    let (_, stores) = only(&mut polled(), &[blocks(chained)]);
    assert_eq!(stores[0].extras.len, 0);
    let (_, stores) = only(&mut polled(), &[blocks("78")]);
    assert_eq!(stores[0].extras.len, 2);
}

#[test]
fn objects_keep_blocks_apart_by_the_first_half_of_their_digests() {
    let digest = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    let keys =
        format!(r#", "mm_keys": [{{"type": "mm_key", "hash": "{digest}", "start_offset": 2}}]"#);
    let image = 0x0001_0203_0405_0607;
    let objects = |event: String| {
        let (batch, stores) = only(&mut with(1, Some(4), true), &[event]);
        batch.extras[stores[0].extras.range()]
            .iter()
            .map(|extra| extra.hash)
            .collect::<Vec<_>>()
    };
    let event = |hash: &str, more: &str| {
        v1(
            0,
            4096,
            &stored("null", &[block(hash, &[1, 2, 3, 4], more)]),
        )
    };
    assert_eq!(objects(event("7023362434702390509", &keys)), [image]);
    assert_eq!(objects(event("7023362434702390510", &keys)).len(), 2);
    // A token that is a digest, as the second manager has them.
    let odd = event("5", "").replacen(
        "\"token_id\": 1,",
        &format!("\"token_id\": \"{digest}\","),
        1,
    );
    let found = objects(odd);
    assert_eq!((found[0], found.len()), (image, 2));
    // Prompt tuning.
    let tuned =
        event(&ROOT.to_string(), "").replacen("\"token_extra_id\": 0", "\"token_extra_id\": 3", 1);
    assert_eq!(objects(tuned).len(), 2);
}
