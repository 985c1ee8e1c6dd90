//! Placements that no worker has confirmed yet.
//!
//! A placement is recorded when the request is routed, so that the very next request sees it. If the request then fails
//! before its first token, the blocks it alone brought are taken back; those another request was routed by meanwhile
//! stay. Per worker, at most [`KEPT`] requests and as many blocks as it may hold are remembered: beyond that the oldest
//! counts as confirmed.

use std::collections::VecDeque;

use crate::ids::SequenceHash;
use crate::load::BookingId;

const KEPT: usize = 64;

#[derive(Debug)]
struct Placement {
    booking: BookingId,
    /// Depth of the first block that the worker did not hold before and no later request shares.
    from: usize,
    /// Those blocks, a chain; of units the whole path, since one names nothing without those before it.
    blocks: Vec<SequenceHash>,
}

/// What a failed request takes back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Blocks, deepest first; units from the first of the prompt on.
    pub path: Vec<SequenceHash>,
    /// Leading ones that stay.
    pub keep: usize,
}

/// Unconfirmed placements by worker slot.
#[derive(Debug)]
pub(super) struct Unproven {
    slots: Vec<VecDeque<Placement>>,
    /// Most blocks remembered per worker.
    capacity: usize,
    /// Whether a hash names all before it.
    chained: bool,
}

impl Unproven {
    /// Remembers at most `capacity` blocks per worker, which are `chained` or units.
    pub fn new(capacity: usize, chained: bool) -> Self {
        Self {
            slots: Vec::new(),
            capacity,
            chained,
        }
    }

    /// A request was routed to the worker in `slot` along `path`, whose first `held` blocks it already held.
    pub fn placed(&mut self, slot: u32, booking: BookingId, path: &[SequenceHash], held: usize) {
        let slot = slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, VecDeque::new);
        }
        let (placements, chained) = (&mut self.slots[slot], self.chained);
        for placement in &mut *placements {
            if chained {
                placement.share(path);
            } else {
                placement.share_units(path);
            }
        }
        // A worker holds the first blocks of a prompt longer than its capacity.
        let path = &path[..path.len().min(self.capacity)];
        if held < path.len() {
            let own = if chained { held } else { 0 };
            let mut room = self.capacity - (path.len() - own);
            // The newest that fit stay.
            let newest = placements.iter().rev().take(KEPT - 1);
            let kept = newest
                .take_while(|placement| {
                    let fits = placement.blocks.len() <= room;
                    room = room.saturating_sub(placement.blocks.len());
                    fits
                })
                .count();
            placements.drain(..placements.len() - kept);
            placements.push_back(Placement {
                booking,
                from: held,
                blocks: path[own..].to_vec(),
            });
        }
    }

    /// Another router sent a request to the worker in `slot`: behind `anchor` at depth `from`, `blocks`, of which it
    /// brought those from place `new` on.
    pub fn adopted(
        &mut self,
        slot: u32,
        booking: BookingId,
        from: usize,
        anchor: Option<SequenceHash>,
        blocks: &[SequenceHash],
        new: usize,
    ) {
        let slot = slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, VecDeque::new);
        }
        let placements = &mut self.slots[slot];
        for placement in &mut *placements {
            placement.share_behind(from, anchor, blocks);
        }
        if new < blocks.len() && blocks.len() <= self.capacity {
            while placements.len() >= KEPT {
                placements.pop_front();
            }
            placements.push_back(Placement {
                booking,
                from: from + new,
                blocks: blocks[new..].to_vec(),
            });
        }
    }

    /// Takes out what `booking` alone brought; empty if that is nothing.
    pub fn take(&mut self, slot: u32, booking: BookingId) -> Taken {
        let Some(placements) = self.slots.get_mut(slot as usize) else {
            return Taken::default();
        };
        let at = placements
            .iter()
            .position(|placement| placement.booking == booking);
        let Some(mut placement) = at.and_then(|at| placements.remove(at)) else {
            return Taken::default();
        };
        if self.chained {
            placement.blocks.reverse();
        }
        Taken {
            path: placement.blocks,
            keep: if self.chained { 0 } else { placement.from },
        }
    }

    /// The worker in `slot` is gone.
    pub fn forget(&mut self, slot: u32) {
        if let Some(placements) = self.slots.get_mut(slot as usize) {
            placements.clear();
        }
    }

    /// Nothing is unproven any more.
    pub fn clear(&mut self) {
        self.slots.clear();
    }

    pub fn memory_bytes(&self) -> usize {
        let placements = self.slots.iter().flatten();
        placements
            .map(|p| size_of::<Placement>() + p.blocks.capacity() * size_of::<SequenceHash>())
            .sum()
    }
}

impl Placement {
    /// Gives up what `path` shares of a placement of units.
    fn share_units(&mut self, path: &[SequenceHash]) {
        let pairs = self.blocks.iter().zip(path);
        let shared = pairs.take_while(|(own, other)| own == other).count();
        self.from = self.from.max(shared);
    }

