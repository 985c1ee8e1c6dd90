//! From the bytes of an engine's messages to the block index: decode and apply, to drain.
//!
//! The whole stream is applied once per round, from nothing, so that every block is new and every table grows; the
//! clock stops when the last message is visible to a look-up. In the churned rows each block of the second half comes with
//! an event that removes one of the first, and both count.

mod indexed;
mod messages;
mod nothing;
mod random;
mod rows;

use std::hint::black_box;
use std::io::Result;
use std::time::{Duration, Instant};

use cachelb_core::hashing::{DEFAULT_SEED, Hasher, Scheme};
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::index::{BlockIndex, Matcher};
use cachelb_events::{Batch, Ingest, IngestSettings, decode};

use indexed::Indexed;
use messages::Writer;
use nothing::Nothing;
use random::Random;
use rows::{Row, wanted};

const BLOCK: usize = 16;
const VOCABULARY: u32 = 128_000;
const CHAIN: usize = 512;
const CHAINS: usize = 512;
/// Blocks an engine stores per step.
const STEP: usize = 64;
const ROUNDS: usize = 21;
const WORKER: WorkerId = WorkerId {
    slot: 0,
    generation: 0,
};

fn main() -> Result<()> {
    for blocks in [64, 1] {
        for churned in [false, true] {
            let how = if churned { "churn" } else { "fill" };
            let applied = format!("events/apply-{blocks}/{how}");
            let drained = format!("events/drain-{blocks}/{how}");
            let decoded = format!("events/decode-{blocks}/{how}");
            if ![&applied, &drained, &decoded]
                .into_iter()
                .any(|id| wanted(id))
            {
                continue;
            }
            let stream = stream(blocks, churned);
            if wanted(&decoded) {
                let took = median(|| decode_alone(&stream));
                emit(decoded, took, churned, "nothing applied")?;
            }
            if wanted(&applied) {
                let took = median(|| apply_alone(&stream));
                emit(
                    applied,
                    took,
                    churned,
                    "no index behind it, decoding not timed",
                )?;
            }
            if wanted(&drained) {
                let took = median(|| drain(&stream));
                emit(
                    drained,
                    took,
                    churned,
                    "decode and apply to the block index",
                )?;
            }
        }
    }
    Ok(())
}

/// Messages of one step each, events of `blocks` blocks.
fn stream(blocks: usize, churned: bool) -> Vec<Vec<u8>> {
    let mut random = Random(5);
    let mut names: Vec<u64> = Vec::new();
    let mut messages = Vec::new();
    // Churned: the second half of the chains takes the place of the first.
    for _ in 0..CHAINS {
        let first = names.len();
        names.extend((0..CHAIN).map(|_| random.bits()));
        for step in (0..CHAIN).step_by(STEP) {
            let old = (first + step)
                .checked_sub(CHAINS / 2 * CHAIN)
                .filter(|_| churned);
            let removals = old.map_or(0, |_| STEP);
            let mut out = Writer(vec![0x93, 0xcb]);
            out.0.extend(1.5e9_f64.to_be_bytes());
            out.list(STEP / blocks + removals);
            for name in old.map_or(&[][..], |old| &names[old..old + STEP]) {
                out.removal([*name].into_iter());
            }
            for at in (step..step + STEP).step_by(blocks) {
                let parent = at.checked_sub(1).map(|at| names[first + at]);
                let names = &names[first + at..first + at + blocks];
                let tokens = (0..blocks * BLOCK).map(|_| random.below(VOCABULARY));
                out.store(names, parent, tokens);
            }
            out.number(0);
            messages.push(out.0);
        }
    }
    messages
}

fn ingest() -> Ingest {
    let hasher =
        Hasher::new(Scheme::Chained, BLOCK, DEFAULT_SEED).expect("the block size is in range");
    Ingest::new(IngestSettings::new(hasher))
}

fn decode_alone(stream: &[Vec<u8>]) -> Duration {
    let mut batch = Batch::default();
    let start = Instant::now();
    for payload in stream {
        decode(black_box(payload), &mut batch).expect("the message is well-formed");
        black_box(&batch);
    }
    start.elapsed()
}

/// The time applying takes, decoding aside.
fn apply_alone(stream: &[Vec<u8>]) -> Duration {
    let (mut ingest, mut batch, mut spent) = (ingest(), Batch::default(), Duration::ZERO);
    for payload in stream {
        decode(payload, &mut batch).expect("the message is well-formed");
        let start = Instant::now();
        ingest.apply(black_box(&batch), Millis(0), &mut Nothing);
        spent += start.elapsed();
    }
    check(&ingest);
    spent
}

fn drain(stream: &[Vec<u8>]) -> Duration {
    let mut index = BlockIndex::new(Matcher::Kary);
    index.add_worker(WORKER, u32::MAX);
    let mut to = Indexed(&mut index, WORKER);
    let (mut ingest, mut batch) = (ingest(), Batch::default());
    let start = Instant::now();
    for payload in stream {
        decode(black_box(payload), &mut batch).expect("the message is well-formed");
        ingest.apply(&batch, Millis(0), &mut to);
    }
    let spent = start.elapsed();
    check(&ingest);
    let stats = &ingest.stats;
    assert_eq!(to.0.len(), stats.stored_blocks - stats.removed_blocks);
    to.0.validate().expect("the index is sound");
    spent
}

fn check(ingest: &Ingest) {
    let stats = &ingest.stats;
    assert_eq!(stats.stored_blocks, (CHAINS * CHAIN) as u64);
    assert_eq!(
        (stats.unknown_removals, stats.parked, stats.reannounced),
        (0, 0, 0)
    );
}

fn median(mut run: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| run()).collect();
    times.sort_unstable();
    times[ROUNDS / 2]
}

fn emit(id: String, took: Duration, churned: bool, note: &str) -> Result<()> {
    let stored = CHAINS * CHAIN;
    let n = if churned { stored + stored / 2 } else { stored };
    let per_block = took.as_nanos() as f64 / n as f64;
    let what = if churned {
        "stored or removed"
    } else {
        "stored"
    };
    Row {
        id,
        unit: "ns/block",
        p50: per_block,
        p99: per_block,
        n,
        note: format!(
            "per block {what}, median of {ROUNDS} drains, {STEP} blocks stored a message; {note}"
        ),
    }
    .emit()
}
