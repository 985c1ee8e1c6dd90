//! Engines with several cache groups that publish no events, or ones that leave groups out: their cached tokens bound
//! the prediction.
//!
//! Events that leave groups out describe the layers that attend to the whole prefix. Resume points of the other groups
//! are a guess, as they are without events: the ends of prompts and the points where they part. The marks stand on
//! blocks that are placed, or that events confirm or are expected to. An engine that finds less of a prompt than was
//! predicted lacks the states that the marks stand for, so all marks of the prompt beyond that are taken off. Those
//! that it left itself stay where no events are: with events that leave groups out even they are doubtful, as some
//! engines keep a state where an answer ends instead.

use cachelb_core::groups::Resuming;
use cachelb_core::ids::{Medium, SequenceHash, WorkerId};
use cachelb_core::index::BlockIndex;

use crate::Selector;
use crate::bookings::Prediction;
use crate::indexes::reusable::Usable;
use crate::request::{PoolId, Wanted};
use crate::select::Step;
use crate::select::placement::Placed;

impl Step<'_, '_> {
    /// Keeps the prediction for the request on a worker, to compare it with the engine's cached tokens.
    pub(crate) fn predict(&mut self, placed: Placed<'_>, rule: Resuming) {
        let Placed {
            worker,
            booking,
            path,
        } = placed;
        let (s, request) = (&mut *self.selector, self.request);
        let pool = &s.pools[request.pool];
        // A decode worker is sent the whole prompt, and reports all of it as cached.
        let answer = pool
            .answer()
            .filter(|_| request.wanted != Wanted::Decode && !request.is_text());
        let Some(answer) = answer else {
            return;
        };
        let usable = Usable::by_slot(&s.fleet, pool, request)(worker.slot);
        let tokens = usable.tokens(usable.whole(answer.overlap(worker.slot)));
        if tokens > 0
            && let Some(booking) = s.bookings.follow(worker, booking, path)
        {
            booking.prediction = Some(Prediction {
                rule,
                tokens,
                prompt_tokens: request.prompt_tokens,
            });
        }
    }
}

impl Selector {
    /// A request ended, and its engine found so many of its tokens cached, of so many, against the prediction for `path`.
    pub(crate) fn bound(
        &mut self,
        (worker, pool): (WorkerId, PoolId),
        (predicted, path): (&Prediction, &[SequenceHash]),
        (found, prompt_tokens): (u64, Option<u64>),
    ) {
        // Another prompt was counted: there is no prediction for it.
        let is_same = prompt_tokens.is_none_or(|tokens| tokens == predicted.prompt_tokens);
        if !is_same || found >= predicted.tokens {
            return;
        }
        let rule = predicted.rule;
        let block_size = u64::from(self.pools[pool].block_size);
        let resumed = found + u64::from(rule.above);
        let mut own = Vec::new();
        if !rule.is_hidden {
            rule.places(predicted.prompt_tokens, None, |_| resumed, &mut own);
        }
        let depth = (resumed / block_size) as usize;
        let beyond = path.iter().enumerate().skip(depth);
        let beyond = beyond.filter(|(at, _)| !own.contains(&((*at as u64 + 1) * block_size)));
        let beyond: Vec<SequenceHash> = beyond.map(|(_, hash)| *hash).collect();
        self.pools.change(pool, |blocks| {
            let Ok(index) = blocks.index.exact_mut() else {
                return;
            };
            for &hash in &beyond {
                // A worker that is gone has no marks.
                let _ = index.unmark(worker, hash);
            }
        });
    }
}

/// Those of some blocks that have marks which wait for events of the worker.
pub(crate) fn awaited(
    index: Option<&BlockIndex>,
    worker: WorkerId,
    hashes: &[SequenceHash],
) -> Vec<SequenceHash> {
    let is_awaited =
        |index: &BlockIndex, hash| index.is_marked(worker, hash, &[Medium::Speculative]);
    let awaited =
        |hash: &SequenceHash| index.is_some_and(|index| is_awaited(index, *hash).unwrap_or(false));
    hashes.iter().copied().filter(awaited).collect()
}

#[cfg(test)]
mod tests;
