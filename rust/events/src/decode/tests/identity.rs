//! Parts of blocks beside tokens: adapters, salts, images, embeddings.

use xxhash_rust::xxh3::xxh3_64;

use super::encode::{Value, list, map};
use super::{NIL, cold, store, text, with, without};
use crate::Extra;

/// Salt, adapter and objects of a store with these keys.
fn identity(event: Value) -> (Option<String>, Option<String>, Vec<(u32, u64)>) {
    let (batch, store) = store(event);
    let owned = |span| text(&batch, span).map(str::to_owned);
    let extras = batch.extras[store.extras.range()].iter();
    let extras = extras
        .map(|Extra { block, hash }| (*block, *hash))
        .collect();
    (owned(store.salt), owned(store.lora), extras)
}

/// The identity of a store, of which nothing is the empty text.
#[track_caller]
fn check(event: Value, salt: &str, lora: &str, extras: &[(u32, u64)]) {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    assert_eq!(identity(event), (some(salt), some(lora), extras.to_vec()));
}

fn keys(extra_keys: Value) -> Value {
    with(&cold(), "extra_keys", extra_keys)
}

#[test]
fn plain_blocks_have_no_extras() {
    for nothing in [
        NIL,
        list![NIL, NIL],
        list![Value::List(vec![]), NIL],
        Value::List(vec![]),
    ] {
        check(keys(nothing), "", "", &[]);
    }
}

#[test]
fn a_text_in_the_first_block_is_the_salt() {
    check(keys(list![list!["tenant-a"], NIL]), "tenant-a", "", &[]);
}

#[test]
fn the_adapter_comes_first_in_every_block() {
    let adapter = |extra_keys| with(&keys(extra_keys), "lora_name", "lb");
    check(adapter(list![list!["lb"], list!["lb"]]), "", "lb", &[]);
    let event = adapter(list![list!["lb", "s1"], list!["lb"]]);
    check(event, "s1", "lb", &[]);
    let event = adapter(list![list!["lb", "lb"], list!["lb"]]);
    check(event, "lb", "lb", &[]);
    check(adapter(list![list!["s1"], NIL]), "s1", "lb", &[]);
}

#[test]
fn the_name_of_the_adapter_may_come_after_the_keys() {
    let Value::Map(mut pairs) = with(
        &keys(list![list!["lb", "s1"], list!["lb"]]),
        "lora_name",
        "lb",
    ) else {
        unreachable!()
    };
    pairs.reverse();
    check(Value::Map(pairs), "s1", "lb", &[]);
}

#[test]
fn images_are_objects_of_their_blocks() {
    let id = "0123456789abcdefFEDCBA9876543210";
    let hash = 0x0123_4567_89ab_cdef;
    let pairs = keys(list![
        list![list![id, 3]],
        list![list![id, Value::Negative(-5)], list!["cat.png", 9]]
    ]);
    let cat = xxh3_64(b"cat.png");
    check(pairs, "", "", &[(0, hash), (1, hash), (1, cat)]);
    let event = keys(list![list![list![id, 3], "s1"], list![list![id, 0]]]);
    check(event, "s1", "", &[(0, hash), (1, hash)]);
    let event = keys(list![list![id, "cat.png", "s1"], list![id]]);
    check(event, "s1", "", &[(0, hash), (0, cat), (1, hash)]);
    let event = keys(list![NIL, list!["abc"]]);
    check(event, "", "", &[(1, xxh3_64(b"abc"))]);
}

#[test]
fn a_store_behind_a_parent_has_no_salt() {
    let event = with(&keys(list![list!["text"], NIL]), "parent_block_hash", 10);
    check(event.clone(), "", "", &[(0, xxh3_64(b"text"))]);
    let event = with(&without(&event, "extra_keys"), "cache_salt", "tenant-a");
    check(event, "", "", &[]);
}

#[test]
fn a_salt_in_a_field_of_its_own_is_the_salt() {
    let event = with(&cold(), "cache_salt", "s1");
    check(event.clone(), "s1", "", &[]);
    check(with(&event, "lora_name", "la"), "s1", "la", &[]);
    let twice = with(
        &keys(list![list!["cat.png", "s1"], NIL]),
        "cache_salt",
        "s1",
    );
    check(twice, "s1", "", &[(0, xxh3_64(b"cat.png"))]);
    check(with(&cold(), "cache_salt", ""), "", "", &[]);
}

