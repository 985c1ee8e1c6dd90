//! Links between peers: booked and free again, sources that send nothing, and what is learned of copies.

use proptest::prelude::*;

use super::peers::terms;
use super::shared_cache::{MEASURED, adaptive};
use super::*;
use crate::selector::{Breaker, PoolId};

const CPU: &[Medium] = &[Medium::Cpu];
/// Tokens of 12 blocks, all of which are copied.
const TOKENS: f64 = 192.0;

impl Fleet {
    /// A fleet in which computing a token takes 1 ms, whose host memory is copied.
    fn copying(ms_per_token: f64) -> Self {
        let mut fleet = Self::new(adaptive());
        fleet.selector.settings.breaker = Some(Breaker {
            failures: 3,
            cooldown_ms: 10_000,
            backpressure_ms: 5,
        });
        fleet.measure();
        let mut workers = fleet.selector.workers_mut();
        workers.add_peer_group("rack", PoolId(0), terms(ms_per_token, 0.0, CPU));
        fleet
    }

    /// A request for the prompt of a number, on a worker.
    fn book(&mut self, worker: usize, number: u64, now: u64) -> Pick {
        let path = numbered(number);
        let request = Request {
            pinned: Some((worker as u32, Reason::Custom)),
            ..request((&path, Origin::Tokens), 193, now)
        };
        let pick = self.selector.select(&mut offers(&NAMES), &request).unwrap();
        self.selector.validate().unwrap();
        pick
    }

    /// Whether that request would copy.
    fn copies(&mut self, number: u64, now: u64) -> bool {
        let path = numbered(number);
        let request = Request {
            pinned: Some((0, Reason::Custom)),
            ..request((&path, Origin::Tokens), 193, now)
        };
        self.preview(&request).0.source.is_some()
    }

    fn holds(&mut self, worker: usize, number: u64) {
        self.announce(worker, &numbered(number), 0, Medium::Cpu, 0);
    }

    fn complete(&mut self, pick: &Pick, cached_tokens: u64, now: u64) {
        let usage = Usage {
            cached_tokens: Some(cached_tokens),
            ..Usage::default()
        };
        let (booking, now) = (pick.booking.unwrap(), Millis(now));
        self.selector.end(booking, Ending::Completed, usage, now);
        self.selector.validate().unwrap();
    }

    fn wait_ms(&self, from: usize, to: usize, now: u64) -> f64 {
        let (from, to) = (self.ids[from], self.ids[to]);
        self.selector.links.wait_ms(from, to, Millis(now))
    }
}

fn numbered(number: u64) -> Vec<SequenceHash> {
    prompt(1_000 * (number + 1), 12)
}

proptest! {
    #[test]
    fn links_are_taken_until_the_last_copy_and_free_in_the_end(
        steps in prop::collection::vec((0_usize..3, 0_u64..6, 0_u64..60, 0_u8..4), 1..60),
    ) {
        let mut fleet = Fleet::copying(0.5);
        fleet.selector.settings.breaker = None;
        for number in 0..6 {
            fleet.holds((number % 3) as usize, number);
        }
        let (mut open, mut now) = (Vec::<Pick>::new(), MEASURED);
        for (worker, number, later, over) in steps {
            now += later;
            open.push(fleet.book(worker, number, now));
            if over > 0 && !open.is_empty() {
                let pick = open.remove(0);
                let booking = pick.booking.unwrap();
                if over == 1 {
                    fleet.selector.first_token(booking, Millis(now));
                }
                let ending = [Ending::Completed, Ending::Failed, Ending::Cancelled][usize::from(over) - 1];
                fleet.end(booking, ending, now);
            }
            let bookings = &fleet.selector.bookings.book.bookings;
            let until = open.iter().filter_map(|pick| {
                let copying = bookings.payload(pick.booking?)?.copying.as_ref()?;
                (!copying.is_over).then_some(copying.until)
            });
            let most = until.fold(0.0, f64::max) - now as f64;
            for (from, to) in [(0, 1), (1, 2), (2, 0)] {
                prop_assert!(fleet.wait_ms(from, to, now) <= most.max(0.0) + 1e-6);
            }
        }
        for pick in open {
            fleet.end(pick.booking.unwrap(), Ending::Cancelled, now);
        }
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            prop_assert!(fleet.wait_ms(from, to, now) < 1e-6);
        }
    }
}

