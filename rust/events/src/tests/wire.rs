//! Batches as the bytes engines send.

use cachelb_core::ids::Medium;
use cachelb_events::{Batch, Event, Name, Place, Store};

use crate::decode::tests::encode::{Value, list, map};

/// Writes a batch as maps, made at `ts`.
pub fn encode(batch: &Batch, ts: f64) -> Vec<u8> {
    let event = |event: &Event| match event {
        Event::Store(store) => {
            let tokens = batch.tokens_of(store.tokens).iter();
            map! {
                "type": "BlockStored", "block_hashes": names(batch.names_of(store.names)),
                "parent_block_hash": store.parent.map(number),
                "token_ids": tokens.map(|token| u64::from(*token)).collect::<Vec<_>>(),
                "block_size": u64::from(store.block_size), "medium": medium(store.place),
                "lora_name": store.lora.map(|span| batch.text_of(span)), "extra_keys": keys(batch, store),
            }
        }
        Event::Remove(remove) => map! {
            "type": "BlockRemoved", "block_hashes": names(batch.names_of(remove.names)), "medium": medium(remove.place),
        },
        Event::Clear => map! { "type": "AllBlocksCleared" },
    };
    let events: Vec<Value> = batch.events.iter().map(event).collect();
    list![Value::Float(ts), events, 0].encode()
}

/// Keys that are hashed beside tokens: the adapter with every block, the salt with the first.
fn keys(batch: &Batch, store: &Store) -> Vec<Option<Vec<Value>>> {
    let of_block = |block| {
        let spans = [store.lora, store.salt.filter(|_| block == 0)];
        let texts = spans.into_iter().flatten();
        let texts: Vec<_> = texts.map(|span| batch.text_of(span).into()).collect();
        (!texts.is_empty()).then_some(texts)
    };
    (0..store.names.len).map(of_block).collect()
}

fn names(names: &[Name]) -> Vec<u64> {
    names.iter().copied().map(number).collect()
}

fn number(name: Name) -> u64 {
    match name {
        Name::Int(name) => name,
        Name::Wide(_) => panic!("names are integers here"),
    }
}

fn medium(place: Place) -> &'static str {
    match place {
        Place::In(Medium::Cpu) => "CPU",
        _ => "GPU",
    }
}
