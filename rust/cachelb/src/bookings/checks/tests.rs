use std::collections::HashMap;

use cachelb_core::load::Work;

use super::*;

const W: WorkerId = WorkerId {
    slot: 2,
    generation: 1,
};
const SIZES: Sizes = Sizes {
    own: 16,
    slack: 16,
    above: 0,
    marked: false,
};

fn path(blocks: u64) -> Vec<SequenceHash> {
    (0..blocks).map(|i| SequenceHash(i * 7 + 1)).collect()
}

fn booking(entry: u32) -> BookingId {
    BookingId {
        entry,
        generation: 0,
    }
}

/// Bookings, each under a name.
struct Named {
    bookings: Bookings,
    ids: HashMap<BookingId, BookingId>,
}

impl Named {
    fn new() -> Self {
        Self {
            bookings: Bookings::new(0),
            ids: HashMap::new(),
        }
    }

    fn promised(
        &mut self,
        worker: WorkerId,
        name: BookingId,
        path: &[SequenceHash],
        tokens: u64,
        sizes: Sizes,
    ) {
        let book = &mut self.bookings.book;
        if book.loads.get(worker).is_none() {
            book.add_worker(worker);
        }
        let id = book.book(worker, Work::default(), Millis(0)).unwrap();
        self.ids.insert(name, id);
        let path = (path, path.len());
        self.bookings.promise(worker, id, path, tokens, sizes);
    }

    /// Ends a booking after a change of its promise.
    fn close(
        &mut self,
        worker: WorkerId,
        name: BookingId,
        change: impl FnOnce(&mut Checks, &mut Option<Promise>),
    ) {
        if let Some(id) = self.ids.remove(&name)
            && let Some((_, _, mut booking)) = self.bookings.book.bookings.take(id)
        {
            change(&mut self.bookings.checks, &mut booking.promise);
            self.bookings.close(worker, id, booking);
        }
    }

    fn completed(
        &mut self,
        worker: WorkerId,
        name: BookingId,
        counts: (u64, Option<u64>),
        now: Millis,
    ) {
        self.close(worker, name, |checks, promise| {
            checks.completed(worker, promise, counts, now);
        });
    }

    fn ended(&mut self, worker: WorkerId, name: BookingId) {
        self.close(worker, name, |checks, promise| {
            checks.unpromise(worker, promise);
        });
    }

    fn given_up(&mut self, worker: WorkerId, depth: usize, hash: SequenceHash) {
        self.bookings.given_up(worker, depth, hash, true);
    }

    fn caught_up(&mut self, worker: WorkerId, until: Millis) -> bool {
        self.bookings.validate().unwrap();
        self.bookings.caught_up(worker, until)
    }

    fn totals(&self, worker: WorkerId) -> (u64, u64) {
        self.bookings.checks.totals(worker)
    }

    /// Promises of the worker that are not settled.
    fn open(&self) -> u32 {
        self.bookings.checks.workers[2].promises
    }

    fn blocks(&self) -> usize {
        self.bookings.followed.blocks
    }
}

/// Checks of a worker that reports what it finds.
fn reporting() -> Named {
    let mut checks = Named::new();
    promise(&mut checks, 0);
    complete(&mut checks, 0, 160);
    checks
}

fn promise(checks: &mut Named, entry: u32) {
    checks.promised(W, booking(entry), &path(10), 170, SIZES);
}

fn complete(checks: &mut Named, entry: u32, found: u64) {
    checks.completed(W, booking(entry), (found, Some(170)), Millis(1_000));
}

/// One request that found `found` tokens of 160. Returns whether the worker is suspicious.
fn request(checks: &mut Named, found: u64) -> bool {
    promise(checks, 1);
    complete(checks, 1, found);
    checks.caught_up(W, Millis(2_000))
}

#[test]
fn less_by_more_than_a_block_is_a_mismatch_once_the_stream_told_of_that_time() {
    for (found, mismatches) in [(160, 0), (1_000, 0), (144, 0), (143, 1), (0, 1)] {
        let mut checks = reporting();
        promise(&mut checks, 1);
        complete(&mut checks, 1, found);
        checks.caught_up(W, Millis(1_249));
        assert_eq!(checks.totals(W), (2 - mismatches, 0), "{found}");
        checks.caught_up(W, Millis(1_250));
        assert_eq!(checks.totals(W), (2, mismatches), "{found}");
        assert_eq!((checks.blocks(), checks.open()), (0, 0));
    }
}

#[test]
fn what_an_event_gives_up_was_not_promised() {
    let hash = |depth: u64| SequenceHash(depth * 7 + 1);
    for (found, depth, mismatches) in [(48, 3, 0), (48, 4, 0), (48, 5, 1), (48, 2, 0), (0, 0, 0)] {
        for late in [false, true] {
            let mut checks = reporting();
            promise(&mut checks, 1);
            let give_up = |checks: &mut Named| {
                checks.given_up(W, depth as usize, hash(depth));
                checks.given_up(W, 1, hash(9));
            };
            if !late {
                give_up(&mut checks);
            }
            complete(&mut checks, 1, found);
            if late {
                give_up(&mut checks);
            }
            checks.caught_up(W, Millis(2_000));
            assert_eq!(checks.totals(W), (2, mismatches), "{found} {depth} {late}");
            assert_eq!(checks.blocks(), 0);
        }
    }
}

