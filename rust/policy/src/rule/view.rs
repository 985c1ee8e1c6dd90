//! The input of a rule: one row per eligible candidate, and the picks every rule shares.

use std::cell::RefCell;

use cachelb_core::ids::{Millis, SequenceHash};
use cachelb_core::load::{Known, Load, Named, Pace, Report};
use cachelb_core::rng::Rng;

use crate::rule::length::Length;
use crate::rule::reason::Reason;

/// One eligible candidate of one request, its load read before the request is added.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Candidate {
    /// Registration order; names the worker across requests.
    pub order: u64,
    /// Logical time of the last cold pick, 0 for never.
    pub last_cold_pick: u64,
    /// Relative capacity.
    pub weight: f64,
    /// Prompt tokens it need not compute: overlap by the credits of where the blocks lie, short of the last token.
    pub matched_tokens: f64,
    /// Uncached prompt tokens waiting for a first token.
    pub pending_prefill_tokens: u64,
    /// Position in the caller's list.
    pub offer: u32,
    /// Slot of its columns in [`View::loads`], [`Candidate::NO_SLOT`] for a worker that has none yet.
    pub slot: u32,
    /// Leading blocks of the request it holds, wherever they lie.
    pub overlap: u32,
    /// Requests booked and not closed, and those of others that a fresh report counts beyond them.
    pub inflight: u32,
    /// Blocks that its KV cache holds, 0 if it is not known.
    pub kv_blocks: u32,
    /// Equal for workers of one kind of GPU, 0 if it is not known.
    pub kind: u32,
}

impl Candidate {
    /// A worker without columns.
    pub const NO_SLOT: u32 = u32::MAX;

    /// A worker that was never picked and holds nothing.
    #[must_use]
    pub fn unseen(order: u64, offer: u32, slot: u32) -> Self {
        Self {
            order,
            last_cold_pick: 0,
            weight: 1.0,
            matched_tokens: 0.0,
            pending_prefill_tokens: 0,
            offer,
            slot,
            overlap: 0,
            inflight: 0,
            kv_blocks: 0,
            kind: 0,
        }
    }

    /// Requests in flight per unit of weight.
    #[must_use]
    pub fn load(&self) -> f64 {
        per_weight(f64::from(self.inflight), self.weight)
    }
}

/// Numbers that are known.
pub(crate) fn known(numbers: Vec<f64>) -> Vec<Known> {
    let known = |number| Known::from(Some(number));
    numbers.into_iter().map(known).collect()
}

/// `value / weight`. Most workers have a weight of 1, and to divide takes longer than to see that.
#[expect(clippy::float_cmp, reason = "anything but 1 is divided by")]
pub(crate) fn per_weight(value: f64, weight: f64) -> f64 {
    if weight == 1.0 { value } else { value / weight }
}

/// Where one candidate can read the request's blocks: a run on the device from block 0, then the segments `[start, end)`
/// in blocks that continue it, each from the end of the one before. A block in two media belongs to the faster one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Media {
    /// Leading blocks in device memory.
    pub gpu: u32,
    /// From there on, in host memory.
    pub cpu: (u32, u32),
    /// From there on, on disk.
    pub disk: (u32, u32),
    /// From there on, in a store outside the worker.
    pub external: (u32, u32),
    /// Blocks beyond the device run that such a store holds, those in other media and behind gaps too.
    pub shared: u32,
}

impl Media {
    /// All in device memory.
    #[must_use]
    pub fn on_device(blocks: u32) -> Self {
        let nowhere = (blocks, blocks);
        Self {
            gpu: blocks,
            cpu: nowhere,
            disk: nowhere,
            external: nowhere,
            shared: 0,
        }
    }

    /// Leading blocks held, wherever they lie.
    #[must_use]
    pub fn reached(&self) -> u32 {
        self.own().max(self.external.1)
    }

    /// Leading blocks that the worker itself holds.
    #[must_use]
    pub fn own(&self) -> u32 {
        self.gpu.max(self.cpu.1).max(self.disk.1)
    }
}

/// A copy from a peer that comes before computing; of no tokens if computing all is better.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PeerCopy {
    /// Prompt tokens.
    pub tokens: u64,
    /// Milliseconds until it is there.
    pub ms: f64,
}

