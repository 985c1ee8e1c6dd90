//! The default: the worker on which a request costs the fleet the least time.
//!
//! ```text
//! cost = waiting / speed + 10 * lack * output * step
//!        + ((copied * 2.5 + delaying * (f * queued + w * running) + w * output * (queued + running)) / speed + w * output * step)
//!          / (1 - 0.5 * kv use);  argmin
//! ```
//!
//! | term | meaning | source |
//! |---|---|---|
//! | waiting | prefill that waits on the worker, which the request waits for | bookings |
//! | copied | prefill of the request's uncached tokens, which it waits for too; tokens that recent requests share count by the requests per copy, this one included: as many follow | index, `adaptive/branches.rs` |
//! | 1.5 copied | the tokens that these evict from the cache and others compute again: the second copy has a price | constant |
//! | delaying | as `copied` where no memory is in use, all uncached tokens from half of it on: copies do not last there | kv use |
//! | delaying * queued | the delay of those behind: about as many come while it waits as wait now, three times as many of sub-agents; with the objective `median` times `2 m / (m + w)`, `w` the wait here and `m` its mean over the fleet, so that long prompts join long queues | bookings |
//! | delaying * running | the delay of those that generate; the objective sets the weight `w` | bookings |
//! | output * all | the delay of all by its output tokens, as each is computed together with one of theirs | caller, else those that ended |
//! | output * step | the time of its own tokens there: long on slow devices, in full batches and where prompts are computed all the time | requests that ended |
//! | kv use | blocks of requests that run and of this one, shared ones once, as a share of those there are: blocks that do not fit evict others | bookings, `kv_blocks`, else their mean on other workers; without, a fresh report |
//! | lack | blocks of all in flight and of this one beyond those there are, as a share of these: it waits until so many are freed, and so do those behind | bookings, `kv_blocks` |
//! | speed | prefill per millisecond, beside what first tokens take in any case | first tokens |
//!
//! A request that is computed after a wait longer than answers take finds only those that began in between: the blocks of
//! the others count by `output * step` in that wait.
//!
//! Prefill is counted in tokens, each of which takes longer the more context it attends to; by how much is learned from
//! first tokens (`load/pace.rs`). Speeds are those of the worker's GPU kind, corrected by its own: a worker whose answers
//! come later than its queue explains, for any reason, gets less. Weights that the caller set take the
//! place of speeds.
//!
//! Unknown terms fall out: without `kv_blocks` and reports the division by free memory, without first tokens the
//! speeds, without output tokens their time, without a prompt all but the requests.
//!
//! A row that would copy tokens from a peer first computes the rest, and adds to its own time, as no other request waits
//! for it, that of the copy and 1.5 times that of bringing back what the copy evicts: by another copy, or by computing
//! if that is faster.
//!
//! Pairs of a prefill and a decode worker are weighed in `adaptive/pair.rs`.

#![expect(
    clippy::inline_always,
    reason = "a third of the time of a decision among many workers"
)]

mod branches;
mod pair;
mod speeds;

use std::cell::OnceCell;

use cachelb_core::error::Result;
use cachelb_core::load::{Known, Load, Prefill};
use cachelb_core::rng::Rng;

use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::choice::Choice;
use crate::rule::memo::Memos;
use crate::rule::options::{Configure, Policy, conflict, options};
use crate::rule::pair::{PairChoice, Pairing};
use crate::rule::tiers::{Loading, Loads};
use crate::rule::values::{TierTimes, words};
use crate::rule::view::{Candidate, View, Workers, known, load_of, lowest_at, per_weight};
use crate::rule::{Properties, Rule};
use branches::Branches;
pub use speeds::Speeds;

words!(Objective { Balanced = "balanced", Ttft = "ttft", E2e = "e2e", Median = "median" });

