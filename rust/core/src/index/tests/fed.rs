//! Workers with KV events.

use super::{depth, index, path, worker};
use crate::ids::{Medium, Millis, SequenceHash};
use crate::index::{BlockIndex, Matcher, Overlaps};
use crate::rng::Rng;

fn chain(len: u64) -> Vec<SequenceHash> {
    path(&(0..len).collect::<Vec<u64>>())
}

/// The worker announces a path in device memory.
fn gpu(index: &mut BlockIndex, blocks: &[SequenceHash]) {
    index
        .announce(worker(0), None, blocks, Medium::Gpu, None)
        .unwrap();
}

fn counts(index: &BlockIndex) -> [u64; 4] {
    index.blocks_by_medium(worker(0)).unwrap()
}

#[test]
fn confirmations_bit_by_bit_leave_one_run_and_count_each_block_once() {
    let mut index = index(1000);
    let blocks = chain(128);
    let expected = index.expect(worker(0), &blocks, 0, None, Some(Millis(100)));
    assert_eq!(expected, Ok(128));
    for at in (0..128_usize).step_by(32) {
        let parent = at.checked_sub(1).map(|last| blocks[last]);
        let some = &blocks[at..at + 32];
        let held = index.announce(worker(0), parent, some, Medium::Gpu, None);
        assert_eq!(held, Ok(32));
        index.validate().unwrap();
        let confirmed = at as u64 + 32;
        assert_eq!(counts(&index), [confirmed, 128 - confirmed, 0, 0]);
        assert_eq!(index.block_count(worker(0)), Ok(128));
        assert!(index.held.nodes.iter().count() <= 2, "after {confirmed}");
        let mut out = Overlaps::default();
        index.overlaps(&blocks, &mut out);
        assert_eq!((out.depth(0), out.confirmed(0)), (128, confirmed as u32));
    }
    assert_eq!(index.held.nodes.iter().count(), 1);
    assert_eq!(index.expire(Millis(1000)), 0);
    assert_eq!(depth(&index, &blocks, 0), 128);
}

#[test]
fn announced_chains_leave_the_index_without_claims() {
    let mut index = index(1000);
    gpu(&mut index, &chain(20));
    assert!(!index.held.shape.claims);
}

#[test]
fn a_snapshot_of_the_version_before_is_refused() {
    let mut bytes = Vec::new();
    index(10).snapshot(Millis(0), &mut bytes);
    bytes[..4].copy_from_slice(&3_u32.to_le_bytes());
    let refused = BlockIndex::restore(&bytes, Millis(0)).unwrap_err();
    assert!(refused.to_string().contains("version is 3, this is 4"));
}

#[test]
fn the_oldest_use_is_found_after_the_last_worker() {
    let mut index = index(1000);
    index.set_tick(1);
    index.record(worker(0), &chain(9), None, None).unwrap();
    index.remove_worker(worker(0)).unwrap();
    assert_eq!(index.oldest(), None);
    index.add_worker(worker(0), 5);
    index.expect(worker(0), &chain(9), 0, None, None).unwrap();
    assert_eq!(index.evict_oldest(2, u64::MAX), 2);
    index.validate().unwrap();
}

/// Announcements, expectations and removals of a few workers, with evictions down to a limit after each.
#[test]
fn evictions_keep_a_limit_with_speculative_blocks() {
    const LIMIT: usize = 96 << 10;
    for round in 0..12 {
        let mut rng = Rng::new(round);
        let mut roll = |sides: u64| rng.below(sides as usize) as u64;
        let mut index = BlockIndex::new(Matcher::Kary);
        for slot in 0..40 {
            index.add_worker(worker(slot), 4000);
        }
        let mut evictions = 0;
        for step in 0..1200_u64 {
            index.set_tick(step);
            let family = roll(40);
            let length = 1 + roll(120);
            let own = |at| (at >= 20).then(|| family << 8 | roll(3));
            let contents = (0..length).map(own).map(|own| own.unwrap_or(family));
            let blocks = path(&contents.collect::<Vec<_>>());
            let w = worker(roll(40) as u32);
            let from = roll(length) as usize;
            match roll(6) {
                5 => {
                    for hash in blocks.iter().step_by(3) {
                        drop(index.mark(w, *hash, Medium::ALL[from % 4]));
                    }
                    if roll(8) == 0 {
                        drop(index.doubt(w, Some(Millis(step + 50))));
                    }
                }
                0 | 1 => drop(index.expect(w, &blocks, from as u32, None, Some(Millis(step + 50)))),
                2 => drop(index.announce(w, None, &blocks, Medium::Gpu, None)),
                3 => {
                    let parent = from.checked_sub(1).map(|at| blocks[at]);
                    drop(index.announce(w, parent, &blocks[from..], Medium::Cpu, None));
                }
                _ => {
                    let end = (from + 3).min(blocks.len());
                    drop(index.remove(w, &blocks[from..end], Some(Medium::Gpu)));
                }
            }
            while index.memory_bytes() > LIMIT {
                evictions += 1;
                assert!(index.evict_oldest(64, u64::MAX) > 0);
            }
            index.expire(Millis(step));
            if step % 16 == 0 {
                index.validate().unwrap();
            }
        }
        assert!(evictions > 20, "the limit never mattered: {evictions}");
    }
}

#[test]
fn chains_that_grow_in_turns_are_few_runs() {
    let mut index = index(100_000);
    let contents = |chain: u64| (0..64).map(move |at| chain << 32 | at);
    let chains: Vec<_> = (0..64)
        .map(|chain| path(&contents(chain).collect::<Vec<u64>>()))
        .collect();
    for at in 0..64_usize {
        for chain in &chains {
            let parent = at.checked_sub(1).map(|before| chain[before]);
            let new = index.announce(worker(0), parent, &chain[at..=at], Medium::Gpu, None);
            assert_eq!(new, Ok(1));
        }
    }
    index.validate().unwrap();
    let runs = index.held.nodes.iter().count();
    assert!(runs <= 64 * 4, "{runs} runs");
}

#[test]
fn blocks_are_removed_in_any_order() {
    let hashes = chain(100);
    let mut orders: Vec<Vec<usize>> = vec![(40..100).collect(), (40..100).rev().collect()];
    orders.push((40..70).rev().chain((70..100).rev()).collect());
    orders.push((40..100).map(|at| 40 + (at * 7) % 60).collect());
    for order in orders {
        let mut index = index(1000);
        assert_eq!(
            index.announce(worker(0), None, &hashes, Medium::Gpu, None),
            Ok(100)
        );
        let told: Vec<_> = order.iter().map(|at| hashes[*at]).collect();
        assert_eq!(index.remove(worker(0), &told, Some(Medium::Gpu)), Ok(60));
        index.validate().unwrap();
        assert_eq!((index.len(), index.stats().unknown_removals), (40, 0));
        assert_eq!(index.held.nodes.iter().count(), 1);
    }
}
