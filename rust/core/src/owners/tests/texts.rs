//! Owners whose paths are labels of a tree of text.

use super::*;
use crate::collections::shared_slice::ALLOCATION;
use crate::radix_tree::{PrefixOverlaps, RadixTree, Unit};

struct Texts {
    tree: RadixTree<u8>,
    owners: Owners<u8>,
    /// Owners with copies of their own.
    copying: Owners<u8>,
}

impl Texts {
    fn new() -> Self {
        let mut tree = RadixTree::new(1, None).unwrap();
        for slot in 0..2 {
            tree.add_worker(worker(slot), u32::MAX);
        }
        Self {
            tree,
            owners: Owners::new(100_000),
            copying: Owners::new(100_000),
        }
    }

    fn place(&mut self, slot: u32, text: &str) -> [Ticket; 2] {
        let (worker, units) = (worker(slot), text.as_bytes());
        let new = self.tree.record(worker, text, None).unwrap() as usize;
        let held = u8::prefix(units, u8::count(units) - new);
        let path = self.tree.pieces(text);
        let sharing = self.owners.placed(worker, (0, &path), held);
        [sharing, self.copying.placed(worker, (0, &[units]), held)]
    }

    fn answer(&mut self, [sharing, copying]: [Ticket; 2]) {
        self.owners.proven(sharing);
        self.copying.proven(copying);
    }

    fn fail(&mut self, [sharing, copying]: [Ticket; 2]) {
        let gone = self.owners.failed(sharing);
        assert_eq!(gone, self.copying.failed(copying));
        if let Some(gone) = gone {
            let keep = u8::floor(&gone.path, gone.keep, 1);
            let keep = u8::count(&gone.path[..keep]) as u32;
            let text = std::str::from_utf8(&gone.path).unwrap();
            self.tree.truncate(gone.worker, text, keep).unwrap();
        }
    }

    fn forget(&mut self, slot: u32) {
        self.owners.forget(slot);
        self.copying.forget(slot);
        self.tree.clear(worker(slot)).unwrap();
    }

    fn holds(&self, (slot, letters): &Block<u32, char>) -> bool {
        let mut found = PrefixOverlaps::default();
        let text: String = letters.iter().collect();
        self.tree.overlaps(&*text, &mut found);
        found.depth(*slot) as usize == letters.len()
    }
}

#[test]
fn what_a_tree_keeps_is_counted_there_alone() {
    let mut texts = Texts::new();
    let long = "text ".repeat(8_000);
    let tickets = [0, 1, 0].map(|slot| {
        let tickets = texts.place(slot, &long);
        assert_eq!(texts.owners.units_bytes(), 0);
        tickets
    });
    assert!(texts.owners.slots[0].stretches().count() > 1);
    // The tree copies the halves of a label that it splits: the first is taken over, the second counted per worker.
    let other = format!("{}!", &long[..12_000]);
    texts.place(0, &other);
    texts.place(1, &other);
    let rest = (1 << 14) - 12_000;
    assert_eq!(texts.owners.units_bytes(), 2 * (rest + ALLOCATION));
    for tickets in tickets {
        texts.answer(tickets);
    }
    assert_eq!(texts.owners.units_bytes(), 0);
    for slot in 0..2 {
        texts.tree.clear(worker(slot)).unwrap();
    }
    let once = 12_001 + 2 * ALLOCATION;
    assert_eq!(texts.owners.units_bytes(), once);
}

proptest! {
    #[test]
    fn owners_along_a_tree_agree_with_the_obvious_ledger_and_with_those_that_copy(
        ops in prop::collection::vec(op(), 1..120),
        alike in any::<bool>(),
    ) {
        // At most two letters begin with the same byte: the held part of a path ends between letters.
        let letters = ['é', if alike { 'è' } else { '日' }, '😀'];
        let mut texts = Texts::new();
        let mut ledger = Ledger::new();
        let mut open: Vec<(u64, [Ticket; 2])> = Vec::new();
        for (id, op) in (0..).zip(ops) {
            match op {
                Op::Place(slot, path, _) => {
                    let path: Vec<char> = path.iter().map(|at| letters[*at as usize]).collect();
                    let tickets = texts.place(slot, &path.iter().collect::<String>());
                    ledger.place(id, slot, &path);
                    open.push((id, tickets));
                }
                Op::Answer(at) if !open.is_empty() => {
                    let (id, tickets) = open.swap_remove(at % open.len());
                    texts.answer(tickets);
                    ledger.answer(id);
                }
                Op::Fail(at) if !open.is_empty() => {
                    let (id, tickets) = open.swap_remove(at % open.len());
                    texts.fail(tickets);
                    ledger.fail(id);
                }
                Op::Evict(slot, at) => {
                    let held = texts.tree.count(worker(slot)).unwrap();
                    let most = held.saturating_sub(at as u64 % 4);
                    texts.tree.evict_worker(worker(slot), most).unwrap();
                    ledger.held.retain(|block| texts.holds(block));
                }
                Op::Forget(slot) => {
                    texts.forget(slot);
                    ledger.forget(slot);
                }
                Op::Answer(_) | Op::Fail(_) | Op::Again(_) => {}
            }
            texts.tree.validate().unwrap();
            if !alike {
                prop_assert!(ledger.held.iter().all(|block| texts.holds(block)));
                prop_assert_eq!(texts.tree.total(), ledger.held.len() as u64);
            }
            let stretches = texts.owners.slots.iter().flat_map(Paths::stretches);
            let most = stretches.map(|units| 2 * units.len() + ALLOCATION);
            prop_assert!(texts.owners.units_bytes() <= most.sum());
        }
    }
}