#[test]
fn more_than_one_in_a_hundred_by_four_are_too_many() {
    let mut checks = reporting();
    for _ in 0..4 {
        assert!(!request(&mut checks, 0));
    }
    assert!(request(&mut checks, 0), "the fifth, of six");
    checks.bookings.start_over(W);
    assert!(!checks.caught_up(W, Millis(3_000)), "it begins anew");
    assert_eq!(checks.totals(W), (6, 5), "what was counted stays counted");
    for _ in 0..KEPT {
        assert!(!request(&mut checks, 160));
    }
    for n in 1..=10 {
        assert_eq!(request(&mut checks, 0), n == 10, "of {KEPT}");
    }
    for _ in 0..KEPT - 10 {
        request(&mut checks, 160);
    }
    assert_eq!(checks.bookings.checks.workers[2].answers.count, 10);
    assert!(!request(&mut checks, 160), "the first leaves the window");
}

#[test]
fn what_says_nothing_is_not_counted() {
    let mut checks = Named::new();
    for _ in 0..10 {
        assert!(!request(&mut checks, 0), "it does not report");
    }
    assert_eq!(checks.totals(W), (0, 0));
    let mut checks = reporting();
    promise(&mut checks, 1);
    checks.completed(W, booking(1), (0, Some(171)), Millis(1_000));
    promise(&mut checks, 2);
    checks.ended(W, booking(2));
    promise(&mut checks, 3);
    complete(&mut checks, 3, 0);
    checks.bookings.lose_track(W);
    checks.promised(W, booking(4), &path(1), 17, SIZES);
    let other = WorkerId { slot: 0, ..W };
    checks.completed(other, booking(4), (0, None), Millis(1_000));
    checks.caught_up(W, Millis(9_000));
    assert_eq!(checks.totals(W), (1, 0));
    assert_eq!((checks.blocks(), checks.open()), (0, 0));
}

#[test]
fn what_is_followed_is_bounded_and_goes_with_its_worker() {
    let mut checks = reporting();
    for entry in 1..20 {
        promise(&mut checks, entry);
    }
    assert_eq!((checks.open(), checks.blocks()), (8, 80));
    complete(&mut checks, 19, 0);
    complete(&mut checks, 8, 160);
    assert_eq!(checks.totals(W), (2, 0), "the ninth was not followed");
    assert_eq!(checks.open(), 7);
    checks.bookings.remove_worker(W);
    assert_eq!((checks.open(), checks.blocks()), (0, 0));
    let successor = WorkerId { generation: 2, ..W };
    checks.promised(successor, booking(31), &path(3), 50, SIZES);
    assert_eq!((checks.blocks(), checks.totals(successor)), (3, (0, 0)));
}

#[test]
fn an_engine_that_is_always_a_block_short_drafts() {
    let drafts = |found: &[u64], sizes: Sizes, tokens: u64| {
        let mut checks = reporting();
        for found in found {
            checks.promised(W, booking(1), &path(10), tokens, sizes);
            checks.completed(W, booking(1), (*found, Some(tokens)), Millis(1_000));
        }
        checks.bookings.checks.drafts(W)
    };
    let ahead = Sizes { above: 1, ..SIZES };
    for (found, tokens, expected) in [
        (vec![144; 8], 170, true),
        (vec![144; 7], 170, false),
        ([vec![144; 7], vec![160], vec![160]].concat(), 170, false),
        ([vec![144; 7], vec![160], vec![144; 2]].concat(), 170, true),
        ([vec![144; 7], vec![128], vec![144; 1]].concat(), 170, true),
        ([144, 160, 160].repeat(20), 170, false),
        // The last token is always computed, so of whole blocks the last one is, drafts or not.
        ([vec![160; 4], vec![144; 8]].concat(), 160, true),
        (vec![160; 9], 160, false),
    ] {
        assert_eq!(
            drafts(&found, SIZES, tokens),
            expected,
            "{found:?} of {tokens}"
        );
        assert!(
            !drafts(&found, ahead, tokens),
            "it is promised no more than that"
        );
    }
    let mut checks = reporting();
    for _ in 0..8 {
        request(&mut checks, 144);
    }
    assert!(checks.bookings.checks.drafts(W));
    checks.bookings.start_over(W);
    assert!(!checks.bookings.checks.drafts(W));
}

#[test]
fn nobody_knows_what_is_left_of_a_promise_whose_mark_went() {
    let marked = Sizes {
        marked: true,
        ..SIZES
    };
    for (depth, hash, total) in [
        (9, path(10)[9], 1),
        (9, path(10)[8], 2),
        (3, path(10)[3], 1),
    ] {
        let mut checks = reporting();
        checks.promised(W, booking(1), &path(10), 170, marked);
        checks.given_up(W, depth, hash);
        complete(&mut checks, 1, 0);
        checks.caught_up(W, Millis(2_000));
        assert_eq!(checks.totals(W).0, total, "{depth}");
        assert_eq!((checks.blocks(), checks.open()), (0, 0));
    }
}
