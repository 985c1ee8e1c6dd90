//! The default: the worker on which a request costs the fleet the least time.
//!
//! ```text
//! cost = (waiting + own * (1.25 + queued + w * running) + w * output * (queued + running))
//!        / (1 - 0.75 * kv use) / speed;  argmin
//! ```
//!
//! | term | what it is | where from |
//! |---|---|---|
//! | waiting | prefill that waits on the worker, which the request waits for | bookings |
//! | own | prefill of the request's uncached tokens, which it waits for too | index |
//! | a quarter of own | what these tokens push out of the cache and others compute again: the second copy has a price | constant |
//! | own * queued | what it delays those behind: about as many come while it waits as wait now | bookings |
//! | own * running | what it delays those that generate; the weight `w` is the objective | bookings |
//! | output * all | what its own tokens delay them, as each is computed together with one of theirs | caller, else those that ended |
//! | kv use | blocks of requests in flight and of this one, shared ones once, in those there are: what does not fit waits, or pushes others out | bookings, `kv_blocks`; without, a fresh report |
//! | speed | prefill per millisecond | first tokens |
//!
//! Prefill is counted in tokens, each of which takes longer the more context it attends to; by how much is learned from
//! first tokens (`load/pace.rs`). Speeds are those of the worker's GPU kind, corrected by its own: a worker whose answers
//! come later than its queue explains, whatever the reason, gets less. Weights that the caller set take the
//! place of speeds.
//!
//! Whatever is not known falls out: without `kv_blocks` and reports the division by what is free, without first tokens the
//! speeds, without tokens all but the requests.

use crate::load::{Known, Prefill, Speed};

use super::rng::Rng;
use super::rule::{Choice, Rule};
use super::view::{Candidate, View, lowest_at, per_weight};

/// What is to be short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Objective {
    /// The time to first tokens and that of whole answers.
    #[default]
    Balanced,
    /// The time to first tokens.
    Ttft,
    /// The time of whole answers.
    E2e,
}

impl Objective {
    /// What a token of prefill costs each request that generates meanwhile.
    fn running_weight(self) -> f64 {
        match self {
            Self::Balanced => 0.3,
            Self::Ttft => 0.1,
            Self::E2e => 1.0,
        }
    }
}

/// Chance that what a prompt pushes out of a cache is asked for again.
const ASKED_AGAIN: f64 = 0.25;
/// How steeply the cost rises with KV use: four times at the end of the room.
const PRESSURE: f64 = 0.75;
/// Of what would not fit, so much more costs no more.
const MOST_PRESSURE: f64 = 20.0;
/// First tokens of a worker's kind count as so many times its own.
const KIND_WEIGHT: f64 = 6.0;
/// First tokens of the fleet count as so many times those of a kind.
const FLEET_WEIGHT: f64 = 0.2;
/// Tokens per millisecond before any first token: only explanations show it, as it is the same for all.
const FIRST_SPEED: f64 = 10.0;
/// Kinds of GPU that are told apart; more count as one.
const KINDS: usize = 8;

/// The rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Adaptive {
    objective: Objective,
}

/// Observations of several workers.
#[derive(Clone, Copy, Default)]
struct Group {
    kind: u32,
    sum: Speed,
    workers: f64,
}

impl Group {
    fn add(&mut self, speed: Speed) {
        self.sum.squares += speed.squares;
        self.sum.products += speed.products;
        self.workers += 1.0;
    }

    /// What one of them observed, in the mean, if all were as fast as `speed`.
    fn mean(&self, speed: f64) -> Speed {
        let products = self.sum.products / self.workers;
        Speed {
            squares: speed * products,
            products,
        }
    }
}

/// `own` speed, with `others` that count `times`.
fn blend(own: Speed, others: Speed, times: f64) -> f64 {
    (own.squares + times * others.squares) / (own.products + times * others.products)
}

/// Speeds by kind of GPU.
struct Speeds {
    kinds: [Group; KINDS],
    len: usize,
    fleet: f64,
    /// None is known, or weights say them.
    equal: bool,
}

impl Speeds {
    #[expect(clippy::float_cmp, reason = "any other weight was set")]
    fn of(view: &View<'_>) -> Self {
        let (mut all, mut kinds, mut len) = (Group::default(), [Group::default(); KINDS], 0);
        let mut weighted = false;
        for row in view.rows {
            let load = view.load(row);
            weighted |= load.weight != 1.0;
            if load.speed.products <= 0.0 {
                continue;
            }
            all.add(load.speed);
            let at = kinds[..len].iter().position(|group| group.kind == row.kind);
            let at = at.unwrap_or_else(|| {
                if len < KINDS {
                    kinds[len].kind = row.kind;
                    len += 1;
                }
                len - 1
            });
            kinds[at].add(load.speed);
        }
        let fleet = all.sum.get().unwrap_or(FIRST_SPEED);
        for group in &mut kinds[..len] {
            let speed = blend(group.sum, all.mean(fleet), FLEET_WEIGHT);
            group.sum = group.mean(speed);
        }
        Self {
            kinds,
            len,
            fleet,
            equal: weighted || all.workers == 0.0,
        }
    }

