//! Bytes per block: one holder, a further holder, after a fill and after tenfold churn, and bytes left at the end.

mod counting;
mod indexed;
mod random;
mod rows;

use std::io::Result;

use cachelb_core::hashing::{Hasher, Scheme};
use cachelb_core::ids::{Millis, SequenceHash, WorkerId};
use cachelb_core::index::{BlockIndex, Matcher};
use cachelb_events::{Batch, Event, Ingest, IngestSettings, Name, Span, Store};
use dashmap::DashMap;

use counting::{Counting, live_bytes};
use indexed::Indexed;
use random::Random;
use rows::Row;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCKS: usize = 1_000_000;
const WORKERS: u32 = 64;
const CHURN: usize = 10;

fn main() -> Result<()> {
    for chain in [64, 512, 2_048] {
        measure_fill(chain)?;
        measure_churn(chain)?;
    }
    measure_events(false)?;
    measure_events(true)?;
    measure_map_of_maps()
}

fn worker(slot: u32) -> WorkerId {
    WorkerId {
        slot,
        generation: 0,
    }
}

/// An empty index whose workers may hold `capacity` blocks each.
fn fleet(capacity: u32) -> BlockIndex {
    let mut index = BlockIndex::new(Matcher::Kary);
    for slot in 0..WORKERS {
        index.add_worker(worker(slot), capacity);
    }
    index
}

/// Records `blocks` blocks in chains on workers at random; `shift` moves each chain to another worker.
fn fill(index: &mut BlockIndex, seed: u64, hashes: &mut [SequenceHash], blocks: usize, shift: u32) {
    let mut random = Random(seed);
    for _ in 0..blocks / hashes.len() {
        let slot = (random.below(WORKERS) + shift) % WORKERS;
        for hash in &mut *hashes {
            *hash = SequenceHash(random.bits());
        }
        index
            .record(worker(slot), hashes, None, None)
            .expect("the worker is registered");
    }
}

fn measure_fill(chain: usize) -> Result<()> {
    let mut hashes = vec![SequenceHash(0); chain];
    let mut index = fleet(u32::MAX);
    let empty = live_bytes();

    fill(&mut index, 7, &mut hashes, BLOCKS, 0);
    let blocks = index.len();
    let filled = live_bytes();
    emit("one-holder/fill", chain, filled - empty, &index, blocks)?;

    // Each chain again, on the next worker.
    fill(&mut index, 7, &mut hashes, BLOCKS, 1);
    assert_eq!(index.len(), blocks, "a further holder adds no block");
    let further = live_bytes() - filled;
    emit("further-holder/fill", chain, further, &index, blocks)?;

    for slot in 0..WORKERS {
        index
            .remove_worker(worker(slot))
            .expect("the worker is registered");
    }
    assert!(index.is_empty(), "no block outlives its last holder");
    let left = live_bytes().saturating_sub(empty);
    emit("left-when-empty", chain, left, &index, blocks)
}

fn measure_churn(chain: usize) -> Result<()> {
    let mut hashes = vec![SequenceHash(0); chain];
    let mut index = fleet((BLOCKS / WORKERS as usize) as u32);
    let empty = live_bytes();
    fill(&mut index, 8, &mut hashes, (CHURN + 1) * BLOCKS, 0);
    index.validate().expect("the index is sound after churn");
    let bytes = live_bytes() - empty;
    emit("one-holder/churn-10x", chain, bytes, &index, index.len())
}

/// The memory for following an engine's events: the index, and the names the engine gives its blocks.
fn measure_events(wide: bool) -> Result<()> {
    const BLOCK: usize = 16;
    const STORE: usize = 64;
    let hasher = Hasher::new(Scheme::Chained, BLOCK, 7).expect("the block size is in range");
    let mut random = Random(10);
    let mut batch = Batch::default();
    let empty = live_bytes();
    let mut index = fleet(u32::MAX);
    let mut to = Indexed(&mut index, worker(0));
    let mut ingest = Ingest::new(IngestSettings::new(hasher));
    let mut parent = None;
    for store in 0..BLOCKS / STORE {
        batch.clear();
        for _ in 0..STORE {
            let name = random.bits();
            batch.names.push(if wide {
                Name::Wide(u128::from(name) << 64 | u128::from(random.bits()))
            } else {
                Name::Int(name)
            });
        }
        batch
            .tokens
            .extend((0..STORE * BLOCK).map(|_| random.below(128_000)));
        let whole = |len: usize| Span {
            start: 0,
            len: len as u32,
        };
        batch.events.push(Event::Store(Store {
            names: whole(STORE),
            parent: parent.filter(|_| store % 8 > 0),
            tokens: whole(STORE * BLOCK),
            block_size: BLOCK as u32,
            ..Store::default()
        }));
        ingest.apply(&batch, Millis(0), &mut to);
        parent = batch.names.last().copied();
    }
    drop(batch);
    let bytes = live_bytes() - empty;
    let what = if wide { "events/bytes" } else { "events/int" };
    let blocks = to.0.len();
    let per_block = bytes as f64 / blocks as f64;
    Row {
        id: format!("bytes/{what}/{}", STORE * 8),
        unit: "bytes/block",
        p50: per_block,
        p99: per_block,
        n: blocks as usize,
        note: format!(
            "counting allocator, index and names; memory_bytes() reports {} and {}",
            to.0.memory_bytes(),
            ingest.memory_bytes()
        ),
    }
    .emit()
}

/// The memory of a concurrent map per block instead: block -> (worker -> last use), one holder each.
fn measure_map_of_maps() -> Result<()> {
    let blocks = BLOCKS / 10;
    let mut random = Random(9);
    let empty = live_bytes();
    let index: DashMap<u64, DashMap<u32, u64>> = DashMap::new();
    for _ in 0..blocks {
        let holders = DashMap::new();
        holders.insert(random.below(WORKERS), 1);
        index.insert(random.bits(), holders);
    }
    let per_block = (live_bytes() - empty) as f64 / index.len() as f64;
    Row {
        id: "bytes/map-of-maps".to_owned(),
        unit: "bytes/block",
        p50: per_block,
        p99: per_block,
        n: blocks,
        note: "nested dashmap, for comparison; grows with the cores of the machine".to_owned(),
    }
    .emit()
}

fn emit(what: &str, chain: usize, bytes: usize, index: &BlockIndex, blocks: u64) -> Result<()> {
    let per_block = bytes as f64 / blocks as f64;
    Row {
        id: format!("bytes/{what}/{chain}"),
        unit: "bytes/block",
        p50: per_block,
        p99: per_block,
        n: blocks as usize,
        note: format!(
            "counting allocator; memory_bytes() reports {}",
            index.memory_bytes()
        ),
    }
    .emit()
}
