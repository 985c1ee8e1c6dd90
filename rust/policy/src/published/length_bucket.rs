//! Every worker serves prompts of its own range of lengths, so that short ones do not wait behind long ones.
//!
//! ```text
//! length unknown                                        -> cold spread (no-key)
//! window loads out of balance, by both thresholds       -> least loaded of the window (imbalance)
//! else the worker of the range that holds the length    -> length-bucket
//! ```
//!
//! The window holds the prompt tokens sent to each worker lately. Ranges are equal parts of `l_max` at first, the last
//! one open. After every interval they are cut anew so that each takes an equal part of the window's tokens, if the
//! traffic has doubled or halved since the last cut. Ranges follow the order of registration; that of a worker which is
//! not among the rows is served by its neighbours. Workers that come or go start over with equal parts.

mod options;

use std::borrow::Cow;
use std::collections::VecDeque;

use cachelb_core::ids::Millis;
use cachelb_core::rng::Rng;

pub use self::options::LengthBucketOptions;
pub(crate) use self::options::POLICY;
use crate::common::slots::Slots;
use crate::rule::Rule;
use crate::rule::choice::Choice;
use crate::rule::memo::Memos;
use crate::rule::parts::{State, state};
use crate::rule::reason::Reason;
use crate::rule::view::{Candidate, View, cold_spread, extremes, lowest_at, per_weight};

#[derive(Debug, Clone, Copy)]
struct Member {
    order: u64,
    slot: u32,
    weight: f64,
    /// Tokens sent to it within the window.
    tokens: u64,
}

/// The workers seen, by order of registration, and where their ranges end.
#[derive(Debug, Clone, Default)]
struct Buckets {
    members: Vec<Member>,
    slots: Slots,
    /// First length beyond the range of each worker but the last.
    cuts: Vec<u64>,
}

impl Buckets {
    /// Notes the weights of the rows' members. Returns whether all of them have one.
    fn weigh(&mut self, rows: &[Candidate]) -> bool {
        let (members, slots) = (&mut self.members, &self.slots);
        rows.iter().all(|row| {
            let member = slots.find(row).map(|at| &mut members[at]);
            member.is_some_and(|member| {
                member.weight = row.weight;
                true
            })
        })
    }

    fn position(&self, order: u64) -> Option<usize> {
        self.members.binary_search_by_key(&order, |m| m.order).ok()
    }

    /// Index of the member behind `row`, which must be covered. A row of a dry run may lack a slot.
    fn member(&self, row: &Candidate) -> usize {
        let at = self.slots.find(row).or_else(|| self.position(row.order));
        at.unwrap_or(0)
    }

    /// Adds the workers it lacks, and starts over with equal ranges.
    fn add(&mut self, rows: &[Candidate], l_max: u64) {
        for row in rows {
            if self.position(row.order).is_none() {
                let member = Member {
                    order: row.order,
                    slot: row.slot,
                    weight: row.weight,
                    tokens: 0,
                };
                let at = self.members.partition_point(|m| m.order < row.order);
                self.members.insert(at, member);
            }
        }
        self.reset(l_max);
    }

    fn reset(&mut self, l_max: u64) {
        self.slots.clear();
        for (at, member) in self.members.iter().enumerate() {
            self.slots.set(member.slot, member.order, at);
        }
        let n = self.members.len() as u64;
        self.cuts = (1..n).map(|i| l_max * i / n).collect();
    }

