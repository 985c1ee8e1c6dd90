//! Whether engines find cached what their events promised.
//!
//! A request to a worker whose stream is caught up is promised the leading blocks that events confirmed in device memory.
//! When it completes, the engine reports how much it found. Less by more than one block is a mismatch, unless an event
//! removes the missing blocks: the cache may change between the selection and the engine's lookup, and the event may
//! come after the answer. So the verdict waits until the stream has passed the time of the answer. More than was
//! promised is no mismatch: other requests may have stored it.
//!
//! Engines that draft with EAGLE or MTP compute one block more. So one that often does, where it could have done without,
//! drafts.
//!
//! A few requests of each worker have a promise at once, and the latest answers are kept as bits. If a worker never
//! reported a cached token, zeros mean that it does not report.

use cachelb_core::collections::slot_mut;
use cachelb_core::ids::{Millis, SequenceHash, WorkerId};
use cachelb_core::load::BookingId;

use crate::bookings::Bookings;

/// Requests of a worker that have a promise at once.
const PROMISED: u32 = 8;
/// Largest difference between the arrival of a message and of an answer sent at one moment.
const SETTLE_MS: u64 = 250;
/// An engine is found to draft by so many answers in a row that are a block short of the promise, or by more with
/// others between: a full answer takes back half a short one.
const SHORT: u32 = 8;
/// Answers a worker is judged by.
const KEPT: usize = 512;
/// It is suspicious if more than one in so many is a mismatch, by so many mismatches more. Some requests skip the cache,
/// or are answered by another worker without a report; and a few mismatches among few answers prove little.
const ONE_IN: u32 = 100;
const MARGIN: u32 = 4;

/// The latest answers of one worker, and how many were mismatches.
#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    mismatches: [u64; KEPT / 64],
    next: usize,
    len: u32,
    count: u32,
}

impl Answers {
    fn add(&mut self, mismatch: bool) {
        let (word, bit) = (self.next / 64, 1 << (self.next % 64));
        self.count -= u32::from(self.mismatches[word] & bit != 0);
        self.mismatches[word] &= !bit;
        if mismatch {
            self.mismatches[word] |= bit;
            self.count += 1;
        }
        self.next = (self.next + 1) % KEPT;
        self.len = (self.len + 1).min(KEPT as u32);
    }

    fn are_suspicious(&self) -> bool {
        self.count * ONE_IN > self.len + MARGIN * ONE_IN
    }
}

/// How blocks are counted in an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Tokens per block here.
    pub own: u64,
    /// The larger of that and of the step at whose multiples it resumes: it may find so much less.
    pub slack: u64,
    /// Blocks here that are needed beyond the promise.
    pub above: usize,
    /// Whether the promise holds only as long as its last block is marked.
    pub marked: bool,
}

/// A request that was promised cached tokens.
#[derive(Debug)]
pub(crate) struct Promise {
    /// Leading blocks of the path that it was promised, and those beyond, up to the first that was given up since.
    length: usize,
    was_cut: bool,
    prompt_tokens: u64,
    /// Tokens the engine found, and the time of its report.
    found: Option<(u64, Millis)>,
    sizes: Sizes,
}

impl Promise {
    fn is_broken(&self) -> bool {
        let found = self.found.map(|(tokens, _)| tokens);
        found.is_some_and(|found| found + self.sizes.slack < self.promised())
    }

    /// Tokens.
    fn promised(&self) -> u64 {
        self.length.saturating_sub(self.sizes.above) as u64 * self.sizes.own
    }

    /// Whether the engine computed one block more than it had to; `None` if it could not have done otherwise, or if that is
    /// no reason.
    fn is_short(&self, found: u64) -> Option<bool> {
        let Sizes { slack, above, .. } = self.sizes;
        if self.was_cut || above > 0 {
            return None;
        }
        match self.promised().saturating_sub(found) {
            0 => (!self.prompt_tokens.is_multiple_of(slack)).then_some(false),
            missing => (missing <= slack).then_some(true),
        }
    }
}

/// Verdict on a promise: whether it is a mismatch, `None` if that is unknown.
type Verdict = Option<bool>;

#[derive(Debug, Default)]
struct Checked {
    generation: u32,
    /// Promises that are not settled.
    promises: u32,
    answers: Answers,
    /// Whether it ever reported a cached token.
    reports: bool,
    /// Halves of answers that were a block short, less those that were not.
    short: u32,
    drafts: bool,
    total: u64,
    mismatches: u64,
}

impl Checked {
    /// A promise is settled.
    fn settle(&mut self, verdict: Verdict) {
        self.promises -= 1;
        if let Some(mismatch) = verdict {
            self.answers.add(mismatch);
            self.total += 1;
            self.mismatches += u64::from(mismatch);
        }
    }
}

/// Answers of all workers.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// By slot.
    workers: Vec<Checked>,
}

impl Checks {
    /// Whether the engine of the worker was found to draft with EAGLE or MTP.
    pub fn drafts(&self, worker: WorkerId) -> bool {
        self.of(worker).is_some_and(|checked| checked.drafts)
    }

    /// Requests of a worker that were compared, and those that found less than was promised.
    pub fn totals(&self, worker: WorkerId) -> (u64, u64) {
        self.of(worker)
            .map_or((0, 0), |checked| (checked.total, checked.mismatches))
    }

    /// Earlier contents of the worker are dropped, with all promises on them.
    pub fn start_over(&mut self, worker: WorkerId) {
        if let Some(checked) = self.of_mut(worker) {
            checked.answers = Answers::default();
            (checked.promises, checked.short, checked.drafts) = (0, 0, false);
        }
    }

