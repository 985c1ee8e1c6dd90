//! The state of one worker: its causes, its ends, and a model that keeps everything that happened.

use proptest::prelude::*;

use super::*;

const BREAKER: Breaker = Breaker {
    failures: 3,
    cooldown_ms: 5_000,
    backpressure_ms: 500,
};
const FAILURE: Blame = Blame {
    failures: 1,
    give_ups: 0,
};
const GIVE_UP: Blame = Blame {
    failures: 0,
    give_ups: 1,
};

fn id(entry: u32) -> BookingId {
    BookingId {
        entry,
        generation: 0,
    }
}

/// After the same evidence at each time.
fn blamed(blame: Blame, times: std::ops::Range<u64>) -> Health {
    let mut health = Health::default();
    times.for_each(|at| health.blame(blame, BREAKER, Millis(at)));
    health
}

/// After so many pages without an answer.
fn silent(pages: u64) -> Health {
    let mut health = Health::default();
    (0..pages).for_each(|at| health.page_failed(BREAKER, Millis(at)));
    health
}

#[test]
fn consecutive_failures_trip_it_and_one_more_trips_it_again() {
    let mut health = blamed(FAILURE, 0..2);
    assert!(!health.is_out(Millis(1)));
    health.blame(FAILURE, BREAKER, Millis(2));
    assert!(health.is_out(Millis(5_001)));
    assert!(!health.is_out(Millis(5_002)), "one may try");
    health.blame(FAILURE, BREAKER, Millis(5_010));
    assert!(health.is_out(Millis(10_009)));
    assert!(!health.rests);
}

#[test]
fn after_the_cooldown_one_request_tries_and_the_others_wait_for_it() {
    let mut health = blamed(FAILURE, 0..3);
    health.tried(id(0), BREAKER, Millis(5_002));
    assert!(health.is_out(Millis(10_001)) && !health.is_out(Millis(10_002)));
    health.is_there(BREAKER);
    assert!(!health.is_out(Millis(5_003)), "the client was at fault");
    health.blame(FAILURE, BREAKER, Millis(5_004));
    assert!(health.is_out(Millis(5_005)), "nothing was forgiven");
    health.answered(Millis(5_006));
    health.tried(id(1), BREAKER, Millis(5_006));
    assert!(!health.is_out(Millis(5_006)));
}

#[test]
fn an_answer_forgives() {
    let mut health = blamed(FAILURE, 0..3);
    health.answered(Millis(3));
    assert!(!health.is_out(Millis(3)));
    health.blame(FAILURE, BREAKER, Millis(4));
    assert!(!health.is_out(Millis(4)));
}

#[test]
fn backpressure_passes_by_without_counting() {
    let mut health = Health::default();
    for _ in 0..10 {
        health.pushed_back(BREAKER.backpressure_ms, Millis(100));
    }
    assert!(health.is_out(Millis(599)) && !health.is_out(Millis(600)));
    assert!(health.rests);
    health.blame(FAILURE, BREAKER, Millis(700));
    assert!(!health.is_out(Millis(700)));
}

#[test]
fn a_rest_outlasts_answers_and_is_not_taken_for_failures() {
    let mut health = Health::default();
    health.pushed_back(9_000, Millis(0));
    health.answered(Millis(0));
    health.is_there(BREAKER);
    assert!(health.is_out(Millis(8_999)));
    assert!(health.rests);
    for at in 1..4 {
        health.blame(FAILURE, BREAKER, Millis(at));
    }
    assert!(health.is_out(Millis(8_999)), "it fails");
    assert!(!health.rests);
    health.pushed_back(500, Millis(4));
    assert!(!health.rests, "it still fails");
    health.answered(Millis(5));
    assert!(!health.is_out(Millis(5)));
}

#[test]
fn a_long_wait_counts_once_it_is_longer_than_expected_and_than_two_seconds() {
    for (waited_ms, expected_ms, counts) in [
        (1_999, 0.0, false),
        (2_000, 0.0, true),
        (2_001, 500.0, true),
        (8_000, 2_000.0, false),
        (8_001, 2_000.0, true),
    ] {
        assert_eq!(is_overdue((waited_ms, expected_ms)), counts, "{waited_ms}");
    }
}

