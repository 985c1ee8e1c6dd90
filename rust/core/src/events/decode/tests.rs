//! Every shape of the senders, and whatever is none.

mod encode;

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::{MAX_PAYLOAD, decode};
use crate::events::{Attention, Batch, Event, Extra, Name, Place, Remove, Store};
use crate::ids::Medium;
use encode::{Value, list, map};

const NIL: Value = Value::Nil;

fn decoded(message: &Value) -> Batch {
    let mut batch = Batch::default();
    decode(&message.encode(), &mut batch).expect("a good message");
    batch
}

fn refused(payload: &[u8]) -> String {
    let mut batch = decoded(&message(vec![cold()]));
    let why = decode(payload, &mut batch).expect_err("a bad message");
    assert_eq!(
        batch,
        Batch::default(),
        "nothing of a refused message stays"
    );
    why.to_string()
}

fn message(events: Vec<Value>) -> Value {
    list![Value::Float(12.5), events, 0]
}

/// A batch of one event, which must be well.
fn only(event: Value) -> (Batch, Event) {
    let batch = decoded(&message(vec![event]));
    assert_eq!((batch.unknown_events, batch.malformed_events), (0, 0));
    assert_eq!(batch.events.len(), 1);
    let event = batch.events[0];
    (batch, event)
}

fn store(event: Value) -> (Batch, Store) {
    match only(event) {
        (batch, Event::Store(store)) => (batch, store),
        (_, other) => panic!("no store: {other:?}"),
    }
}

fn remove(event: Value) -> (Batch, Remove) {
    match only(event) {
        (batch, Event::Remove(remove)) => (batch, remove),
        (_, other) => panic!("no removal: {other:?}"),
    }
}

/// Two blocks of two tokens at the root.
fn cold() -> Value {
    map! {
        "type": "BlockStored", "block_hashes": vec![11, 12], "parent_block_hash": NIL,
        "token_ids": vec![1, 2, 3, 4], "block_size": 2, "lora_id": NIL, "medium": "GPU", "lora_name": NIL,
    }
}

/// The same with another value for a key, or one more.
fn with(event: &Value, key: &str, value: impl Into<Value>) -> Value {
    let Value::Map(mut pairs) = event.clone() else {
        panic!("{event:?} is no map")
    };
    pairs.retain(|(name, _)| *name != Value::from(key));
    pairs.push((key.into(), value.into()));
    Value::Map(pairs)
}

fn without(event: &Value, key: &str) -> Value {
    let Value::Map(mut pairs) = with(event, key, 0) else {
        unreachable!()
    };
    pairs.pop();
    Value::Map(pairs)
}

fn gone() -> Value {
    map! { "type": "BlockRemoved", "block_hashes": vec![11], "medium": "GPU" }
}

fn text(batch: &Batch, span: Option<crate::events::Span>) -> Option<&str> {
    span.map(|span| batch.text_of(span))
}

// --- the batch

#[test]
fn a_store_as_a_map_comes_out() {
    let (batch, store) = store(cold());
    assert_eq!((batch.ts, batch.rank), (12.5, Some(0)));
    assert_eq!(batch.names_of(store.names), [Name::Int(11), Name::Int(12)]);
    assert_eq!(batch.tokens_of(store.tokens), [1, 2, 3, 4]);
    assert_eq!((store.block_size, store.place), (2, Place::In(Medium::Gpu)));
    assert_eq!((store.parent, store.group), (None, None));
    assert_eq!((store.lora, store.salt, store.extras.len), (None, None, 0));
    assert_eq!(store.attention, Attention::Unsaid);
}

#[test]
fn a_batch_has_two_three_or_more_parts() {
    let events = || Value::List(vec![gone()]);
    let cases = [
        (list![1, events()], None),
        (list![1, events(), NIL], None),
        (list![1, events(), 3], Some(3)),
        (
            list![1, events(), 0, "more", map! { "and": "more" }],
            Some(0),
        ),
    ];
    for (message, rank) in cases {
        let batch = decoded(&message);
        assert_eq!((batch.rank, batch.events.len()), (rank, 1), "{message:?}");
    }
}

