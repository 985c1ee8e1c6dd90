//! Queue of leaves with a finite time to live. One entry per such leaf; a touch only moves the record's own deadline,
//! and the entry is put back when it comes up too early.

use std::collections::BTreeSet;

use super::lanes::is_device;
use super::records::{NEVER, Record, Records};
use crate::ids::Millis;

/// Deadline, whether it is of another lane than the worker's first, and record: on equal deadlines the first lanes
/// expire first, so that the rest of the others does not depend on the age of records.
type Due = (u64, bool, u32);

fn due(armed: u64, record: u32, r: &Record) -> Due {
    (armed, !is_device(r.lane), record)
}

#[derive(Debug, Default)]
pub(crate) struct Expiry {
    queue: BTreeSet<Due>,
    /// Whether a finite time to live was ever given since the index was empty.
    pub(crate) used: bool,
}

impl Expiry {
    pub(crate) fn next(&self) -> Option<u64> {
        self.queue.first().map(|(deadline, ..)| *deadline)
    }

    /// Queues a leaf with a finite time to live.
    pub(crate) fn arm(&mut self, records: &mut Records, record: u32) {
        let r = &mut records[record];
        if r.kids == 0 && r.expires != 0 && r.expires != NEVER && r.armed == 0 {
            r.armed = r.expires;
            self.queue.insert(due(r.armed, record, r));
        }
    }

    /// Takes a record that is about to go out of the queue.
    pub(crate) fn disarm(&mut self, records: &mut Records, record: u32) {
        let r = &mut records[record];
        let armed = std::mem::take(&mut r.armed);
        if armed != 0 {
            self.queue.remove(&due(armed, record, r));
        }
    }

    /// Takes out a record that is due at `now`.
    pub(crate) fn pop(&mut self, now: u64) -> Option<u32> {
        let &(deadline, _, record) = self.queue.first()?;
        if deadline > now {
            return None;
        }
        self.queue.pop_first();
        Some(record)
    }

    /// The end of a time to live, as records have it.
    pub(crate) fn deadline(&mut self, expires: Option<Millis>) -> u64 {
        let Some(Millis(at)) = expires else {
            return NEVER;
        };
        self.used = true;
        at.clamp(1, NEVER - 1)
    }

    /// B-tree nodes are two thirds full on average.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.queue.len() * size_of::<Due>() * 3 / 2
    }
}
