//! Placements on workers whose events will confirm them or not.
//!
//! Such a placement is expected, not recorded: its blocks lie in the speculative lane of the index with a deadline. How
//! long an engine takes to announce them is the time the request waits there and is computed, so the deadline follows the
//! request: it moves until the worker answers, with every block that an event confirms, and with the first token. Then
//! it stands. A request that fails removes the blocks that it alone expected and no event confirmed.
//!
//! While messages of a worker's engine are missing and asked for, no deadline there stands: nothing can confirm in time.
//!
//! An owner that never reports is waited for a bounded time. A worker has events in one model, so its leases are all of
//! that model.

use cachelb_core::collections::slot_mut;
use cachelb_core::ids::{Millis, SequenceHash, WorkerId};
use cachelb_core::load::BookingId;

use crate::bookings::{Booking, Bookings};
use crate::request::PoolId;

/// How long an unconfirmed placement counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// Without any sign of it.
    pub ttl_ms: u64,
    /// How long an owner that does not answer is taken to be waiting.
    pub patience_ms: u64,
}

/// Blocks of a booking that events should confirm.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Leading blocks of the path that are expected.
    pub length: usize,
    /// Those of them that events confirmed.
    pub confirmed: usize,
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
}

/// Called with a deadline that moved: worker, model, path, its leading blocks that need none, and the deadline.
pub(crate) type Renew<'a> = &'a mut dyn FnMut(WorkerId, PoolId, &[SequenceHash], usize, Millis);

/// Passes on the deadline of a booking's lease.
fn pass_on(worker: WorkerId, booking: &Booking, renew: Renew<'_>) {
    if let Some(lease) = &booking.lease {
        let path = &booking.path[..lease.length];
        renew(worker, booking.pool, path, lease.confirmed, lease.until);
    }
}

/// Leading blocks that two paths share. Hashes are chained, so equality at one depth is equality before.
fn shared(a: &[SequenceHash], b: &[SequenceHash]) -> usize {
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

/// Deadlines of all leases.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    /// Workers whose messages are missing, by slot.
    behind: Vec<bool>,
    /// No deadline is earlier.
    due: Option<Millis>,
}

impl Deadlines {
    fn add(&mut self, until: Millis) {
        self.due = Some(self.due.map_or(until, |due| due.min(until)));
    }

    /// Whether messages of the worker in `slot` are missing and asked for.
    pub fn set_behind(&mut self, slot: u32, behind: bool) {
        *slot_mut(&mut self.behind, slot) = behind;
    }

    /// There are no leases any more.
    pub fn clear(&mut self) {
        self.due = None;
    }

    /// Whether one has passed.
    pub fn is_due(&self, now: Millis) -> bool {
        self.due.is_some_and(|due| due <= now)
    }
}

impl Booking {
    /// The worker answered: blocks not announced by now will be soon, or never.
    pub fn answered(&mut self, worker: WorkerId, now: Millis, renew: Renew<'_>) {
        if let Some(lease) = &mut self.lease {
            lease.answered = true;
            lease.renew(now);
            pass_on(worker, self, renew);
        }
    }
}

impl Bookings {
    /// A request was routed to the worker, of whose `path` events confirmed the first `confirmed` blocks.
    pub fn expect(
        &mut self,
        worker: WorkerId,
        id: BookingId,
        path: &[SequenceHash],
        confirmed: usize,
        now: Millis,
        terms: Terms,
    ) {
        if confirmed >= path.len() {
            return;
        }
        let Some(booking) = self.follow(worker, id, path) else {
            return;
        };
        let mut lease = Lease {
            length: path.len(),
            confirmed,
            ttl_ms: terms.ttl_ms,
            until: now,
            patience: Millis(now.0.saturating_add(terms.patience_ms)),
            answered: false,
        };
        lease.renew(now);
        let until = lease.until;
        booking.lease = Some(lease);
        self.deadlines.add(until);
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
        self.followed
            .visit(&mut self.book, worker.slot, |worker, booking| {
                let is_next = |lease: &&mut Lease| (lease.confirmed..lease.length).contains(&depth);
                let lease = booking.lease.as_mut().filter(is_next);
                let Some(lease) = lease.filter(|_| booking.path[depth] == hash) else {
                    return;
                };
                lease.confirmed = depth + 1;
                lease.renew(now);
                if lease.confirmed == lease.length {
                    booking.lease = None;
                } else {
                    pass_on(worker, booking, &mut *renew);
                }
            });
    }

