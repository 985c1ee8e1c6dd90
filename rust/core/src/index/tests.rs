//! Unit tests of single mechanisms; the model tests live in `rust/core/tests`.

mod fed;
mod resume;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{BlockIndex, Matcher, Overlaps};
use crate::ids::{Medium, SequenceHash, WorkerId};
use crate::rng::Rng;

fn worker(slot: u32) -> WorkerId {
    WorkerId {
        slot,
        generation: 0,
    }
}

/// Chained hashes of a path of contents.
fn path(contents: &[u64]) -> Vec<SequenceHash> {
    let mut hash = 7_u64;
    contents
        .iter()
        .map(|c| {
            hash = (hash ^ c)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29)
                ^ c.wrapping_mul(0xD1B5_4A32_D192_ED03);
            SequenceHash(hash)
        })
        .collect()
}

/// An index of one worker.
fn index(capacity: u32) -> BlockIndex {
    let mut index = BlockIndex::new(Matcher::Kary);
    index.add_worker(worker(0), capacity);
    index
}

fn depth(index: &BlockIndex, hashes: &[SequenceHash], slot: u32) -> u32 {
    let mut out = Overlaps::default();
    index.overlaps(hashes, &mut out);
    out.depth(slot)
}

#[test]
fn other_media_hold_a_multiple_of_the_device() {
    let mut index = BlockIndex::new(Matcher::Kary).with_tiers(3);
    index.add_worker(worker(0), 8);
    for capacity in [8, 5] {
        index.add_worker(worker(0), capacity);
        for (medium, most) in [(Medium::Gpu, capacity), (Medium::Cpu, 3 * capacity)] {
            for number in 0..40 {
                let blocks = path(&[number]);
                index
                    .announce(worker(0), None, &blocks, medium, None)
                    .unwrap();
                index.validate().unwrap();
            }
            assert_eq!(
                index.held.lanes.count(0, medium),
                u64::from(most),
                "{medium:?}"
            );
        }
    }
    index.add_worker(worker(0), 2);
    let counts = [Medium::Gpu, Medium::Cpu].map(|medium| index.held.lanes.count(0, medium));
    assert_eq!(counts, [2, 6]);
    index.validate().unwrap();
}

#[test]
fn split_runs_are_joined_when_the_branch_is_gone() {
    let mut index = index(100);
    let (long, branch) = (path(&[1, 2, 3, 4, 5, 6]), path(&[1, 2, 3, 9]));
    index.record(worker(0), &long, None, None).unwrap();
    index.record(worker(0), &branch, None, None).unwrap();
    index.record(worker(0), &long, None, None).unwrap();
    assert_eq!(index.held.nodes.iter().count(), 3);
    index.remove(worker(0), &branch[3..], None).unwrap();
    index.validate().unwrap();
    assert_eq!(index.held.nodes.iter().count(), 1);
}

#[test]
fn hashes_recorded_as_given_do_not_vouch_for_the_ones_before_them() {
    let mut index = index(100);
    let real = path(&(0..20).collect::<Vec<u64>>());
    let mut given = real.clone();
    given[3] = SequenceHash(12345);
    let mut hint = Overlaps::default();
    index.overlaps_verified(&given, &mut hint);
    assert_eq!(index.record(worker(0), &given, Some(&hint), None), Ok(20));
    assert_eq!(depth(&index, &real, 0), 3);
    index.validate().unwrap();
}

#[test]
fn memory_follows_a_fleet_that_shrinks() {
    let mut index = index(1_000_000);
    let chains: Vec<_> = (0..400)
        .map(|n| path(&(n << 32..(n << 32) + 500).collect::<Vec<u64>>()))
        .collect();
    for chain in &chains[..40] {
        index.record(worker(0), chain, None, None).unwrap();
    }
    let small = index.memory_bytes();
    for chain in &chains {
        index.record(worker(0), chain, None, None).unwrap();
    }
    assert!(index.memory_bytes() > 8 * small);
    index.evict_worker(worker(0), 20_000).unwrap();
    index.validate().unwrap();
    assert!(
        index.memory_bytes() < 4 * small,
        "{} after {small}",
        index.memory_bytes()
    );
    index.evict_worker(worker(0), 0).unwrap();
    assert!(index.memory_bytes() < 4096, "{}", index.memory_bytes());
}

