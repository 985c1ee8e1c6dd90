//! Damaged messages: bytes that are no msgpack are refused, and nothing panics or grows without bound.
//!
//! `CACHELB_FUZZ_MESSAGES` sets how many messages are tried; run a long one with `cargo test --release`.

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use super::encode::{Value, list, map};
use super::{FIELDS, NIL, cold, gone, message};
use crate::decode::{KEPT, decode};
use crate::{Attention, Batch, Event, Span};

fn messages() -> usize {
    std::env::var("CACHELB_FUZZ_MESSAGES").map_or(200_000, |text| text.parse().expect("a number"))
}

/// Good messages of every form.
fn samples() -> Vec<Vec<u8>> {
    let digest = [7_u8; 32];
    let long: Vec<u64> = (0..70).map(|at| at * at * at * 7 % 128_000).collect();
    let wide = map! {
        "type": "BlockStored", "block_hashes": list![&digest[..], &digest[1..]], "parent_block_hash": &digest[2..],
        "token_ids": long, "block_size": 35, "lora_id": 1, "medium": "CPU_PINNED", "lora_name": "la",
        "extra_keys": list![list!["la", list!["cat", 3], "s1"], list!["la", &digest[..]]], "group_idx": 0,
        "kv_cache_spec_kind": "full_attention", "kv_cache_spec_sliding_window": 128, "locality": "LOCAL", "session_id": "s", "cache_salt": NIL,
        "block_mm_infos": list![NIL, map! { "mm_objects": list![map! { "mm_hash": 5, "offsets": list![list![0, 1]] }] }],
    };
    let row = list![
        "BlockStored",
        list![Value::Negative(-7), u64::MAX],
        NIL,
        vec![1, 300, 70_000, 4],
        2,
        NIL,
        "GPU",
        NIL,
        list![NIL, NIL],
        0
    ];
    let pairs = list![
        "BlockStored",
        vec![1],
        NIL,
        list![list![1, 2], list![2, 3]],
        2,
        NIL,
        NIL,
        NIL,
        NIL,
        1,
        "later",
        4
    ];
    let unknown = map! { "type": "Later", "deep": list![list![map! { "a": Value::Float(0.5) }]] };
    vec![
        message(vec![cold(), gone(), map! { "type": "AllBlocksCleared" }]).encode(),
        message(vec![wide.clone()]).encode(),
        message(vec![
            row.clone(),
            list!["AllBlocksCleared"],
            list!["BlockRemoved", vec![1, 2], "GPU", 0],
        ])
        .encode(),
        list![1, vec![pairs, unknown]].encode(),
        list![Value::Float(2.5), vec![wide, row, gone()], NIL, "more"].encode(),
    ]
}

/// Checks the invariants of every decoded batch. Returns whether the message was taken.
fn holds(payload: &[u8], batch: &mut Batch) -> bool {
    let taken = match decode(payload, batch) {
        Ok(()) => true,
        Err(why) => {
            assert!(why.at <= payload.len() && !why.what.is_empty());
            assert_eq!(*batch, Batch::default(), "of {payload:02x?}");
            false
        }
    };
    assert!(!taken || well_formed(payload), "{payload:02x?} was taken");
    for event in &batch.events {
        match event {
            Event::Store(store) => {
                assert!(store.names.range().end <= batch.names.len());
                assert!(store.tokens.range().end <= batch.tokens.len());
                let extras = &batch.extras[store.extras.range()];
                assert!(extras.is_sorted_by_key(|extra| extra.block));
                assert!(extras.iter().all(|extra| extra.block < store.names.len));
                if let Attention::Other(name) = store.attention {
                    assert!(name.range().end <= batch.text.len());
                }
                for text in [store.lora, store.salt].into_iter().flatten() {
                    assert_ne!(batch.text_of(text), "");
                }
                assert!(store.salt.is_none() || store.parent.is_none());
            }
            Event::Remove(remove) => {
                assert!(remove.names.range().end <= batch.names.len());
            }
            Event::Clear => {}
        }
    }
    let most = KEPT.max(2 * payload.len());
    assert!(batch.names.capacity() <= most && batch.tokens.capacity() <= most);
    assert!(batch.extras.capacity() <= most && batch.events.capacity() <= most);
    taken
}

