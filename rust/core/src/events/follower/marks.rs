//! Number and time of the messages applied last.

use std::collections::VecDeque;

/// Messages remembered, to know them again.
const REMEMBERED: usize = 64;

/// A message by its number and the time the engine made it, in seconds; unknown of one that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark {
    /// Its number.
    pub seq: u64,
    /// When it was made.
    pub ts: Option<f64>,
}

/// What a message is to those applied before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relation {
    /// The next one.
    Next,
    /// Later than the next one.
    Ahead,
    /// One of them.
    Known,
    /// Not of this life of the engine.
    Stray,
}

/// Whether two messages of one number can be one; whatever cannot be read can.
pub(super) fn same_time(a: Option<f64>, b: Option<f64>) -> bool {
    a.zip(b).is_none_or(|(a, b)| a.to_bits() == b.to_bits())
}

/// The messages applied last, by number.
#[derive(Debug, Default)]
pub(super) struct Marks {
    recent: VecDeque<Mark>,
}

impl Marks {
    pub fn last(&self) -> Option<Mark> {
        self.recent.back().copied()
    }

    pub fn first(&self) -> Option<Mark> {
        self.recent.front().copied()
    }

    pub fn push(&mut self, mark: Mark) {
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(mark);
    }

    pub fn clear(&mut self) {
        self.recent.clear();
    }

    /// Starts over with a message.
    pub fn restart_at(&mut self, mark: Mark) {
        self.recent.clear();
        self.recent.push_back(mark);
    }

    /// What a message is to these. One older than all of them in number and time was known once: a clock is taken not to
    /// go back while an engine restarts.
    pub fn relation(&self, mark: Mark) -> Relation {
        let Some(last) = self.last() else {
            return if mark.seq == 0 {
                Relation::Next
            } else {
                Relation::Ahead
            };
        };
        if mark.seq > last.seq {
            return if mark.seq == last.seq + 1 {
                Relation::Next
            } else {
                Relation::Ahead
            };
        }
        let known = self.recent.iter().find(|known| known.seq == mark.seq);
        let is_old = if let Some(known) = known {
            same_time(known.ts, mark.ts)
        } else {
            let oldest = self.recent.iter().find_map(|known| known.ts);
            mark.ts
                .is_none_or(|ts| oldest.is_some_and(|oldest| ts <= oldest))
        };
        if is_old {
            Relation::Known
        } else {
            Relation::Stray
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.recent.capacity() * size_of::<Mark>()
    }
}