    /// Cuts so that `lengths`, sorted, load every worker in proportion to its weight.
    fn cut(&mut self, lengths: &[u64]) {
        let weights: f64 = self.members.iter().map(|m| m.weight).sum();
        let total = lengths.iter().sum::<u64>() as f64;
        let mut lengths = lengths.iter();
        let (mut below, mut share, mut cut) = (0, 0.0, 0);
        for (end, member) in self.cuts.iter_mut().zip(&self.members) {
            share += member.weight / weights;
            while (below as f64) < total * share {
                let Some(&length) = lengths.next() else { break };
                below += length;
                cut = length + 1;
            }
            *end = cut;
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Millis,
    order: u64,
    tokens: u64,
}

/// The rule, its window and its ranges.
#[derive(Debug)]
pub struct LengthBucket {
    options: LengthBucketOptions,
    buckets: Buckets,
    window: VecDeque<Sent>,
    last_cut: Millis,
    /// Tokens per worker in the window of the latest cut; 0 for ranges that no prompts have shaped.
    cut_load: f64,
}

impl LengthBucket {
    /// A rule that has seen no worker.
    #[must_use]
    pub fn new(options: LengthBucketOptions) -> Self {
        Self {
            options,
            buckets: Buckets::default(),
            window: VecDeque::new(),
            last_cut: Millis(0),
            cut_load: 0.0,
        }
    }

    fn has_left(&self, sent: &Sent, now: Millis) -> bool {
        sent.at
            .0
            .saturating_add(self.options.bucket_adjust_interval_secs.millis())
            <= now.0
    }

    /// Window load per weight of every row, whose members are at `places`.
    fn loads(&self, buckets: &Buckets, places: &[usize], view: &View<'_>) -> Vec<f64> {
        let rows = || view.rows.iter().zip(places);
        let gone = |sent: &Sent| self.has_left(sent, view.now);
        if !self.window.front().is_some_and(gone) {
            let tokens = |at: usize| buckets.members[at].tokens as f64;
            return rows()
                .map(|(row, at)| per_weight(tokens(*at), row.weight))
                .collect();
        }
        let mut tokens: Vec<u64> = buckets.members.iter().map(|m| m.tokens).collect();
        for sent in self.window.iter().take_while(|sent| gone(sent)) {
            if let Some(at) = buckets.position(sent.order) {
                tokens[at] -= sent.tokens;
            }
        }
        rows()
            .map(|(row, at)| per_weight(tokens[*at] as f64, row.weight))
            .collect()
    }

    /// The buckets that have a member for each of the rows, and where those are.
    fn covering(&self, rows: &[Candidate]) -> (Cow<'_, Buckets>, Vec<usize>) {
        let mut places = Vec::with_capacity(rows.len());
        places.extend(rows.iter().map_while(|row| self.buckets.slots.find(row)));
        if places.len() == rows.len() {
            return (Cow::Borrowed(&self.buckets), places);
        }
        let mut buckets = self.buckets.clone();
        buckets.add(rows, self.options.l_max);
        let places = rows.iter().map(|row| buckets.member(row)).collect();
        (Cow::Owned(buckets), places)
    }

    fn cut(&mut self) {
        let n = self.buckets.members.len();
        // Fewer prompts than workers are too few to cut by.
        if self.window.len() < n {
            return;
        }
        let mut lengths: Vec<u64> = self.window.iter().map(|sent| sent.tokens).collect();
        let load = lengths.iter().sum::<u64>() as f64 / n as f64;
        if load > 0.0 && (load >= 2.0 * self.cut_load || 2.0 * load <= self.cut_load) {
            lengths.sort_unstable();
            self.buckets.cut(&lengths);
            self.cut_load = load;
        }
    }
}

/// The row whose worker's range holds the length, else the less loaded of the nearest on both sides.
fn holder(
    buckets: &Buckets,
    places: &[usize],
    view: &View<'_>,
    loads: &[f64],
    rng: &mut Rng,
) -> usize {
    let length = view.prompt_tokens;
    let home = buckets.cuts.partition_point(|&cut| cut <= length);
    let (mut below, mut above) = (None, None);
    for (i, &at) in places.iter().enumerate() {
        if at == home {
            return i;
        }
        if at < home && below.is_none_or(|(best, _)| at > best) {
            below = Some((at, i));
        }
        if at > home && above.is_none_or(|(best, _)| at < best) {
            above = Some((at, i));
        }
    }
    match (below, above) {
        (Some((_, below)), Some((_, above))) => {
            let tie = loads[below].total_cmp(&loads[above]);
            if tie.is_lt() || (tie.is_eq() && rng.below(2) == 0) {
                below
            } else {
                above
            }
        }
        (Some((_, row)), None) | (None, Some((_, row))) => row,
        (None, None) => 0,
    }
}

impl Rule for LengthBucket {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        if view.prompt_tokens == 0 && view.blocks.is_none() {
            return Choice::cold(cold_spread(view.rows, rng), Reason::NoKey);
        }
        let (buckets, places) = self.covering(view.rows);
        let loads = self.loads(&buckets, &places, view);
        let (low, high) = extremes(loads.iter().copied());
        if high - low > self.options.balance_abs_threshold
            && high > self.options.balance_rel_threshold * low
        {
            let least = lowest_at(loads.len(), rng, |i| Some(loads[i])).unwrap_or(0);
            return Choice::warm(least, Reason::Imbalance);
        }
        let row = holder(&buckets, &places, view, &loads, rng);
        Choice::warm(row, Reason::LengthBucket)
    }

    fn settled(&mut self, view: &View<'_>, choice: Choice, _served: usize, _memos: &mut Memos<'_>) {
        if !self.buckets.weigh(view.rows) {
            self.buckets.add(view.rows, self.options.l_max);
            self.buckets.weigh(view.rows);
            self.last_cut = view.now;
            self.cut_load = 0.0;
        }
        while let Some(sent) = self.window.front().copied() {
            if !self.has_left(&sent, view.now) {
                break;
            }
            self.window.pop_front();
            if let Some(at) = self.buckets.position(sent.order) {
                self.buckets.members[at].tokens -= sent.tokens;
            }
        }
        let row = &view.rows[choice.row];
        let at = self.buckets.member(row);
        self.buckets.members[at].tokens += view.prompt_tokens;
        self.window.push_back(Sent {
            at: view.now,
            order: row.order,
            tokens: view.prompt_tokens,
        });
        if view.now.0.saturating_sub(self.last_cut.0)
            >= self.options.bucket_adjust_interval_secs.millis()
        {
            self.cut();
            self.last_cut = view.now;
        }
    }

    /// Tokens per weight of the window as the latest request left it.
    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        let row = &view.rows[row];
        let member = self.buckets.slots.find(row);
        let tokens = member.map_or(0, |at| self.buckets.members[at].tokens);
        Some(per_weight(tokens as f64, row.weight))
    }

    state!(own => *own);
}

impl State for LengthBucket {
    fn forget(&mut self, order: u64) {
        let known = self.buckets.members.len();
        self.buckets.members.retain(|m| m.order != order);
        if self.buckets.members.len() < known {
            self.window.retain(|sent| sent.order != order);
            self.buckets.reset(self.options.l_max);
            self.cut_load = 0.0;
        }
    }
}

#[cfg(test)]
#[path = "tests/length_bucket.rs"]
mod tests;