/// Whether the bytes are one msgpack value: the obvious reader, one call per level.
fn well_formed(bytes: &[u8]) -> bool {
    value(bytes, 0) == Some(bytes.len())
}

/// Where the value that starts at a position ends.
fn value(bytes: &[u8], at: usize) -> Option<usize> {
    let length = |width: usize| {
        let bytes = bytes.get(at + 1..at + 1 + width)?;
        Some(
            bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        )
    };
    let tag = *bytes.get(at)?;
    let (head, data, items) = match tag {
        0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (1, 0, 0),
        0x80..=0x8f => (1, 0, 2 * usize::from(tag - 0x80)),
        0x90..=0x9f => (1, 0, usize::from(tag - 0x90)),
        0xa0..=0xbf => (1, usize::from(tag - 0xa0), 0),
        0xc1 => return None,
        0xc4..=0xc6 | 0xd9..=0xdb => {
            let width = if tag < 0xd0 {
                1 << (tag - 0xc4)
            } else {
                1 << (tag - 0xd9)
            };
            (1 + width, length(width)?, 0)
        }
        0xc7..=0xc9 => (2 + (1 << (tag - 0xc7)), length(1 << (tag - 0xc7))?, 0),
        0xca | 0xcb => (1, 4 << (tag - 0xca), 0),
        0xcc..=0xcf => (1, 1 << (tag - 0xcc), 0),
        0xd0..=0xd3 => (1, 1 << (tag - 0xd0), 0),
        0xd4..=0xd8 => (2, 1 << (tag - 0xd4), 0),
        0xdc | 0xdd => (1 + (2 << (tag - 0xdc)), 0, length(2 << (tag - 0xdc))?),
        0xde | 0xdf => (1 + (2 << (tag - 0xde)), 0, 2 * length(2 << (tag - 0xde))?),
    };
    let mut end = at + head + data;
    if end > bytes.len() {
        return None;
    }
    for _ in 0..items {
        end = value(bytes, end)?;
    }
    Some(end)
}

struct Luck(TestRng);

impl Luck {
    fn below(&mut self, bound: usize) -> usize {
        self.0.next_u32() as usize % bound.max(1)
    }

    fn byte(&mut self) -> u8 {
        // Tags are more interesting than other bytes.
        let any = self.0.next_u32();
        if any & 0x100 == 0 {
            any as u8
        } else {
            0xc0 | (any as u8 & 0x1f)
        }
    }

    /// Damages a message in one of many ways.
    fn damage(&mut self, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
        let at = self.below(bytes.len());
        match self.below(8) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            1 if !bytes.is_empty() => bytes[at] = self.byte(),
            2 => bytes.truncate(at),
            3 => {
                let byte = self.byte();
                bytes.insert(at, byte);
            }
            4 if !bytes.is_empty() => {
                bytes.remove(at);
            }
            5 => {
                let other = &others[self.below(others.len())];
                let (from, to) = (self.below(other.len()), self.below(other.len()));
                let until = (at + self.below(40)).min(bytes.len());
                bytes.splice(at..until, other[from.min(to)..from.max(to)].iter().copied());
            }
            6 => {
                let until = (at + self.below(60)).min(bytes.len());
                let copy = bytes[at..until].to_vec();
                let to = self.below(bytes.len());
                bytes.splice(to..to, copy);
            }
            _ => {
                let noise = (0..self.below(12)).map(|_| self.byte()).collect::<Vec<_>>();
                bytes.splice(at..at, noise);
            }
        }
    }

    /// Any msgpack value.
    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 9 } else { 11 }) {
            0 => NIL,
            1 => Value::Bool(self.below(2) == 1),
            2 => Value::Int(self.0.next_u64() >> self.below(64)),
            3 => Value::Negative(-1 - (self.0.next_u64() >> (1 + self.below(63))).cast_signed()),
            4 => Value::Float(f64::from(self.0.next_u32())),
            5 => Value::Text(
                "GPU la full_attention"
                    .chars()
                    .take(self.below(22))
                    .collect(),
            ),
            6 => Value::Bytes((0..self.below(40)).map(|at| at as u8).collect()),
            7 => Value::Raw(vec![0xd4, 1, self.byte()]),
            8 => Value::List(
                (0..self.below(20))
                    .map(|_| Value::Int(self.0.next_u64() >> 40))
                    .collect(),
            ),
            9 => Value::List((0..self.below(5)).map(|_| self.value(depth - 1)).collect()),
            _ => Value::Map(
                (0..self.below(5))
                    .map(|_| (self.value(0), self.value(depth - 1)))
                    .collect(),
            ),
        }
    }
}

