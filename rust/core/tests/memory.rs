//! Bytes that structures report beside those that the allocator gave them.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

#[path = "../../../benches/core/counting.rs"]
mod counting;

use cachelb_core::ids::{SequenceHash, WorkerId};
use cachelb_core::index::{BlockIndex, Matcher};
use cachelb_core::radix_tree::RadixTree;
use cachelb_core::rng::Rng;

use counting::{Counting, live_bytes};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WORKERS: u32 = 16;

fn worker(slot: u32) -> WorkerId {
    WorkerId {
        slot,
        generation: 0,
    }
}

fn assert_near(taken: usize, reported: usize, what: &str) {
    let ratio = reported as f64 / taken as f64;
    assert!(
        (0.8..1.25).contains(&ratio),
        "{what}: {reported} of {taken}"
    );
}

/// Chains of some length on some workers each, as many as the limit leaves room for and as many again. Blocks beyond
/// the limit are evicted after each record.
fn fill_index(length: usize, holders: u32, limit: usize) {
    let mut rng = Rng::new(length as u64);
    let empty = live_bytes();
    let mut index = BlockIndex::new(Matcher::Kary);
    for slot in 0..WORKERS {
        index.add_worker(worker(slot), u32::MAX);
    }
    let (mut tick, mut evictions) = (0, 0);
    while evictions < 2 * limit / (30 * length) / holders as usize {
        let hashes: Vec<_> = (0..length).map(|_| SequenceHash(rng.bits())).collect();
        let first = rng.below(WORKERS as usize) as u32;
        for slot in (0..holders).map(|at| (first + at) % WORKERS) {
            tick += 1;
            index.set_tick(tick);
            index.record(worker(slot), &hashes, None, None).unwrap();
            while index.memory_bytes() > limit {
                evictions += 1;
                assert!(index.evict_oldest(64, tick) > 0);
            }
        }
    }
    index.validate().unwrap();
    let what = format!("chains of {length} on {holders}");
    assert_near(live_bytes() - empty, index.memory_bytes(), &what);
    assert_near(live_bytes() - empty, limit, &what);
}

#[test]
fn the_limit_of_an_index_and_of_a_tree_is_near_its_bytes() {
    for (length, holders) in [(1, 1), (4, 1), (16, 1), (64, 1), (16, 4), (200, 16)] {
        for limit in [1 << 20, 3 << 20, 10_000_000] {
            fill_index(length, holders, limit);
        }
    }
    for length in [20, 200, 4000] {
        fill_tree(length, 4 << 20);
    }
}

fn fill_tree(length: usize, limit: usize) {
    let mut rng = Rng::new(length as u64);
    let empty = live_bytes();
    let mut tree = RadixTree::<u8>::new(1, None).unwrap();
    tree.add_worker(worker(0), u32::MAX);
    let (mut tick, mut evictions) = (0, 0);
    while evictions < 2 * limit / length {
        let key: String = (0..length)
            .map(|_| (b'a' + rng.below(20) as u8) as char)
            .collect();
        tick += 256;
        tree.set_tick(tick);
        tree.record(worker(0), key.as_str(), None).unwrap();
        while tree.memory_bytes() > limit {
            evictions += 1;
            assert!(tree.evict_oldest(u32::MAX, tick) > 0);
        }
    }
    tree.validate().unwrap();
    assert_near(live_bytes() - empty, limit, &format!("keys of {length}"));
}
