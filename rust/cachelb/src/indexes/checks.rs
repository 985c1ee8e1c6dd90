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
//! A few requests of each worker are followed at once, and the latest answers kept as bits; no selection allocates for
//! either once buffers have grown. If a worker never reported a cached token, zeros mean that it does not report.

use cachelb_core::ids::{Millis, SequenceHash, WorkerId};
use cachelb_core::load::BookingId;

/// Requests of a worker that are followed at once.
const FOLLOWED: usize = 8;
/// Blocks of all requests that are followed.
const MOST_BLOCKS: usize = 1 << 18;
/// Buffers kept for the next requests, and the largest of them in blocks.
const SPARE: usize = 64;
const SPARE_BLOCKS: usize = 1 << 12;
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

/// A request that is followed.
#[derive(Debug)]
struct Promise {
    booking: BookingId,
    /// Blocks it was promised, and those beyond, up to the first that was given up since.
    path: Vec<SequenceHash>,
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
        self.path.len().saturating_sub(self.sizes.above) as u64 * self.sizes.own
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

#[derive(Debug, Default)]
struct Checked {
    generation: u32,
    followed: Vec<Promise>,
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
    fn answer(&mut self, mismatch: bool) {
        self.answers.add(mismatch);
        self.total += 1;
        self.mismatches += u64::from(mismatch);
    }
}

/// Tokens promised to the requests of all workers, and tokens found.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// By slot.
    workers: Vec<Checked>,
    /// Blocks that are followed.
    blocks: usize,
    spare: Vec<Vec<SequenceHash>>,
}

impl Checks {
    /// A request was routed to the worker, of whose blocks it will find those of `path` cached.
    pub fn promised(
        &mut self,
        worker: WorkerId,
        booking: BookingId,
        path: &[SequenceHash],
        prompt_tokens: u64,
        sizes: Sizes,
    ) {
        let slot = worker.slot as usize;
        if slot >= self.workers.len() {
            self.workers.resize_with(slot + 1, Checked::default);
        }
        if self.workers[slot].generation != worker.generation {
            self.remove(worker.slot);
            self.workers[slot].generation = worker.generation;
        }
        let promised = path.len().saturating_sub(sizes.above) as u64;
        let too_short = promised * sizes.own <= sizes.slack;
        let full = self.workers[slot].followed.len() >= FOLLOWED;
        if too_short || full || self.blocks + path.len() > MOST_BLOCKS {
            return;
        }
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.extend_from_slice(path);
        self.blocks += path.len();
        self.workers[slot].followed.push(Promise {
            booking,
            path: kept,
            was_cut: false,
            prompt_tokens,
            found: None,
            sizes,
        });
    }

    /// Whether requests of the worker are followed.
    pub fn follows(&self, worker: WorkerId) -> bool {
        let checked = self.of(worker);
        checked.is_some_and(|checked| !checked.followed.is_empty())
    }

    /// An event of the worker gave up the block `hash`, `depth` blocks below the root, or the mark on it. Where marks
    /// count, the rest of a promise is unknown.
    pub fn given_up(&mut self, worker: WorkerId, depth: usize, hash: SequenceHash) {
        let Some(checked) = self.of_mut(worker) else {
            return;
        };
        let (mut cut, mut settled, mut is_unknown) = (0, false, false);
        for promise in &mut checked.followed {
            if promise.path.get(depth) == Some(&hash) {
                cut += promise.path.len() - depth;
                promise.path.truncate(depth);
                promise.was_cut = true;
                settled |= promise.found.is_some();
                is_unknown |= promise.sizes.marked;
            }
        }
        self.blocks -= cut;
        if is_unknown {
            self.settle(worker, |promise| {
                let is_unknown = promise.was_cut && promise.sizes.marked;
                is_unknown.then_some(None)
            });
        }
        if settled {
            self.settle(worker, |promise| {
                let is_settled = promise.found.is_some() && !promise.is_broken();
                is_settled.then_some(Some(false))
            });
        }
    }

