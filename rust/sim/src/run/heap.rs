//! The queue of future steps, by time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::engine::EngineLoad;
use crate::engine::change::Change;
use crate::gateway::{Notice, Placed};
use crate::options::Incident;

/// A worker between two crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    pub worker: u32,
    /// Crashes before.
    pub epoch: u32,
}

/// Steps of a request; nothing happens once it is placed elsewhere.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Enqueue,
    FirstToken,
    Tokens(u32),
    Finished,
    Failed,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    StepEnd(Life),
    /// The blocks of a request arrive.
    Fetched(u32, Life),
    /// So many tokens of a request arrive at a worker that another one had cached.
    Pulled(u32, Life, Life, u32),
    Incident(u32, Incident),
    /// Changes that a worker sends; by number where messages are lost.
    Changes(u32, Vec<Change>),
    /// Changes of the fleet's pool.
    PoolChanges(Vec<Change>),
    Message(Life, u64),
    /// From a number on.
    Replay(Life, u64),
    /// Loads of workers, read at that time.
    Reports(f64, Vec<EngineLoad>),
    Request(u32, Placed, Step),
    Notice(u32, Placed, Notice),
    /// A worker becomes ready or not for the gateway.
    Ready(u32, bool),
    Scrape,
    Sample,
    Arrival(u32),
    Decide(u32),
    /// A request is held no longer.
    Expire(u32),
    /// A client goes away.
    Abort(u32),
    /// The worker, the second number, notices that.
    Drop(u32, u32),
}

impl Kind {
    fn class(&self) -> u8 {
        match self {
            Self::StepEnd(_) | Self::Fetched(..) | Self::Pulled(..) => 0,
            Self::Incident(..) => 1,
            Self::Scrape | Self::Sample => 3,
            Self::Request(_, _, Step::Enqueue)
            | Self::Arrival(..)
            | Self::Decide(..)
            | Self::Expire(..)
            | Self::Abort(..)
            | Self::Drop(..) => 4,
            Self::Changes(..)
            | Self::PoolChanges(..)
            | Self::Message(..)
            | Self::Replay(..)
            | Self::Reports(..)
            | Self::Request(..)
            | Self::Notice(..)
            | Self::Ready(..) => 2,
        }
    }
}

#[derive(Debug)]
pub(super) struct Event {
    pub at: f64,
    class: u8,
    number: u64,
    pub kind: Kind,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    /// The heap gives the greatest first, so what comes first is greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |e: &Self| (e.class, e.number);
        other
            .at
            .total_cmp(&self.at)
            .then_with(|| key(other).cmp(&key(self)))
    }
}

/// Events to come.
#[derive(Debug, Default)]
pub(super) struct Heap {
    events: BinaryHeap<Event>,
    scheduled: u64,
}

impl Heap {
    pub fn at(&mut self, at: f64, kind: Kind) {
        self.scheduled += 1;
        self.events.push(Event {
            at,
            class: kind.class(),
            number: self.scheduled,
            kind,
        });
    }

    pub fn pop(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Those to come, in no order.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }
}
