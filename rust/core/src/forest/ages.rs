//! Which lane's oldest record is oldest of all.
//!
//! A heap knows the age of every lane's oldest record. Ages only rise, so entries may lag behind and are put right when
//! they come up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::NONE;
use super::lanes::{Lane, Lanes};
use super::recency::Records;

/// Ages put right per look at the oldest: what is left is put right by the next.
const CORRECTIONS: usize = 4096;

/// Age of the oldest record of every lane that was used, or less.
type Heap = BinaryHeap<Reverse<(u64, u32)>>;

/// Lanes by the age of what goes next: those of rank 0 go first.
#[derive(Debug, Default)]
pub(crate) struct Ages([Heap; 2]);

impl Ages {
    /// The lane is about to be used.
    #[inline]
    pub(crate) fn queue(&mut self, rank: usize, lane: &mut Lane, id: u32) {
        if !lane.queued {
            lane.queued = true;
            self.0[rank].push(Reverse((0, id)));
        }
    }

    /// Age and lane of what goes next.
    pub(crate) fn oldest(&mut self, lanes: &mut Lanes, records: &Records) -> Option<(u64, u32)> {
        self.0
            .iter_mut()
            .find_map(|heap| oldest(heap, lanes, records))
    }

    /// No lane is left.
    pub(crate) fn clear(&mut self) {
        self.0.iter_mut().for_each(Heap::clear);
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let entries: usize = self.0.iter().map(Heap::capacity).sum();
        entries * size_of::<Reverse<(u64, u32)>>()
    }
}

/// Age and lane of the record that was used before all others.
fn oldest(heap: &mut Heap, lanes: &mut Lanes, records: &Records) -> Option<(u64, u32)> {
    let mut corrections = 0;
    loop {
        let mut top = heap.peek_mut()?;
        let Reverse((age, lane)) = *top;
        let record = lanes[lane].oldest;
        if record == NONE {
            PeekMut::pop(top);
            lanes[lane].queued = false;
            continue;
        }
        let epoch = records[record].epoch;
        if epoch <= age || corrections == CORRECTIONS {
            return Some((epoch, lane));
        }
        corrections += 1;
        *top = Reverse((epoch, lane));
    }
}
