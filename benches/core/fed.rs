//! The block index of workers whose engines say what they hold: lookups over announced and speculative blocks, beside
//! the same fleet fed by placements alone, and announcements.
//!
//! Cold as in the `index` bench. Every 64th lookup is checked.

mod fleet;
mod random;
mod rows;
mod timing;

use std::hint::black_box;
use std::io::Result;

use cachelb_core::ids::{Medium, SequenceHash};
use cachelb_core::index::Overlaps;
use fleet::{Feed, Fleet, Query, Setup};
use random::Random;
use rows::Row;
use timing::{Samples, clock_cost};

const WORKERS: u32 = 64;
const HOLDERS: u32 = 4;
const RESIDENT: u32 = 1_000_000;
const FLEETS: u64 = 4;
const LOOKUPS: usize = 8_000;
const ANNOUNCEMENTS: usize = 4_000;
const CHECK_EVERY: usize = 64;

fn main() -> Result<()> {
    for chain in [128, 2_048] {
        for feed in [Feed::Placements, Feed::Announced, Feed::HalfSpeculative] {
            let setup = Setup {
                workers: WORKERS,
                chain,
                holders: HOLDERS,
                resident: RESIDENT,
                churned: false,
                feed,
            };
            let mut fleets: Vec<Fleet> = (0..FLEETS).map(|seed| Fleet::new(setup, seed)).collect();
            measure_match(setup, &mut fleets)?;
            if feed == Feed::Announced && chain == 128 {
                for (seed, blocks, expected) in [(90, 1, false), (91, 64, false), (92, 64, true)] {
                    measure_announce(&mut fleets, Random(seed), blocks, expected)?;
                }
            }
            for fleet in &fleets {
                let sound = fleet.index.validate();
                sound.expect("the index is sound after the run");
            }
        }
    }
    Ok(())
}

/// Looks prompts up that follow a chain to a uniform depth.
fn measure_match(setup: Setup, fleets: &mut [Fleet]) -> Result<()> {
    let mut samples = Samples::default();
    let mut query = Query::default();
    let mut answer = Overlaps::default();
    for nth in 0..LOOKUPS {
        let turn = nth % fleets.len();
        let fleet = &mut fleets[turn];
        fleet.ask(&mut query);
        samples.time(|| fleet.index.overlaps(black_box(&query.hashes), &mut answer));
        if nth % CHECK_EVERY == 0 {
            fleet.check(&query, &answer);
        }
    }
    let fed = match setup.feed {
        Feed::Placements => "placed",
        Feed::Announced => "announced",
        Feed::HalfSpeculative => "half-speculative",
    };
    let id = format!("fed/match/{WORKERS}w/h{HOLDERS}/{}/cold/{fed}", setup.chain);
    emit(id, "us", samples, 1e3)
}

/// Announces `blocks` new blocks at a time behind a chain that grows with it; `expected` ones were speculative before.
fn measure_announce(
    fleets: &mut [Fleet],
    mut random: Random,
    blocks: usize,
    expected: bool,
) -> Result<()> {
    let mut samples = Samples::default();
    let mut chains: Vec<(u32, Vec<SequenceHash>)> = (0..64).map(|_| (0, Vec::new())).collect();
    for nth in 0..ANNOUNCEMENTS {
        let turn = nth % fleets.len();
        let fleet = &mut fleets[turn];
        // A chain belongs to one fleet and one worker for some time.
        let at = nth % chains.len();
        let (slot, chain) = &mut chains[at];
        if chain.len() >= 2_048 || chain.is_empty() {
            *slot = fleet.any_worker();
            chain.clear();
        }
        let held = chain.len();
        chain.extend((0..blocks).map(|_| SequenceHash(random.bits())));
        let worker = fleet.id(*slot);
        if expected {
            let stored = fleet.index.expect(worker, chain, held as u32, None, None);
            assert_eq!(stored.ok(), Some(blocks as u32), "the blocks are new");
        }
        let parent = held.checked_sub(1).map(|last| chain[last]);
        let new = black_box(&chain[held..]);
        let announce = || fleet.index.announce(worker, parent, new, Medium::Gpu);
        let stored = samples.time(announce);
        assert_eq!(stored.ok(), Some(blocks as u32), "the blocks are new there");
    }
    let what = if expected { "confirm" } else { "announce" };
    let id = format!("fed/{what}/{WORKERS}w/{blocks}new");
    emit(id, "ns/block", samples, blocks as f64)
}

fn emit(id: String, unit: &'static str, mut samples: Samples, scale: f64) -> Result<()> {
    let (p50, p99) = samples.percentiles();
    Row {
        id,
        unit,
        p50: p50 / scale,
        p99: p99 / scale,
        n: samples.len(),
        note: format!(
            "{RESIDENT} blocks resident, clock {:.0} ns included",
            clock_cost()
        ),
    }
    .emit()
}
