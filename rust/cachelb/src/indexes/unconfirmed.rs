//! Placements on workers whose events will confirm them or not.
//!
//! Such a placement is expected, not recorded: its blocks lie in the speculative lane of the index with a deadline. How
//! long an engine takes to announce them is the time the request waits there and is computed, so the deadline follows the
//! request: it moves until the worker answers, with every block that an event confirms, and with the first token. Then
//! it stands. A request that fails removes the blocks that it alone expected and no event confirmed.
//!
//! While messages of a worker's engine are missing and asked for, no deadline there stands: nothing can confirm in time.
//!
//! An owner that never reports is waited for a bounded time. Per worker at most [`KEPT`] requests are followed, and
//! [`MOST_BLOCKS`] blocks in all; beyond that the deadlines of the oldest stand.

use std::collections::VecDeque;

use cachelb_core::ids::{Millis, SequenceHash, WorkerId};
use cachelb_core::load::BookingId;

const KEPT: usize = 1024;
const MOST_BLOCKS: usize = 1 << 20;

/// How long an unconfirmed placement counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// Without any sign of it.
    pub ttl_ms: u64,
    /// How long an owner that does not answer is taken to be waiting.
    pub patience_ms: u64,
}

#[derive(Debug)]
struct Lease {
    worker: WorkerId,
    booking: BookingId,
    path: Vec<SequenceHash>,
    /// Leading blocks that events confirmed.
    confirmed: usize,
    ttl_ms: u64,
    until: Millis,
    /// The deadline moves up to here until the worker answers.
    patience: Millis,
    answered: bool,
}

impl Lease {
    fn renew(&mut self, now: Millis) {
        self.until = Millis(now.0.saturating_add(self.ttl_ms));
    }

    /// Leading blocks that `other` shares. Hashes are chained, so equality at one depth is equality before.
    fn shared_with(&self, other: &Self) -> usize {
        let (a, b) = (&self.path, &other.path);
        let (mut shared, mut beyond) = (0, a.len().min(b.len()) + 1);
        while beyond - shared > 1 {
            let middle = usize::midpoint(shared, beyond);
            if a[middle - 1] == b[middle - 1] {
                shared = middle;
            } else {
                beyond = middle;
            }
        }
        shared
    }
}

/// Called with a deadline that moved: worker, path, its leading blocks that need none, and the deadline.
pub(crate) type Renew<'a> = &'a mut dyn FnMut(WorkerId, &[SequenceHash], usize, Millis);

/// Expected placements by worker slot.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    slots: Vec<VecDeque<Lease>>,
    /// Workers whose messages are missing, by slot.
    behind: Vec<bool>,
    /// Blocks of all paths.
    blocks: usize,
    /// No deadline is earlier.
    due: Option<Millis>,
    used: bool,
}

