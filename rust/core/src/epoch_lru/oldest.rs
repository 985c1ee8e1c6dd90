//! The lane with the oldest record of all.
//!
//! A heap holds the age of every lane's oldest record. Ages only rise, so entries may lag behind and are corrected when
//! they come up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::lanes::{Lane, Lanes};
use super::records::Records;
use crate::collections::slab::NONE;

/// Ages corrected per look at the oldest: the next look corrects the rest.
const CORRECTIONS: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Ages {
    /// Age of the oldest record of every lane that was used, or less.
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Ages {
    /// The lane is about to be used.
    #[inline]
    pub(crate) fn queue(&mut self, lane: &mut Lane, id: u32) {
        if !lane.queued {
            lane.queued = true;
            self.heap.push(Reverse((0, id)));
        }
    }

    /// Age and lane of the record that was used before all others.
    pub(crate) fn oldest(&mut self, lanes: &mut Lanes, records: &Records) -> Option<(u64, u32)> {
        let mut corrections = 0;
        loop {
            let mut top = self.heap.peek_mut()?;
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

    /// No lane is left.
    pub(crate) fn clear(&mut self) {
        self.heap.clear();
    }
}
