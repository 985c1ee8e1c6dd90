//! Which workers failed lately.
//!
//! Only what happens before the first byte counts: a worker that answers is there. A failure count that reaches the
//! breaker's limit keeps the worker out for the cooldown; then one request may try it, and one more failure keeps it out
//! again. Backpressure (429, 503) is no failure: it keeps the worker out for a moment, or as long as it asked for, and
//! counts nothing. Answers to other requests do not end that, for they were sent before.

use cachelb_core::ids::Millis;

use super::ledger::Ending;
use super::named::named;

named! {
    /// Whether an engine sleeps.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
    Sleep {
        /// It computes.
        #[default]
        Awake = "awake",
        /// It accepts requests and computes none; its cache stays.
        Paused = "paused",
        /// Its cache is gone too.
        Asleep = "asleep",
    }
}

/// When failures keep a worker out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breaker {
    /// Consecutive failures before the first byte that trip it.
    pub failures: u32,
    /// How long a tripped worker is passed over.
    pub cooldown_ms: u64,
    /// How long a worker that answered 429 or 503 is passed over.
    pub backpressure_ms: u64,
}

impl Breaker {
    /// That of routers of registered workers: half a second of rest for a worker that pushes back.
    #[must_use]
    pub fn new(failures: u32, cooldown_ms: u64) -> Self {
        Self {
            failures,
            cooldown_ms,
            backpressure_ms: 500,
        }
    }
}

/// Failures of one worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Health {
    /// Passed over until then.
    out_until: Millis,
    failures: u32,
    /// Whether it is passed over because it pushed back.
    rests: bool,
    sleep: Sleep,
}

impl Health {
    /// No failure.
    pub const NONE: Self = Self {
        out_until: Millis(0),
        failures: 0,
        rests: false,
        sleep: Sleep::Awake,
    };

    /// Whether its engine sleeps, by its report.
    pub fn sleep(&self) -> Sleep {
        self.sleep
    }

    /// Its engine sleeps or wakes. Returns the state before.
    pub fn set_sleep(&mut self, sleep: Sleep) -> Sleep {
        std::mem::replace(&mut self.sleep, sleep)
    }

    /// Whether the worker is passed over at `now`.
    pub fn is_out(&self, now: Millis) -> bool {
        now < self.out_until
    }

    /// Until when the worker is passed over.
    pub fn out_until(&self) -> Millis {
        self.out_until
    }

    /// Whether it is passed over, if it is, because it pushed back and not because it failed.
    pub fn rests(&self) -> bool {
        self.rests
    }

    /// It answered.
    pub fn answered(&mut self) {
        self.failures = 0;
        if !self.rests {
            self.out_until = Millis(0);
        }
    }

    /// It answered a request that was the client's fault: a worker that is tried again is there.
    pub fn is_there(&mut self, breaker: Breaker) {
        if self.failures >= breaker.failures && !self.rests {
            self.out_until = Millis(0);
        }
    }

    /// A request was sent to it. If it had been kept out, the others wait for what comes of it.
    pub fn tried(&mut self, breaker: Breaker, now: Millis) {
        if self.failures >= breaker.failures {
            self.keep_out(breaker, now);
        }
    }

    fn keep_out(&mut self, breaker: Breaker, now: Millis) {
        let until = Millis(now.0.saturating_add(breaker.cooldown_ms));
        self.out_until = self.out_until.max(until);
        self.rests = false;
    }

    /// A request failed before its first byte.
    pub fn failed(&mut self, breaker: Breaker, now: Millis) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= breaker.failures {
            self.keep_out(breaker, now);
        }
    }

    /// A request ended before the worker answered.
    pub fn ended(&mut self, ending: Ending, breaker: Breaker, now: Millis) {
        match ending {
            Ending::Failed => self.failed(breaker, now),
            Ending::Backpressure => self.pushed_back(breaker.backpressure_ms, now),
            Ending::Client => self.is_there(breaker),
            _ => {}
        }
    }

    /// It said that it has too much to do.
    pub fn pushed_back(&mut self, rest_ms: u64, now: Millis) {
        self.rests |= !self.is_out(now);
        let until = Millis(now.0.saturating_add(rest_ms));
        self.out_until = self.out_until.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BREAKER: Breaker = Breaker {
        failures: 3,
        cooldown_ms: 5_000,
        backpressure_ms: 500,
    };

    /// After a failure at each time.
    fn failed(times: std::ops::Range<u64>) -> Health {
        let mut health = Health::NONE;
        times.for_each(|at| health.failed(BREAKER, Millis(at)));
        health
    }

    #[test]
    fn consecutive_failures_trip_it_and_one_more_trips_it_again() {
        let mut health = failed(0..2);
        assert!(!health.is_out(Millis(1)));
        health.failed(BREAKER, Millis(2));
        assert!(health.is_out(Millis(5_001)));
        assert!(!health.is_out(Millis(5_002)), "one may try");
        health.failed(BREAKER, Millis(5_010));
        assert!(health.is_out(Millis(10_009)));
    }

    #[test]
    fn after_the_cooldown_one_request_tries_and_the_others_wait_for_it() {
        let mut health = failed(0..3);
        health.tried(BREAKER, Millis(5_002));
        assert!(health.is_out(Millis(10_001)) && !health.is_out(Millis(10_002)));
        health.is_there(BREAKER);
        assert!(!health.is_out(Millis(5_003)), "the client was at fault");
        health.failed(BREAKER, Millis(5_004));
        assert!(health.is_out(Millis(5_005)), "nothing was forgiven");
        health.answered();
        health.tried(BREAKER, Millis(5_006));
        assert!(!health.is_out(Millis(5_006)));
    }

    #[test]
    fn an_answer_forgives() {
        let mut health = failed(0..3);
        health.answered();
        assert!(!health.is_out(Millis(3)));
        health.failed(BREAKER, Millis(4));
        assert!(!health.is_out(Millis(4)));
    }

    #[test]
    fn backpressure_passes_by_without_counting() {
        let mut health = Health::NONE;
        for _ in 0..10 {
            health.pushed_back(BREAKER.backpressure_ms, Millis(100));
        }
        assert!(health.is_out(Millis(599)) && !health.is_out(Millis(600)));
        assert!(health.rests());
        health.failed(BREAKER, Millis(700));
        assert!(!health.is_out(Millis(700)));
    }

    #[test]
    fn a_rest_outlasts_answers_and_is_not_taken_for_failures() {
        let mut health = Health::NONE;
        health.pushed_back(9_000, Millis(0));
        health.answered();
        health.is_there(BREAKER);
        assert!(health.is_out(Millis(8_999)) && health.rests());
        for at in 1..4 {
            health.failed(BREAKER, Millis(at));
        }
        assert!(health.is_out(Millis(8_999)) && !health.rests(), "it fails");
        health.pushed_back(500, Millis(4));
        assert!(!health.rests(), "it still fails");
        health.answered();
        assert!(!health.is_out(Millis(5)));
    }
}
