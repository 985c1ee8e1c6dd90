//! The block index under load: all-worker match, touch, store with and without eviction.
//!
//! Cold means four indexes of a million blocks in turn and a random chain each time, far beyond the last-level cache;
//! the query itself is warm, as it is when its hashes were just computed. Every 64th lookup is checked.

mod fleet;
mod random;
mod rows;
mod timing;

use std::hint::black_box;
use std::io::Result;

use cachelb_core::index::Overlaps;
use fleet::{Fleet, Query, Setup};
use rows::Row;
use timing::{Samples, clock_cost};

const RESIDENT: u32 = 1_000_000;
const FLEETS: u64 = 4;
const LOOKUPS: usize = 4_000;
const CHECK_EVERY: usize = 64;
const NEW_BLOCKS: u32 = 512;

fn main() -> Result<()> {
    for (workers, chain, holders) in [
        (64, 128, 1),
        (64, 128, 4),
        (64, 2_048, 1),
        (64, 2_048, 4),
        (64, 8_192, 1),
        (64, 8_192, 4),
        (1_024, 2_048, 8),
    ] {
        for churned in [false, true] {
            let setup = Setup {
                workers,
                chain,
                holders,
                resident: RESIDENT,
                churned,
                speculative: None,
            };
            let mut fleets: Vec<Fleet> = (0..FLEETS).map(|seed| Fleet::new(setup, seed)).collect();
            measure_match(setup, &mut fleets, false)?;
            if chain == 2_048 {
                measure_match(setup, &mut fleets[..1], true)?;
            }
            measure_touch(setup, &mut fleets)?;
            measure_store(setup, &mut fleets)?;
            for fleet in &fleets {
                fleet
                    .index
                    .validate()
                    .expect("the index is sound after the run");
            }
        }
    }
    Ok(())
}

/// Looks prompts up that follow a chain to a uniform depth; in a churned fleet each lookup is followed by a store that
/// evicts.
fn measure_match(setup: Setup, fleets: &mut [Fleet], warm: bool) -> Result<()> {
    let mut samples = Samples::default();
    let mut query = Query::default();
    let mut answer = Overlaps::default();
    for nth in 0..LOOKUPS {
        let turn = nth % fleets.len();
        let fleet = &mut fleets[turn];
        if !warm || nth % 256 == 0 {
            fleet.ask(&mut query);
        }
        samples.time(|| fleet.index.overlaps(black_box(&query.hashes), &mut answer));
        if nth % CHECK_EVERY == 0 {
            fleet.check(&query, &answer);
        }
        if setup.churned && !warm && nth % 8 == 0 {
            fleet.spread_new_chain();
        }
    }
    emit(
        "match",
        setup,
        if warm { "/warm" } else { "/cold" },
        "us",
        samples,
        1e3,
    )
}

/// Records prompts that the worker holds to the end, right after they were looked up.
fn measure_touch(setup: Setup, fleets: &mut [Fleet]) -> Result<()> {
    let mut samples = Samples::default();
    let mut answer = Overlaps::default();
    for nth in 0..LOOKUPS / 2 {
        let turn = nth % fleets.len();
        let fleet = &mut fleets[turn];
        let (slot, chain) = fleet.any_held();
        // Blocks left out by eviction or a partial holder are stored again first, so that the timed call only touches.
        fleet.record(slot, chain, setup.chain);
        let worker = fleet.id(slot);
        let hashes = fleet.hashes(chain).to_vec();
        fleet.index.overlaps(&hashes, &mut answer);
        let stored = samples.time(|| fleet.index.record(worker, &hashes, Some(&answer), None));
        fleet.recorded(slot, chain, setup.chain, stored.ok());
    }
    emit("touch", setup, "/cold", "us", samples, 1e3)
}

/// Records chains of new blocks after a lookup; full workers evict as many blocks as they store.
fn measure_store(setup: Setup, fleets: &mut [Fleet]) -> Result<()> {
    let mut samples = Samples::default();
    let mut answer = Overlaps::default();
    for nth in 0..LOOKUPS / 4 {
        let turn = nth % fleets.len();
        let fleet = &mut fleets[turn];
        let slot = fleet.any_worker();
        let chain = fleet.new_chain(NEW_BLOCKS);
        let worker = fleet.id(slot);
        let hashes = fleet.hashes(chain).to_vec();
        fleet.index.overlaps(&hashes, &mut answer);
        let stored = samples.time(|| fleet.index.record(worker, &hashes, Some(&answer), None));
        fleet.recorded(slot, chain, NEW_BLOCKS, stored.ok());
    }
    let blocks = format!("/{NEW_BLOCKS}new");
    emit(
        "store",
        setup,
        &blocks,
        "ns/block",
        samples,
        f64::from(NEW_BLOCKS),
    )
}

fn emit(
    work: &str,
    setup: Setup,
    suffix: &str,
    unit: &'static str,
    mut samples: Samples,
    scale: f64,
) -> Result<()> {
    let (p50, p99) = samples.percentiles();
    let state = if setup.churned { "/evicting+holes" } else { "" };
    Row {
        id: format!(
            "{work}/{}w/h{}/{}{suffix}{state}",
            setup.workers, setup.holders, setup.chain
        ),
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
