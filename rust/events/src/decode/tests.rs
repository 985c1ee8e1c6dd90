//! Every shape of the senders, and whatever is none.

pub(crate) mod encode;
mod fields;
mod fuzz;
mod identity;

use super::{MAX_PAYLOAD, decode};
use crate::{Batch, Event, Remove, Store};
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

/// The event with another value for a key, or with one key more.
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

fn text(batch: &Batch, span: Option<crate::Span>) -> Option<&str> {
    span.map(|span| batch.text_of(span))
}

// --- the batch

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

/// The fields of a store: those of [`row`] in its order, and two that have no position.
const FIELDS: [&str; 17] = [
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
    "cache_salt",
    "block_mm_infos",
];

// --- what is passed over

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
    bad.push(with(&cold(), "block_hashes", map! {}));
    bad.push(with(&cold(), "block_hashes", list![1, Value::Float(2.0)]));
    bad.push(with(&cold(), "parent_block_hash", list![1]));
    for value in [huge, minus, Value::Float(2.0)] {
        bad.push(with(&cold(), "block_size", value));
    }

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
