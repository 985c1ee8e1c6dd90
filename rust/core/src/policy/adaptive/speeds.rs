//! How fast workers are, by their GPU kind and their own requests.

use crate::load::{Load, Speed};
use crate::policy::view::{Candidate, View};

/// First tokens of a worker's kind count as so many times its own: what slows prompts down for a while says little.
const KIND_WEIGHT: f64 = 6.0;
/// As for first tokens, of the tokens after them: how long those take is how full the worker's batch is, which lasts.
const DECODE_KIND_WEIGHT: f64 = 0.3;
/// What the fleet observed counts as so many times what a kind did.
const FLEET_WEIGHT: f64 = 0.2;
/// Tokens per millisecond before any first token: only explanations show it, as it is the same for all.
const FIRST_SPEED: f64 = 10.0;
/// Kinds of GPU that are told apart; more count as one.
const KINDS: usize = 8;

/// Observations of several workers.
#[derive(Clone, Copy, Default)]
struct Sum {
    sum: Speed,
    workers: f64,
}

impl Sum {
    fn add(&mut self, speed: Speed) {
        if speed.products > 0.0 {
            self.sum.squares += speed.squares;
            self.sum.products += speed.products;
            self.workers += 1.0;
        }
    }

    /// What one of them observed, in the mean, if all were as fast as `speed`.
    fn mean(&self, speed: f64) -> Speed {
        let products = self.sum.products / self.workers;
        Speed {
            squares: speed * products,
            products,
        }
    }

    /// What one of these observed, in the mean, with what all did.
    fn corrected(&self, all: &Self, fleet: f64) -> Speed {
        if self.workers > 0.0 {
            self.mean(blend(self.sum, all.mean(fleet), FLEET_WEIGHT))
        } else {
            all.mean(fleet)
        }
    }
}

/// `own` speed, with `others` that count `times`.
fn blend(own: Speed, others: Speed, times: f64) -> f64 {
    (own.squares + times * others.squares) / (own.products + times * others.products)
}

#[derive(Clone, Copy, Default)]
struct Kind {
    id: u32,
    prefill: Sum,
    decode: Sum,
}

#[derive(Clone, Copy, Default)]
struct Usual {
    id: u32,
    prefill: Speed,
    decode: Speed,
}

/// Speeds by kind of GPU.
pub(super) struct Speeds {
    kinds: [Usual; KINDS],
    len: usize,
    prefill: f64,
    decode: Option<f64>,
    /// No first token is known, or weights say how fast workers are.
    equal: bool,
    weighted: bool,
}

impl Speeds {
    #[expect(clippy::float_cmp, reason = "any other weight was set")]
    pub fn of<'a>(views: impl IntoIterator<Item = &'a View<'a>>) -> Self {
        let (mut all, mut kinds, mut len) = (Kind::default(), [Kind::default(); KINDS], 0);
        let mut weighted = false;
        for view in views {
            for row in view.rows {
                let load = view.load(row);
                weighted |= load.weight != 1.0;
                if load.speed.products <= 0.0 && load.decode.products <= 0.0 {
                    continue;
                }
                let at = kinds[..len].iter().position(|kind| kind.id == row.kind);
                let at = at.unwrap_or_else(|| {
                    if len < KINDS {
                        kinds[len].id = row.kind;
                        len += 1;
                    }
                    len - 1
                });
                for kind in [&mut all, &mut kinds[at]] {
                    kind.prefill.add(load.speed);
                    kind.decode.add(load.decode);
                }
            }
        }
        let prefill = all.prefill.sum.get();
        let decode = all.decode.sum.get();
        let mut usual = [Usual::default(); KINDS];
        for (usual, kind) in usual.iter_mut().zip(&kinds[..len]) {
            *usual = Usual {
                id: kind.id,
                prefill: kind
                    .prefill
                    .corrected(&all.prefill, prefill.unwrap_or_default()),
                decode: kind
                    .decode
                    .corrected(&all.decode, decode.unwrap_or_default()),
            };
        }
        Self {
            kinds: usual,
            len,
            prefill: prefill.unwrap_or(FIRST_SPEED),
            decode,
            equal: weighted || prefill.is_none(),
            weighted,
        }
    }

    #[inline]
    fn usual(&self, row: &Candidate) -> Option<&Usual> {
        let kinds = &self.kinds[..self.len];
        let own = kinds.iter().find(|kind| kind.id == row.kind);
        own.or_else(|| kinds.get(KINDS - 1))
    }

    /// Tokens of prompts per millisecond.
    #[inline]
    pub fn prefill(&self, row: &Candidate, load: &Load) -> f64 {
        match self.usual(row) {
            Some(usual) if !self.equal => blend(load.speed, usual.prefill, KIND_WEIGHT),
            _ => self.prefill,
        }
    }

    /// Milliseconds per output token; 0 if it is not known.
    #[inline]
    pub fn step_ms(&self, row: &Candidate, load: &Load) -> f64 {
        let Some(fleet) = self.decode else { return 0.0 };
        match self.usual(row) {
            Some(usual) if !self.weighted => {
                1.0 / blend(load.decode, usual.decode, DECODE_KIND_WEIGHT)
            }
            _ => 1.0 / fleet,
        }
    }
}