/// A client that knows the seed can make prompts of any hashes. Those of the first list had one home each in a table whose
/// constant was public; progressions have a few homes where one product of a random number is all that spreads them.
#[test]
fn hashes_made_for_one_bucket_of_a_public_function_spread_over_the_table() {
    // The inverse of 0x9E37_79B9_7F4A_7C15 modulo 2^64.
    let inverse = 0xF1DE_83E1_9937_733D_u64;
    assert_eq!(inverse.wrapping_mul(0x9E37_79B9_7F4A_7C15), 1);
    let lists: [fn(u64, u64) -> u64; 4] = [
        |i, inverse| i.wrapping_mul(inverse),
        |i, _| i << 32,
        |i, _| i << 44,
        |i, _| i,
    ];
    // One product failed at one table of a thousand.
    for (list, hash) in lists.into_iter().cycle().take(400).enumerate() {
        let (mut table, mut blocks) = (
            super::table::Table::new(),
            super::table::blocks::Blocks::default(),
        );
        let count = 2_000;
        for i in 0..count {
            let hash = SequenceHash(hash(i, inverse));
            let (block, _) = blocks.alloc(1);
            blocks.set_hashes(block, &[hash]);
            table.insert(table.key(hash), block, &blocks);
        }
        let passed = table.passed();
        assert!(
            passed < 3 * count,
            "list {list}: {passed} buckets were passed"
        );
    }
}

#[test]
fn table_finds_every_key_while_crowded_homes_wrap_around_and_arrays_change() {
    let mut dice = Rng::new(7);
    for round in 0..40 {
        let (mut table, mut blocks) = (
            super::table::Table::new(),
            super::table::blocks::Blocks::default(),
        );
        let mut held: Vec<(SequenceHash, u32)> = Vec::new();
        // Homes at the very end of the array, or anywhere; growth and decline in turn.
        let crowded = round % 2 == 0;
        for step in 0..3_000 {
            let grow = (step / 500) % 2 == 0;
            if held.is_empty() || dice.below(10) < if grow { 8 } else { 2 } {
                let start = (dice.below(1 << 40) as u64) << 20;
                let hash = if crowded && dice.below(3) > 0 {
                    table.hash_at_the_end(start)
                } else {
                    SequenceHash(start)
                };
                if table.find(hash, &blocks).is_some() {
                    continue;
                }
                let (block, _) = blocks.alloc(1);
                blocks.set_hashes(block, &[hash]);
                table.insert(table.key(hash), block, &blocks);
                held.push((hash, block));
            } else {
                let (hash, block) = held.swap_remove(dice.below(held.len()));
                assert!(
                    table.remove(table.key(hash), block, &blocks),
                    "round {round} step {step}"
                );
                assert_eq!(table.find(hash, &blocks), None);
                blocks.free(block, 1);
            }
            if step % 7 == 0 {
                for (hash, block) in &held {
                    assert_eq!(
                        table.find(*hash, &blocks),
                        Some(*block),
                        "round {round} step {step}"
                    );
                }
                assert_eq!(table.len(), held.len());
                assert!(table.counts_right(&blocks), "round {round} step {step}");
            }
        }
    }
}

/// The key that starts a resize may pass full buckets into the first ones to move.
#[test]
fn table_counts_passing_keys_right_when_one_passes_into_the_first_buckets_to_move() {
    let mut dice = Rng::new(11);
    for round in 0..1_000 {
        let (mut table, mut blocks) = (
            super::table::Table::new(),
            super::table::blocks::Blocks::default(),
        );
        for step in 0..100 {
            let hash = SequenceHash(dice.below(1 << 40) as u64);
            let (block, _) = blocks.alloc(1);
            blocks.set_hashes(block, &[hash]);
            table.insert(table.key(hash), block, &blocks);
            assert!(table.counts_right(&blocks), "round {round} step {step}");
        }
    }
}

/// The holdings of every worker in two media.
fn held(index: &BlockIndex) -> Vec<(u32, Medium, u64)> {
    let all = (0..2).flat_map(|slot| {
        let media = [Medium::Gpu, Medium::Speculative];
        media
            .into_iter()
            .flat_map(move |medium| (1..12).map(move |hash| (slot, medium, hash)))
    });
    all.filter(|(slot, medium, hash)| {
        index
            .chains()
            .holds(worker(*slot), SequenceHash(*hash), *medium)
    })
    .collect()
}

proptest! {
    #[test]
    fn what_is_undone_leaves_what_was_there_before(
        chains in vec((0_u32..2, any::<bool>(), prop::option::of(1_u64..12), vec(1_u64..12, 1..6)), 1..24)
    ) {
        let mut index = BlockIndex::new(Matcher::Kary);
        for slot in 0..2 {
            index.add_worker(worker(slot), 100);
        }
        for (slot, expected, parent, chain) in chains {
            let medium = if expected { Medium::Speculative } else { Medium::Gpu };
            let (parent, chain) = (parent.map(SequenceHash), chain.into_iter().map(SequenceHash).collect::<Vec<_>>());
            let (before, conflicts) = (held(&index), index.stats().conflicts);
            let new = index.store(worker(slot), parent, &chain, medium, None).unwrap();
            index.validate().unwrap();
            if index.stats().conflicts > conflicts || chain.len() == 3 {
                index.undo(worker(slot), parent, &chain, new, medium).unwrap();
                index.validate().unwrap();
                prop_assert_eq!(held(&index), before);
            }
        }
    }
}
