//! Number and time of the messages applied last.

use std::collections::VecDeque;

/// Messages remembered, to find duplicates.
const REMEMBERED: usize = 64;

/// A message by its number and the time the engine made it, in seconds; the time is unknown if it cannot be read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark {
    /// Its number.
    pub seq: u64,
    /// When it was made.
    pub ts: Option<f64>,
}

/// Relation of a message to those applied before.
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

/// Whether two messages of one number can be one; unreadable ones can.
pub(super) fn same_time(a: Option<f64>, b: Option<f64>) -> bool {
    a.zip(b).is_none_or(|(a, b)| a.to_bits() == b.to_bits())
}

/// The messages that came last, by number: those applied, and those given up as unreadable.
#[derive(Debug, Default)]
pub(super) struct Marks {
    recent: VecDeque<Mark>,
    /// Those of the lives that ended last, without the unreadable.
    past: VecDeque<Mark>,
}

impl Marks {
    pub fn last(&self) -> Option<Mark> {
        self.recent.back().copied()
    }

    pub fn first(&self) -> Option<Mark> {
        self.recent.front().copied()
    }

    /// Remembers a message, in place of an unreadable one of its number.
    pub fn push(&mut self, mark: Mark) {
        if self.last().is_some_and(|last| last.seq == mark.seq) {
            self.recent.pop_back();
        } else if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(mark);
    }

    pub fn clear(&mut self) {
        self.recent.clear();
    }

    /// The engine restarted. Every message becomes past up to the last one that is older than `shown_by`, a message of
    /// the new life, although its number is not lower; without such a message all do.
    pub fn end_life(&mut self, shown_by: Option<Mark>) {
        let older = |known: &Mark| {
            shown_by.is_none_or(|shown| known.seq >= shown.seq && known.ts < shown.ts)
        };
        let ended = self.recent.iter().rposition(older).map_or(0, |at| at + 1);
        let readable = self
            .recent
            .drain(..)
            .take(ended)
            .filter(|known| known.ts.is_some());
        self.past.extend(readable);
        let forgotten = self.past.len().saturating_sub(REMEMBERED);
        self.past.drain(..forgotten);
    }

    /// Relation of a message to these. One that is older than one of a higher number was known once: the clock is
    /// assumed not to go back while an engine restarts. One that could not be read is still due until the next one
    /// comes.
    pub fn relation(&self, mark: Mark) -> Relation {
        let is_past = self.past.back().is_some_and(|end| mark.ts <= end.ts);
        if is_past && self.past.contains(&mark) {
            return Relation::Known;
        }
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
        if mark.seq == last.seq && last.ts.is_none() && mark.ts.is_some() {
            return Relation::Next;
        }
        let mut readable = self.recent.iter().filter(|known| known.ts.is_some());
        let is_old = match readable.find(|known| known.seq >= mark.seq) {
            Some(known) if known.seq == mark.seq => same_time(known.ts, mark.ts),
            Some(above) => mark.ts <= above.ts,
            None => mark.ts.is_none(),
        };
        if is_old {
            Relation::Known
        } else {
            Relation::Stray
        }
    }
}