    /// Gives up what a path shares that has `blocks` behind `anchor` at depth `from`.
    fn share_behind(&mut self, from: usize, anchor: Option<SequenceHash>, blocks: &[SequenceHash]) {
        let above = from.saturating_sub(self.from);
        if above > 0 {
            // Hashes are chained: whoever shares the anchor shares all before it.
            if anchor.is_none() || self.blocks.get(above - 1).copied() != anchor {
                return;
            }
            self.blocks.drain(..above);
            self.from += above;
        }
        let blocks = blocks.get(self.from - from..).unwrap_or_default();
        let pairs = self.blocks.iter().zip(blocks);
        let shared = pairs.take_while(|(own, other)| own == other).count();
        self.blocks.drain(..shared);
        self.from += shared;
    }

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

    fn blocks(taken: Taken) -> Vec<SequenceHash> {
        assert_eq!(taken.keep, 0);
        taken.path
    }

    fn path(hashes: &[u64]) -> Vec<SequenceHash> {
        hashes.iter().map(|&hash| SequenceHash(hash)).collect()
    }

    #[test]
    fn a_failed_request_takes_back_only_what_it_alone_brought() {
        let mut unproven = Unproven::new(1000, true);
        unproven.placed(3, booking(0), &path(&[1, 2, 3, 4, 5]), 2);
        assert_eq!(blocks(unproven.take(3, booking(0))), path(&[5, 4, 3]));
        assert_eq!(blocks(unproven.take(3, booking(0))), []);
    }

    #[test]
    fn blocks_another_request_was_routed_by_stay() {
        for (other, left) in [
            (&[1, 2, 3, 9][..], &[5, 4][..]),
            (&[1, 2, 3, 4, 5, 6], &[]),
            (&[1, 2], &[5, 4, 3]),
            (&[7, 8], &[5, 4, 3]),
        ] {
            let mut unproven = Unproven::new(1000, true);
            unproven.placed(0, booking(0), &path(&[1, 2, 3, 4, 5]), 2);
            unproven.placed(0, booking(1), &path(other), other.len());
            assert_eq!(
                blocks(unproven.take(0, booking(0))),
                path(left),
                "{other:?}"
            );
        }
    }

    #[test]
    fn blocks_another_router_sent_a_request_to_stay() {
        for (from, anchor, other, left) in [
            (0, None, &[1, 2, 3, 9][..], &[5, 4][..]),
            (3, Some(3), &[4, 9], &[5]),
            (4, Some(4), &[5, 6], &[]),
            (4, Some(4), &[9], &[5]),
            (4, Some(8), &[5], &[5, 4, 3]),
            (1, Some(1), &[2, 3], &[5, 4]),
            (9, Some(7), &[8], &[5, 4, 3]),
        ] {
            let mut unproven = Unproven::new(1000, true);
            unproven.placed(0, booking(0), &path(&[1, 2, 3, 4, 5]), 2);
            let anchor = anchor.map(SequenceHash);
            unproven.adopted(0, booking(1), from, anchor, &path(other), other.len() - 1);
            let taken = blocks(unproven.take(0, booking(0)));
            assert_eq!(taken, path(left), "{from} {other:?}");
            let own = blocks(unproven.take(0, booking(1)));
            assert_eq!(own, path(&other[other.len() - 1..]));
        }
    }

    #[test]
    fn at_most_a_fixed_number_is_remembered() {
        let mut unproven = Unproven::new(1000, true);
        for i in 0..100 {
            unproven.placed(0, booking(i), &path(&[u64::from(i) + 1]), 0);
        }
        assert_eq!(unproven.slots[0].len(), KEPT);
        assert_eq!(blocks(unproven.take(0, booking(0))), []);
        assert_eq!(blocks(unproven.take(0, booking(99))), path(&[100]));
        unproven.forget(0);
        assert_eq!(blocks(unproven.take(0, booking(98))), []);
    }

    #[test]
    fn no_more_blocks_are_remembered_than_a_worker_holds() {
        let mut unproven = Unproven::new(6, true);
        unproven.placed(0, booking(0), &path(&[1, 2, 3, 4]), 0);
        unproven.placed(0, booking(1), &path(&[11, 12]), 0);
        unproven.placed(0, booking(2), &path(&[21, 22, 23]), 0);
        assert_eq!(blocks(unproven.take(0, booking(0))), []);
        assert_eq!(blocks(unproven.take(0, booking(1))), path(&[12, 11]));
        unproven.placed(0, booking(3), &path(&[1, 2, 3, 4, 5, 6, 7, 8]), 0);
        assert_eq!(blocks(unproven.take(0, booking(2))), []);
        assert_eq!(unproven.take(0, booking(3)).path.len(), 6);
    }

    #[test]
    fn units_are_taken_back_by_their_path() {
        for (other, keep) in [
            (&[1, 2, 3, 9][..], 3),
            (&[1, 2, 3, 4, 5, 6], 5),
            (&[1, 2], 2),
            (&[7, 2, 3], 2),
        ] {
            let mut unproven = Unproven::new(1000, false);
            unproven.placed(0, booking(0), &path(&[1, 2, 3, 4, 5]), 2);
            unproven.placed(0, booking(1), &path(other), other.len());
            let taken = unproven.take(0, booking(0));
            let path = path(&[1, 2, 3, 4, 5]);
            assert_eq!(taken, Taken { path, keep }, "{other:?}");
        }
    }
}
