//! What happens when.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::engine::EngineLoad;
use crate::gateway::Placed;
use crate::kv::Change;
use crate::options::Incident;

/// What a gateway learns of an answer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Notice {
    /// The first token arrived.
    FirstToken,
    /// So many more tokens arrived.
    Tokens(u32),
    /// It is complete, and so many prompt tokens were cached.
    Finished(Option<u32>),
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    StepEnd {
        worker: u32,
        epoch: u32,
    },
    Fetched {
        id: u32,
        worker: u32,
        epoch: u32,
    },
    Incident {
        worker: u32,
        what: Incident,
    },
    Changes {
        worker: u32,
        changes: Vec<Change>,
    },
    Message {
        worker: u32,
        epoch: u32,
        seq: u64,
    },
    Replay {
        worker: u32,
        epoch: u32,
        from: u64,
    },
    Reports {
        at: f64,
        loads: Vec<EngineLoad>,
    },
    FirstToken {
        id: u32,
        placed: Placed,
    },
    Tokens {
        id: u32,
        placed: Placed,
        n: u32,
    },
    Finished {
        id: u32,
        placed: Placed,
    },
    Notice {
        id: u32,
        placed: Placed,
        notice: Notice,
    },
    Failed {
        id: u32,
        placed: Placed,
    },
    Ready {
        worker: u32,
        ready: bool,
    },
    Scrape,
    Sample,
    Arrival {
        id: u32,
    },
    Decide {
        id: u32,
    },
    Enqueue {
        id: u32,
        placed: Placed,
    },
    Abort {
        id: u32,
    },
    Drop {
        id: u32,
        worker: u32,
    },
}

impl Kind {
    fn class(&self) -> u8 {
        match self {
            Self::StepEnd { .. } | Self::Fetched { .. } => 0,
            Self::Incident { .. } => 1,
            Self::Changes { .. }
            | Self::Message { .. }
            | Self::Replay { .. }
            | Self::Reports { .. }
            | Self::FirstToken { .. }
            | Self::Tokens { .. }
            | Self::Finished { .. }
            | Self::Notice { .. }
            | Self::Failed { .. }
            | Self::Ready { .. } => 2,
            Self::Scrape | Self::Sample => 3,
            Self::Arrival { .. }
            | Self::Decide { .. }
            | Self::Enqueue { .. }
            | Self::Abort { .. }
            | Self::Drop { .. } => 4,
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
    pub fn iter(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }
}