/// The prompt as it was given, as far as a rule asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Content<'a> {
    /// No rule asked, or only hashes were given.
    #[default]
    Hidden,
    /// Token ids; those that stand for an object differ with the object.
    Tokens(&'a [u32]),
    /// Text in UTF-8.
    Text(&'a [u8]),
}

/// Everything a rule may look at. Rules are pure: the same view and generator give the same choice.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The candidates, never empty, in the caller's order.
    pub rows: &'a [Candidate],
    /// The most leading blocks that any of them holds.
    pub best_overlap: u32,
    /// Load columns by slot.
    pub loads: &'a [Load],
    /// By slot, requests without a first token whose prompt another worker computes; may be shorter than the slots.
    pub apart: &'a [u32],
    /// How the time of prompts grows with their context.
    pub pace: Pace,
    /// The blocks that requests in flight hold, if they are counted.
    pub active: Option<Active<'a>>,
    /// Where the rows' blocks lie, row by row; empty if all lie in device memory.
    pub media: &'a [Media],
    /// The copy that each row would make from a peer first, row by row; empty without peers.
    pub copies: &'a [PeerCopy],
    /// Names by [`Candidate::offer`].
    pub names: &'a dyn Names,
    /// Chained hashes of the prompt's full blocks, `None` if neither tokens, text nor blocks were given.
    pub blocks: Option<&'a [SequenceHash]>,
    /// The prompt itself, for rules that compare more than blocks.
    pub content: Content<'a>,
    /// Identity of the adapter, salt or model, which keeps its content apart from that of all others; 0 for none.
    pub identity: u32,
    /// Where the prompt's messages end, in full blocks: rising, from 1 to the number of blocks; empty if unknown.
    pub boundaries: &'a [u32],
    /// Tokens per block.
    pub block_size: u32,
    /// Length of the prompt, 0 if unknown.
    pub prompt_tokens: u64,
    /// Length of the prompt in the units of its blocks, if those are of text; 0 for as many as tokens.
    pub prompt_units: u64,
    /// The key that hashing policies hash, `None` if the request has none.
    pub key: Option<&'a [u8]>,
    /// Whether [`View::key`] is a session the caller named, not the head of the prompt.
    pub key_is_session: bool,
    /// Registration order of the worker that served the conversation last, else its siblings, else its parent.
    pub home: Option<u64>,
    /// Whether another conversation began this one, most likely beside others.
    pub is_child: bool,
    /// Output tokens the caller expects.
    pub expected_output_tokens: Option<u64>,
    /// The current time.
    pub now: Millis,
    /// Reports older than this are stale.
    pub max_report_age_ms: u64,
    /// Takes the scores that the rows were ranked by, `None` if they are not wanted.
    pub scores: Option<&'a Scores>,
}

/// The scores of all rows, left by a rule that ranks every row as it chooses: explanations need not compute them again.
#[derive(Debug, Default)]
pub struct Scores(RefCell<Vec<Known>>);

impl Scores {
    /// The scores left since the last call, `None` without any.
    #[must_use]
    pub fn take(&self) -> Option<Vec<Known>> {
        Some(self.0.take()).filter(|scores| !scores.is_empty())
    }
}

/// The blocks of requests in flight, of the model that the request is for.
#[derive(Debug, Clone, Copy)]
pub struct Active<'a> {
    /// Blocks that they named.
    pub named: &'a Named,
    /// Keeps the blocks of one model apart from those of another.
    pub namespace: u32,
    /// Whether requests in flight hold any of this one's blocks.
    pub is_shared: bool,
}

