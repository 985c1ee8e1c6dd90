//! A request on one worker, or its prompt on one and its answer on another: whichever costs the fleet the least time.
//!
//! ```text
//! d itself      cost on d, as of a whole request
//! p for d       cost of the prompt alone on p  +  handover  +  cost of the answer alone on d
//! handover      ms + ms_per_token * tokens that d does not hold
//! ```
//!
//! The cost is that of `adaptive`, with three differences that only matter where the same prompt may be computed
//! elsewhere:
//!
//! - A prompt alone delays nothing by its output; an answer alone costs nothing but that.
//! - Requests whose prompt another worker computes do not wait for prompts here: they count as running.
//! - The delay of requests that generate is modelled more finely. A step computes some tokens of a prompt beside its
//!   own for free, as it waits for memory. And it takes longer the more context it reads: the context of the others
//!   delays this answer, and its context delays theirs.
//!
//! The terms of p and d are apart, so the cheapest p is that of every d unless both are one worker: O(P + D).

use cachelb_core::load::Known;
use cachelb_core::rng::Rng;

use crate::rule::choice::Choice;
use crate::rule::pair::{PairChoice, Pairing, Prefiller};
use crate::rule::view::{Candidate, View, known};

use super::{Adaptive, Common, Parts, cheapest, parts, total};

/// Tokens of a prompt that a step computes beside its own for free. Devices of today break even at 150 to 300.
const HIDDEN: f64 = 128.0;
/// The time a step takes per token of context that it reads, in tokens of prefill. Models of 8 to 70 billion
/// parameters are at 0.0005 to 0.002.
const READ: f64 = 0.001;

/// The cost of a request on a decode worker.
#[derive(Clone, Copy)]
struct Cost {
    ms: f64,
    /// Row of the other worker that computes the prompt.
    prefill: Option<usize>,
}

/// Both halves and their common terms.
struct Scales<'a> {
    pairing: &'a Pairing<'a>,
    common: Common<'a>,
}

impl Scales<'_> {
    fn parts(&self, view: &View<'_>, row: &Candidate) -> Parts {
        let parts = parts(view, &self.common, row, 0.0);
        let apart = view.apart.get(row.slot as usize).copied().unwrap_or(0);
        let apart = f64::from(apart).min(parts.queued);
        let weight = self.common.running_weight;
        let seen = (parts.own - HIDDEN).max(0.0) / parts.own;
        let blocks = view.active_blocks(row) + view.load(row).output_blocks;
        let others = blocks as f64 * f64::from(view.block_size);
        let read = others + view.prompt_tokens as f64 * f64::from(row.inflight);
        Parts {
            queued: parts.queued - apart,
            running: (parts.running + weight * apart) * seen,
            beside: parts.beside + weight * self.common.output * READ * read,
            ..parts
        }
    }

    /// Milliseconds of the prompt alone.
    fn prompt(&self, row: &Candidate) -> f64 {
        let mut parts = self.parts(&self.pairing.prefill, row);
        (parts.beside, parts.decoding) = (0.0, 0.0);
        total(&parts, row)
    }

    /// Milliseconds of the whole on a row that decodes, and of the answer alone with the handover.
    fn whole_and_answer(&self, row: &Candidate) -> (f64, f64) {
        let mut parts = self.parts(&self.pairing.decode, row);
        let handover = self.pairing.handover;
        let missing = self.pairing.decode.uncached_tokens(row);
        let whole = total(&parts, row);
        (parts.waiting, parts.own, parts.copied, parts.delaying) = (0.0, 0.0, 0.0, 0.0);
        let answer = total(&parts, row) + handover.ms + handover.ms_per_token * missing;
        (whole, answer)
    }
}

pub(super) fn choose(rule: &Adaptive, pairing: &Pairing<'_>, rng: &mut Rng) -> Option<PairChoice> {
    let (prefill, decode) = (&pairing.prefill, &pairing.decode);
    let scales = Scales {
        pairing,
        common: rule.common_of(decode, [prefill.workers(), decode.workers()]),
    };
    let prompts: Vec<f64> = prefill.rows.iter().map(|row| scales.prompt(row)).collect();
    let first = cheapest(prefill, &prompts, rng);
    let of_first = first.map(|i| prefill.rows[i].offer);
    let both = decode.rows.iter().any(|row| Some(row.offer) == of_first);
    let second = first.filter(|_| both).and_then(|first| {
        let mut others = prompts.clone();
        others[first] = f64::INFINITY;
        cheapest(prefill, &others, rng)
    });
    let cost = |row: &Candidate| {
        let (whole, answer) = scales.whole_and_answer(row);
        let itself = Cost {
            ms: whole,
            prefill: None,
        };
        let other = if of_first == Some(row.offer) {
            second
        } else {
            first
        };
        let another = other.map(|other| Cost {
            ms: prompts[other] + answer,
            prefill: Some(other),
        });
        // Without a prefill worker, only a row set to `Itself` computes the prompt itself.
        match (pairing.prefiller)(row) {
            Prefiller::Itself => Some(itself),
            Prefiller::Another => another.or(first.map(|_| itself)),
            Prefiller::Any => match another {
                Some(another) if another.ms < whole => Some(another),
                _ => first.map(|_| itself),
            },
        }
    };
    let costs: Vec<Option<Cost>> = decode.rows.iter().map(cost).collect();
    let ms: Vec<f64> = costs
        .iter()
        .map(|cost| cost.map_or(f64::INFINITY, |cost| cost.ms))
        .collect();
    let row = cheapest(decode, &ms, rng)?;
    let score = |cost: &Option<Cost>| Known::from(cost.map(|cost| cost.ms));
    Some(PairChoice {
        prefill: costs[row]?
            .prefill
            .map(|other| Choice::by_cost(prefill, other)),
        decode: Choice::by_cost(decode, row),
        prefill_scores: known(prompts),
        decode_scores: costs.iter().map(score).collect(),
    })
}

#[cfg(test)]
#[path = "../../tests/adaptive_pair.rs"]
mod tests;