#[test]
fn the_time_is_any_finite_number() {
    let with = |ts: Value| list![ts, Vec::<Value>::new()].encode();
    let mut batch = Batch::default();
    for (ts, expected) in [
        (Value::Float(1.5), 1.5),
        (Value::Int(7), 7.0),
        (Value::Negative(-7), -7.0),
        (Value::Raw(vec![0xca, 0x3f, 0x80, 0, 0]), 1.0),
    ] {
        decode(&with(ts), &mut batch).expect("a good time");
        assert!((batch.ts - expected).abs() < 1e-9);
    }
    for ts in [Value::Float(f64::NAN), Value::Float(f64::INFINITY), NIL] {
        assert!(refused(&with(ts)).starts_with("the first part, the time, is no finite number"));
    }
}

#[test]
fn what_is_no_batch_is_refused_whole() {
    let good = message(vec![cold(), gone()]).encode();
    let cases: [(Vec<u8>, &str); 12] = [
        (vec![], "no msgpack array"),
        (vec![0xc1], "no msgpack array"),
        (map! { "ts": 1 }.encode(), "no msgpack array"),
        (list![1].encode(), "has no events"),
        (list!["x", vec![gone()]].encode(), "the time"),
        (list![1, map! {}].encode(), "the events, is no array"),
        (list![1, NIL].encode(), "the events, is no array"),
        (list![1, vec![gone()], "x"].encode(), "the rank"),
        (
            list![1, vec![gone()], Value::Negative(-1)].encode(),
            "the rank",
        ),
        (list![1, vec![gone()], 1_u64 << 32].encode(), "the rank"),
        ([&good[..], &[0]].concat(), "bytes follow the batch"),
        (vec![0; MAX_PAYLOAD + 1], "larger than 64 MiB"),
    ];
    for (payload, why) in cases {
        let said = refused(&payload);
        assert!(said.contains(why), "{said:?} does not say {why:?}");
    }
}

#[test]
fn every_cut_is_refused() {
    let mut batch = Batch::default();
    let good = message(vec![
        cold(),
        list!["BlockRemoved", vec![1, 2], "CPU"],
        gone(),
    ])
    .encode();
    for len in 0..good.len() {
        assert!(
            decode(&good[..len], &mut batch).is_err(),
            "the first {len} bytes of {} were taken",
            good.len()
        );
    }
}

#[test]
fn a_refusal_tells_where_reading_ended() {
    let mut payload = message(vec![gone()]).encode();
    payload.push(7);
    assert_eq!(
        refused(&payload),
        format!("bytes follow the batch (byte {})", payload.len() - 1)
    );
}

#[test]
fn a_batch_is_reused() {
    let mut batch = decoded(&message(vec![with(&cold(), "cache_salt", "s"), cold()]));
    decode(&message(vec![gone()]).encode(), &mut batch).expect("a good message");
    assert_eq!(batch, decoded(&message(vec![gone()])));
}

// --- the array form

/// A store by position, of which tests take the first fields.
fn row() -> Vec<Value> {
    let Value::List(row) = list![
        "BlockStored",
        vec![11],
        10,
        vec![1, 2],
        2,
        NIL,
        "CPU",
        "la",
        vec![Value::from(vec!["la"])],
        3,
        "mla_attention",
        64,
        "REMOTE",
        "owner",
        "session",
        "later",
    ] else {
        unreachable!()
    };
    row
}

#[test]
fn a_store_by_position_has_any_length_from_five() {
    for len in 5..=row().len() {
        let (batch, store) = store(Value::List(row()[..len].to_vec()));
        assert_eq!(batch.names_of(store.names), [Name::Int(11)]);
        assert_eq!(store.parent, Some(Name::Int(10)));
        assert_eq!(batch.tokens_of(store.tokens), [1, 2]);
        assert_eq!(store.block_size, 2);
        let place = match len {
            ..=6 => Place::Unsaid,
            7..=12 => Place::In(Medium::Cpu),
            _ => Place::Shared,
        };
        assert_eq!(store.place, place, "{len} items");
        assert_eq!(text(&batch, store.lora), (len > 7).then_some("la"));
        assert_eq!(store.extras.len, 0, "the adapter is no image");
        assert_eq!(store.group, (len > 9).then_some(3));
        let full = if len > 10 {
            Attention::Full
        } else {
            Attention::Unsaid
        };
        assert_eq!(store.attention, full);
    }
}