impl View<'_> {
    /// The view for a rule inside another, which ranks the rows by something else.
    pub(crate) fn unscored(&self) -> Self {
        Self {
            scores: None,
            ..*self
        }
    }

    /// Leaves the scores of all rows, which are those of [`Rule::scores`](crate::rule::Rule::scores).
    pub(crate) fn leave_scores(&self, scores: Vec<f64>) {
        if let Some(left) = self.scores {
            left.0.replace(known(scores));
        }
    }

    /// Blocks that requests in flight on the worker of a row hold beside those of this request, each counted once.
    #[must_use]
    #[inline]
    pub fn active_blocks(&self, row: &Candidate) -> u64 {
        let all = self.load(row).active_blocks;
        match &self.active {
            Some(active) if active.is_shared => all - self.shared_blocks(active, row),
            _ => all,
        }
    }

    /// Those of this request that others hold there.
    #[inline(never)]
    fn shared_blocks(&self, active: &Active<'_>, row: &Candidate) -> u64 {
        let path = (active.namespace, self.blocks.unwrap_or_default());
        active.named.shared_blocks(row.slot, path, 1)
    }

    /// Full blocks of the prompt, `None` if it is unknown.
    #[must_use]
    pub fn total_blocks(&self) -> Option<u32> {
        self.blocks.map(|blocks| blocks.len() as u32)
    }

    /// Why the prompt matches no block, if it has no full one.
    pub(crate) fn unmatchable(&self) -> Option<Reason> {
        match self.total_blocks() {
            None => Some(Reason::NoKey),
            Some(0) => Some(Reason::ShortPrompt),
            Some(_) => None,
        }
    }

    /// The columns of a row.
    #[must_use]
    pub fn load(&self, row: &Candidate) -> &Load {
        load_of(self.loads, row)
    }

    /// The rows, and their load columns.
    #[must_use]
    pub fn workers(&self) -> Workers<'_> {
        (self.rows, self.loads)
    }

    /// The engine report of a row, or an empty one if it is too old.
    #[must_use]
    pub fn report(&self, row: &Candidate) -> &Report {
        static NONE: Report = Report::NONE;
        let report = &self.load(row).report;
        if self.is_fresh(report) { report } else { &NONE }
    }

    /// Whether a row has a report that is too old to use.
    #[must_use]
    pub fn is_stale(&self, row: &Candidate) -> bool {
        let report = &self.load(row).report;
        report.is_known() && !self.is_fresh(report)
    }

    fn is_fresh(&self, report: &Report) -> bool {
        self.now.0.saturating_sub(report.at.0) <= self.max_report_age_ms
    }

    /// Tokens of so many leading blocks of the prompt.
    #[must_use]
    pub fn tokens_of(&self, blocks: u64) -> u64 {
        let length = Length::new(self.prompt_tokens, self.prompt_units);
        length.tokens_of(blocks * u64::from(self.block_size))
    }

    /// Prompt tokens a row would have to compute, at least 1 of a prompt that has any.
    #[must_use]
    pub fn uncached_tokens(&self, row: &Candidate) -> f64 {
        ceil(self.prompt_tokens as f64 - row.matched_tokens)
    }

    /// Prompt tokens to compute on the worker of a row times its batch, by weight: a token of this prompt counts `times`,
    /// and `others` requests beside its own.
    pub(crate) fn prefill_times_batch(&self, row: &Candidate, times: f64, others: f64) -> f64 {
        let own = self.uncached_tokens(row).max(1.0) * times;
        let tokens = row.pending_prefill_tokens as f64 + own;
        tokens * (f64::from(row.inflight) + 1.0 + others) / row.weight
    }
}

/// Rows, and load columns by slot.
pub type Workers<'a> = (&'a [Candidate], &'a [Load]);

/// The columns of a row.
#[must_use]
#[inline]
pub fn load_of<'a>(loads: &'a [Load], row: &Candidate) -> &'a Load {
    static VACANT: Load = Load::VACANT;
    loads.get(row.slot as usize).unwrap_or(&VACANT)
}

/// Names of the workers a caller offers.
pub trait Names: std::fmt::Debug {
    /// The key of the worker at `offer`.
    fn name(&self, offer: u32) -> &str;
}

impl<const N: usize> Names for [&str; N] {
    fn name(&self, offer: u32) -> &str {
        self[offer as usize]
    }
}

/// `value` rounded up. The processors that wheels are built for have no instruction for it, and calling a function for
/// every row takes a third of the time of a rule.
pub(crate) fn ceil(value: f64) -> f64 {
    // From here on every value is whole.
    const WHOLE: f64 = 4_503_599_627_370_496.0;
    if value.abs() < WHOLE {
        let towards_zero = value as i64 as f64;
        towards_zero + f64::from(u8::from(towards_zero < value))
    } else {
        value
    }
}