options! {
    /// The worker on which a request costs the fleet the least time, whatever the load, the fleet and the traffic.
    ///
    /// The cost is an estimate in milliseconds: the prefill that waits on the worker and that of the request's own uncached
    /// tokens; the blocks that these evict from the cache; the delay of the requests that run there; all but the wait
    /// cost more the less free KV memory the worker has (`kv_blocks` of `Router.add_worker`), divided by the speed that
    /// first tokens showed; and the wait until there is room. Nothing must be set: without `kv_blocks` KV use is taken
    /// from load reports, and without those it does not count; without first tokens all workers are equally fast.
    /// Weights other than 1 take the place of measured speeds.
    ///
    /// Example:
    ///     >>> policy = Adaptive(seed=1)
    ///     >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
    ///     >>> first.on_complete()
    ///     >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
    ///     >>> again.worker == first.worker, again.reason
    ///     (True, 'prefix')
    pub struct AdaptiveOptions {
        /// The time to minimise: ``ttft``, the time to first tokens; ``e2e``, that of whole answers, so that fewer
        /// prompts are computed beside those that generate; ``balanced``, the lowest geometric mean of the ratios of
        /// median, mean and P99 TTFT and of whole answers to the best of any policy; ``median``, the typical request:
        /// as ``balanced``, but long prompts are sent to where requests wait already, which bounds what a short one
        /// pays for them and makes the longest waits longer.
        objective: Objective = Objective::Balanced;
        /// Milliseconds that loading takes per prompt token, by medium: ``{"cpu": 0.003, "disk": 0.015}``. Blocks there
        /// then count by the part of their computing, as first tokens measured it, that loading saves. A medium left out
        /// counts 0.8 ("cpu") or 0.3 ("disk") of device memory.
        load_ms_per_token: Option<TierTimes> = None;
        /// Milliseconds before the first token is loaded, by medium; only with `load_ms_per_token` of the same one.
        load_startup_ms: Option<TierTimes> = None;
    }
}

/// The policy.
pub(crate) const POLICY: Policy =
    Policy::of::<AdaptiveOptions>(About::placed("adaptive", "Adaptive"));

impl Configure for AdaptiveOptions {
    fn ruled(&self, _setup: &Setup) -> Result<Ruled> {
        let (per_token, startup) = (self.load_ms_per_token, self.load_startup_ms);
        let (per_token, startup) = (per_token.unwrap_or_default(), startup.unwrap_or_default());
        let loading = |medium, ms_per_token: Option<f64>, startup_ms: Option<f64>| {
            if ms_per_token.is_none() && startup_ms.is_some() {
                let text = format!("load_startup_ms of {medium:?} needs load_ms_per_token of it");
                return Err(conflict(text));
            }
            Ok(Loading {
                ms_per_token,
                startup_ms: startup_ms.unwrap_or(0.0),
            })
        };
        let loads = Loads {
            cpu: loading("cpu", per_token.cpu, startup.cpu)?,
            disk: loading("disk", per_token.disk, startup.disk)?,
        };
        let rule = Adaptive::new(self.objective).with_loads(loads);
        Ok(Ruled::new(rule, Need::BLOCKS))
    }
}

/// The time to minimise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Objective {
    /// The time to first tokens and that of whole answers.
    #[default]
    Balanced,
    /// The time to first tokens.
    Ttft,
    /// The time of whole answers.
    E2e,
    /// The time to first tokens of the typical request.
    Median,
}

impl Objective {
    /// The cost of a token of prefill to each request that generates meanwhile.
    fn running_weight(self) -> f64 {
        match self {
            Self::Balanced | Self::Median => 0.3,
            Self::Ttft => 0.1,
            Self::E2e => 1.0,
        }
    }
}

/// How often a prefix that a prompt evicts from a cache is requested again.
const ASKED_AGAIN: f64 = 1.5;
/// More children that will wait on a worker for each one that waits there: agents start several at once.
const SIBLINGS: f64 = 3.0;
/// How steeply the cost rises with KV use: it doubles when the memory is full.
const PRESSURE: f64 = 0.5;
/// The share of memory in use from which on it is short.
const SHORT: f64 = 0.5;
/// Upper bound of the factor for KV use, since running requests and this one may exceed the memory.
const MOST_PRESSURE: f64 = 20.0;
/// How often the wait for room counts: for this request and for those behind it.
const WAITS_FOR_ROOM: f64 = 10.0;
/// Milliseconds of a prompt larger than the memory.
const NO_ROOM_MS: f64 = 1e12;

/// The rule.
#[derive(Debug, Clone, Default)]
pub struct Adaptive {
    objective: Objective,
    loads: Loads,
    branches: Branches,
}

/// The terms that all rows of a view have in common.
struct Common<'a> {
    speeds: Speeds,
    /// By how much a token takes longer per token of context.
    per_context: f64,
    running_weight: f64,
    /// Blocks of the prompt.
    own_blocks: f64,
    rows: &'a [Candidate],
    /// Blocks of a worker whose own number is not known: the mean of the others, 0 without any. Read by such rows alone.
    usual_blocks: OnceCell<f64>,
    /// Leading tokens that recent requests share with it, and its share of the cost of one more copy of them.
    popular: f64,
    copy_share: f64,
    /// Output tokens that it is expected to have.
    output: f64,
    /// Requests that will wait behind this one for each that waits now.
    followers: f64,
    /// The mean wait, in milliseconds, if a delay counts the less the longer the delayed wait already; 0 otherwise.
    mean_wait_ms: f64,
}

