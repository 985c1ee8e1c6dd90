use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::collections::shared_slice::SharedSlice;

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

fn waiting<U>(owners: &Owners<U>) -> usize {
    owners.ends.iter().flatten().count()
}

fn kept(gone: Option<Orphaned<u8>>) -> Option<(Vec<u8>, usize)> {
    gone.map(|gone| (gone.path, gone.keep))
}

#[test]
fn the_last_of_several_owners_takes_the_blocks_with_it() {
    for is_reversed in [false, true] {
        let mut owners = Owners::new(100);
        let first = owners.placed(worker(3), (0, &[b"abcde".as_slice()]), 2);
        let second = owners.placed(worker(3), (0, &[b"abcde".as_slice()]), 5);
        let mut order = [first, second];
        if is_reversed {
            order.reverse();
        }
        assert_eq!(owners.failed(order[0]), None);
        let gone = owners.failed(order[1]);
        assert_eq!(kept(gone), Some((b"abcde".to_vec(), 2)));
        assert_eq!(owners.failed(order[1]), None);
        assert_eq!(owners.slots[3].units, 0);
    }
}

#[test]
fn one_answer_proves_the_blocks_for_all_who_wait() {
    let mut owners = Owners::new(100);
    let short = owners.placed(worker(0), (0, &[b"abcde".as_slice()]), 0);
    let answered = owners.placed(worker(0), (0, &[b"abcxy".as_slice()]), 3);
    let long = owners.placed(worker(0), (0, &[b"abcxyz".as_slice()]), 5);
    owners.proven(answered);
    assert_eq!(kept(owners.failed(short)), Some((b"abcde".to_vec(), 3)));
    assert_eq!(kept(owners.failed(long)), Some((b"abcxyz".to_vec(), 5)));
}

#[test]
fn what_the_worker_lost_again_is_proven_no_more() {
    let mut owners = Owners::new(100);
    let [first, second] =
        [0, 0].map(|held| owners.placed(worker(0), (0, &[b"abcde".as_slice()]), held));
    owners.proven(first);
    let third = owners.placed(worker(0), (0, &[b"abcde".as_slice()]), 1);
    assert_eq!(owners.failed(second), None);
    let gone = owners.failed(third);
    assert_eq!(kept(gone), Some((b"abcde".to_vec(), 1)));
}

#[test]
fn what_was_there_before_has_no_owner() {
    let mut owners = Owners::new(100);
    assert_eq!(
        owners.placed(worker(0), (0, &[b"abc".as_slice()]), 3),
        Ticket::default()
    );
    let longer = owners.placed(worker(0), (0, &[b"abcd".as_slice()]), 3);
    owners.placed(worker(0), (0, &[b"ab".as_slice()]), 2);
    owners.placed(worker(1), (0, &[b"abcd".as_slice()]), 4);
    owners.placed(worker(0), (1, &[b"abcd".as_slice()]), 4);
    assert_eq!(waiting(&owners), 1, "another worker, another namespace");
    assert_eq!(kept(owners.failed(longer)), Some((b"abcd".to_vec(), 3)));
    assert_eq!(owners.failed(Ticket::default()), None);
}

#[test]
fn the_oldest_count_as_proven_beyond_the_capacity() {
    let mut owners = Owners::new(8);
    let paths: [&[u8]; 3] = [b"abcd", b"klm", b"xyz"];
    let [first, second, third] = paths.map(|path| owners.placed(worker(0), (0, &[path]), 0));
    assert_eq!(owners.failed(first), None);
    assert_eq!(kept(owners.failed(second)), Some((b"klm".to_vec(), 0)));
    let long = owners.placed(worker(0), (0, &[b"0123456789".as_slice()]), 0);
    assert_eq!(owners.failed(third), None);
    assert_eq!(kept(owners.failed(long)).unwrap().0, b"01234567");
    for i in 0..10_000_u32 {
        owners.placed(worker(0), (0, &[i.to_le_bytes().as_slice()]), 0);
    }
    assert!(owners.slots[0].units <= 8 && waiting(&owners) <= 8);
    assert!(owners.ends.len() <= 8, "entries are used again");
}

