//! What a rule sees: one row per eligible candidate, and the picks every rule shares.

use crate::load::{Load, Report};

use super::rng::Rng;

/// One eligible candidate of one request, its load read before the request is added.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Position in the caller's list.
    pub offer: u32,
    /// Registration order; names the worker across requests.
    pub order: u64,
    /// Leading blocks of the request it holds.
    pub overlap: u32,
    /// Requests booked and not closed.
    pub inflight: u32,
    /// Relative capacity.
    pub weight: f64,
    /// Uncached prompt tokens waiting for a first token.
    pub pending_prefill_tokens: u64,
    /// Blocks held by requests past their first token.
    pub decode_blocks: u64,
    /// Uncached prompt tokens booked since the report.
    pub dispatched_tokens: u64,
    /// Logical time of the last cold pick, 0 for never.
    pub last_cold_pick: u64,
    /// Latest engine report.
    pub report: Report,
}

impl Candidate {
    /// The row of a worker with `load`; `None` is a worker nobody has seen yet.
    pub(super) fn new(offer: u32, order: u64, overlap: u32, load: Option<&Load>) -> Self {
        let load = load.unwrap_or(&Load::VACANT);
        Self {
            offer,
            order,
            overlap,
            inflight: load.inflight,
            weight: load.weight,
            pending_prefill_tokens: load.pending_prefill_tokens,
            decode_blocks: load.decode_blocks,
            dispatched_tokens: load.dispatched_tokens,
            last_cold_pick: load.last_cold_pick,
            report: load.report,
        }
    }

    /// Requests in flight per unit of weight.
    #[must_use]
    pub fn load(&self) -> f64 {
        f64::from(self.inflight) / self.weight
    }
}

/// Everything a rule may look at. Rules are pure: the same view and generator give the same choice.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The candidates, never empty, in the caller's order.
    pub rows: &'a [Candidate],
    /// Names by [`Candidate::offer`].
    pub names: &'a dyn Names,
    /// Full blocks of the prompt, `None` if neither tokens nor blocks were given.
    pub total_blocks: Option<u32>,
    /// Tokens per block.
    pub block_size: u32,
    /// What hashing policies hash, `None` if the request has no key.
    pub key: Option<&'a [u8]>,
}

/// Names of the workers a caller offers.
pub trait Names: std::fmt::Debug {
    /// The key of the worker at `offer`.
    fn name(&self, offer: u32) -> &str;
}

impl Names for &[&str] {
    fn name(&self, offer: u32) -> &str {
        self[offer as usize]
    }
}

/// Index of the row with the lowest `cost`; equal ones are drawn uniformly.
///
/// `cost` must be totally ordered on the rows `keep` admits; `None` if it admits none.
pub(super) fn lowest<K: PartialOrd>(
    rows: &[Candidate],
    rng: &mut Rng,
    keep: impl Fn(&Candidate) -> bool,
    cost: impl Fn(&Candidate) -> K,
) -> Option<usize> {
    let mut best: Option<(usize, K)> = None;
    let mut ties = 0;
    for (i, row) in rows.iter().enumerate().filter(|(_, row)| keep(row)) {
        let own = cost(row);
        match &best {
            Some((_, lowest)) if own > *lowest => {}
            Some((_, lowest)) if own == *lowest => ties += 1,
            _ => {
                best = Some((i, own));
                ties = 1;
            }
        }
    }
    let (first, lowest) = best?;
    if ties < 2 {
        return Some(first);
    }
    let equals = |&i: &usize| keep(&rows[i]) && cost(&rows[i]) == lowest;
    (first..rows.len())
        .filter(equals)
        .nth(rng.below(ties))
        .or(Some(first))
}

/// Index drawn with probability proportional to `weight`, which must be finite, 0 or more, and positive somewhere.
pub(super) fn draw(rows: &[Candidate], rng: &mut Rng, weight: impl Fn(&Candidate) -> f64) -> usize {
    let total: f64 = rows.iter().map(&weight).sum();
    let mut left = rng.unit() * total;
    let mut last = 0;
    for (i, row) in rows.iter().enumerate() {
        let own = weight(row);
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
pub(super) fn cold_spread(rows: &[Candidate], rng: &mut Rng) -> usize {
    lowest(rows, rng, |_| true, |row| (row.load(), row.last_cold_pick)).unwrap_or(0)
}

/// Mean load of the candidates.
pub(super) fn mean_load(rows: &[Candidate]) -> f64 {
    rows.iter().map(Candidate::load).sum::<f64>() / rows.len() as f64
}