#[test]
fn a_store_by_position_without_a_block_size_is_malformed() {
    for len in 1..5 {
        let batch = decoded(&message(vec![Value::List(row()[..len].to_vec()), gone()]));
        assert_eq!(
            (batch.malformed_events, batch.events.len()),
            (1, 1),
            "{len} items"
        );
    }
}

#[test]
fn a_removal_by_position_has_any_length_from_two() {
    let Value::List(row) = list![
        "BlockRemoved",
        vec![1, 2],
        "STORAGE",
        4,
        "LOCAL",
        "owner",
        "later"
    ] else {
        unreachable!()
    };
    for len in 2..=row.len() {
        let (batch, remove) = remove(Value::List(row[..len].to_vec()));
        assert_eq!(batch.names_of(remove.names), [Name::Int(1), Name::Int(2)]);
        let place = if len > 2 {
            Place::In(Medium::Disk)
        } else {
            Place::Unsaid
        };
        assert_eq!(
            (remove.place, remove.group),
            (place, (len > 3).then_some(4))
        );
    }
}

#[test]
fn a_clear_has_either_form_and_any_fields() {
    for event in [
        list!["AllBlocksCleared"],
        list!["AllBlocksCleared", 7, "later"],
        map! { "type": "AllBlocksCleared" },
        map! { "block_hashes": "later", "type": "AllBlocksCleared" },
    ] {
        assert_eq!(only(event).1, Event::Clear);
    }
}

#[test]
fn both_forms_of_an_event_are_the_same() {
    let names = [
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
        "locality",
        "ownership",
        "session_id",
    ];
    for len in 5..=names.len() {
        let array = Value::List(row()[..len].to_vec());
        let pairs = names.iter().copied().map(Value::from).zip(row());
        let mut pairs: Vec<_> = pairs.take(len).collect();
        for _ in 0..len {
            pairs.rotate_left(1);
            let map = decoded(&message(vec![Value::Map(pairs.clone())]));
            let mut expected = decoded(&message(vec![array.clone()]));
            // The order of keys decides where names lie.
            let (Event::Store(a), Event::Store(b)) = (map.events[0], &mut expected.events[0])
            else {
                panic!("no stores")
            };
            assert_eq!(map.names_of(a.names), [Name::Int(11)]);
            assert_eq!(map.tokens_of(a.tokens), [1, 2]);
            (b.names, b.tokens) = (a.names, a.tokens);
            assert_eq!(
                (a, map.names, map.tokens),
                (*b, expected.names, expected.tokens)
            );
        }
    }
}

// --- what is passed over

#[test]
fn unknown_events_are_counted_and_passed_over() {
    let batch = decoded(&message(vec![
        cold(),
        map! { "type": "BlockMoved", "block_hashes": "not even a list" },
        list!["Whatever", Value::Map(vec![(NIL, NIL)])],
        gone(),
    ]));
    assert_eq!((batch.unknown_events, batch.malformed_events), (2, 0));
    assert!(matches!(
        batch.events[..],
        [Event::Store(_), Event::Remove(_)]
    ));
}

