//! How fast workers are, by their GPU kind and their own requests.

use cachelb_core::load::{Load, Speed};

use crate::rule::view::{Candidate, Workers, load_of};

/// Weight of the first tokens of a worker's kind against its own: a prompt may be slow for passing reasons.
const KIND_WEIGHT: f64 = 6.0;
/// As for first tokens, of the tokens after them: their time depends on the size of the worker's batch, which lasts.
const DECODE_KIND_WEIGHT: f64 = 1.0;
/// Weight of the observations of the fleet against those of a kind.
const FLEET_WEIGHT: f64 = 0.2;
/// Before any first token: only explanations show it, as it is the same for all.
const FIRST_TOKEN_MS: f64 = 0.1;
/// Kinds of GPU that are kept apart; more count as one.
const KINDS: usize = 8;

/// Observations of several workers.
#[derive(Clone, Copy, Default)]
struct Sum {
    sum: Speed,
    workers: f64,
}

impl Sum {
    #[inline]
    fn add(&mut self, speed: Speed) {
        self.join(Self {
            sum: speed,
            workers: f64::from(u8::from(speed.products > 0.0)),
        });
    }

    #[inline]
    fn join(&mut self, other: Self) {
        self.sum.squares += other.sum.squares;
        self.sum.products += other.sum.products;
        self.workers += other.workers;
    }

    /// The mean observation of one of them, if all were as fast as `speed`.
    fn mean(&self, speed: Speed) -> Speed {
        let products = self.sum.products / self.workers;
        Speed {
            squares: products / token_ms(speed),
            products,
        }
    }

    /// The mean observation of one of these, blended with that of `all`.
    fn corrected(&self, all: &Self) -> Speed {
        let fleet = all.mean(all.sum);
        if self.workers > 0.0 {
            self.mean(blend(self.sum, fleet, FLEET_WEIGHT))
        } else {
            fleet
        }
    }
}

/// `own` observations, with `others` that count `times`.
#[inline]
fn blend(own: Speed, others: Speed, times: f64) -> Speed {
    Speed {
        squares: own.squares + times * others.squares,
        products: own.products + times * others.products,
    }
}

/// Milliseconds of a token.
#[inline]
fn token_ms(speed: Speed) -> f64 {
    speed.products / speed.squares
}

#[derive(Clone, Copy, Default)]
struct Kind {
    id: u32,
    prefill: Sum,
    decode: Sum,
}

#[derive(Default)]
struct Kinds {
    list: [Kind; KINDS],
    len: usize,
}

impl Kinds {
    fn join(&mut self, run: &Kind) {
        if run.prefill.workers + run.decode.workers <= 0.0 {
            return;
        }
        let at = self.list[..self.len]
            .iter()
            .position(|kind| kind.id == run.id);
        let at = at.unwrap_or_else(|| {
            if self.len < KINDS {
                self.list[self.len].id = run.id;
                self.len += 1;
            }
            self.len - 1
        });
        self.list[at].prefill.join(run.prefill);
        self.list[at].decode.join(run.decode);
    }
}

#[derive(Clone, Copy, Default)]
struct Usual {
    id: u32,
    prefill: Speed,
    decode: Speed,
}

/// Speeds by kind of GPU.
pub struct Speeds {
    kinds: [Usual; KINDS],
    len: usize,
    /// Milliseconds of a token of the fleet.
    prefill_ms: f64,
    /// Milliseconds of an output token, 0 if it is not known.
    step_ms: f64,
    /// A first token is known.
    pub(crate) known: bool,
    /// None is, or weights set the speeds of workers.
    equal: bool,
    /// As `equal`, for output tokens.
    equal_steps: bool,
}

impl Speeds {
    /// The speeds of the workers of some rows.
    #[must_use]
    #[expect(
        clippy::float_cmp,
        clippy::inline_always,
        reason = "any other weight was set; a tenth of the time of a decision among many workers"
    )]
    #[inline(always)]
    pub fn of<'a>(workers: impl IntoIterator<Item = Workers<'a>>) -> Self {
        let (mut all, mut kinds) = (Kind::default(), Kinds::default());
        let mut weighted = false;
        for (rows, loads) in workers {
            // Workers of one kind mostly follow each other: their sum is made apart, in registers.
            let mut run = Kind::default();
            for row in rows {
                let load = load_of(loads, row);
                // For most rows the first check decides, and it reads the row at hand.
                weighted |= row.weight != 1.0 && load.weight != 1.0;
                if row.kind != run.id {
                    kinds.join(&run);
                    run = Kind {
                        id: row.kind,
                        ..Kind::default()
                    };
                }
                run.prefill.add(load.speed);
                run.decode.add(load.decode);
            }
            kinds.join(&run);
        }
        let Kinds { list: kinds, len } = kinds;
        for kind in &kinds[..len] {
            all.prefill.join(kind.prefill);
            all.decode.join(kind.decode);
        }
        let known = |sum: Sum| (sum.workers > 0.0).then(|| token_ms(sum.sum));
        let (prefill_ms, step_ms) = (known(all.prefill), known(all.decode));
        let mut usual = [Usual::default(); KINDS];
        for (usual, kind) in usual.iter_mut().zip(&kinds[..len]) {
            *usual = Usual {
                id: kind.id,
                prefill: kind.prefill.corrected(&all.prefill),
                decode: kind.decode.corrected(&all.decode),
            };
        }
        Self {
            kinds: usual,
            len,
            prefill_ms: prefill_ms.unwrap_or(FIRST_TOKEN_MS),
            step_ms: step_ms.unwrap_or(0.0),
            known: prefill_ms.is_some(),
            equal: weighted || prefill_ms.is_none(),
            equal_steps: weighted || step_ms.is_none(),
        }
    }

    #[inline]
    fn usual(&self, row: &Candidate) -> Option<&Usual> {
        let kinds = &self.kinds[..self.len];
        let own = kinds.iter().find(|kind| kind.id == row.kind);
        own.or_else(|| kinds.get(KINDS - 1))
    }

    /// Milliseconds per token of prefill without context, `None` before the first token.
    #[must_use]
    pub fn known_token_ms(&self, row: &Candidate, load: &Load) -> Option<f64> {
        self.known.then(|| self.token_ms(row, load))
    }

    /// Milliseconds per token of prefill.
    #[inline]
    pub(crate) fn token_ms(&self, row: &Candidate, load: &Load) -> f64 {
        self.ms(row, load).0
    }

    /// Milliseconds per token of prefill, and per output token; 0 if that is not known.
    #[inline]
    pub(super) fn ms(&self, row: &Candidate, load: &Load) -> (f64, f64) {
        let usual = self.usual(row);
        let prefill = match usual {
            Some(usual) if !self.equal => token_ms(blend(load.speed, usual.prefill, KIND_WEIGHT)),
            _ => self.prefill_ms,
        };
        let decode = match usual {
            Some(usual) if !self.equal_steps => {
                token_ms(blend(load.decode, usual.decode, DECODE_KIND_WEIGHT))
            }
            _ => self.step_ms,
        };
        (prefill, decode)
    }
}
