//! The entries of this router until they are taken along.

use std::collections::VecDeque;

use cachelb_core::ids::SequenceHash;

use super::entries::{Entry, put};

/// Bytes from which on a part is not made longer: what others apply under one lock.
const PART: usize = 1 << 13;

/// Entries that follow each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// Number of the first.
    pub first: u64,
    /// How many.
    pub count: u32,
    /// The entries.
    pub entries: Vec<u8>,
}

/// Entries in the order they were made, numbered without gaps from 0.
#[derive(Debug, Default)]
pub struct Journal {
    full: VecDeque<Part>,
    open: Part,
    /// Bytes of all of them.
    pub waiting: usize,
    /// One of them is more than a first token or an end.
    pub urgent: bool,
    /// Most bytes kept.
    limit: usize,
    /// Entries dropped before they were taken.
    pub dropped: u64,
}

impl Journal {
    /// One that keeps at most about `limit` bytes; entries beyond it are dropped all at once, which leaves a gap in the
    /// numbers.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Writes an entry down.
    pub fn say(&mut self, entry: Entry<'_>, chain: &[SequenceHash]) {
        if self.waiting >= self.limit {
            self.cut();
            let dropped = self.full.drain(..).map(|part| u64::from(part.count));
            self.dropped += dropped.sum::<u64>();
            self.waiting = 0;
        } else if self.open.entries.len() >= PART {
            self.cut();
        }
        let before = self.open.entries.len();
        put(&mut self.open.entries, entry, chain);
        self.waiting += self.open.entries.len() - before;
        self.open.count += 1;
        self.urgent |= !matches!(
            entry,
            Entry::FirstToken { .. } | Entry::Closed { failed: false, .. }
        );
    }

    /// The next entry begins a part of its own: what came before must be acted on first.
    pub fn cut(&mut self) {
        if self.open.count > 0 {
            let part = self.seal();
            self.full.push_back(part);
        }
    }

    /// Closes the open part and begins the next one.
    fn seal(&mut self) -> Part {
        let next = Part {
            first: self.next(),
            ..Part::default()
        };
        std::mem::replace(&mut self.open, next)
    }

    /// The part that waits longest, `None` if there is no entry.
    pub fn take(&mut self) -> Option<Part> {
        let part = self.full.pop_front();
        let part = part.or_else(|| (self.open.count > 0).then(|| self.seal()))?;
        self.waiting -= part.entries.len();
        self.urgent &= self.waiting > 0;
        Some(part)
    }

    /// Number of the next entry.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.open.first + u64::from(self.open.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(journal: &mut Journal, keys: std::ops::Range<u64>) {
        for key in keys {
            journal.say(Entry::FirstToken { key }, &[]);
        }
    }

    fn numbers(journal: &mut Journal) -> Vec<(u64, u32)> {
        let parts = std::iter::from_fn(|| journal.take());
        parts.map(|part| (part.first, part.count)).collect()
    }

    #[test]
    fn entries_are_numbered_and_those_that_nobody_takes_are_missed() {
        let mut journal = Journal::new(20);
        say(&mut journal, 0..3);
        assert_eq!(numbers(&mut journal), [(0, 3)]);
        say(&mut journal, 0..13);
        assert_eq!((journal.dropped, journal.waiting), (10, 6));
        assert_eq!(numbers(&mut journal), [(13, 3)]);
        assert_eq!((journal.next(), journal.waiting), (16, 0));
        assert_eq!(numbers(&mut journal), []);
    }

    #[test]
    fn first_tokens_and_ends_alone_are_not_urgent() {
        let mut journal = Journal::new(1000);
        say(&mut journal, 0..3);
        let closed = |failed| Entry::Closed { key: 1, failed };
        journal.say(closed(false), &[]);
        assert!(!journal.urgent);
        journal.say(closed(true), &[]);
        journal.cut();
        journal.say(closed(false), &[]);
        assert_eq!((numbers(&mut journal).len(), journal.urgent), (2, false));
    }

    #[test]
    fn a_cut_ends_a_part_and_loses_nothing() {
        let mut journal = Journal::new(1000);
        journal.cut();
        say(&mut journal, 0..3);
        journal.cut();
        journal.cut();
        say(&mut journal, 0..2);
        assert_eq!(numbers(&mut journal), [(0, 3), (3, 2)]);
        assert_eq!((journal.next(), journal.waiting), (5, 0));
    }

    #[test]
    fn parts_are_bounded_and_follow_each_other() {
        let mut journal = Journal::new(usize::MAX);
        say(&mut journal, 0..100_000);
        let parts = numbers(&mut journal);
        assert!(parts.len() > 5, "{parts:?}");
        let mut next = 0;
        for (first, count) in parts {
            assert_eq!(first, next);
            assert!(count as usize <= PART / 2);
            next += u64::from(count);
        }
        assert_eq!((next, journal.waiting), (100_000, 0));
    }
}