    /// The worker in `slot` is gone.
    pub fn remove(&mut self, slot: u32) {
        if let Some(checked) = self.workers.get_mut(slot as usize) {
            *checked = Checked::default();
        }
    }

    /// A request ended, and its engine found that many of its tokens cached. `prompt_tokens` is the engine's count: of
    /// another prompt nothing was promised.
    pub fn completed(
        &mut self,
        worker: WorkerId,
        kept: &mut Option<Promise>,
        (found, prompt_tokens): (u64, Option<u64>),
        now: Millis,
    ) {
        let Some(checked) = self.of_mut(worker) else {
            return;
        };
        checked.reports |= found > 0;
        let Some(promise) = kept else {
            return;
        };
        let same = prompt_tokens.is_none_or(|tokens| tokens == promise.prompt_tokens);
        let is_compared = checked.reports && same;
        if is_compared {
            if let Some(is_short) = promise.is_short(found) {
                checked.short = if is_short {
                    checked.short + 2
                } else {
                    checked.short.saturating_sub(1)
                };
                checked.drafts |= checked.short >= 2 * SHORT;
            }
            promise.found = Some((found, now));
        }
        if !promise.is_broken() {
            *kept = None;
            checked.settle(is_compared.then_some(false));
        }
    }

    /// The verdict on a promise, if there is one, stays unknown.
    pub fn unpromise(&mut self, worker: WorkerId, promise: &mut Option<Promise>) {
        if let (Some(_), Some(checked)) = (promise.take(), self.of_mut(worker)) {
            checked.settle(None);
        }
    }

    fn of(&self, worker: WorkerId) -> Option<&Checked> {
        let checked = self.workers.get(worker.slot as usize);
        checked.filter(|checked| checked.generation == worker.generation)
    }

    fn of_mut(&mut self, worker: WorkerId) -> Option<&mut Checked> {
        let checked = self.workers.get_mut(worker.slot as usize);
        checked.filter(|checked| checked.generation == worker.generation)
    }
}

impl Bookings {
    /// A request was routed to the worker, of whose blocks it will find the first `length` of `path` cached.
    pub fn promise(
        &mut self,
        worker: WorkerId,
        id: BookingId,
        (path, length): (&[SequenceHash], usize),
        prompt_tokens: u64,
        sizes: Sizes,
    ) {
        let checked = slot_mut(&mut self.checks.workers, worker.slot);
        if checked.generation != worker.generation {
            *checked = Checked {
                generation: worker.generation,
                ..Checked::default()
            };
        }
        let promised = length.saturating_sub(sizes.above) as u64;
        let is_full = checked.promises >= PROMISED;
        if is_full || promised * sizes.own <= sizes.slack {
            return;
        }
        let Some(booking) = self.follow(worker, id, path) else {
            return;
        };
        booking.promise = Some(Promise {
            length,
            was_cut: false,
            prompt_tokens,
            found: None,
            sizes,
        });
        self.checks.workers[worker.slot as usize].promises += 1;
    }

    /// An event of the worker gave up the block `hash`, `depth` blocks below the root, or, unless `is_gone`, the mark on it.
    /// Without the block, unconfirmed ones are expected up to there only. Where marks count, the rest of a promise is
    /// unknown.
    pub fn given_up(&mut self, worker: WorkerId, depth: usize, hash: SequenceHash, is_gone: bool) {
        let mut checked = self.checks.of_mut(worker);
        self.followed
            .visit(&mut self.book, worker.slot, |_, booking| {
                if booking.path.get(depth) != Some(&hash) {
                    return;
                }
                if let Some(lease) = &mut booking.lease
                    && is_gone
                    && depth >= lease.confirmed
                {
                    lease.length = lease.length.min(depth);
                }
                let promise = booking.promise.as_mut();
                let Some(promise) = promise.filter(|promise| depth < promise.length) else {
                    return;
                };
                (promise.length, promise.was_cut) = (depth, true);
                let verdict = if promise.sizes.marked {
                    None
                } else if promise.found.is_some() && !promise.is_broken() {
                    Some(false)
                } else {
                    return;
                };
                booking.promise = None;
                if let Some(checked) = &mut checked {
                    checked.settle(verdict);
                }
            });
    }

    /// All announcements of the engine up to `until` are known. Returns whether its answers differ too often from the
    /// promises.
    pub fn caught_up(&mut self, worker: WorkerId, until: Millis) -> bool {
        self.settle(worker, |promise| {
            let (_, at) = promise.found?;
            (at.0.saturating_add(SETTLE_MS) <= until.0).then_some(Some(true))
        });
        let checked = self.checks.of(worker);
        checked.is_some_and(|checked| checked.answers.are_suspicious())
    }

    /// Changes to the blocks of the worker are unknown for a while.
    pub fn lose_track(&mut self, worker: WorkerId) {
        self.settle(worker, |_| Some(None));
    }

    /// Settles the promises of a worker for which `judge` returns a verdict.
    fn settle(&mut self, worker: WorkerId, judge: impl Fn(&Promise) -> Option<Verdict>) {
        let checked = self.checks.of_mut(worker);
        let Some(checked) = checked.filter(|checked| checked.promises > 0) else {
            return;
        };
        self.followed
            .visit(&mut self.book, worker.slot, |_, booking| {
                if let Some(verdict) = booking.promise.as_ref().and_then(&judge) {
                    booking.promise = None;
                    checked.settle(verdict);
                }
            });
    }
}

#[cfg(test)]
mod tests;
