use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[path = "../../tests/ledger/mod.rs"]
mod ledger;

use ledger::{Block, Ledger, blocks};

mod texts;

fn worker(slot: u32) -> WorkerId {
    WorkerId {
        slot,
        generation: 0,
    }
}

fn booking(entry: u32) -> BookingId {
    BookingId {
        entry,
        generation: 0,
    }
}

fn kept(gone: Option<Orphaned<u8>>) -> Option<(Vec<u8>, usize)> {
    gone.map(|gone| (gone.path, gone.keep))
}

#[test]
fn the_last_of_several_owners_takes_the_blocks_with_it() {
    for (first, second) in [(0, 1), (1, 0)] {
        let mut owners = Owners::new(100);
        owners.placed(worker(3), booking(0), (0, b"abcde"), 2);
        owners.placed(worker(3), booking(1), (0, b"abcde"), 5);
        assert_eq!(owners.failed(booking(first)), None);
        let gone = owners.failed(booking(second));
        assert_eq!(kept(gone), Some((b"abcde".to_vec(), 2)));
        assert_eq!(owners.failed(booking(second)), None);
        assert_eq!(owners.slots[3].units, 0);
    }
}

#[test]
fn one_answer_proves_the_blocks_for_all_who_wait() {
    let mut owners = Owners::new(100);
    owners.placed(worker(0), booking(0), (0, b"abcde"), 0);
    owners.placed(worker(0), booking(1), (0, b"abcxy"), 3);
    owners.placed(worker(0), booking(2), (0, b"abcxyz"), 5);
    owners.proven(booking(1));
    assert_eq!(
        kept(owners.failed(booking(0))),
        Some((b"abcde".to_vec(), 3))
    );
    assert_eq!(
        kept(owners.failed(booking(2))),
        Some((b"abcxyz".to_vec(), 5))
    );
}

#[test]
fn what_the_worker_lost_again_is_proven_no_more() {
    let mut owners = Owners::new(100);
    for (entry, held) in [(0, 0), (1, 0)] {
        owners.placed(worker(0), booking(entry), (0, b"abcde"), held);
    }
    owners.proven(booking(0));
    owners.placed(worker(0), booking(2), (0, b"abcde"), 1);
    assert_eq!(owners.failed(booking(1)), None);
    let gone = owners.failed(booking(2));
    assert_eq!(kept(gone), Some((b"abcde".to_vec(), 1)));
}

#[test]
fn what_was_there_before_has_no_owner() {
    let mut owners = Owners::new(100);
    owners.placed(worker(0), booking(0), (0, b"abc"), 3);
    assert!(owners.ends.is_empty());
    owners.placed(worker(0), booking(1), (0, b"abcd"), 3);
    owners.placed(worker(0), booking(2), (0, b"ab"), 2);
    owners.placed(worker(1), booking(3), (0, b"abcd"), 4);
    owners.placed(worker(0), booking(4), (1, b"abcd"), 4);
    assert_eq!(owners.ends.len(), 1, "another worker, another namespace");
    assert_eq!(kept(owners.failed(booking(1))), Some((b"abcd".to_vec(), 3)));
}

#[test]
fn the_oldest_count_as_proven_beyond_the_capacity() {
    let mut owners = Owners::new(8);
    owners.placed(worker(0), booking(0), (0, b"abcd"), 0);
    owners.placed(worker(0), booking(1), (0, b"klm"), 0);
    owners.placed(worker(0), booking(2), (0, b"xyz"), 0);
    assert_eq!(owners.failed(booking(0)), None);
    assert_eq!(kept(owners.failed(booking(1))), Some((b"klm".to_vec(), 0)));
    owners.placed(worker(0), booking(3), (0, b"0123456789"), 0);
    assert_eq!(owners.failed(booking(2)), None);
    assert_eq!(kept(owners.failed(booking(3))).unwrap().0, b"01234567");
    let waiting = (0..10_000_u32).map(|i| (i, i.to_le_bytes()));
    for (i, path) in waiting {
        owners.placed(worker(0), booking(i), (0, &path), 0);
    }
    assert!(owners.slots[0].units <= 8 && owners.ends.len() <= 8);
}

