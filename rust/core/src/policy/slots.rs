//! Where a rule keeps what it knows of a worker: an index by the slot of the worker's columns.

use super::view::Candidate;

#[derive(Debug, Clone, Copy)]
struct Entry {
    order: u64,
    at: u32,
}

/// Indices by slot, each good for the worker it was set for and for no later one in the same slot.
#[derive(Debug, Clone, Default)]
pub(super) struct Slots(Vec<Option<Entry>>);

impl Slots {
    /// The index of `row`'s worker.
    pub fn find(&self, row: &Candidate) -> Option<usize> {
        let entry = self.0.get(row.slot as usize).copied().flatten();
        entry
            .filter(|entry| entry.order == row.order)
            .map(|entry| entry.at as usize)
    }

    /// Sets the index of the worker registered as `order`. One without a slot is not kept.
    pub fn set(&mut self, slot: u32, order: u64, at: usize) {
        if slot == Candidate::NO_SLOT {
            return;
        }
        let slot = slot as usize;
        if slot >= self.0.len() {
            self.0.resize(slot + 1, None);
        }
        self.0[slot] = Some(Entry {
            order,
            at: at as u32,
        });
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