#[test]
fn unknown_fields_are_passed_over_whatever_they_hold() {
    let mut event = with(
        &cold(),
        "later",
        map! { "deep": vec![list![1, NIL, Value::Bool(true)]] },
    );
    let Value::Map(pairs) = &mut event else {
        unreachable!()
    };
    let values = [
        vec![0xca, 0, 0, 0, 0],
        vec![0xc2],
        vec![0xd0, 0xff],
        vec![0xd1, 0xff, 0xff],
        vec![0xd2, 0xff, 0xff, 0xff, 0xff],
        vec![0xd3; 9],
        vec![0xd4, 1, 0],
        vec![0xd5, 1, 0, 0],
        [vec![0xd6], vec![0; 5]].concat(),
        [vec![0xd7], vec![0; 9]].concat(),
        [vec![0xd8], vec![0; 17]].concat(),
        vec![0xc7, 2, 1, 0, 0],
        vec![0xc8, 0, 2, 1, 0, 0],
        vec![0xc9, 0, 0, 0, 2, 1, 0, 0],
        vec![0xc5, 0, 2, 0, 0],
        vec![0xc6, 0, 0, 0, 2, 0, 0],
        vec![0xda, 0, 2, 0xff, 0xff],
        vec![0xdb, 0, 0, 0, 2, 0, 0],
        vec![0xdc, 0, 2, 0, 0],
        vec![0xdd, 0, 0, 0, 2, 0, 0],
        vec![0xde, 0, 1, 0, 0],
        vec![0xdf, 0, 0, 0, 1, 0, 0],
        vec![0xff],
    ];
    for (at, value) in values.into_iter().enumerate() {
        // A key need not be a text.
        pairs.insert(at % pairs.len(), (Value::Int(at as u64), Value::Raw(value)));
    }
    assert_eq!(decoded(&message(vec![event.clone()])).malformed_events, 0);
    let (batch, store) = store(event);
    assert_eq!(batch.tokens_of(store.tokens), [1, 2, 3, 4]);
}

#[test]
fn a_session_is_not_kept() {
    let batch = decoded(&message(vec![with(&cold(), "session_id", "alice")]));
    assert!(batch.text.is_empty());
    assert!(!format!("{batch:?}").contains("alice"));
}

#[test]
fn a_malformed_event_is_passed_over_alone() {
    let huge = Value::Int(1 << 32);
    let minus = Value::Negative(-1);
    let mut bad = vec![
        NIL,
        Value::Int(7),
        Value::from("BlockStored"),
        Value::List(vec![]),
        map! {},
        list![NIL, vec![1]],
        map! { "type": 7, "block_hashes": vec![1] },
        map! { "block_hashes": vec![1] },
        map! { "type": "BlockRemoved" },
        list!["BlockRemoved"],
    ];
    for key in ["block_hashes", "token_ids", "block_size"] {
        bad.push(without(&cold(), key));
        bad.push(with(&cold(), key, NIL));
        bad.push(with(&cold(), key, "text"));
    }
    for token in [
        huge.clone(),
        minus.clone(),
        Value::Float(1.0),
        NIL,
        Value::from("1"),
    ] {
        bad.push(with(&cold(), "token_ids", list![1, token.clone(), 2]));
        bad.push(with(
            &cold(),
            "token_ids",
            list![list![1, 2], list![token, 3]],
        ));
    }
    bad.push(with(&cold(), "token_ids", list![1, list![2, 3]]));
    bad.push(with(&cold(), "token_ids", list![list![1, 2], 3]));
    bad.push(with(&cold(), "token_ids", list![list![1, 2, 3]]));
    for key in ["block_hashes", "extra_keys", "block_mm_infos"] {
        bad.push(with(&cold(), key, map! {}));
    }
    bad.push(with(&cold(), "block_hashes", list![1, Value::Float(2.0)]));
    bad.push(with(&cold(), "block_hashes", list![1, "name"]));
    bad.push(with(&cold(), "parent_block_hash", list![1]));
    bad.push(with(&cold(), "extra_keys", list![NIL, "la"]));
    bad.push(with(
        &cold(),
        "block_mm_infos",
        list![map! { "mm_objects": list![map! {}] }],
    ));
    for key in ["block_size", "group_idx"] {
        for value in [huge.clone(), minus.clone(), Value::Float(2.0)] {
            bad.push(with(&cold(), key, value));
        }
    }
    for key in [
        "medium",
        "lora_name",
        "locality",
        "cache_salt",
        "kv_cache_spec_kind",
    ] {
        bad.push(with(&cold(), key, 7));
        bad.push(with(&cold(), key, Value::Raw(vec![0xa1, 0xff])));
    }
    bad.push(with(&cold(), "lora_id", "la"));

    let good = decoded(&message(vec![cold(), gone()]));
    for event in bad {
        let batch = decoded(&message(vec![cold(), event.clone(), gone()]));
        assert_eq!(
            (batch.malformed_events, batch.unknown_events),
            (1, 0),
            "{event:?}"
        );
        let rest = Batch {
            malformed_events: 0,
            ..batch
        };
        assert_eq!(rest, good, "of {event:?} nothing stays");
    }
}