#[test]
fn embeddings_are_objects_by_their_digest() {
    let digest = [1_u8, 2, 3, 4, 5, 6, 7, 8, 9, 10];
    let event = keys(list![list![&digest[..]], list![&digest[..2]]]);
    let first = 0x0807_0605_0403_0201;
    check(event, "", "", &[(0, first), (1, xxh3_64(&[1, 2]))]);
}

#[test]
fn values_nobody_knows_keep_blocks_apart() {
    let of = |value: Value| identity(keys(list![list![value], NIL]));
    let values = [
        list!["cache_salt", "a"],
        list!["cache_salt", "b"],
        list!["mm", "cat.png", 1],
        list!["mm", "dog.png", 1],
        Value::Int(1),
        Value::Int(2),
        map! { "a": 1 },
        NIL,
        Value::List(vec![]),
    ];
    let mut seen = Vec::new();
    for value in values {
        let (salt, lora, extras) = of(value.clone());
        assert_eq!((salt, lora), (None, None));
        assert!(extras.len() == 1 && extras[0].0 == 0, "{value:?}");
        assert!(!seen.contains(&extras), "{value:?} is like another");
        seen.push(extras);
    }
}

#[test]
fn keys_of_blocks_that_are_not_there_mean_nothing() {
    let event = keys(list![
        NIL,
        NIL,
        list!["cat.png"],
        list![list!["a", 1]],
        list![&[1_u8][..]]
    ]);
    check(event, "", "", &[]);
    let infos = list![
        NIL,
        NIL,
        map! { "mm_objects": list![map! { "mm_hash": 5 }] }
    ];
    check(with(&cold(), "block_mm_infos", infos), "", "", &[]);
}

#[test]
fn images_may_come_in_a_field_of_their_own() {
    let object = |hash: u64| map! { "mm_hash": hash, "offsets": list![list![0, 2]] };
    let infos = list![
        map! { "mm_objects": list![object(7), object(u64::MAX)] },
        map! { "later": 1, "mm_objects": list![object(8)] },
    ];
    let event = with(&cold(), "block_mm_infos", infos);
    let expected = vec![(0, 7), (0, u64::MAX), (1, 8)];
    check(event.clone(), "", "", &expected);
    let both = with(&event, "extra_keys", list![NIL, list!["cat.png"]]);
    let cat = xxh3_64(b"cat.png");
    check(both, "", "", &[(0, 7), (0, u64::MAX), (1, cat), (1, 8)]);
    for none in [NIL, list![NIL, NIL]] {
        check(with(&cold(), "block_mm_infos", none), "", "", &[]);
    }
}

#[test]
fn an_image_has_one_key_whatever_the_transport() {
    let bytes = [0xab_u8, 0xcd, 1, 2, 3, 4, 5, 6, 7];
    let hex = "abcd01020304050607";
    let key = 0xabcd_0102_0304_0506_u64;
    let ids = || [Value::from(hex), Value::from(&bytes[..]), Value::Int(key)];
    for id in ids() {
        let expected = [(1, key)];
        let infos = list![
            NIL,
            map! { "mm_objects": list![map! { "mm_hash": id.clone() }] }
        ];
        check(with(&cold(), "block_mm_infos", infos), "", "", &expected);
        check(keys(list![NIL, list![list![id, 3]]]), "", "", &expected);
    }
    // A value alone is a list of one.
    check(keys(list!["salt", hex]), "salt", "", &[(1, key)]);
    for odd in [map! { "a": 1 }, Value::Int(4)] {
        let (_, _, extras) = identity(keys(odd.clone()));
        assert_eq!(extras.len(), 1, "{odd:?}");
    }
    for odd in [
        list![NIL, 4],
        Value::Int(4),
        list![map! { "mm_objects": list![map! {}] }],
    ] {
        let (_, _, extras) = identity(with(&cold(), "block_mm_infos", odd.clone()));
        assert_eq!(extras.len(), 1, "{odd:?}");
    }
}

#[test]
fn an_adapter_without_a_name_is_kept_apart_by_its_number() {
    check(with(&cold(), "lora_id", 7), "", "lora_id=7", &[]);
    check(with(&cold(), "lora_id", 0), "", "", &[]);
    let event = with(&with(&cold(), "lora_id", 7), "lora_name", "la");
    check(event, "", "la", &[]);
    check(with(&cold(), "lora_name", ""), "", "", &[]);
}