#[test]
fn of_two_sources_the_one_with_a_free_link_is_named() {
    let mut fleet = Fleet::copying(0.5);
    for number in 0..4 {
        fleet.holds(1, number);
    }
    fleet.holds(2, 2);
    fleet.holds(2, 3);
    let copied = fleet.book(2, 0, MEASURED).source.unwrap();
    assert_eq!(
        (copied.worker, copied.load_ms),
        (fleet.ids[1], 0.5 * TOKENS)
    );
    let other = fleet.book(0, 2, MEASURED);
    let source = other.source.unwrap();
    assert_eq!(
        (source.worker, source.load_ms),
        (fleet.ids[2], 0.5 * TOKENS)
    );
    // The link into the worker is taken, whatever the source.
    let later = fleet.book(0, 3, MEASURED);
    assert_eq!(later.source.map(|source| source.load_ms), Some(TOKENS));
    for pick in [later, other] {
        fleet.end(pick.booking.unwrap(), Ending::Failed, MEASURED + 40);
    }
    for (from, left) in [(2, 0.0), (1, 0.5 * TOKENS - 40.0)] {
        assert!((fleet.wait_ms(from, 0, MEASURED + 40) - left).abs() < 1e-6);
    }
}

#[test]
fn few_wait_for_a_source_that_has_sent_nothing_and_it_rests_longer_each_time() {
    let mut fleet = Fleet::copying(0.01);
    (0..200).for_each(|number| fleet.holds(1, number));
    let mut now = MEASURED;
    for rest_ms in [30_000, 60_000, 120_000, 240_000, 480_000, 600_000, 600_000] {
        let waiting: Vec<Pick> = (0..100).map(|number| fleet.book(0, number, now)).collect();
        let (waiting, others): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|pick| pick.source.is_some());
        assert_eq!(waiting.len(), 2, "after {now} ms");
        for (picks, later) in [(others, 1), (waiting, 200_000)] {
            now += later;
            for pick in picks {
                fleet.end(pick.booking.unwrap(), Ending::Cancelled, now);
            }
        }
        let silence = fleet
            .selector
            .fleet()
            .member(fleet.ids[0])
            .unwrap()
            .health
            .silence();
        assert_eq!(silence, None, "the worker that copies is not to blame");
        assert!(!fleet.copies(101, now + rest_ms - 1));
        now += rest_ms;
    }
    let pick = fleet.book(0, 101, now);
    assert!(pick.source.is_some());
    fleet
        .selector
        .first_token(pick.booking.unwrap(), Millis(now + 5));
    fleet.complete(&pick, 192, now + 6);
    let copies = (102..110).filter(|number| fleet.book(0, *number, now + 6).source.is_some());
    assert_eq!(copies.count(), 8);
    // Until one of them is overdue.
    assert!(!fleet.copies(120, now + 100_000));
}

#[test]
fn a_source_where_most_copies_find_nothing_rests() {
    for (missed, rests) in [(4, false), (5, true)] {
        let mut fleet = Fleet::copying(0.01);
        (0..20).for_each(|number| fleet.holds(1, number));
        for number in 0..8 {
            let now = MEASURED + 10 * number;
            let pick = fleet.book(0, number, now);
            assert!(pick.source.is_some(), "{number}");
            fleet
                .selector
                .first_token(pick.booking.unwrap(), Millis(now + 2));
            fleet.complete(&pick, if number < missed { 0 } else { 16 }, now + 3);
            if number + 1 == missed && rests {
                break;
            }
        }
        assert_eq!(fleet.copies(19, MEASURED + 100), !rests, "{missed}");
    }
}

#[test]
fn the_terms_of_a_group_follow_what_copies_take() {
    for (real, took) in [(0.025, 5), (0.1, 19), (0.4, 77)] {
        let mut fleet = Fleet::copying(0.1);
        let speed = fleet.selector.book().pace.speed();
        let mut estimate = 0.0;
        for number in 0..60 {
            fleet.holds(1, number);
            let now = MEASURED + 1_000 * number;
            let pick = fleet.book(0, number, now);
            estimate = pick.source.unwrap().load_ms;
            fleet
                .selector
                .first_token(pick.booking.unwrap(), Millis(now + 1 + took));
            fleet.complete(&pick, 192, now + 1 + took);
        }
        assert!(
            (estimate / took as f64 - 1.0).abs() < 0.15,
            "{real}: {estimate}"
        );
        assert_eq!(
            fleet.selector.book().pace.speed(),
            speed,
            "copies are no computing"
        );
    }
}