impl Leases {
    /// A request was routed to the worker, of whose `path` events confirmed the first `confirmed` blocks.
    pub fn placed(
        &mut self,
        worker: WorkerId,
        booking: BookingId,
        path: &[SequenceHash],
        confirmed: usize,
        now: Millis,
        terms: Terms,
    ) {
        if confirmed >= path.len() {
            return;
        }
        let slot = worker.slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, VecDeque::new);
        }
        let leases = &mut self.slots[slot];
        while leases.len() >= KEPT || self.blocks + path.len() > MOST_BLOCKS {
            let Some(oldest) = leases.pop_front() else {
                return;
            };
            self.blocks -= oldest.path.len();
        }
        let mut lease = Lease {
            worker,
            booking,
            path: path.into(),
            confirmed,
            ttl_ms: terms.ttl_ms,
            until: now,
            patience: Millis(now.0.saturating_add(terms.patience_ms)),
            answered: false,
        };
        lease.renew(now);
        self.used = true;
        self.blocks += path.len();
        self.due = Some(self.due.map_or(lease.until, |due| due.min(lease.until)));
        leases.push_back(lease);
    }

    /// An event of the worker announced a chain whose last block is `hash`, `depth` blocks below the root.
    pub fn confirmed(
        &mut self,
        worker: WorkerId,
        depth: usize,
        hash: SequenceHash,
        now: Millis,
        renew: Renew<'_>,
    ) {
        let Some(leases) = self.slots.get_mut(worker.slot as usize) else {
            return;
        };
        let mut done = 0;
        for lease in &mut *leases {
            if depth < lease.confirmed || lease.path.get(depth) != Some(&hash) {
                continue;
            }
            lease.confirmed = depth + 1;
            lease.renew(now);
            if lease.confirmed == lease.path.len() {
                done += 1;
            } else {
                renew(lease.worker, &lease.path, lease.confirmed, lease.until);
            }
        }
        if done > 0 {
            let blocks = &mut self.blocks;
            leases.retain(|lease| {
                let stays = lease.confirmed < lease.path.len();
                *blocks -= if stays { 0 } else { lease.path.len() };
                stays
            });
        }
    }

    /// An event of the worker gave up the block `hash`, `depth` blocks below the root: unconfirmed blocks are expected
    /// up to there only.
    pub fn given_up(&mut self, worker: WorkerId, depth: usize, hash: SequenceHash) {
        let Some(leases) = self.slots.get_mut(worker.slot as usize) else {
            return;
        };
        for lease in leases {
            if depth >= lease.confirmed && lease.path.get(depth) == Some(&hash) {
                self.blocks -= lease.path.len() - depth;
                lease.path.truncate(depth);
            }
        }
    }

    /// The worker answered a request: blocks not announced by now will be soon, or never.
    pub fn answered(
        &mut self,
        worker: WorkerId,
        booking: BookingId,
        now: Millis,
        renew: Renew<'_>,
    ) {
        let leases = self.slots.get_mut(worker.slot as usize);
        let lease = leases.and_then(|leases| leases.iter_mut().find(|l| l.booking == booking));
        if let Some(lease) = lease {
            lease.answered = true;
            lease.renew(now);
            renew(lease.worker, &lease.path, lease.confirmed, lease.until);
        }
    }

    /// A request failed before it was answered. Returns the blocks that only it expected, deepest first.
    pub fn take(&mut self, worker: WorkerId, booking: BookingId) -> Vec<SequenceHash> {
        let Some(leases) = self.slots.get_mut(worker.slot as usize) else {
            return Vec::new();
        };
        let at = leases.iter().position(|lease| lease.booking == booking);
        let Some(lease) = at.and_then(|at| leases.remove(at)) else {
            return Vec::new();
        };
        self.blocks -= lease.path.len();
        let shared = leases.iter().map(|other| lease.shared_with(other)).max();
        let from = lease.confirmed.max(shared.unwrap_or(0));
        lease.path[from..].iter().rev().copied().collect()
    }

    /// Whether nothing is followed.
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Whether anything ever had a deadline.
    pub fn used(&self) -> bool {
        self.used
    }

    /// Whether messages of the worker in `slot` are missing and asked for.
    pub fn set_behind(&mut self, slot: u32, behind: bool) {
        let slot = slot as usize;
        if slot >= self.behind.len() {
            if !behind {
                return;
            }
            self.behind.resize(slot + 1, false);
        }
        self.behind[slot] = behind;
    }

    /// Calls `each` with the path of every request that is followed on the worker, and its confirmed blocks.
    pub fn each(&self, worker: WorkerId, mut each: impl FnMut(&[SequenceHash], usize)) {
        let leases = self.slots.get(worker.slot as usize);
        for lease in leases.into_iter().flatten() {
            each(&lease.path, lease.confirmed);
        }
    }

    /// Whether a deadline has passed.
    pub fn is_due(&self, now: Millis) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Moves the deadlines of those who still wait; the others are no longer followed.
    pub fn lapse(&mut self, now: Millis, renew: Renew<'_>) {
        if !self.is_due(now) {
            return;
        }
        self.due = None;
        for (slot, leases) in self.slots.iter_mut().enumerate() {
            let behind = self.behind.get(slot).is_some_and(|behind| *behind);
            let (due, blocks) = (&mut self.due, &mut self.blocks);
            leases.retain_mut(|lease| {
                if lease.until <= now {
                    if !behind && (lease.answered || lease.patience <= now) {
                        *blocks -= lease.path.len();
                        return false;
                    }
                    lease.renew(now);
                    renew(lease.worker, &lease.path, lease.confirmed, lease.until);
                }
                *due = Some(due.map_or(lease.until, |due| due.min(lease.until)));
                true
            });
        }
    }

    /// The worker in `slot` holds nothing any more, or is gone.
    pub fn forget(&mut self, slot: u32) {
        if let Some(leases) = self.slots.get_mut(slot as usize) {
            self.blocks -= leases.iter().map(|lease| lease.path.len()).sum::<usize>();
            leases.clear();
        }
    }

    /// Nothing is followed any more.
    pub fn clear(&mut self) {
        *self = Self {
            used: self.used,
            behind: std::mem::take(&mut self.behind),
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        ttl_ms: 2_000,
        patience_ms: 10_000,
    };

    const AT: WorkerId = WorkerId {
        slot: 3,
        generation: 0,
    };
    const OTHER: WorkerId = WorkerId { slot: 4, ..AT };

    fn booking(entry: u32) -> BookingId {
        BookingId {
            entry,
            generation: 0,
        }
    }

    fn path(hashes: &[u64]) -> Vec<SequenceHash> {
        hashes.iter().map(|&hash| SequenceHash(hash)).collect()
    }

    /// The renewals that a change brings: length of the path, from where on, until when.
    fn renewals(change: impl FnOnce(Renew<'_>)) -> Vec<(usize, usize, u64)> {
        let mut seen = Vec::new();
        change(&mut |_, path, from, until| seen.push((path.len(), from, until.0)));
        seen
    }

    fn one() -> Leases {
        let mut leases = Leases::default();
        leases.placed(AT, booking(0), &path(&[1, 2, 3, 4]), 1, Millis(0), TERMS);
        leases
    }

    #[test]
    fn the_deadline_moves_while_nobody_answers_and_then_stands() {
        let mut leases = one();
        assert!(!leases.is_due(Millis(1_999)) && leases.is_due(Millis(2_000)));
        let at = |leases: &mut Leases, now| renewals(|r| leases.lapse(Millis(now), r));
        assert_eq!(at(&mut leases, 2_500), [(4, 1, 4_500)]);
        assert_eq!(at(&mut leases, 3_000), []);
        let answered = renewals(|r| leases.answered(AT, booking(0), Millis(4_000), r));
        assert_eq!(answered, [(4, 1, 6_000)]);
        assert_eq!(at(&mut leases, 6_000), []);
        assert_eq!((leases.blocks, leases.due), (0, None));
    }

    #[test]
    fn an_owner_that_never_reports_is_waited_for_a_bounded_time() {
        let mut leases = one();
        let mut at = |now| renewals(|r| leases.lapse(Millis(now), r)).len();
        let count: usize = (2_000..40_000).step_by(2_000).map(&mut at).sum();
        assert_eq!(count, 4, "at 2, 4, 6 and 8 seconds");
        assert_eq!(leases.take(AT, booking(0)), []);
    }

    #[test]
    fn a_partial_confirmation_renews_the_rest_for_everybody_who_waits_for_it() {
        let mut leases = one();
        leases.placed(AT, booking(1), &path(&[1, 2, 9]), 0, Millis(0), TERMS);
        leases.placed(OTHER, booking(2), &path(&[1, 2, 9]), 0, Millis(0), TERMS);
        let confirm = |leases: &mut Leases, depth, hash| {
            renewals(|r| leases.confirmed(AT, depth, SequenceHash(hash), Millis(500), r))
        };
        assert_eq!(confirm(&mut leases, 1, 2), [(4, 2, 2_500), (3, 2, 2_500)]);
        assert_eq!(confirm(&mut leases, 1, 2), [], "known by now");
        assert_eq!(confirm(&mut leases, 2, 7), [], "no lease waits for it");
        assert_eq!(confirm(&mut leases, 2, 9), [], "nothing is left");
        assert_eq!(leases.take(AT, booking(1)), []);
        assert_eq!(leases.take(AT, booking(0)), path(&[4, 3]));
        assert_eq!(leases.blocks, 3, "the other worker's");
    }

    #[test]
    fn a_failed_request_takes_back_only_what_nobody_else_expects() {
        for (other, left) in [
            (&[1, 2, 3, 9][..], &[4][..]),
            (&[1, 2, 3, 4, 5], &[]),
            (&[7, 8], &[4, 3, 2]),
        ] {
            let mut leases = one();
            leases.placed(AT, booking(1), &path(other), 0, Millis(0), TERMS);
            assert_eq!(leases.take(AT, booking(0)), path(left), "{other:?}");
            assert_eq!(leases.take(AT, booking(1)).len(), other.len());
            assert_eq!(leases.blocks, 0);
        }
    }

    #[test]
    fn what_an_event_gives_up_is_not_expected_again() {
        let mut leases = one();
        leases.given_up(AT, 2, SequenceHash(3));
        leases.given_up(AT, 0, SequenceHash(1));
        leases.given_up(AT, 1, SequenceHash(9));
        let renewed = renewals(|r| leases.lapse(Millis(2_000), r));
        assert_eq!(renewed, [(2, 1, 4_000)]);
        assert_eq!(leases.take(AT, booking(0)), path(&[2]));
        assert_eq!(leases.blocks, 0);
    }

    #[test]
    fn what_is_followed_is_bounded() {
        let mut leases = Leases::default();
        for i in 0..KEPT as u32 + 10 {
            leases.placed(AT, booking(i), &path(&[u64::from(i)]), 0, Millis(0), TERMS);
        }
        assert_eq!(leases.slots[3].len(), KEPT);
        assert_eq!(leases.take(AT, booking(9)), [], "the oldest");
        let long = vec![SequenceHash(1); MOST_BLOCKS];
        leases.placed(AT, booking(9_000), &long, 0, Millis(0), TERMS);
        assert_eq!((leases.slots[3].len(), leases.blocks), (1, MOST_BLOCKS));
        leases.placed(OTHER, booking(9_001), &path(&[1]), 0, Millis(0), TERMS);
        // No room, and nothing of its own to drop.
        assert_eq!(leases.blocks, MOST_BLOCKS);
        leases.forget(3);
        assert_eq!(leases.blocks, 0);
        leases.clear();
        assert!(leases.slots.is_empty());
    }
}
