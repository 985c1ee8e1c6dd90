//! The cost per block of each stage of following events, stored and removed, from the bytes of a message to a router's
//! selector.
//!
//! The stream is that of the comparison with other crates: eight engines, each prompt on two of them, 64 blocks a message, and
//! the oldest prompt goes from its end once an engine is full. Stores and removals come as messages of their own. Each stage
//! includes those before it: `decoded` (names and tokens copied), `named` (hashed, names kept), `indexed` (in an index without
//! a budget), `routed` (streams behind locks, a selector with a budget).

mod indexed;
mod messages;
mod nothing;
mod random;
mod routed;
mod rows;

use std::hint::black_box;
use std::io::Result;
use std::time::Instant;

use cachelb_core::hashing::{DEFAULT_SEED, Hasher, Scheme};
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::index::{BlockIndex, Matcher};
use cachelb_events::{Batch, Holdings, Ingest, IngestSettings, decode};

use indexed::Indexed;
use messages::Writer;
use nothing::Nothing;
use random::Random;
use routed::Routed;
use rows::{Row, wanted};

const WORKERS: usize = 8;
const BLOCK: usize = 16;
const VOCABULARY: u32 = 128_000;
/// Blocks of a message, and of a prompt.
const STEP: usize = 64;
const CHAIN: usize = 512;
/// Prompts that an engine holds, and those it answers in all.
const HELD: usize = 32;
const TURNS: usize = 96;
const ROUNDS: usize = 5;
const SOUND: &str = "the bench writes well-formed messages";

/// A message of one engine, and whether it removes blocks.
struct Message {
    worker: usize,
    removes: bool,
    payload: Vec<u8>,
}

/// Takes messages.
type Stage = Box<dyn FnMut(&Message)>;

/// Makes a stage that has seen nothing.
type Make = fn() -> Stage;

fn main() -> Result<()> {
    let stream = stream();
    let stages: [(&str, Make); 4] = [
        ("decoded", in_batch),
        ("named", in_nothing),
        ("indexed", in_index),
        ("routed", in_router),
    ];
    for (name, stage) in stages {
        let ids = ["stored", "removed"].map(|what| format!("following/{what}/{name}"));
        if !ids.iter().any(|id| wanted(id)) {
            continue;
        }
        let mut spent = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let mut take = stage();
            for (at, message) in stream.iter().enumerate() {
                let start = Instant::now();
                take(black_box(message));
                let took = start.elapsed();
                // Before that tables grow.
                if at > stream.len() / 2 {
                    spent[usize::from(message.removes)].push(took.as_nanos() as u64);
                }
            }
        }
        for (id, spent) in ids.into_iter().zip(&mut spent) {
            emit(id, spent)?;
        }
    }
    Ok(())
}

fn emit(id: String, spent: &mut [u64]) -> Result<()> {
    spent.sort_unstable();
    let at = |percent: usize| spent[(spent.len() - 1) * percent / 100] as f64 / STEP as f64;
    let note = format!("{STEP} blocks a message, {WORKERS} engines, each prompt on two");
    Row {
        id,
        unit: "ns/block",
        p50: at(50),
        p99: at(99),
        n: spent.len(),
        note,
    }
    .emit()
}

fn stream() -> Vec<Message> {
    let prompts = TURNS / 2 * WORKERS;
    let mut random = Random(7);
    let names: Vec<u64> = (0..prompts * CHAIN).map(|_| random.bits()).collect();
    let first =
        |turn: usize, worker: usize| (turn / 2 * WORKERS + (worker + turn % 2) % WORKERS) * CHAIN;
    let mut messages = Vec::new();
    for turn in 0..TURNS {
        for at in (0..CHAIN).step_by(STEP) {
            for worker in 0..WORKERS {
                if let Some(old) = turn.checked_sub(HELD) {
                    let end = first(old, worker) + CHAIN - at;
                    let payload = removal(&names[end - STEP..end]);
                    messages.push(Message {
                        worker,
                        removes: true,
                        payload,
                    });
                }
                let here = first(turn, worker) + at;
                let parent = (at > 0).then(|| names[here - 1]);
                let payload = store(&names[here..here + STEP], parent, here as u64);
                messages.push(Message {
                    worker,
                    removes: false,
                    payload,
                });
            }
        }
    }
    messages
}

/// A message of one event.
fn message(event: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut out = Writer(vec![0x92, 0xcb]);
    out.0.extend(1.5e9_f64.to_be_bytes());
    out.list(1);
    event(&mut out);
    out.0
}

/// The end of a prompt goes first, as engines free it.
fn removal(names: &[u64]) -> Vec<u8> {
    message(|out| out.removal(names.iter().rev().copied()))
}

fn store(names: &[u64], parent: Option<u64>, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let tokens = (0..names.len() * BLOCK).map(|_| random.below(VOCABULARY));
    message(|out| out.store(names, parent, tokens))
}

fn hasher() -> Hasher {
    Hasher::new(Scheme::Chained, BLOCK, DEFAULT_SEED).expect(SOUND)
}

fn in_batch() -> Stage {
    let mut batch = Batch::default();
    Box::new(move |message| {
        decode(&message.payload, &mut batch).expect(SOUND);
        black_box(&batch);
    })
}

/// Decodes a message, and applies it to the holdings that `holdings` makes for its worker.
fn applied(mut to: impl FnMut(usize, &mut dyn FnMut(&mut dyn Holdings)) + 'static) -> Stage {
    let mut batch = Batch::default();
    let mut ingests: Vec<Ingest> = (0..WORKERS)
        .map(|_| Ingest::new(IngestSettings::new(hasher())))
        .collect();
    Box::new(move |message| {
        decode(&message.payload, &mut batch).expect(SOUND);
        let ingest = &mut ingests[message.worker];
        to(message.worker, &mut |held| {
            ingest.apply(&batch, Millis(0), held);
        });
        assert_eq!(ingest.stats.unknown_removals, 0);
    })
}

fn in_nothing() -> Stage {
    applied(|_, apply| apply(&mut Nothing))
}

fn in_index() -> Stage {
    let mut index = BlockIndex::new(Matcher::Kary);
    let id = |slot: usize| WorkerId {
        slot: slot as u32,
        generation: 0,
    };
    (0..WORKERS).for_each(|slot| {
        index.add_worker(id(slot), u32::MAX);
    });
    applied(move |worker, apply| apply(&mut Indexed(&mut index, id(worker))))
}

fn in_router() -> Stage {
    let mut router = Routed::new(WORKERS, BLOCK, hasher());
    Box::new(move |message| router.take(message.worker, &message.payload))
}