/// Index of the row with the lowest `cost`; equal ones are drawn uniformly.
///
/// `cost` must be totally ordered on the rows `keep` admits; `None` if it admits none.
pub(crate) fn lowest<K: PartialOrd + Copy>(
    rows: &[Candidate],
    rng: &mut Rng,
    keep: impl Fn(&Candidate) -> bool,
    cost: impl Fn(&Candidate) -> K,
) -> Option<usize> {
    lowest_at(rows.len(), rng, |i| keep(&rows[i]).then(|| cost(&rows[i])))
}

/// The least and the greatest of the values.
#[cfg(feature = "published")]
pub(crate) fn extremes(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// Index of the cheapest of the rows that `keep` admits, by the costs of all rows; among equals the least loaded.
#[cfg(feature = "published")]
pub(crate) fn cheapest(
    rows: &[Candidate],
    costs: &[f64],
    rng: &mut Rng,
    keep: impl Fn(&Candidate) -> bool,
) -> Option<usize> {
    lowest_at(rows.len(), rng, |i| {
        let row = &rows[i];
        keep(row).then(|| (costs[i], row.load()))
    })
}

/// As [`lowest`], by index: the one of `0..n` with the lowest `cost`, leaving out those without any.
///
/// Costs are kept, and ties counted apart from the search: where many rows cost the same, a branch on each is often
/// mispredicted.
pub(crate) fn lowest_at<K: PartialOrd + Copy>(
    n: usize,
    rng: &mut Rng,
    cost: impl Fn(usize) -> Option<K>,
) -> Option<usize> {
    let mut costs = Vec::with_capacity(n);
    costs.extend((0..n).filter_map(|i| Some((i, cost(i)?))));
    let lesser = |lowest, &(_, own): &_| if own < lowest { own } else { lowest };
    let lowest = costs.iter().fold(costs.first()?.1, lesser);
    let ties = costs.iter().filter(|(_, own)| *own == lowest).count();
    let mut before = if ties < 2 { 0 } else { rng.below(ties) };
    let drawn = costs.iter().find(|(_, own)| {
        let equal = *own == lowest;
        let found = equal && before == 0;
        before = before.wrapping_sub(usize::from(equal));
        found
    });
    drawn.map(|&(i, _)| i)
}

/// Index drawn with probability proportional to `weight`, which must be finite, 0 or more, and positive somewhere.
pub(crate) fn draw(rows: &[Candidate], rng: &mut Rng, weight: impl Fn(&Candidate) -> f64) -> usize {
    draw_at(rows.len(), rng, |i| weight(&rows[i]))
}

/// As [`draw`], by index: one of `0..n`.
pub(crate) fn draw_at(n: usize, rng: &mut Rng, weight: impl Fn(usize) -> f64) -> usize {
    let total: f64 = (0..n).map(&weight).sum();
    let mut left = rng.unit() * total;
    let mut last = 0;
    for i in 0..n {
        let own = weight(i);
        if own > 0.0 {
            last = i;
            left -= own;
            if left < 0.0 {
                break;
            }
        }
    }
    last
}

/// The least loaded row; among equals the one whose last cold pick is longest ago, never picked first.
pub(crate) fn cold_spread(rows: &[Candidate], rng: &mut Rng) -> usize {
    lowest(rows, rng, |_| true, |row| (row.load(), row.last_cold_pick)).unwrap_or(0)
}

/// Mean load of the candidates.
pub(crate) fn mean_load(rows: &[Candidate]) -> f64 {
    rows.iter().map(Candidate::load).sum::<f64>() / rows.len() as f64
}

/// Whether all candidates have the same capacity.
pub(crate) fn weights_are_equal(rows: &[Candidate]) -> bool {
    let first = rows.first().map_or(0, |row| row.weight.to_bits());
    rows.iter().all(|row| row.weight.to_bits() == first)
}

#[cfg(test)]
mod tests {
    use super::ceil;

    #[test]
    fn rounding_up_is_that_of_the_library() {
        let mut values = vec![0.0, 0.5, 1.0, 512.0, 1e15 + 0.5, 4.6e15, 1e300];
        values.extend(values.clone().iter().map(|value| -value));
        for i in 0..10_000 {
            values.push(f64::from(i).mul_add(0.37, -1_000.0));
        }
        for value in values {
            assert!((ceil(value) - value.ceil()).abs() < f64::EPSILON, "{value}");
        }
        assert!(ceil(f64::NAN).is_nan() && ceil(f64::INFINITY).is_infinite());
    }
}