    /// A request ended, and its engine found that many of its tokens cached. `prompt_tokens` is the engine's count: of
    /// another prompt nothing was promised.
    pub fn completed(
        &mut self,
        worker: WorkerId,
        booking: BookingId,
        (found, prompt_tokens): (u64, Option<u64>),
        now: Millis,
    ) {
        let Some(checked) = self.of_mut(worker) else {
            return;
        };
        checked.reports |= found > 0;
        let reports = checked.reports;
        let mut short = None;
        self.settle(worker, |promise| {
            if promise.booking != booking || promise.found.is_some() {
                return None;
            }
            let same = prompt_tokens.is_none_or(|tokens| tokens == promise.prompt_tokens);
            if !reports || !same {
                return Some(None);
            }
            short = promise.is_short(found);
            promise.found = Some((found, now));
            (!promise.is_broken()).then_some(Some(false))
        });
        if let (Some(short), Some(checked)) = (short, self.of_mut(worker)) {
            checked.short = if short {
                checked.short + 2
            } else {
                checked.short.saturating_sub(1)
            };
            checked.drafts |= checked.short >= 2 * SHORT;
        }
    }

    /// Whether the engine of the worker was found to draft with EAGLE or MTP.
    pub fn drafts(&self, worker: WorkerId) -> bool {
        self.of(worker).is_some_and(|checked| checked.drafts)
    }

    /// A request ended without a report of the tokens its engine found.
    pub fn ended(&mut self, worker: WorkerId, booking: BookingId) {
        self.settle(worker, |promise| {
            let gone = promise.booking == booking && promise.found.is_none();
            gone.then_some(None)
        });
    }

    /// All announcements of the engine up to `until` are known. Returns whether its answers differ too often from the
    /// promises.
    pub fn caught_up(&mut self, worker: WorkerId, until: Millis) -> bool {
        self.settle(worker, |promise| {
            let (_, at) = promise.found?;
            (at.0.saturating_add(SETTLE_MS) <= until.0).then_some(Some(true))
        });
        let checked = self.of(worker);
        checked.is_some_and(|checked| checked.answers.are_suspicious())
    }

    /// Changes to the blocks of the worker are unknown for a while.
    pub fn lose_track(&mut self, worker: WorkerId) {
        self.settle(worker, |_| Some(None));
    }

    /// Earlier contents of the worker are dropped, and are no evidence about later answers.
    pub fn start_over(&mut self, worker: WorkerId) {
        self.lose_track(worker);
        if let Some(checked) = self.of_mut(worker) {
            checked.answers = Answers::default();
            (checked.short, checked.drafts) = (0, false);
        }
    }

    /// The worker in `slot` is gone.
    pub fn remove(&mut self, slot: u32) {
        let Some(checked) = self.workers.get_mut(slot as usize) else {
            return;
        };
        let gone = std::mem::take(checked);
        self.blocks -= gone.followed.iter().map(|p| p.path.len()).sum::<usize>();
    }

    /// Requests of a worker that were compared, and those that found less than was promised.
    pub fn totals(&self, worker: WorkerId) -> (u64, u64) {
        self.of(worker)
            .map_or((0, 0), |checked| (checked.total, checked.mismatches))
    }

    fn of(&self, worker: WorkerId) -> Option<&Checked> {
        let checked = self.workers.get(worker.slot as usize);
        checked.filter(|checked| checked.generation == worker.generation)
    }

    fn of_mut(&mut self, worker: WorkerId) -> Option<&mut Checked> {
        let checked = self.workers.get_mut(worker.slot as usize);
        checked.filter(|checked| checked.generation == worker.generation)
    }

    /// No longer follows the requests for which `judge` returns something: whether it is a mismatch, `None` if unknown.
    fn settle(
        &mut self,
        worker: WorkerId,
        mut judge: impl FnMut(&mut Promise) -> Option<Option<bool>>,
    ) {
        let checked = self.workers.get_mut(worker.slot as usize);
        let Some(checked) = checked.filter(|c| c.generation == worker.generation) else {
            return;
        };
        let mut at = 0;
        while at < checked.followed.len() {
            let Some(verdict) = judge(&mut checked.followed[at]) else {
                at += 1;
                continue;
            };
            let mut path = checked.followed.swap_remove(at).path;
            self.blocks -= path.len();
            if let Some(mismatch) = verdict {
                checked.answer(mismatch);
            }
            if path.capacity() <= SPARE_BLOCKS && self.spare.len() < SPARE {
                path.clear();
                self.spare.push(path);
            }
        }
    }
}

#[cfg(test)]
mod tests;
