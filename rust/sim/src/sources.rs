//! llm-d's rule for the worker that a request takes cached blocks from.

use std::collections::HashSet;

use cachelb_core::ids::{AsIs, Medium, SequenceHash};
use cachelb_core::rng::Rng;

use crate::engine::change::Change;
use crate::gateway::Placed;

/// A worker as its events and load reports describe it.
#[derive(Debug, Clone)]
struct Source {
    /// Blocks in its host memory.
    held: HashSet<SequenceHash, AsIs>,
    waiting: u32,
    is_ready: bool,
}

/// The workers that may serve others from their host memories.
#[derive(Debug)]
pub(super) struct Sources {
    min_tokens: u32,
    block_size: u32,
    workers: Vec<Source>,
    rng: Rng,
}

impl Sources {
    pub fn new(min_tokens: u32, block_size: u32, workers: usize) -> Self {
        let unknown = Source {
            held: HashSet::default(),
            waiting: 0,
            is_ready: true,
        };
        Self {
            min_tokens,
            block_size,
            workers: vec![unknown; workers],
            rng: Rng::new(0),
        }
    }

    pub fn changed(&mut self, worker: u32, changes: &[Change]) {
        let held = &mut self.workers[worker as usize].held;
        for change in changes {
            match *change {
                Change::Stored {
                    hash,
                    medium: Medium::Cpu,
                    ..
                } => {
                    held.insert(hash);
                }
                Change::Removed {
                    hash,
                    medium: Medium::Cpu,
                } => {
                    held.remove(&hash);
                }
                Change::Cleared => held.clear(),
                _ => {}
            }
        }
    }

    pub fn report(&mut self, worker: u32, waiting: u32) {
        self.workers[worker as usize].waiting = waiting;
    }

    pub fn mark_ready(&mut self, worker: u32, is_ready: bool) {
        self.workers[worker as usize].is_ready = is_ready;
    }

    /// The worker with the longest prefix, if that is long enough behind the tokens that the request finds where it was
    /// placed; of several, one drawn by 1 / (1 + waiting requests).
    pub fn pick(&mut self, names: &[SequenceHash], placed: Placed) -> Option<u32> {
        let least = placed
            .predicted_tokens
            .saturating_add(self.min_tokens)
            .max(1);
        let (mut longest, mut first, mut source) = (least.div_ceil(self.block_size), 0.0, None);
        for (at, worker) in (0..).zip(&self.workers) {
            if at == placed.worker || !worker.is_ready {
                continue;
            }
            let blocks = names.iter().take_while(|name| worker.held.contains(*name));
            let blocks = blocks.count() as u32;
            if blocks < longest {
                continue;
            }
            // The first of exponential times with these rates.
            let time = -(1.0 - self.rng.unit()).ln() * f64::from(1 + worker.waiting);
            if blocks > longest || source.is_none() || time < first {
                (longest, first, source) = (blocks, time, Some(at));
            }
        }
        source
    }
}