#[test]
fn three_silent_pages_or_two_given_up_requests_make_it_unreachable() {
    assert_eq!(silent(2).silence(), None);
    assert_eq!(silent(3).silence(), Some(Silence::Page));
    assert_eq!(blamed(GIVE_UP, 0..1).silence(), None);
    assert_eq!(blamed(GIVE_UP, 0..2).silence(), Some(Silence::Tokens));
    for health in [silent(3), blamed(GIVE_UP, 0..2)] {
        assert!(health.is_out(Millis(20_000)) && !health.is_out(Millis(20_002)));
        let mut back = health;
        back.answered(Millis(9));
        assert!(!back.is_out(Millis(9)) && back.silence().is_none());
    }
}

#[test]
fn one_request_at_a_time_tries_it_after_pauses_that_double() {
    let (mut health, mut now) = (blamed(GIVE_UP, 0..2), 0);
    for (entry, pause_ms) in (0..).zip([20_000, 40_000, 80_000, 160_000, 160_000]) {
        assert_eq!(
            health.out_until.0.saturating_sub(now),
            pause_ms + u64::from(now == 0)
        );
        now = health.out_until.0;
        health.tried(id(entry), BREAKER, Millis(now));
        assert!(
            health.is_out(Millis(now + PROBE_MS - 1)),
            "others wait for it"
        );
        health.tried(id(99), BREAKER, Millis(now + 1));
        health.blame(GIVE_UP, BREAKER, Millis(now + 8_000));
        health.ended(
            id(entry),
            (Ending::Cancelled, true),
            BREAKER,
            Millis(now + 8_000),
        );
        now += 8_000;
    }
    health.tried(id(7), BREAKER, health.out_until);
    let left = health.out_until.0 - PROBE_MS + 10;
    health.ended(id(7), (Ending::Cancelled, false), BREAKER, Millis(left));
    assert!(
        !health.is_out(Millis(left)),
        "a client that leaves early shows nothing"
    );
    assert!(health.silence().is_some());
}

#[test]
fn an_answered_page_shows_nothing_of_requests_that_wait_unless_it_was_silent_itself() {
    let tripped = blamed(GIVE_UP, 0..2);
    let mut hung = tripped;
    hung.page_answered(10, Millis(50));
    assert_eq!(hung, tripped, "the page answers while the engine hangs");
    let mut slow = tripped;
    slow.page_answered(SLOW_PAGE_MS, Millis(50));
    let mut missed = tripped;
    missed.page_failed(BREAKER, Millis(40));
    missed.page_answered(10, Millis(50));
    for mut health in [slow, missed] {
        assert_eq!(health.silence(), Some(Silence::Tokens));
        assert!(!health.is_out(Millis(50)));
        health.tried(id(0), BREAKER, Millis(50));
        assert!(health.is_out(Millis(51)), "one at a time");
    }
}

#[test]
fn what_was_no_fault_is_taken_back() {
    let mut health = blamed(FAILURE, 0..3);
    health.excuse(FAILURE, BREAKER);
    assert!(!health.is_out(Millis(3)));
    health.blame(FAILURE, BREAKER, Millis(4));
    assert!(health.is_out(Millis(4)), "the others stand");
    let mut health = blamed(GIVE_UP, 0..2);
    health.excuse(GIVE_UP, BREAKER);
    assert!(!health.is_out(Millis(2)) && health.silence().is_none());
}

// --- against all that ever happened ---

#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    Token,
    Restart,
    PageFailed,
    PageAnswered,
    /// An answer with 4xx.
    Client,
    Failed,
    GaveUp,
    /// A client left early.
    Left,
}

/// Everything that happened, read anew from the end for each answer.
#[derive(Debug, Default)]
struct Model {
    log: Vec<Event>,
    /// By number of events: whether the page was broken, and how many pages had been silent in a row.
    broken: Vec<bool>,
    pages: Vec<u8>,
}

impl Model {
    fn new() -> Self {
        Self {
            log: Vec::new(),
            broken: vec![false],
            pages: vec![0],
        }
    }

    fn push(&mut self, event: Event) {
        self.log.push(event);
        let (broken, pages) = (self.page_is_broken(), self.silent_pages());
        self.broken.push(broken);
        self.pages.push(pages);
    }