    /// A request failed before it was answered. Returns the blocks that only it expected, deepest first.
    pub fn take_lease(&self, worker: WorkerId, booking: &mut Booking) -> Vec<SequenceHash> {
        let Some(lease) = booking.lease.take() else {
            return Vec::new();
        };
        let (path, mut from) = (&booking.path[..lease.length], lease.confirmed);
        for (other, _) in self.leases(worker) {
            from = from.max(shared(path, other));
        }
        path[from..].iter().rev().copied().collect()
    }

    /// The expected path of every lease on the worker, and its confirmed blocks.
    pub fn leases(&self, worker: WorkerId) -> impl Iterator<Item = (&[SequenceHash], usize)> {
        let ids = self.followed.of(worker.slot);
        ids.filter_map(|id| {
            let booking = self.book.bookings.payload(id)?;
            let lease = booking.lease.as_ref()?;
            Some((&booking.path[..lease.length], lease.confirmed))
        })
    }

    /// Moves the deadlines of those who still wait; the others are no longer followed.
    pub fn lapse(&mut self, now: Millis, renew: Renew<'_>) {
        if !self.deadlines.is_due(now) {
            return;
        }
        let mut next = Deadlines::default();
        for slot in 0..self.followed.slots.len() as u32 {
            let behind = self.deadlines.behind.get(slot as usize).copied();
            let behind = behind.unwrap_or(false);
            self.followed
                .visit(&mut self.book, slot, |worker, booking| {
                    let Some(lease) = &mut booking.lease else {
                        return;
                    };
                    if lease.until <= now {
                        if !behind && (lease.answered || lease.patience <= now) {
                            booking.lease = None;
                            return;
                        }
                        lease.renew(now);
                        next.add(lease.until);
                        pass_on(worker, booking, &mut *renew);
                    } else {
                        next.add(lease.until);
                    }
                });
        }
        self.deadlines.due = next.due;
    }
}

#[cfg(test)]
mod tests {
    use cachelb_core::load::Work;

    use super::*;
    use crate::bookings::{KEPT, MOST_BLOCKS};

    const TERMS: Terms = Terms {
        ttl_ms: 2_000,
        patience_ms: 10_000,
    };

    const AT: WorkerId = WorkerId {
        slot: 3,
        generation: 0,
    };
    const OTHER: WorkerId = WorkerId { slot: 4, ..AT };

    fn path(hashes: &[u64]) -> Vec<SequenceHash> {
        hashes.iter().map(|&hash| SequenceHash(hash)).collect()
    }

    fn place(
        bookings: &mut Bookings,
        worker: WorkerId,
        path: &[SequenceHash],
        confirmed: usize,
    ) -> BookingId {
        let book = &mut bookings.book;
        let id = book.book(worker, Work::default(), Millis(0)).unwrap();
        bookings.expect(worker, id, path, confirmed, Millis(0), TERMS);
        id
    }