#[test]
fn broken_msgpack_inside_an_event_refuses_the_message() {
    for broken in [vec![0xc1], vec![0x92, 1, 0xc1]] {
        let event = with(&cold(), "later", Value::Raw(broken));
        let said = refused(&message(vec![cold(), event]).encode());
        assert!(
            said.starts_with("the message ends early or is no valid msgpack"),
            "{said}"
        );
    }
}

#[test]
fn deep_nesting_costs_no_stack() {
    let deep = Value::Raw([vec![0x91; 1 << 20], vec![0xc0]].concat());
    let maps = Value::Raw([[0x81, 0xc0].repeat(1 << 20), vec![0xc0]].concat());
    for value in [deep, maps] {
        let event = with(&cold(), "later", value.clone());
        let batch = decoded(&message(vec![event, value, gone()]));
        assert_eq!((batch.events.len(), batch.malformed_events), (2, 1));
    }
}

#[test]
fn a_huge_declared_length_allocates_nothing() {
    for tag in [0xdd_u8, 0xdf, 0xdb, 0xc6, 0xc9] {
        let huge = Value::Raw(vec![tag, 0xff, 0xff, 0xff, 0xff]);
        for key in ["block_hashes", "token_ids", "extra_keys", "later"] {
            let mut batch = Batch::default();
            let event = with(&cold(), key, huge.clone());
            decode(&message(vec![event]).encode(), &mut batch).expect_err("it ends early");
            assert!(batch.tokens.capacity() + batch.names.capacity() < 1_000);
        }
        assert!(!refused(&list![1, huge.clone()].encode()).is_empty());
        assert!(!refused(&huge.encode()).is_empty());
    }
}

#[test]
fn the_memory_of_a_huge_message_is_given_back() {
    let event = with(&cold(), "token_ids", vec![1; 1 << 20]);
    let mut batch = decoded(&message(vec![event]));
    assert!(batch.tokens.capacity() >= 1 << 20);
    decode(&message(vec![cold()]).encode(), &mut batch).expect("a good message");
    assert!(batch.tokens.capacity() <= 1 << 16);
}

// --- fields

#[test]
fn a_name_is_an_integer_by_its_bits_or_bytes_by_their_hash() {
    let digest = [7_u8; 32];
    let (batch, store) = store(with(
        &with(
            &cold(),
            "block_hashes",
            list![
                Value::Negative(-1),
                u64::MAX,
                Value::Negative(i64::MIN),
                1_u64 << 63,
                5,
                Value::Negative(-5),
                &digest[..],
                &digest[..16],
            ],
        ),
        "parent_block_hash",
        &digest[..],
    ));
    let minus = |value: i64| Name::Int(value.cast_unsigned());
    assert_eq!(
        batch.names_of(store.names),
        [
            Name::Int(u64::MAX),
            minus(-1),
            Name::Int(1 << 63),
            minus(i64::MIN),
            Name::Int(5),
            minus(-5),
            Name::Wide(xxh3_128(&digest)),
            Name::Wide(xxh3_128(&digest[..16])),
        ]
    );
    assert_eq!(store.parent, Some(Name::Wide(xxh3_128(&digest))));
}

#[test]
fn a_parent_that_is_absent_is_the_root() {
    assert_eq!(store(without(&cold(), "parent_block_hash")).1.parent, None);
    assert_eq!(
        store(with(&cold(), "parent_block_hash", 0)).1.parent,
        Some(Name::Int(0))
    );
}

