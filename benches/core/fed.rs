//! The block index of workers with KV events: lookups over announced and speculative blocks, beside
//! the same fleet fed by placements alone, and announcements.
//!
//! Cold as in the `index` bench. Every 64th lookup is checked.

mod fleet;
mod random;
mod rows;
mod timing;

use std::hint::black_box;
use std::io::Result;

use cachelb_core::ids::Medium;
use cachelb_core::index::Overlaps;
use fleet::{Fleet, Query, Setup};
use rows::Row;
use timing::{Samples, clock_cost};

const WORKERS: u32 = 64;
const HOLDERS: u32 = 4;
const RESIDENT: u32 = 1_000_000;
const FLEETS: u64 = 4;
const LOOKUPS: usize = 8_000;
const ANNOUNCEMENTS: usize = 4_000;
/// Chains that grow at the same time, and their full length.
const GROWING: usize = 64;
const LONG: usize = 2_048;
const CHECK_EVERY: usize = 64;

fn main() -> Result<()> {
    for chain in [128, 2_048] {
        for speculative in [None, Some(0), Some(50)] {
            let setup = Setup {
                workers: WORKERS,
                chain,
                holders: HOLDERS,
                resident: RESIDENT,
                churned: false,
                speculative,
            };
            let mut fleets: Vec<Fleet> = (0..FLEETS).map(|seed| Fleet::new(setup, seed)).collect();
            measure_match(setup, &mut fleets)?;
            if speculative == Some(0) && chain == 128 {
                for (blocks, expected) in [(1, false), (64, false), (64, true)] {
                    measure_announce(&mut fleets, blocks, expected)?;
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
    let fed = match setup.speculative {
        None => "placed".to_owned(),
        Some(0) => "announced".to_owned(),
        Some(per_cent) => format!("{per_cent}%speculative"),
    };
    let id = format!("fed/match/{WORKERS}w/h{HOLDERS}/{}/cold/{fed}", setup.chain);
    emit(id, "us", samples, 1e3)
}

/// Announces `blocks` new blocks at a time behind chains that grow with it; `expected` ones were speculative before.
fn measure_announce(fleets: &mut [Fleet], blocks: usize, expected: bool) -> Result<()> {
    let mut samples = Samples::default();
    // Worker, chain and blocks of it that were announced; each grows for some time in one fleet.
    let mut growing = vec![(0, 0, LONG); GROWING];
    for nth in 0..ANNOUNCEMENTS {
        let turn = nth % fleets.len();
        let fleet = &mut fleets[turn];
        let (slot, chain, held) = &mut growing[nth % GROWING];
        if *held + blocks > LONG {
            (*slot, *chain, *held) = (fleet.any_worker(), fleet.new_chain(LONG as u32), 0);
        }
        let worker = fleet.id(*slot);
        let hashes = fleet.hashes(*chain)[..*held + blocks].to_vec();
        if expected {
            let from = *held as u32;
            let stored = fleet.index.expect(worker, &hashes, from, None, None);
            assert_eq!(stored.ok(), Some(blocks as u32), "the blocks are new");
        }
        let parent = held.checked_sub(1).map(|last| hashes[last]);
        let new = black_box(&hashes[*held..]);
        let announce = || fleet.index.announce(worker, parent, new, Medium::Gpu, None);
        let stored = samples.time(announce);
        assert_eq!(stored.ok(), Some(blocks as u32), "they are new there");
        *held += blocks;
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
