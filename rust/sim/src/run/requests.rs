//! Requests of a run.

use crate::gateway::Placed;
use crate::workload::Workload;

use super::heap::{Heap, Kind};
use super::pairs::Half;

/// State of a request under way.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// Where it is; for a request on two workers, its half at work.
    pub placed: Option<Placed>,
    /// Whether the gateway holds it.
    pub is_held: bool,
    /// The other half.
    pub half: Option<Box<Half>>,
    pub tried: Vec<u32>,
    pub last_token: f64,
    pub unreported: u32,
    /// When the gateway has notice of its first token, if that is late.
    pub noticed: f64,
    pub done: bool,
}

impl Progress {
    /// Whether its prompt is being computed for another worker.
    pub fn prefills(&self) -> bool {
        matches!(self.half.as_deref(), Some(Half::Next(_)))
    }

    /// Whether a message is about where it is now.
    pub fn is_at(&self, placed: Placed) -> bool {
        !self.done && self.placed == Some(placed)
    }
}

/// All of them, by number.
#[derive(Debug)]
pub(super) struct Requests {
    pub all: Vec<Progress>,
    /// Those that follow each.
    children: Vec<Vec<u32>>,
    /// Those that are not over.
    pub left: usize,
}

impl Requests {
    /// Those of a workload; the first ones will arrive.
    pub fn new(workload: &Workload, heap: &mut Heap) -> Self {
        let n = workload.len();
        let mut children = vec![Vec::new(); n];
        for id in 0..n as u32 {
            match usize::try_from(workload.parent[id as usize]) {
                Ok(parent) => children[parent].push(id),
                Err(_) => heap.at(workload.arrival[id as usize], Kind::Arrival(id)),
            }
        }
        Self {
            all: vec![Progress::default(); n],
            children,
            left: n,
        }
    }

    /// One is over. Returns those that follow it.
    pub fn end(&mut self, id: u32) -> Vec<u32> {
        let progress = &mut self.all[id as usize];
        debug_assert!(!progress.done, "a request ends once");
        progress.done = true;
        progress.tried = Vec::new();
        self.left -= 1;
        std::mem::take(&mut self.children[id as usize])
    }
}
