//! Placements that no worker has confirmed yet.
//!
//! A placement is recorded when the request is routed, so that the very next request sees it. If the request then fails
//! before its first token, the blocks it alone brought are taken back; those another request was routed by meanwhile
//! stay. Per worker, at most [`KEPT`] requests are remembered: beyond that the oldest counts as confirmed.

use std::collections::VecDeque;

use crate::ids::SequenceHash;
use crate::load::BookingId;

const KEPT: usize = 64;

#[derive(Debug)]
struct Placement {
    booking: BookingId,
    /// Depth of the first block in `blocks`.
    from: usize,
    /// Blocks the worker did not hold before and no later request shares, a chain.
    blocks: Vec<SequenceHash>,
}

/// Unconfirmed placements by worker slot.
#[derive(Debug, Default)]
pub(super) struct Unproven {
    slots: Vec<VecDeque<Placement>>,
}

impl Unproven {
    /// A request was routed to the worker in `slot` along `path`, whose first `held` blocks it already held.
    pub fn placed(&mut self, slot: u32, booking: BookingId, path: &[SequenceHash], held: usize) {
        let slot = slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, VecDeque::new);
        }
        let placements = &mut self.slots[slot];
        for placement in &mut *placements {
            placement.share(path);
        }
        if held < path.len() {
            if placements.len() == KEPT {
                placements.pop_front();
            }
            placements.push_back(Placement {
                booking,
                from: held,
                blocks: path[held..].to_vec(),
            });
        }
    }

    /// Takes the blocks out that `booking` alone brought, deepest first; empty if there are none.
    pub fn take(&mut self, slot: u32, booking: BookingId) -> Vec<SequenceHash> {
        let Some(placements) = self.slots.get_mut(slot as usize) else {
            return Vec::new();
        };
        let at = placements
            .iter()
            .position(|placement| placement.booking == booking);
        let mut blocks = at
            .and_then(|at| placements.remove(at))
            .map_or_else(Vec::new, |placement| placement.blocks);
        blocks.reverse();
        blocks
    }

    /// The worker in `slot` is gone.
    pub fn forget(&mut self, slot: u32) {
        if let Some(placements) = self.slots.get_mut(slot as usize) {
            placements.clear();
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let placements = self.slots.iter().flatten();
        placements
            .map(|p| size_of::<Placement>() + p.blocks.capacity() * size_of::<SequenceHash>())
            .sum()
    }
}

impl Placement {
    /// Gives up the leading blocks that `path` shares. Hashes are chained, so equality at one depth is equality before.
    fn share(&mut self, path: &[SequenceHash]) {
        let Some(path) = path.get(self.from..) else {
            return;
        };
        let n = path.len().min(self.blocks.len());
        if n == 0 || path[0] != self.blocks[0] {
            return;
        }
        let (mut shared, mut beyond) = (1, n + 1);
        while beyond - shared > 1 {
            let middle = usize::midpoint(shared, beyond);
            if path[middle - 1] == self.blocks[middle - 1] {
                shared = middle;
            } else {
                beyond = middle;
            }
        }
        self.blocks.drain(..shared);
        self.from += shared;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn booking(entry: u32) -> BookingId {
        BookingId {
            entry,
            generation: 0,
        }
    }

    fn path(hashes: &[u64]) -> Vec<SequenceHash> {
        hashes.iter().map(|&hash| SequenceHash(hash)).collect()
    }

    #[test]
    fn a_failed_request_takes_back_only_what_it_alone_brought() {
        let mut unproven = Unproven::default();
        unproven.placed(3, booking(0), &path(&[1, 2, 3, 4, 5]), 2);
        assert_eq!(unproven.take(3, booking(0)), path(&[5, 4, 3]));
        assert_eq!(unproven.take(3, booking(0)), []);
    }

    #[test]
    fn blocks_another_request_was_routed_by_stay() {
        for (other, left) in [
            (&[1, 2, 3, 9][..], &[5, 4][..]),
            (&[1, 2, 3, 4, 5, 6], &[]),
            (&[1, 2], &[5, 4, 3]),
            (&[7, 8], &[5, 4, 3]),
        ] {
            let mut unproven = Unproven::default();
            unproven.placed(0, booking(0), &path(&[1, 2, 3, 4, 5]), 2);
            unproven.placed(0, booking(1), &path(other), other.len());
            assert_eq!(unproven.take(0, booking(0)), path(left), "{other:?}");
        }
    }

    #[test]
    fn at_most_a_fixed_number_is_remembered() {
        let mut unproven = Unproven::default();
        for i in 0..100 {
            unproven.placed(0, booking(i), &path(&[u64::from(i) + 1]), 0);
        }
        assert_eq!(unproven.slots[0].len(), KEPT);
        assert_eq!(unproven.take(0, booking(0)), []);
        assert_eq!(unproven.take(0, booking(99)), path(&[100]));
        unproven.forget(0);
        assert_eq!(unproven.take(0, booking(98)), []);
    }
}
