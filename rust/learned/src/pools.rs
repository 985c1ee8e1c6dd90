//! The samples the next model is trained on: the newest, and of what was before them what the model still gets wrong.

use std::collections::VecDeque;

use cachelb_core::rng::Rng;

use crate::coreset::{self, Distance};
use crate::features::{Row, Sample};
use crate::fitting::shuffle;
use crate::model::{Model, Scratch};

/// Which of the samples that leave the first pool the second one keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replay {
    /// Those that differ most from what is kept, weighted by how wrong the model is about them.
    #[default]
    Weighted,
    /// As above without the weight after the first, as Lodestar's repository does.
    Lodestar,
    /// None.
    None,
    /// All, without a bound.
    All,
}

/// Two pools of samples: first in, first out; and a coreset of what left it.
#[derive(Debug, Clone)]
pub struct Pools {
    sizes: (usize, usize),
    rule: Replay,
    rng: Rng,
    pub(crate) fifo: VecDeque<Sample>,
    /// In the order they came.
    pub(crate) replay: Vec<Sample>,
}

impl Pools {
    /// Empty pools of at most `fifo` and `replay` samples. The seed decides what is kept while there is no model.
    #[must_use]
    pub fn new(fifo: usize, replay: usize, replay_rule: Replay, seed: u64) -> Self {
        Self {
            sizes: (fifo, replay),
            rule: replay_rule,
            rng: Rng::new(seed),
            fifo: VecDeque::new(),
            replay: Vec::new(),
        }
    }

    /// Adds samples, the oldest first. Samples that leave the first pool compete for the second with those in it, by
    /// their gradients under `model`; without one, chance decides. One call per training round: each may compare all
    /// pairs.
    pub fn add(&mut self, samples: &[Sample], model: Option<&Model>) {
        self.fifo.extend(samples);
        let over = self.fifo.len().saturating_sub(self.sizes.0);
        let leaving = self.fifo.drain(..over);
        if self.rule == Replay::None {
            return;
        }
        self.replay.extend(leaving);
        let keep = self.sizes.1;
        if self.rule == Replay::All || self.replay.len() <= keep {
            return;
        }
        let mut kept = match (model, self.rule) {
            (Some(model), Replay::Lodestar) => {
                choose(model, &self.replay, keep, Distance::Directions)
            }
            (Some(model), _) => choose(model, &self.replay, keep, Distance::Weighted),
            (None, _) => {
                let mut order: Vec<u32> = (0..self.replay.len() as u32).collect();
                shuffle(&mut order, &mut self.rng);
                order.truncate(keep);
                order
            }
        };
        kept.sort_unstable();
        self.replay = kept.iter().map(|at| self.replay[*at as usize]).collect();
    }

    /// Everything: the first pool, then the second, each from old to new.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        self.fifo.iter().chain(&self.replay).copied().collect()
    }

    /// How many samples there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fifo.len() + self.replay.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Positions of the samples to keep: the coreset of the gradients under `model`.
fn choose(model: &Model, samples: &[Sample], keep: usize, distance: Distance) -> Vec<u32> {
    let rows: Vec<Row> = samples.iter().map(|sample| sample.row).collect();
    let (mut costs, mut vectors) = (Vec::new(), Vec::new());
    let mut scratch = Scratch::default();
    model.predict(&rows, &mut costs, &mut scratch);
    let width = model.embed(&rows, &mut vectors, &mut scratch);
    let residuals = costs.iter().zip(samples);
    for (vector, (cost, sample)) in vectors.chunks_exact_mut(width).zip(residuals) {
        let residual = (cost - sample.cost).abs();
        for value in vector {
            *value *= residual;
        }
    }
    coreset::select(&vectors, width, keep, distance)
}
