//! Decoding messages of KV events as vLLM batches them: ids of tokens mix widths, messages take turns.

mod messages;
mod random;
mod rows;
mod timing;

use std::hint::black_box;
use std::io::Result;

use cachelb_events::{Batch, decode};

use messages::Writer;
use random::Random;
use rows::Row;
use timing::{Samples, clock_cost};

const BLOCK: usize = 16;
const VOCABULARY: u32 = 128_000;

/// Messages that take turns, so that no branch is predicted from an earlier read of its message.
const MESSAGES: usize = 2_000;
const ROUNDS: usize = 10;

/// The contents of a message.
#[derive(Clone, Copy)]
struct Shape {
    id: &'static str,
    events: usize,
    /// Per event.
    blocks: usize,
    as_map: bool,
    wide: bool,
    removal: bool,
}

fn message(shape: Shape, random: &mut Random) -> Vec<u8> {
    let mut out = Writer(vec![0x93, 0xcb]);
    out.0.extend(1.5e9_f64.to_be_bytes());
    out.list(shape.events);
    for _ in 0..shape.events {
        if shape.removal {
            removal(shape, random, &mut out);
        } else {
            store(shape, random, &mut out);
        }
    }
    out.number(0);
    out.0
}

fn name(random: &mut Random, wide: bool, out: &mut Writer) {
    if wide {
        out.bytes([(); 4].map(|()| random.bits()));
    } else {
        out.name(random.bits());
    }
}

fn removal(shape: Shape, random: &mut Random, out: &mut Writer) {
    let as_map = shape.as_map;
    out.0.push(if as_map { 0x84 } else { 0x94 });
    out.key(as_map, "type");
    out.text("BlockRemoved");
    out.key(as_map, "block_hashes");
    out.list(shape.blocks);
    for _ in 0..shape.blocks {
        name(random, shape.wide, out);
    }
    out.key(as_map, "medium");
    out.text("GPU");
    out.key(as_map, "group_idx");
    out.number(0);
}

fn store(shape: Shape, random: &mut Random, out: &mut Writer) {
    let as_map = shape.as_map;
    out.0.push(if as_map { 0x8b } else { 0x9b });
    out.key(as_map, "type");
    out.text("BlockStored");
    out.key(as_map, "block_hashes");
    out.list(shape.blocks);
    for _ in 0..shape.blocks {
        name(random, shape.wide, out);
    }
    out.key(as_map, "parent_block_hash");
    name(random, shape.wide, out);
    out.key(as_map, "token_ids");
    out.list(shape.blocks * BLOCK);
    for _ in 0..shape.blocks * BLOCK {
        out.number(random.below(VOCABULARY));
    }
    out.key(as_map, "block_size");
    out.number(BLOCK as u32);
    out.key(as_map, "lora_id");
    out.nil();
    out.key(as_map, "medium");
    out.text("GPU");
    out.key(as_map, "lora_name");
    out.nil();
    out.key(as_map, "extra_keys");
    out.list(shape.blocks);
    for _ in 0..shape.blocks {
        out.nil();
    }
    out.key(as_map, "group_idx");
    out.number(0);
    out.key(as_map, "kv_cache_spec_kind");
    out.text("full_attention");
}

fn main() -> Result<()> {
    let shape = Shape {
        id: "store-1/map",
        events: 64,
        blocks: 1,
        as_map: true,
        wide: false,
        removal: false,
    };
    let shapes = [
        shape,
        Shape {
            id: "store-1/array",
            as_map: false,
            ..shape
        },
        Shape {
            id: "store-64/map",
            events: 4,
            blocks: 64,
            ..shape
        },
        Shape {
            id: "store-64/array",
            events: 4,
            blocks: 64,
            as_map: false,
            ..shape
        },
        Shape {
            id: "store-64/bytes",
            events: 4,
            blocks: 64,
            wide: true,
            ..shape
        },
        Shape {
            id: "remove-1/map",
            removal: true,
            ..shape
        },
        Shape {
            id: "remove-64/map",
            events: 4,
            blocks: 64,
            removal: true,
            ..shape
        },
    ];
    let clock = clock_cost();
    let mut random = Random(1);
    let mut batch = Batch::default();
    for shape in shapes {
        let messages: Vec<Vec<u8>> = (0..MESSAGES).map(|_| message(shape, &mut random)).collect();
        let mut samples = Samples::default();
        for payload in (0..ROUNDS).flat_map(|_| &messages) {
            let result = samples.time(|| decode(black_box(payload), &mut batch));
            assert!(result.is_ok() && batch.events.len() == shape.events);
            assert_eq!(batch.malformed_events, 0);
        }
        let (p50, p99) = samples.percentiles();
        let blocks = (shape.events * shape.blocks) as f64;
        Row {
            id: format!("decode/{}", shape.id),
            unit: "ns/block",
            p50: p50 / blocks,
            p99: p99 / blocks,
            n: samples.len(),
            note: format!(
                "{} events a message, blocks of {BLOCK} tokens below {VOCABULARY}, clock {clock:.0} ns a message included",
                shape.events
            ),
        }
        .emit()?;
    }
    Ok(())
}
