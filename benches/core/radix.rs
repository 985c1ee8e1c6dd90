//! The radix tree: how long the parts of a long eviction hold the lock, and the time of matching a prompt meanwhile.

mod random;
mod rows;
mod timing;

use std::io::Result;
use std::time::{Duration, Instant};

use cachelb_core::ids::WorkerId;
use cachelb_core::radix_tree::{PrefixOverlaps, RadixTree};

use random::Random;
use rows::Row;
use timing::{Samples, clock_cost};

const LEAVES: u64 = 200_000;
const WORKERS: u32 = 8;
/// Leaves per part, as the binding has it.
const STEPS: u32 = 64;

fn worker(slot: u32) -> WorkerId {
    WorkerId {
        slot,
        generation: 0,
    }
}

/// A short prompt, 50 to 100 characters, that shares no more than the first few with any other.
fn prompt(random: &mut Random) -> String {
    let words = 5 + random.below(6);
    let each = (0..words).map(|_| format!("{:09x} ", random.bits() >> 28));
    each.collect()
}

fn row(id: &str, mut samples: Samples, note: &str) -> Result<()> {
    let n = samples.len();
    let (p50, p99) = samples.percentiles();
    Row {
        id: id.to_owned(),
        unit: "us",
        p50: p50 / 1e3,
        p99: p99 / 1e3,
        n,
        note: note.to_owned(),
    }
    .emit()
}

fn main() -> Result<()> {
    let mut random = Random(1);
    let mut tree = RadixTree::<u8>::new(1, None).expect("sound settings");
    for slot in 0..WORKERS {
        tree.add_worker(worker(slot), u32::MAX);
    }
    let (mut inserts, mut matches, mut parts) =
        (Samples::default(), Samples::default(), Samples::default());
    let mut some = Vec::new();
    for number in 0..LEAVES {
        let prompt = prompt(&mut random);
        let held =
            inserts.time(|| tree.record(worker(number as u32 % WORKERS), prompt.as_str(), None));
        assert!(held.is_ok_and(|held| held > 0), "all are new");
        if number % 50 == 0 {
            some.push(prompt);
        }
    }
    let mut out = PrefixOverlaps::default();
    for prompt in &some {
        matches.time(|| tree.overlaps(prompt.as_str(), &mut out));
        assert_eq!(out.matched as usize, prompt.len(), "it was inserted");
    }
    let half = tree.total() / 2;
    let mut worst = Duration::ZERO;
    loop {
        let start = Instant::now();
        let part = parts.time(|| tree.evict_part(half, STEPS));
        worst = worst.max(start.elapsed());
        if part.done {
            break;
        }
    }
    assert!(tree.total() <= half, "half is left");
    let clock = clock_cost();
    let note = format!("200,000 leaves, 8 workers, clock {clock:.0} ns included");
    row("radix/insert/short", inserts, &note)?;
    row("radix/match/short", matches, &note)?;
    let note = format!(
        "evicting them to half, the longest {} us",
        worst.as_micros()
    );
    row("radix/evict-part/256", parts, &note)
}