#[test]
fn thousands_that_wait_for_one_prefix_are_kept_once() {
    let mut owners = Owners::new(100_000);
    let prompt = vec![7_u64; 4_096];
    for i in 0..5_000 {
        let held = if i == 0 { 0 } else { prompt.len() };
        owners.placed(worker(0), booking(i), (0, &prompt), held);
    }
    assert_eq!(owners.slots[0].units, prompt.len());
    assert!(owners.memory_bytes() < 1 << 20);
    for i in 0..4_999 {
        assert_eq!(owners.failed(booking(i)), None);
    }
    assert_eq!(owners.failed(booking(4_999)).unwrap().keep, 0);
}

#[test]
fn a_stretch_keeps_no_more_than_twice_its_size_alive() {
    let mut owners = Owners::new(100_000);
    let long = vec![7_u8; 50_000];
    owners.placed(worker(0), booking(0), (0, &long), 0);
    owners.placed(worker(0), booking(1), (0, &[7, 7, 8]), 0);
    owners.proven(booking(0));
    assert!(owners.units_bytes() < 100);
}

#[derive(Debug, Clone)]
enum Op {
    /// In pieces of so many units, 0 for none.
    Place(u32, Vec<u8>, usize),
    Answer(usize),
    Fail(usize),
    Evict(u32, usize),
    Forget(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let path = prop::collection::vec(0_u8..3, 1..7);
    prop_oneof![
        6 => (0_u32..2, path, 0_usize..4).prop_map(|(slot, path, size)| Op::Place(slot, path, size)),
        2 => any::<usize>().prop_map(Op::Answer),
        4 => any::<usize>().prop_map(Op::Fail),
        2 => (0_u32..2, any::<usize>()).prop_map(|(slot, at)| Op::Evict(slot, at)),
        1 => (0_u32..2).prop_map(Op::Forget),
    ]
}

proptest! {
    #[test]
    fn owners_agree_with_the_obvious_ledger(ops in prop::collection::vec(op(), 1..120)) {
        let mut owners = Owners::new(1_000);
        let mut held: BTreeSet<Block<u32, u8>> = BTreeSet::new();
        let mut ledger = Ledger::new();
        let mut open: Vec<u32> = Vec::new();
        for (id, op) in (0..).zip(ops) {
            match op {
                Op::Place(slot, path, size) => {
                    let known = blocks(slot, &path).take_while(|block| held.contains(block)).count();
                    if size == 0 {
                        owners.placed(worker(slot), booking(id), (0, &path), known);
                    } else {
                        let pieces: Vec<_> = path.chunks(size).map(SharedSlice::new).collect();
                        owners.placed_shared(worker(slot), booking(id), (0, &pieces), known);
                    }
                    held.extend(blocks(slot, &path));
                    ledger.place(u64::from(id), slot, &path);
                    open.push(id);
                }
                Op::Answer(at) if !open.is_empty() => {
                    let id = open.swap_remove(at % open.len());
                    owners.proven(booking(id));
                    ledger.answer(u64::from(id));
                }
                Op::Fail(at) if !open.is_empty() => {
                    let id = open.swap_remove(at % open.len());
                    if let Some(gone) = owners.failed(booking(id)) {
                        for block in blocks(gone.worker.slot, &gone.path).skip(gone.keep) {
                            held.remove(&block);
                        }
                    }
                    ledger.fail(u64::from(id));
                }
                Op::Evict(slot, at) => {
                    let mut leaves: Vec<Block<u32, u8>> = held.iter().filter(|(on, path)| {
                        *on == slot && !held.iter().any(|(other, longer)| {
                            other == on && longer.len() > path.len() && longer.starts_with(path)
                        })
                    }).cloned().collect();
                    leaves.sort();
                    if !leaves.is_empty() {
                        let leaf = &leaves[at % leaves.len()];
                        held.remove(leaf);
                        ledger.held.remove(leaf);
                    }
                }
                Op::Forget(slot) => {
                    owners.forget(slot);
                    held.retain(|(on, _)| *on != slot);
                    ledger.forget(slot);
                }
                Op::Answer(_) | Op::Fail(_) => {}
            }
            prop_assert_eq!(&held, &ledger.held);
        }
        for id in open {
            owners.failed(booking(id));
        }
        prop_assert!(owners.ends.is_empty() && owners.slots.iter().all(|paths| paths.units == 0));
    }
}
