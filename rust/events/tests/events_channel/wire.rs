//! Batches as the bytes engines send.

use cachelb_core::ids::Medium;
use cachelb_events::{Batch, Event, Name, Place, Span};

/// Writes a batch as maps, made at `ts`.
pub fn encode(batch: &Batch, ts: f64) -> Vec<u8> {
    let mut out = Vec::new();
    array(3, &mut out);
    out.push(0xcb);
    out.extend(ts.to_be_bytes());
    array(batch.events.len(), &mut out);
    for event in &batch.events {
        match event {
            Event::Store(store) => {
                out.push(0x80 | 8);
                pair("type", "BlockStored", &mut out);
                names("block_hashes", batch.names_of(store.names), &mut out);
                text("parent_block_hash", &mut out);
                match store.parent {
                    Some(name) => integer(number(name), &mut out),
                    None => out.push(0xc0),
                }
                text("token_ids", &mut out);
                let tokens = batch.tokens_of(store.tokens);
                array(tokens.len(), &mut out);
                for token in tokens {
                    integer(u64::from(*token), &mut out);
                }
                text("block_size", &mut out);
                integer(u64::from(store.block_size), &mut out);
                pair("medium", medium(store.place), &mut out);
                said("lora_name", store.lora, batch, &mut out);
                keys(
                    batch,
                    store.names.len as usize,
                    (store.lora, store.salt),
                    &mut out,
                );
            }
            Event::Remove(remove) => {
                out.push(0x80 | 3);
                pair("type", "BlockRemoved", &mut out);
                names("block_hashes", batch.names_of(remove.names), &mut out);
                pair("medium", medium(remove.place), &mut out);
            }
            Event::Clear => {
                out.push(0x80 | 1);
                pair("type", "AllBlocksCleared", &mut out);
            }
        }
    }
    out.push(0);
    out
}

/// What is hashed beside tokens: the adapter with every block, the salt with the first.
fn keys(
    batch: &Batch,
    blocks: usize,
    (lora, salt): (Option<Span>, Option<Span>),
    out: &mut Vec<u8>,
) {
    text("extra_keys", out);
    array(blocks, out);
    for block in 0..blocks {
        let salt = salt.filter(|_| block == 0);
        let given = usize::from(lora.is_some()) + usize::from(salt.is_some());
        if given == 0 {
            out.push(0xc0);
            continue;
        }
        array(given, out);
        for span in [lora, salt].into_iter().flatten() {
            text(batch.text_of(span), out);
        }
    }
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

fn said(key: &str, span: Option<Span>, batch: &Batch, out: &mut Vec<u8>) {
    text(key, out);
    match span {
        Some(span) => text(batch.text_of(span), out),
        None => out.push(0xc0),
    }
}

fn pair(key: &str, value: &str, out: &mut Vec<u8>) {
    text(key, out);
    text(value, out);
}

fn names(key: &str, names: &[Name], out: &mut Vec<u8>) {
    text(key, out);
    array(names.len(), out);
    for name in names {
        integer(number(*name), out);
    }
}

fn array(len: usize, out: &mut Vec<u8>) {
    out.push(0xdc);
    out.extend((len as u16).to_be_bytes());
}

fn text(text: &str, out: &mut Vec<u8>) {
    out.extend([0xd9, text.len() as u8]);
    out.extend(text.as_bytes());
}

fn integer(value: u64, out: &mut Vec<u8>) {
    out.push(0xcf);
    out.extend(value.to_be_bytes());
}