    /// Events from the latest on, with the number of those before.
    fn back(&self) -> impl Iterator<Item = (usize, Event)> + '_ {
        self.log.iter().copied().enumerate().rev()
    }

    fn page_is_broken(&self) -> bool {
        for (before, event) in self.back() {
            match event {
                Event::PageAnswered | Event::Restart => return false,
                Event::Token | Event::Client if self.pages[before] >= 3 => return true,
                _ => {}
            }
        }
        false
    }

    fn silent_pages(&self) -> u8 {
        let mut count = 0;
        for (before, event) in self.back() {
            match event {
                Event::Token | Event::Restart | Event::PageAnswered => break,
                Event::Client if self.pages[before] >= 3 => break,
                Event::PageFailed if !self.broken[before] => count += 1,
                _ => {}
            }
        }
        count.min(3)
    }

    fn count(&self, wanted: Event) -> u32 {
        let lasting = self.back().take_while(|&(before, event)| match event {
            Event::Token | Event::Restart => false,
            Event::PageAnswered => self.pages[before] < 3,
            _ => true,
        });
        lasting.filter(|&(_, event)| event == wanted).count() as u32
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => Just(Event::Token),
        1 => Just(Event::Restart),
        6 => Just(Event::PageFailed),
        2 => Just(Event::PageAnswered),
        1 => Just(Event::Client),
        4 => Just(Event::Failed),
        4 => Just(Event::GaveUp),
        1 => Just(Event::Left),
    ]
}

proptest! {
    #[test]
    fn it_is_what_the_log_of_all_events_says(
        steps in prop::collection::vec((event(), 0_u64..30_000, any::<bool>()), 1..80),
    ) {
        let (mut health, mut model, mut now) = (Health::default(), Model::new(), 0);
        // The request that tries the worker, and when the next one may.
        let (mut probe, mut next, mut sent) = (None, 0, 0);
        for (event, pause_ms, is_probed) in steps {
            now += pause_ms;
            let at = Millis(now);
            let was_silent = health.silence().is_some();
            if was_silent && is_probed && !health.is_out(at) {
                prop_assert!(probe.is_none(), "two try it at a time");
                prop_assert!(now >= next, "tried {} ms early", next - now);
                sent += 1;
                probe = Some(id(sent));
                health.tried(id(sent), BREAKER, at);
                prop_assert!(health.is_out(at));
            }
            let ended = probe.filter(|_| {
                !matches!(event, Event::Token | Event::Restart | Event::PageFailed | Event::PageAnswered)
            });
            let closing = ended.unwrap_or(id(0));
            match event {
                Event::Token => health.answered(at),
                Event::Restart => health.restarted(at),
                Event::PageFailed => health.page_failed(BREAKER, at),
                Event::PageAnswered => health.page_answered(1, at),
                Event::Client => health.ended(closing, (Ending::Client, false), BREAKER, at),
                Event::Left => health.ended(closing, (Ending::Cancelled, false), BREAKER, at),
                Event::Failed => {
                    health.blame(FAILURE, BREAKER, at);
                    health.ended(closing, (Ending::Failed, false), BREAKER, at);
                }
                Event::GaveUp => {
                    health.blame(GIVE_UP, BREAKER, at);
                    health.ended(closing, (Ending::Cancelled, true), BREAKER, at);
                }
            }
            model.push(event);
            prop_assert_eq!(health.silent_pages, model.silent_pages());
            prop_assert_eq!(health.page_is_broken, model.page_is_broken());
            prop_assert_eq!(u32::from(health.give_ups), model.count(Event::GaveUp));
            prop_assert_eq!(health.failures, model.count(Event::Failed));
            if health.silence().is_none() {
                (probe, next) = (None, 0);
            } else if !was_silent {
                next = now + 20_000;
                prop_assert!(health.is_out(Millis(next - 1)));
            } else if ended.is_some() {
                probe = None;
                next = if matches!(event, Event::Failed | Event::GaveUp) { now + 20_000 } else { now };
            } else if event == Event::PageAnswered && !health.is_out(at) {
                next = now;
            }
            // A good worker is passed over only for failures, and only for the cooldown.
            if health.silence().is_none() && health.failures < BREAKER.failures {
                prop_assert!(!health.is_out(at));
            }
            // While its page is silent too, the pause grows to 32 times the first one.
            prop_assert!(health.out_until.0 <= now + PROBE_MS.max(32 * 20_000));
        }
    }
}