#[test]
fn tokens_come_in_every_width() {
    let event = with(
        &cold(),
        "token_ids",
        list![
            0,
            127,
            128,
            255,
            256,
            65_535,
            65_536,
            u64::from(u32::MAX),
            Value::Raw(vec![0xcf, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
            Value::Raw(vec![0xce, 0, 0, 0, 1]),
            Value::Raw(vec![0xd0, 100]),
            Value::Raw(vec![0xd1, 1, 0]),
            Value::Raw(vec![0xd2, 0, 1, 0, 0]),
            Value::Raw(vec![0xd3, 0, 0, 0, 0, 0, 1, 0, 0]),
        ],
    );
    let (batch, store) = store(event);
    assert_eq!(
        batch.tokens_of(store.tokens),
        [
            0,
            127,
            128,
            255,
            256,
            65_535,
            65_536,
            u32::MAX,
            u32::MAX,
            1,
            100,
            256,
            65_536,
            65_536
        ]
    );
}

#[test]
fn of_pairs_of_tokens_the_first_is_the_token() {
    let pairs = list![list![1, 2], list![2, 70_000], list![70_000, 4], list![4, 5]];
    let (batch, store) = store(with(&cold(), "token_ids", pairs));
    assert_eq!(batch.tokens_of(store.tokens), [1, 2, 70_000, 4]);
}

#[test]
fn a_placeholder_has_no_tokens() {
    let event = with(
        &with(&cold(), "token_ids", Value::List(vec![])),
        "block_size",
        0,
    );
    let (_, store) = store(event);
    assert_eq!(
        (store.tokens.len, store.block_size, store.names.len),
        (0, 0, 2)
    );
}

#[test]
fn media_have_many_names() {
    use Medium::{Cpu, Disk, Gpu};
    for (said, place) in [
        (Value::from("GPU"), Place::In(Gpu)),
        ("gpu".into(), Place::In(Gpu)),
        ("CPU".into(), Place::In(Cpu)),
        ("cpu".into(), Place::In(Cpu)),
        ("Cpu_Pinned".into(), Place::In(Cpu)),
        ("DISK".into(), Place::In(Disk)),
        ("STORAGE".into(), Place::In(Disk)),
        ("EXTERNAL".into(), Place::Shared),
        ("tape".into(), Place::Unknown),
        ("".into(), Place::Unknown),
        (NIL, Place::Unsaid),
    ] {
        assert_eq!(store(with(&cold(), "medium", said.clone())).1.place, place);
        assert_eq!(remove(with(&gone(), "medium", said)).1.place, place);
    }
    assert_eq!(store(without(&cold(), "medium")).1.place, Place::Unsaid);
}

#[test]
fn what_lies_elsewhere_is_shared() {
    for (locality, place) in [
        (Value::from("REMOTE"), Place::Shared),
        ("remote".into(), Place::Shared),
        ("LOCAL".into(), Place::In(Medium::Gpu)),
        (NIL, Place::In(Medium::Gpu)),
        ("ORBITAL".into(), Place::Unknown),
    ] {
        assert_eq!(
            store(with(&cold(), "locality", locality.clone())).1.place,
            place
        );
        assert_eq!(remove(with(&gone(), "locality", locality)).1.place, place);
    }
}

#[test]
fn groups_attend_to_the_whole_prefix_or_not() {
    for (kind, attention) in [
        ("full_attention", Attention::Full),
        ("mla_attention", Attention::Full),
        ("sink_full_attention", Attention::Full),
        ("sliding_window", Attention::Partial),
        ("sliding_window_mla", Attention::Partial),
        ("mamba", Attention::Partial),
        ("chunked_local_attention", Attention::Partial),
        ("encoder_only_attention", Attention::Partial),
        ("cross_attention", Attention::Partial),
        ("unknown", Attention::Partial),
        ("later", Attention::Partial),
    ] {
        let event = with(&with(&cold(), "kv_cache_spec_kind", kind), "group_idx", 2);
        let (_, store) = store(event);
        assert_eq!(
            (store.attention, store.group),
            (attention, Some(2)),
            "{kind}"
        );
    }
    let (_, nil) = store(with(&cold(), "kv_cache_spec_kind", NIL));
    assert_eq!(nil.attention, Attention::Unsaid);
    assert_eq!(remove(with(&gone(), "group_idx", 5)).1.group, Some(5));
}

// --- what blocks are made of beside tokens

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