impl Adaptive {
    /// The rule.
    #[must_use]
    pub const fn new(objective: Objective) -> Self {
        Self {
            objective,
            loads: Loads::UNKNOWN,
            branches: Branches::NONE,
        }
    }

    /// Sets the times that loading takes.
    #[must_use]
    pub fn with_loads(self, loads: Loads) -> Self {
        Self { loads, ..self }
    }

    fn costs(&self, view: &View<'_>) -> Vec<f64> {
        let common = self.common(view);
        if view.copies.is_empty() {
            let cost = |row| total(&parts(view, &common, row, 0.0), row);
            return view.rows.iter().map(cost).collect();
        }
        let rows = view.rows.iter().enumerate();
        let cost = |(at, row)| total(&parts_at(view, &common, at).0, row);
        rows.map(cost).collect()
    }

    fn common<'a>(&self, view: &View<'a>) -> Common<'a> {
        self.common_of(view, [view.workers()])
    }

    /// The terms of `view`; speeds and waits are those of all `workers`.
    fn common_of<'a, const N: usize>(
        &self,
        view: &View<'a>,
        workers: [Workers<'_>; N],
    ) -> Common<'a> {
        let (speeds, per_context) = (Speeds::of(workers), view.pace.per_context());
        let mean_wait_ms = match self.objective {
            Objective::Median => mean_wait_ms(&speeds, per_context, &workers),
            _ => 0.0,
        };
        let blocks = view.total_blocks().map_or_else(
            || view.prompt_tokens as f64 / f64::from(view.block_size),
            f64::from,
        );
        let (shared, requests) = self.branches.at(view);
        // Up to one request, the share is 1 however many copies there are: the usual case does without a pass over rows.
        let holders = if requests > 1.0 { view.rows } else { &[] };
        let copies = holders.iter().filter(|row| row.overlap >= shared).count();
        let per_copy = requests / (copies + 1) as f64;
        Common {
            speeds,
            per_context,
            running_weight: self.objective.running_weight(),
            own_blocks: blocks,
            rows: view.rows,
            usual_blocks: OnceCell::new(),
            popular: view.tokens_of(shared.into()) as f64,
            copy_share: 1.0 / per_copy.max(1.0),
            output: view
                .expected_output_tokens
                .map_or_else(|| view.pace.output_tokens(), |n| n as f64),
            followers: if view.is_child { SIBLINGS } else { 1.0 },
            mean_wait_ms,
        }
    }
}

/// Prefill that waits on the worker of a row, in tokens.
#[inline]
fn waiting(row: &Candidate, load: &Load, per_context: f64) -> f64 {
    let prefill = Prefill {
        tokens: row.pending_prefill_tokens,
        pairs: load.pending_pairs,
    };
    prefill.work(per_context)
}