    #[inline]
    fn get(&self, row: &Candidate, own: Speed) -> f64 {
        if self.equal {
            return self.fleet;
        }
        let kinds = &self.kinds[..self.len];
        let group = kinds.iter().find(|group| group.kind == row.kind);
        let group = group.or_else(|| kinds.get(KINDS - 1));
        group.map_or(self.fleet, |group| blend(own, group.sum, KIND_WEIGHT))
    }
}

/// What all rows of a view have in common.
struct Common {
    speeds: Speeds,
    /// By how much a token takes longer per token of context.
    per_context: f64,
    running_weight: f64,
    /// Blocks of the prompt.
    own_blocks: f64,
    /// Output tokens that it is expected to have.
    output: f64,
}

impl Adaptive {
    /// The rule.
    #[must_use]
    pub fn new(objective: Objective) -> Self {
        Self { objective }
    }

    fn common(self, view: &View<'_>) -> Common {
        let blocks = view.total_blocks().map_or_else(
            || view.prompt_tokens as f64 / f64::from(view.block_size),
            f64::from,
        );
        Common {
            speeds: Speeds::of(view),
            per_context: view.pace.per_context(),
            running_weight: self.objective.running_weight(),
            own_blocks: blocks,
            output: view
                .expected_output_tokens
                .map_or_else(|| view.pace.output_tokens(), |n| n as f64),
        }
    }
}

/// Share of a worker's KV cache that requests would hold, this one included; 0 if it is not known.
#[inline]
fn kv_use(view: &View<'_>, row: &Candidate, own_blocks: f64) -> f64 {
    if row.kv_blocks == 0 {
        return view.report(row).kv_usage.get().unwrap_or(0.0);
    }
    let held = view.active_blocks(row) + view.load(row).output_blocks;
    (held as f64 + own_blocks) / f64::from(row.kv_blocks)
}

/// What the cost of a row is made of, in tokens.
struct Parts {
    waiting: f64,
    own: f64,
    /// Requests that wait for their first token.
    queued: f64,
    /// The others, by what they count.
    running: f64,
    /// What its own output tokens delay all of them.
    beside: f64,
    /// Share of the KV cache that counts as free.
    free: f64,
    speed: f64,
}

#[inline]
fn parts(view: &View<'_>, common: &Common, row: &Candidate) -> Parts {
    let load = view.load(row);
    let tokens = view.uncached_tokens(row).max(1.0);
    let context = (view.prompt_tokens as f64 - tokens / 2.0).max(0.0);
    let waiting = Prefill {
        tokens: row.pending_prefill_tokens,
        pairs: load.pending_pairs,
    };
    let queued = row.inflight.min(load.pending);
    let free = 1.0 - PRESSURE * kv_use(view, row, common.own_blocks);
    Parts {
        waiting: waiting.work(common.per_context),
        own: tokens * (1.0 + common.per_context * context),
        queued: f64::from(queued),
        running: common.running_weight * f64::from(row.inflight - queued),
        beside: common.running_weight * f64::from(row.inflight) * common.output,
        free: free.max(1.0 / MOST_PRESSURE),
        speed: common.speeds.get(row, load.speed),
    }
}

/// Milliseconds.
#[inline]
fn cost(view: &View<'_>, common: &Common, row: &Candidate) -> f64 {
    let Parts {
        waiting,
        own,
        queued,
        running,
        beside,
        free,
        speed,
    } = parts(view, common, row);
    let work = waiting + own * (1.0 + ASKED_AGAIN + queued + running) + beside;
    per_weight(work / (free * speed), row.weight)
}

impl Rule for Adaptive {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let common = self.common(view);
        // Of equal ones that which has fewer requests; of those that hold nothing, that which was longest without a new prompt.
        let key = |i: usize| {
            let row = &view.rows[i];
            let cold = if row.overlap > 0 {
                0
            } else {
                row.last_cold_pick
            };
            Some((cost(view, &common, row), row.load(), cold))
        };
        let row = lowest_at(view.rows.len(), rng, key).unwrap_or(0);
        Choice::by_cost(view, row)
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        Some(cost(view, &self.common(view), &view.rows[row]))
    }

    fn scores(&self, view: &View<'_>) -> Vec<Known> {
        let common = self.common(view);
        let score = |row| Some(cost(view, &common, row)).into();
        view.rows.iter().map(score).collect()
    }

    /// The sum of all but the last, times the last, is the score.
    fn terms(&self, view: &View<'_>, row: usize) -> Vec<(&'static str, f64)> {
        let common = self.common(view);
        let row = &view.rows[row];
        let parts = parts(view, &common, row);
        let ms = |work: f64| per_weight(work / parts.speed, row.weight);
        vec![
            ("waiting_ms", ms(parts.waiting)),
            ("own_ms", ms(parts.own)),
            ("cache_ms", ms(ASKED_AGAIN * parts.own)),
            ("queued_ms", ms(parts.own * parts.queued)),
            ("running_ms", ms(parts.own * parts.running + parts.beside)),
            ("memory_factor", 1.0 / parts.free),
        ]
    }

    fn records_placement(&self) -> bool {
        true
    }

    fn counts_active_blocks(&self) -> bool {
        true
    }

    fn fresh(&self) -> Box<dyn Rule> {
        Box::new(*self)
    }
}

#[cfg(test)]
#[path = "tests/adaptive.rs"]
mod tests;
