//! What blocks are made of beside tokens: adapters, salts, images, embeddings.

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
        assert_eq!(identity(keys(nothing)), (None, None, vec![]));
    }
}

#[test]
fn a_text_in_the_first_block_is_the_salt() {
    let event = keys(list![list!["tenant-a"], NIL]);
    assert_eq!(identity(event), (Some("tenant-a".to_owned()), None, vec![]));
}

#[test]
fn the_adapter_comes_first_in_every_block() {
    let adapter = |extra_keys| with(&keys(extra_keys), "lora_name", "lb");
    let event = adapter(list![list!["lb"], list!["lb"]]);
    assert_eq!(identity(event), (None, Some("lb".to_owned()), vec![]));
    let event = adapter(list![list!["lb", "s1"], list!["lb"]]);
    assert_eq!(
        identity(event),
        (Some("s1".to_owned()), Some("lb".to_owned()), vec![])
    );
    let same = adapter(list![list!["lb", "lb"], list!["lb"]]);
    assert_eq!(
        identity(same),
        (Some("lb".to_owned()), Some("lb".to_owned()), vec![])
    );
    let no_adapter_in_keys = adapter(list![list!["s1"], NIL]);
    assert_eq!(
        identity(no_adapter_in_keys),
        (Some("s1".to_owned()), Some("lb".to_owned()), vec![])
    );
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
    assert_eq!(
        identity(Value::Map(pairs)),
        (Some("s1".to_owned()), Some("lb".to_owned()), vec![])
    );
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
    assert_eq!(
        identity(pairs),
        (None, None, vec![(0, hash), (1, hash), (1, cat)])
    );
    let salted = keys(list![list![list![id, 3], "s1"], list![list![id, 0]]]);
    assert_eq!(
        identity(salted),
        (Some("s1".to_owned()), None, vec![(0, hash), (1, hash)])
    );
    let plain_ids = keys(list![list![id, "cat.png", "s1"], list![id]]);
    assert_eq!(
        identity(plain_ids),
        (
            Some("s1".to_owned()),
            None,
            vec![(0, hash), (0, cat), (1, hash)]
        )
    );
    let short = keys(list![NIL, list!["abc"]]);
    assert_eq!(identity(short), (None, None, vec![(1, xxh3_64(b"abc"))]));
}

#[test]
fn a_store_behind_a_parent_has_no_salt() {
    let event = with(&keys(list![list!["text"], NIL]), "parent_block_hash", 10);
    assert_eq!(
        identity(event.clone()),
        (None, None, vec![(0, xxh3_64(b"text"))])
    );
    let event = with(&without(&event, "extra_keys"), "cache_salt", "tenant-a");
    assert_eq!(identity(event), (None, None, vec![]));
}

#[test]
fn a_salt_in_a_field_of_its_own_is_the_salt() {
    let event = with(&cold(), "cache_salt", "s1");
    assert_eq!(
        identity(event.clone()),
        (Some("s1".to_owned()), None, vec![])
    );
    let event = with(&event, "lora_name", "la");
    assert_eq!(
        identity(event),
        (Some("s1".to_owned()), Some("la".to_owned()), vec![])
    );
    let twice = with(
        &keys(list![list!["cat.png", "s1"], NIL]),
        "cache_salt",
        "s1",
    );
    assert_eq!(
        identity(twice),
        (Some("s1".to_owned()), None, vec![(0, xxh3_64(b"cat.png"))])
    );
    assert_eq!(
        identity(with(&cold(), "cache_salt", "")),
        (None, None, vec![])
    );
}

#[test]
fn embeddings_are_objects_by_their_digest() {
    let digest = [1_u8, 2, 3, 4, 5, 6, 7, 8, 9, 10];
    let event = keys(list![list![&digest[..]], list![&digest[..2]]]);
    let first = 0x0807_0605_0403_0201;
    assert_eq!(
        identity(event),
        (None, None, vec![(0, first), (1, xxh3_64(&[1, 2]))])
    );
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
    assert_eq!(identity(event), (None, None, vec![]));
    let infos = list![
        NIL,
        NIL,
        map! { "mm_objects": list![map! { "mm_hash": 5 }] }
    ];
    assert_eq!(
        identity(with(&cold(), "block_mm_infos", infos)),
        (None, None, vec![])
    );
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
    assert_eq!(identity(event.clone()), (None, None, expected));
    let both = with(&event, "extra_keys", list![NIL, list!["cat.png"]]);
    let cat = xxh3_64(b"cat.png");
    assert_eq!(
        identity(both),
        (None, None, vec![(0, 7), (0, u64::MAX), (1, cat), (1, 8)])
    );
    for none in [NIL, list![NIL, NIL]] {
        assert_eq!(
            identity(with(&cold(), "block_mm_infos", none)),
            (None, None, vec![])
        );
    }
}

#[test]
fn an_adapter_without_a_name_is_kept_apart_by_its_number() {
    assert_eq!(
        identity(with(&cold(), "lora_id", 7)),
        (None, Some("lora_id=7".to_owned()), vec![])
    );
    assert_eq!(identity(with(&cold(), "lora_id", 0)), (None, None, vec![]));
    let named = with(&with(&cold(), "lora_id", 7), "lora_name", "la");
    assert_eq!(identity(named), (None, Some("la".to_owned()), vec![]));
    assert_eq!(
        identity(with(&cold(), "lora_name", "")),
        (None, None, vec![])
    );
}