/// The mean over all rows of the time that prefill waits there.
fn mean_wait_ms(speeds: &Speeds, per_context: f64, workers: &[Workers<'_>]) -> f64 {
    let wait_ms = |(row, load)| waiting(row, load, per_context) * speeds.token_ms(row, load);
    let rows = workers
        .iter()
        .flat_map(|&(rows, loads)| rows.iter().map(move |row| (row, load_of(loads, row))));
    let (sum, count) = rows.fold((0.0, 0.0), |(sum, count), each| {
        (sum + wait_ms(each), count + 1.0)
    });
    sum / f64::max(count, 1.0)
}

fn usual_blocks(rows: &[Candidate]) -> f64 {
    let sizes = rows.iter().map(|row| u64::from(row.kv_blocks));
    let (sum, known) = sizes.fold((0, 0_u32), |(sum, known), size| {
        (sum + size, known + u32::from(size > 0))
    });
    sum as f64 / f64::from(known.max(1))
}

/// By how much the cost of a row rises with the share of its KV cache that is in use, 1 if that is not known; and the
/// milliseconds until there is room for a request that is computed after `wait_ms` and stays for `stay_ms`.
#[inline(always)]
fn room(
    view: &View<'_>,
    common: &Common<'_>,
    (row, load): (&Candidate, &Load),
    (wait_ms, stay_ms): (f64, f64),
) -> (f64, f64) {
    let factor = |used: f64, all: f64| (all / (all - PRESSURE * used).max(0.0)).min(MOST_PRESSURE);
    let mut all = f64::from(row.kv_blocks);
    if row.kv_blocks == 0 {
        all = *(common.usual_blocks).get_or_init(|| usual_blocks(common.rows));
    }
    if all <= 0.0 {
        let used = view.report(row).kv_usage.get().unwrap_or(0.0);
        return (factor(used, 1.0), 0.0);
    }
    let own_blocks = common.own_blocks;
    let still_there = if stay_ms > 0.0 && wait_ms > stay_ms {
        share(stay_ms, wait_ms)
    } else {
        1.0
    };
    // Signed numbers are converted by one instruction.
    let blocks = |count: u64| count.cast_signed() as f64;
    let (prompts, outputs) = (blocks(view.active_blocks(row)), blocks(load.output_blocks));
    let begun = match load.pending {
        0 => prompts,
        _ => prompts * load.begun_share(),
    };
    let used = still_there * (begun + outputs) + own_blocks;
    let lack = still_there * (prompts + outputs) + own_blocks - all;
    let mut room_ms = 0.0;
    if lack > 0.0 {
        room_ms = WAITS_FOR_ROOM * stay_ms * lack / all;
        if own_blocks > all {
            room_ms += NO_ROOM_MS;
        }
    }
    (factor(used, all), room_ms)
}

/// A function of its own, so that the rows that need no division, which are most, do not wait for one.
#[cold]
fn share(part: f64, whole: f64) -> f64 {
    part / whole
}

/// The parts of a row's cost, in tokens.
struct Parts {
    waiting: f64,
    own: f64,
    /// As `own`, without most of the tokens that are computed for others too.
    copied: f64,
    /// Those by which it delays others.
    delaying: f64,
    /// Requests that wait for their first token.
    queued: f64,
    /// Requests that will wait behind this one for each of them.
    followers: f64,
    /// The others, times their weight.
    running: f64,
    /// The delay of all of them by its own output tokens.
    beside: f64,
    /// By how much all but waiting costs more the less room there is.
    memory_factor: f64,
    /// Milliseconds until there is room, as often as they count.
    room_ms: f64,
    /// Milliseconds of a token of prefill.
    token_ms: f64,
    /// Milliseconds of its own tokens after the first, times their weight.
    decoding: f64,
}

/// Without so many tokens that it copies from a peer.
#[inline(always)]
fn parts(view: &View<'_>, common: &Common<'_>, row: &Candidate, copied: f64) -> Parts {
    let load = view.load(row);
    let tokens = (view.uncached_tokens(row) - copied).max(1.0);
    let context = (view.prompt_tokens as f64 - tokens / 2.0).max(0.0);
    let waiting = waiting(row, load, common.per_context);
    let queued = row.inflight.min(load.pending);
    let token = 1.0 + common.per_context * context;
    let cached = view.prompt_tokens as f64 - tokens;
    let popular = (common.popular - cached).clamp(0.0, tokens);
    let (token_ms, step_ms) = common.speeds.ms(row, load);
    let answer_ms = common.output * step_ms;
    let times = (waiting * token_ms, answer_ms);
    let (memory_factor, room_ms) = room(view, common, (row, load), times);
    // Where memory is short, copies do not last until others use them.
    let used = (1.0 - 1.0 / memory_factor) / PRESSURE;
    let lasting = popular * (1.0 - common.copy_share) * (1.0 - used / SHORT).max(0.0);
    let mut followers = common.followers;
    if common.mean_wait_ms > 0.0 {
        followers *= 2.0 * common.mean_wait_ms / (common.mean_wait_ms + waiting * token_ms);
    }
    Parts {
        waiting,
        own: tokens * token,
        copied: (tokens - popular * (1.0 - common.copy_share)) * token,
        delaying: (tokens - lasting) * token,
        queued: f64::from(queued),
        followers,
        running: common.running_weight * f64::from(row.inflight - queued),
        beside: common.running_weight * f64::from(row.inflight) * common.output,
        memory_factor,
        room_ms,
        token_ms,
        decoding: common.running_weight * answer_ms,
    }
}

/// The parts of the row at `at`, and the milliseconds of its copy from a peer, which are among `decoding`: those until it
/// is there, and those to bring back what it evicts, which a worker copies again or computes.
fn parts_at(view: &View<'_>, common: &Common<'_>, at: usize) -> (Parts, f64) {
    let row = &view.rows[at];
    let computing = parts(view, common, row, 0.0);
    let Some(copy) = view.copies.get(at).filter(|copy| copy.tokens > 0) else {
        return (computing, 0.0);
    };
    let mut rest = parts(view, common, row, copy.tokens as f64);
    let back_ms = copy.ms.min((computing.own - rest.own) * rest.token_ms);
    let ms = copy.ms + ASKED_AGAIN * back_ms;
    rest.decoding += ms;
    if total(&computing, row) <= total(&rest, row) {
        return (computing, 0.0);
    }
    (rest, ms)
}

/// Milliseconds.
#[inline]
fn total(parts: &Parts, row: &Candidate) -> f64 {
    let others = parts.followers * parts.queued + parts.running;
    let work = parts.copied * (1.0 + ASKED_AGAIN) + parts.delaying * others + parts.beside;
    let rest_ms = (work * parts.token_ms + parts.decoding) * parts.memory_factor;
    let ms = parts.waiting * parts.token_ms + rest_ms + parts.room_ms;
    // By the smallest weights it would be infinite, and an infinite one is never picked.
    per_weight(ms, row.weight).min(f64::MAX)
}

/// Index of the lowest of the rows' costs, infinite for a row that is not to be picked. Ties go to the row with fewer
/// requests, then to the home of the request, then, among rows that hold nothing, to the one longest without a new
/// prompt.
fn cheapest(view: &View<'_>, costs: &[f64], rng: &mut Rng) -> Option<usize> {
    let rows = view.rows;
    let lesser = |lowest, &cost: &f64| if cost < lowest { cost } else { lowest };
    let lowest = costs.iter().fold(f64::INFINITY, lesser);
    lowest_at(rows.len(), rng, |i| {
        let is_lowest = costs[i] <= lowest && lowest < f64::INFINITY;
        let row = rows.get(i).filter(|_| is_lowest)?;
        let cold = row.last_cold_pick * u64::from(row.overlap == 0);
        Some((row.load(), view.home != Some(row.order), cold))
    })
}

impl Rule for Adaptive {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let costs = self.costs(view);
        let row = cheapest(view, &costs, rng).unwrap_or(0);
        view.leave_scores(costs);
        Choice::by_cost(view, row)
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        let (parts, _) = parts_at(view, &self.common(view), row);
        Some(total(&parts, &view.rows[row]))
    }

    fn scores(&self, view: &View<'_>) -> Vec<Known> {
        known(self.costs(view))
    }

    fn properties(&self) -> Properties {
        Properties {
            counts_active_blocks: true,
            weighs_pairs: true,
            loads: Some(self.loads),
            weighs_copies: true,
            ..Properties::PLACED
        }
    }

    fn settled(&mut self, view: &View<'_>, _: Choice, _: usize, _: &mut Memos<'_>) {
        self.branches.add(view);
    }

    /// Their sum is the score.
    fn terms(&self, view: &View<'_>) -> Vec<Vec<(&'static str, f64)>> {
        let common = self.common(view);
        let terms = |(at, row): (usize, &Candidate)| {
            let (parts, copy_ms) = parts_at(view, &common, at);
            let ms = |work: f64| per_weight(work * parts.token_ms, row.weight);
            let waiting = ms(parts.waiting);
            let mut terms = vec![
                ("waiting_ms", waiting),
                ("own_ms", ms(parts.copied)),
                ("cache_ms", ms(ASKED_AGAIN * parts.copied)),
                (
                    "queued_ms",
                    ms(parts.delaying * parts.followers * parts.queued),
                ),
                (
                    "running_ms",
                    ms(parts.delaying * parts.running + parts.beside),
                ),
                (
                    "decoding_ms",
                    per_weight(parts.decoding - copy_ms, row.weight),
                ),
            ];
            if copy_ms > 0.0 {
                terms.push(("copy_ms", per_weight(copy_ms, row.weight)));
            }
            let sum: f64 = terms.iter().map(|(_, ms)| ms).sum();
            let room_ms = per_weight(parts.room_ms, row.weight);
            terms.push((
                "memory_ms",
                (sum - waiting) * (parts.memory_factor - 1.0) + room_ms,
            ));
            terms
        };
        view.rows.iter().enumerate().map(terms).collect()
    }

    fn choose_pair(&self, pairing: &Pairing<'_>, rng: &mut Rng) -> Option<PairChoice> {
        pair::choose(self, pairing, rng)
    }
}

#[cfg(test)]
#[path = "../tests/adaptive.rs"]
mod tests;

#[cfg(test)]
#[path = "../tests/adaptive_shared.rs"]
mod shared_tests;
