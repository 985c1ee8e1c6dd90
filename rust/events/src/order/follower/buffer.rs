//! The live messages that wait while a replay is under way, bounded.

use std::collections::BTreeMap;

use super::marks::{Mark, Relation, same_time};
use super::verdict::FollowerSettings;

/// A message that waits; without a payload a hole: it could not be read.
#[derive(Debug)]
struct Waiting {
    ts: Option<f64>,
    payload: Option<Box<[u8]>>,
}

/// Messages by number.
#[derive(Debug)]
pub(super) struct Buffer {
    settings: FollowerSettings,
    messages: BTreeMap<u64, Waiting>,
    bytes: usize,
}

impl Buffer {
    pub fn new(settings: FollowerSettings) -> Self {
        Self {
            settings,
            messages: BTreeMap::new(),
            bytes: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The message of the lowest number, and whether it has a payload.
    pub fn first(&self) -> Option<(Mark, bool)> {
        let (&seq, waiting) = self.messages.first_key_value()?;
        let mark = Mark {
            seq,
            ts: waiting.ts,
        };
        Some((mark, waiting.payload.is_some()))
    }

    /// Whether a live message waits already, is of a later life, or is to wait too.
    pub fn relation(&self, mark: Mark) -> Relation {
        if let Some(known) = self.messages.get(&mark.seq)
            && known.payload.is_some()
        {
            return if same_time(known.ts, mark.ts) {
                Relation::Known
            } else {
                Relation::Stray
            };
        }
        // A lower number that is younger than a higher one is of a later life.
        let above = self.messages.range(mark.seq..).find_map(|(_, w)| w.ts);
        if above.zip(mark.ts).is_some_and(|(above, ts)| ts > above) {
            Relation::Stray
        } else {
            Relation::Ahead
        }
    }

    /// Whether another message of its number waits.
    pub fn contradicts(&self, mark: Mark) -> bool {
        let waiting = self.messages.get(&mark.seq);
        waiting.is_some_and(|waiting| !same_time(waiting.ts, mark.ts))
    }

    /// Keeps a message. Returns whether there is room for more.
    pub fn insert(&mut self, mark: Mark, payload: &[u8]) -> bool {
        self.take(mark.seq);
        let payload = mark.ts.map(|_| payload);
        self.bytes += payload.map_or(0, <[u8]>::len);
        let waiting = Waiting {
            ts: mark.ts,
            payload: payload.map(Into::into),
        };
        self.messages.insert(mark.seq, waiting);
        self.messages.len() <= self.settings.max_messages && self.bytes <= self.settings.max_bytes
    }

    /// Takes a message out; `None` for a hole too.
    pub fn take(&mut self, seq: u64) -> Option<Box<[u8]>> {
        let payload = self.messages.remove(&seq)?.payload?;
        self.bytes -= payload.len();
        Some(payload)
    }

    pub fn clear(&mut self) {
        self.messages.clear();
        self.bytes = 0;
    }

    /// Drops the messages of lower numbers, and this one.
    pub fn drop_up_to(&mut self, seq: u64) {
        while let Some((first, _)) = self.first().filter(|(first, _)| first.seq <= seq) {
            self.take(first.seq);
        }
    }

    /// Drops messages older than a replayed one of a lower number: they are of an earlier life.
    pub fn drop_older(&mut self, replayed: Mark) {
        let older = |waiting: &Waiting| {
            let both = waiting.ts.zip(replayed.ts);
            both.is_some_and(|(waiting, replayed)| waiting < replayed)
        };
        let next = |messages: &BTreeMap<u64, Waiting>| {
            let (&seq, waiting) = messages.range(replayed.seq..).next()?;
            older(waiting).then_some(seq)
        };
        while let Some(seq) = next(&self.messages) {
            self.take(seq);
        }
    }

    /// Drops everything up to the last hole, which may lie before the first message. Returns its number.
    pub fn drop_to_hole(&mut self) -> Option<u64> {
        let newest = *self.messages.last_key_value()?.0;
        let readable = |seq: u64| {
            let waiting = self.messages.get(&seq);
            waiting.is_some_and(|waiting| waiting.payload.is_some())
        };
        let hole = (0..=newest).rev().find(|seq| !readable(*seq))?;
        self.drop_up_to(hole);
        Some(hole)
    }

    pub fn memory_bytes(&self) -> usize {
        self.messages.len() * size_of::<(u64, Waiting)>() + self.bytes
    }
}