fn luck(seed: u8) -> Luck {
    Luck(TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]))
}

#[test]
fn good_samples_are_good() {
    let mut batch = Batch::default();
    for sample in samples() {
        assert!(holds(&sample, &mut batch));
        assert_eq!(batch.malformed_events, 0);
    }
}

#[test]
fn damaged_messages_are_refused_or_harmless() {
    let samples = samples();
    let mut luck = luck(1);
    let mut batch = Batch::default();
    let mut taken = 0;
    for round in 0..messages() {
        let mut bytes = samples[round % samples.len()].clone();
        for _ in 0..=luck.below(4) {
            luck.damage(&mut bytes, &samples);
        }
        taken += usize::from(holds(&bytes, &mut batch));
    }
    let tried = messages();
    assert!(
        (tried / 50..tried).contains(&taken),
        "{taken} of {tried} were taken"
    );
}

#[test]
fn random_bytes_are_refused_or_harmless() {
    let mut luck = luck(2);
    let mut batch = Batch::default();
    for round in 0..messages() / 4 {
        let noise = (0..round % 80).map(|_| luck.byte()).collect::<Vec<_>>();
        let head: &[u8] = if round % 2 == 0 {
            &[]
        } else {
            &[0x92, 1, 0x92]
        };
        holds(&[head, &noise].concat(), &mut batch);
    }
}

#[test]
fn events_around_one_with_any_values_come_out() {
    let mut luck = luck(3);
    let mut batch = Batch::default();
    let (mut fine, mut malformed, mut unknown) = (0, 0, 0);
    for _ in 0..messages() / 8 {
        let Value::Map(mut pairs) = cold() else {
            unreachable!()
        };
        for _ in 0..=luck.below(2) {
            let key = Value::from(FIELDS[luck.below(FIELDS.len())]);
            let value = luck.value(3);
            pairs.retain(|(name, _)| *name != key);
            pairs.insert(luck.below(pairs.len()), (key, value));
        }
        let event = match luck.below(3) {
            0 => luck.value(3),
            1 => Value::List(pairs.into_iter().map(|(_, value)| value).collect()),
            _ => Value::Map(pairs),
        };
        let payload = message(vec![cold(), event.clone(), gone()]).encode();
        assert!(holds(&payload, &mut batch), "{event:?}");
        let (Some(Event::Store(first)), Some(Event::Remove(last))) =
            (batch.events.first(), batch.events.last())
        else {
            panic!("neighbours of {event:?} are lost: {batch:?}")
        };
        assert_eq!(first.names, Span { start: 0, len: 2 });
        assert_eq!(batch.tokens_of(first.tokens), [1, 2, 3, 4]);
        assert_eq!(batch.names_of(last.names).len(), 1);
        let between = batch.events.len() - 2;
        assert_eq!(
            between + (batch.malformed_events + batch.unknown_events) as usize,
            1
        );
        fine += between;
        malformed += batch.malformed_events;
        unknown += batch.unknown_events;
    }
    assert!(
        fine > 100 && malformed > 100 && unknown > 0,
        "{fine} {malformed} {unknown}"
    );
}