    /// The renewals that a change brings: length of the path, from where on, until when.
    fn renewals(change: impl FnOnce(Renew<'_>)) -> Vec<(usize, usize, u64)> {
        let mut seen = Vec::new();
        change(&mut |_, _, path, from, until| seen.push((path.len(), from, until.0)));
        seen
    }

    fn one() -> (Bookings, BookingId) {
        let mut bookings = Bookings::new(0);
        bookings.book.add_worker(AT);
        bookings.book.add_worker(OTHER);
        let id = place(&mut bookings, AT, &path(&[1, 2, 3, 4]), 1);
        (bookings, id)
    }

    /// Ends a request before it is answered. Returns the blocks that only it expected.
    fn fail(bookings: &mut Bookings, worker: WorkerId, id: BookingId) -> Vec<SequenceHash> {
        let (_, _, mut booking) = bookings.book.bookings.take(id).unwrap();
        let expected = bookings.take_lease(worker, &mut booking);
        bookings.close(worker, id, booking);
        expected
    }

    fn blocks(bookings: &Bookings) -> usize {
        bookings.validate().unwrap();
        bookings.followed.blocks
    }

    #[test]
    fn the_deadline_moves_while_nobody_answers_and_then_stands() {
        let (mut leases, id) = one();
        let due = |now| leases.deadlines.is_due(Millis(now));
        assert!(!due(1_999) && due(2_000));
        let at = |leases: &mut Bookings, now| renewals(|r| leases.lapse(Millis(now), r));
        assert_eq!(at(&mut leases, 2_500), [(4, 1, 4_500)]);
        assert_eq!(at(&mut leases, 3_000), []);
        let (worker, booking) = leases.book.bookings.held_mut(id).unwrap();
        let answered = renewals(|r| booking.answered(worker, Millis(4_000), r));
        assert_eq!(answered, [(4, 1, 6_000)]);
        assert_eq!(at(&mut leases, 6_000), []);
        assert_eq!((blocks(&leases), leases.deadlines.due), (0, None));
    }

    #[test]
    fn an_owner_that_never_reports_is_waited_for_a_bounded_time() {
        let (mut leases, id) = one();
        let mut at = |now| renewals(|r| leases.lapse(Millis(now), r)).len();
        let count: usize = (2_000..40_000).step_by(2_000).map(&mut at).sum();
        assert_eq!(count, 4, "at 2, 4, 6 and 8 seconds");
        assert_eq!(fail(&mut leases, AT, id), []);
    }

    #[test]
    fn a_partial_confirmation_renews_the_rest_for_everybody_who_waits_for_it() {
        let (mut leases, id) = one();
        let second = place(&mut leases, AT, &path(&[1, 2, 9]), 0);
        place(&mut leases, OTHER, &path(&[1, 2, 9]), 0);
        let confirm = |leases: &mut Bookings, depth, hash| {
            renewals(|r| leases.confirmed(AT, depth, SequenceHash(hash), Millis(500), r))
        };
        assert_eq!(confirm(&mut leases, 1, 2), [(4, 2, 2_500), (3, 2, 2_500)]);
        assert_eq!(confirm(&mut leases, 1, 2), [], "known by now");
        assert_eq!(confirm(&mut leases, 2, 7), [], "no lease waits for it");
        assert_eq!(confirm(&mut leases, 2, 9), [], "nothing is left");
        assert_eq!(fail(&mut leases, AT, second), []);
        assert_eq!(fail(&mut leases, AT, id), path(&[4, 3]));
        assert_eq!(blocks(&leases), 3, "the other worker's");
    }

    #[test]
    fn a_failed_request_takes_back_only_what_nobody_else_expects() {
        for (other, left) in [
            (&[1, 2, 3, 9][..], &[4][..]),
            (&[1, 2, 3, 4, 5], &[]),
            (&[7, 8], &[4, 3, 2]),
        ] {
            let (mut leases, id) = one();
            let second = place(&mut leases, AT, &path(other), 0);
            assert_eq!(fail(&mut leases, AT, id), path(left), "{other:?}");
            assert_eq!(fail(&mut leases, AT, second).len(), other.len());
            assert_eq!(blocks(&leases), 0);
        }
    }

    #[test]
    fn what_an_event_gives_up_is_not_expected_again() {
        let (mut leases, id) = one();
        leases.given_up(AT, 2, SequenceHash(3), true);
        leases.given_up(AT, 0, SequenceHash(1), true);
        leases.given_up(AT, 1, SequenceHash(9), true);
        let renewed = renewals(|r| leases.lapse(Millis(2_000), r));
        assert_eq!(renewed, [(2, 1, 4_000)]);
        assert_eq!(fail(&mut leases, AT, id), path(&[2]));
        assert_eq!(blocks(&leases), 0);
    }

    #[test]
    fn what_is_followed_is_bounded() {
        let (mut leases, first) = one();
        for i in 0..KEPT as u64 {
            place(&mut leases, AT, &path(&[i]), 0);
        }
        assert_eq!(leases.followed.slots[3].len(), KEPT);
        assert_eq!(fail(&mut leases, AT, first), [], "the oldest");
        let long = vec![SequenceHash(1); MOST_BLOCKS];
        place(&mut leases, AT, &long, 0);
        assert_eq!(leases.followed.slots[3].len(), 1);
        place(&mut leases, OTHER, &path(&[1]), 0);
        // No room, and nothing of its own to drop.
        assert_eq!(blocks(&leases), MOST_BLOCKS);
        leases.remove_worker(AT);
        assert_eq!(blocks(&leases), 0);
    }
}
