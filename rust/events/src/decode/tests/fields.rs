//! The meaning of the fields of an event.

use cachelb_core::ids::Medium;
use cachelb_core::rng::Rng;
use xxhash_rust::xxh3::xxh3_128;

use super::encode::{Value, list, map};
use super::{NIL, cold, decoded, gone, message, remove, store, with, without};
use crate::{Attention, Event, Name, Place};

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
                u64::MAX - 1,
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
            Name::Int(u64::MAX - 1),
        ]
    );
    assert_eq!(store.parent, Some(Name::Wide(xxh3_128(&digest))));
}

#[test]
fn tokens_come_in_every_width() {
    let raw = |bytes: &[u8]| Value::Raw(bytes.to_vec());
    let plain = [0, 127, 128, 255, 256, 65_535, 65_536, u32::MAX];
    let longer = [
        (raw(&[0xcf, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]), u32::MAX),
        (raw(&[0xce, 0, 0, 0, 1]), 1),
        (raw(&[0xd0, 100]), 100),
        (raw(&[0xd1, 1, 0]), 256),
        (raw(&[0xd2, 0, 1, 0, 0]), 65_536),
        (raw(&[0xd3, 0, 0, 0, 0, 0, 1, 0, 0]), 65_536),
    ];
    let plain = plain.map(|token| (Value::from(u64::from(token)), token));
    let (values, tokens): (Vec<_>, Vec<_>) = plain.into_iter().chain(longer).unzip();
    let (batch, store) = store(with(&cold(), "token_ids", Value::List(values)));
    assert_eq!(batch.tokens_of(store.tokens), tokens);
}

/// Lists long enough to be read in chunks, whatever stands where in them: ids of every width, some written longer.
#[test]
fn long_lists_of_tokens_come_in_every_width() {
    let mut random = Rng::new(3);
    for list in 0..400_u64 {
        let len = random.below(300);
        let (mut tokens, mut values) = (Vec::new(), Vec::new());
        for _ in 0..len {
            let bits = [7, 8, 16, 17, 32][random.below(5)];
            let token = (random.bits() >> (64 - bits)) as u32;
            tokens.push(token);
            values.push(if random.below(200) as u64 == list % 200 {
                let mut longer = vec![0xcf, 0, 0, 0, 0];
                longer.extend(token.to_be_bytes());
                Value::Raw(longer)
            } else {
                Value::from(u64::from(token))
            });
        }
        if tokens.is_empty() {
            continue;
        }
        let (batch, store) = store(with(&cold(), "token_ids", Value::List(values)));
        assert_eq!(batch.tokens_of(store.tokens), tokens, "list {list}");
    }
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
        ("cuda:0".into(), Place::In(Gpu)),
        ("DRAM".into(), Place::In(Cpu)),
        ("CPU_TIER2".into(), Place::In(Cpu)),
        ("LocalCPUBackend".into(), Place::In(Cpu)),
        ("SSD".into(), Place::In(Disk)),
        ("EXTERNAL".into(), Place::Shared),
        ("RemoteBackend".into(), Place::Shared),
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
fn groups_attend_to_the_whole_prefix_or_not() {
    for (kind, attention) in [
        ("full_attention", Attention::Full),
        ("mla_attention", Attention::Full),
        ("sink_full_attention", Attention::Full),
        ("sliding_window", Attention::Sliding),
        ("sliding_window_mla", Attention::Sliding),
        ("mamba", Attention::Mamba),
        ("chunked_local_attention", Attention::Chunked),
        ("encoder_only_attention", Attention::Aside),
        ("cross_attention", Attention::Aside),
    ] {
        let event = with(&with(&cold(), "kv_cache_spec_kind", kind), "group_idx", 2);
        let (_, store) = store(event);
        assert_eq!(
            (store.attention, store.group),
            (attention, Some(2)),
            "{kind}"
        );
    }
    for kind in ["unknown", "later", ""] {
        let (batch, store) = store(with(&cold(), "kv_cache_spec_kind", kind));
        let Attention::Other(name) = store.attention else {
            panic!("{kind} is no known kind")
        };
        assert_eq!(batch.text_of(name), kind);
    }
    let (_, nil) = store(with(&cold(), "kv_cache_spec_kind", NIL));
    assert_eq!(nil.attention, Attention::Unsaid);
    assert_eq!(remove(with(&gone(), "group_idx", 5)).1.group, Some(5));
}

#[test]
fn a_field_that_is_not_known_or_of_another_type_is_counted_and_the_rest_is_used() {
    let text = || Value::Raw(vec![0xa1, 0xff]);
    let values = || {
        [
            Value::Int(7),
            text(),
            Value::Float(2.0),
            list![1],
            map! { "a": 1 },
        ]
    };
    let plain = decoded(&message(vec![cold()]));
    for key in [
        "medium",
        "locality",
        "lora_name",
        "cache_salt",
        "group_idx",
        "lora_id",
    ] {
        let is_number = ["group_idx", "lora_id"].contains(&key);
        for value in values().into_iter().skip(usize::from(is_number)) {
            let event = with(&cold(), key, value);
            let batch = decoded(&message(vec![event.clone(), gone()]));
            let counted = (
                batch.malformed_events,
                batch.unknown_fields,
                batch.events.len(),
            );
            assert_eq!(counted, (0, 1, 2), "{event:?}");
            assert_eq!(batch.fields, [key]);
            // It is not taken for a block without the field.
            assert_ne!(
                (&batch.events[0], &batch.extras),
                (&plain.events[0], &plain.extras),
                "{event:?}"
            );
        }
    }
    for (key, value) in [
        ("later", list![1, map! { "x": 2 }]),
        ("kv_cache_spec_sliding_window", text()),
    ] {
        let batch = decoded(&message(vec![with(&cold(), key, value)]));
        assert_eq!(
            (&*batch.fields, &batch.events),
            (&[key.to_owned()][..], &plain.events)
        );
    }
    // Fields that engines send and that are of no use are not counted.
    let mut event = cold();
    for key in ["ownership", "session_id", "lookahead_token_ids"] {
        event = with(&event, key, "x");
    }
    assert_eq!(decoded(&message(vec![event])), plain);
}

/// `SGLang` 0.5.18 has a map of further fields behind the medium; where it stands does not matter.
#[test]
fn a_map_in_place_of_an_optional_value_has_fields_by_name() {
    let more = || map! { "cache_salt": "t", "session_id": "s", "lora_name": "la" };
    for nils in 0..12 {
        let mut event = vec![
            Value::from("BlockStored"),
            list![11],
            NIL,
            list![1, 2],
            Value::Int(2),
        ];
        event.extend((0..nils).map(|_| NIL));
        event.push(more());
        let batch = decoded(&message(vec![Value::List(event)]));
        let Event::Store(store) = batch.events[0] else {
            panic!("a store");
        };
        let salt = store.salt.map(|salt| batch.text_of(salt));
        let lora = store.lora.map(|lora| batch.text_of(lora));
        assert_eq!((salt, lora), (Some("t"), Some("la")), "behind {nils} nils");
        assert_eq!((batch.unknown_fields, batch.malformed_events), (0, 0));
    }
    let event = list![
        "BlockRemoved",
        list![11],
        map! { "medium": "CPU", "new": 1 }
    ];
    let batch = decoded(&message(vec![event]));
    let Event::Remove(remove) = batch.events[0] else {
        panic!("a removal");
    };
    assert_eq!(remove.place, Place::In(Medium::Cpu));
    assert_eq!(batch.fields, ["new"]);
}
