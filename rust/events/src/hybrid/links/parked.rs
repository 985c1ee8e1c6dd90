//! Blocks of side groups whose names stand for nothing yet.
//!
//! Engines write the store of a side group before the one that defines its names, most often in one message. So within
//! a message as many may wait as it has names; those that wait longer are bounded, in number and in time.

use std::collections::{HashMap, VecDeque};

#[cfg(test)]
use cachelb_core::error::{Error, Result};
use cachelb_core::ids::Millis;

use crate::batch::Name;

/// A block that waits: of which side group, in which lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) side: usize,
    pub(super) lane: u8,
    number: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Parked {
    limit: usize,
    ttl_ms: u64,
    waiting: HashMap<Name, Vec<Wait>>,
    len: usize,
    /// Number of the next block.
    number: u64,
    /// Blocks of the current message.
    fresh: Vec<(Name, u64)>,
    /// Blocks of earlier messages, some of which wait no longer.
    queue: VecDeque<(Millis, Name, u64)>,
}

impl Parked {
    pub(super) fn new(limit: u32, ttl_ms: u64) -> Self {
        Self {
            limit: limit as usize,
            ttl_ms,
            waiting: HashMap::new(),
            len: 0,
            number: 0,
            fresh: Vec::new(),
            queue: VecDeque::new(),
        }
    }

    /// Lets a block wait; another copy of it only if there may be several.
    pub(super) fn park(&mut self, name: Name, side: usize, lane: u8, once: bool) {
        let waits = self.waiting.entry(name).or_default();
        if once && waits.iter().any(|w| (w.side, w.lane) == (side, lane)) {
            return;
        }
        let number = self.number;
        self.number += 1;
        self.len += 1;
        waits.push(Wait { side, lane, number });
        self.fresh.push((name, number));
    }

    /// Takes the blocks of a name that stands for something now.
    pub(super) fn take(&mut self, name: Name) -> Vec<Wait> {
        if self.len == 0 {
            return Vec::new();
        }
        let waits = self.waiting.remove(&name).unwrap_or_default();
        self.len -= waits.len();
        waits
    }

    /// Removes one waiting copy in those places; false if there is none.
    pub(super) fn cancel(&mut self, name: Name, matches: impl Fn(&Wait) -> bool) -> bool {
        let Some(waits) = self.waiting.get_mut(&name) else {
            return false;
        };
        let Some(at) = waits.iter().position(matches) else {
            return false;
        };
        waits.remove(at);
        if waits.is_empty() {
            self.waiting.remove(&name);
        }
        self.len -= 1;
        true
    }

    fn waits(&self, name: Name, number: u64) -> bool {
        let waits = self.waiting.get(&name);
        waits.is_some_and(|waits| waits.iter().any(|wait| wait.number == number))
    }

    /// The message is over. Returns how many of its blocks keep waiting, and how many find no room.
    pub(super) fn settle(&mut self, now: Millis) -> (u64, u64) {
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.retain(|(name, number)| self.waits(*name, *number));
        let room = (self.limit + fresh.len()).saturating_sub(self.len);
        let refused = fresh.split_off(room.min(fresh.len()));
        for (name, number) in &refused {
            self.cancel(*name, |wait| wait.number == *number);
        }
        let parked = fresh.len();
        let deadline = Millis(now.0.saturating_add(self.ttl_ms));
        let queued = fresh.drain(..);
        self.queue
            .extend(queued.map(|(name, number)| (deadline, name, number)));
        fresh.shrink_to(self.limit);
        self.fresh = fresh;
        if self.queue.len() > 2 * self.limit {
            let mut queue = std::mem::take(&mut self.queue);
            queue.retain(|(_, name, number)| self.waits(*name, *number));
            self.queue = queue;
        }
        (parked as u64, refused.len() as u64)
    }

    /// Gives up blocks that waited too long. Returns their number.
    pub(super) fn expire(&mut self, now: Millis) -> u64 {
        let mut expired = 0;
        while let Some((_, name, number)) = self.queue.front().filter(|first| first.0 <= now) {
            let (name, number) = (*name, *number);
            self.queue.pop_front();
            expired += u64::from(self.cancel(name, |wait| wait.number == number));
        }
        expired
    }

    /// Gives up everything. Returns the number of blocks.
    pub(super) fn clear(&mut self) -> u64 {
        let waiting = self.len as u64;
        *self = Self::new(self.limit as u32, self.ttl_ms);
        waiting
    }

    /// Recounts everything, between messages.
    #[cfg(test)]
    pub(super) fn validate(&self) -> Result<()> {
        let waiting: usize = self.waiting.values().map(Vec::len).sum();
        let queue = self.queue.iter();
        let queued = queue
            .filter(|(_, name, number)| self.waits(*name, *number))
            .count();
        if (waiting, queued) == (self.len, self.len) && self.len <= self.limit {
            return Ok(());
        }
        Err(Error::Invariant(format!(
            "{waiting} blocks of side groups wait and {queued} are queued, of {}",
            self.len
        )))
    }
}