#[test]
fn a_ticket_ends_no_placement_that_took_its_entry() {
    let mut owners = Owners::new(100);
    let place = |owners: &mut Owners<u8>| owners.placed(worker(0), (0, &[b"abcde".as_slice()]), 0);
    let proven = place(&mut owners);
    owners.proven(proven);
    let forgotten = place(&mut owners);
    owners.forget(0);
    let cleared = place(&mut owners);
    owners.clear();
    let waits = place(&mut owners);
    for stale in [proven, forgotten, cleared] {
        assert_eq!((stale.entry, waits.entry), (0, 0));
        owners.proven(stale);
        assert_eq!(owners.failed(stale), None);
    }
    assert_eq!(kept(owners.failed(waits)), Some((b"abcde".to_vec(), 0)));
}

#[test]
fn thousands_that_wait_for_one_prefix_are_kept_once() {
    let mut owners = Owners::new(100_000);
    let prompt = vec![7_u64; 4_096];
    let held = |i| if i == 0 { 0 } else { prompt.len() };
    let place = |i| owners.placed(worker(0), (0, &[prompt.as_slice()]), held(i));
    let mut tickets: Vec<Ticket> = (0..5_000).map(place).collect();
    assert_eq!(owners.slots[0].units, prompt.len());
    assert!(owners.memory_bytes() < 1 << 20);
    let last = tickets.pop().unwrap();
    for ticket in tickets {
        assert_eq!(owners.failed(ticket), None);
    }
    assert_eq!(owners.failed(last).unwrap().keep, 0);
}

#[test]
fn a_stretch_keeps_no_more_than_twice_its_size_alive() {
    let mut owners = Owners::new(100_000);
    let long = vec![7_u8; 50_000];
    let first = owners.placed(worker(0), (0, &[long.as_slice()]), 0);
    owners.placed(worker(0), (0, &[[7, 7, 8].as_slice()]), 0);
    owners.proven(first);
    assert!(owners.units_bytes() < 100);
}

#[derive(Debug, Clone)]
enum Op {
    /// In pieces of so many units, 0 for none.
    Place(u32, Vec<u8>, usize),
    Answer(usize),
    Fail(usize),
    /// A request that ended already is reported once more.
    Again(usize),
    Evict(u32, usize),
    Forget(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let path = prop::collection::vec(0_u8..3, 1..7);
    prop_oneof![
        6 => (0_u32..2, path, 0_usize..4).prop_map(|(slot, path, size)| Op::Place(slot, path, size)),
        2 => any::<usize>().prop_map(Op::Answer),
        4 => any::<usize>().prop_map(Op::Fail),
        1 => any::<usize>().prop_map(Op::Again),
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
        let (mut open, mut ended): (Vec<(u64, Ticket)>, Vec<Ticket>) = Default::default();
        for (id, op) in (0..).zip(ops) {
            match op {
                Op::Place(slot, path, size) => {
                    let known = blocks(slot, &path).take_while(|block| held.contains(block)).count();
                    let ticket = if size == 0 {
                        owners.placed(worker(slot), (0, &[path.as_slice()]), known)
                    } else {
                        let pieces: Vec<_> = path.chunks(size).map(SharedSlice::new).collect();
                        owners.placed(worker(slot), (0, &pieces), known)
                    };
                    held.extend(blocks(slot, &path));
                    ledger.place(id, slot, &path);
                    open.push((id, ticket));
                }
                Op::Answer(at) if !open.is_empty() => {
                    let (id, ticket) = open.swap_remove(at % open.len());
                    owners.proven(ticket);
                    ledger.answer(id);
                    ended.push(ticket);
                }
                Op::Fail(at) if !open.is_empty() => {
                    let (id, ticket) = open.swap_remove(at % open.len());
                    ended.push(ticket);
                    if let Some(gone) = owners.failed(ticket) {
                        for block in blocks(gone.worker.slot, &gone.path).skip(gone.keep) {
                            held.remove(&block);
                        }
                    }
                    ledger.fail(id);
                }
                Op::Again(at) if !ended.is_empty() => {
                    let ticket = ended[at % ended.len()];
                    owners.proven(ticket);
                    prop_assert_eq!(owners.failed(ticket), None);
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
                Op::Answer(_) | Op::Fail(_) | Op::Again(_) => {}
            }
            prop_assert_eq!(&held, &ledger.held);
        }
        for (_, ticket) in open {
            owners.failed(ticket);
        }
        prop_assert!(waiting(&owners) == 0 && owners.slots.iter().all(|paths| paths.units == 0));
    }
}
