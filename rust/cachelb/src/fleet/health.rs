//! Which workers failed lately, and which show no sign of life.
//!
//! Only what happens before the first byte counts: a worker that answers is there. A failure count that reaches the
//! breaker's limit keeps the worker out for the cooldown; then one request may try it, and one more failure keeps it out
//! again. Backpressure (429, 503) is no failure: it keeps the worker out for a moment, or as long as it asked for, and
//! counts nothing. Answers to other requests do not end that, for they were sent before.
//!
//! A worker is unreachable once three of its metrics pages in a row had no answer, or two requests in a row were given up
//! that waited long for their first token, with no token in between. One request at a time tries it, after pauses that
//! double, since each may cost a client its patience. A token ends it, and so does the page where that was the reason.
//! A worker that serves without its page loses no more requests to it: the page counts again once it has answered.

use cachelb_core::ids::Millis;
use cachelb_core::load::BookingId;

use crate::bookings::ledger::Ending;

cachelb_core::named! {
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

/// Metrics pages without an answer in a row that make a worker unreachable.
const SILENT_PAGES: u8 = 3;
/// Requests given up in a row that do.
const GIVE_UPS: u8 = 2;
/// A first token is waited for at least so long before that counts, and so many times as long as it is expected to take.
const LEAST_PATIENCE_MS: u64 = 2_000;
const PATIENCE: f64 = 4.0;
/// Cooldowns before the first request tries an unreachable worker.
const COOLDOWNS: u64 = 4;
/// How often that doubles; more often while the metrics page is silent too, which shows its return.
const DOUBLINGS: u8 = 3;
const DOUBLINGS_OF_SILENT_PAGE: u8 = 5;
/// The longest that one request which tries a worker holds back others.
const PROBE_MS: u64 = 600_000;
/// A page that took so long was not just slow to read.
const SLOW_PAGE_MS: u64 = 2_000;

/// Whether a request that waited `waited_ms` for its first token, expected after `expected_ms`, was let down.
pub(crate) fn is_overdue((waited_ms, expected_ms): (u64, f64)) -> bool {
    waited_ms >= LEAST_PATIENCE_MS && waited_ms as f64 > PATIENCE * expected_ms
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

/// Evidence against a worker that one request brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Blame {
    /// Failures before the first byte.
    pub failures: u32,
    /// Requests given up that were overdue.
    pub give_ups: u8,
}

impl Blame {
    pub fn add(&mut self, other: Self) {
        self.failures = self.failures.saturating_add(other.failures);
        self.give_ups = self.give_ups.saturating_add(other.give_ups);
    }
}

/// Why a worker is unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// Its metrics page does not answer.
    Page,
    /// Requests get no first token.
    Tokens,
}

/// A finding about a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum News {
    /// Why it is unreachable; `None` if it no longer is.
    Silence(Option<Silence>),
    /// A fact of it that is contradicted: the stated value, and the one in use instead.
    Contradiction(&'static str, f64, f64),
}

/// Failures of one worker, by default none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Health {
    /// Passed over until then.
    pub out_until: Millis,
    failures: u32,
    /// Whether it is passed over, if it is, because it pushed back and not because it failed.
    pub rests: bool,
    /// Whether its engine sleeps, by its report.
    pub sleep: Sleep,
    /// Pages in a row without an answer, up to [`SILENT_PAGES`].
    silent_pages: u8,
    /// Whether it served while its page was silent, which then shows nothing.
    page_is_broken: bool,
    /// Requests in a row that were given up.
    give_ups: u8,
    /// Requests that tried it in vain since it is unreachable.
    tries: u8,
    /// The one that tries it now.
    probe: Option<BookingId>,
    /// Its last sign of life, or the time of a restart: no evidence is older.
    pub since: Millis,
}

impl Health {
    /// Whether the worker is passed over at `now`.
    pub fn is_out(&self, now: Millis) -> bool {
        now < self.out_until
    }

    /// Why the worker is unreachable, if it is.
    pub fn silence(&self) -> Option<Silence> {
        if self.silent_pages >= SILENT_PAGES {
            Some(Silence::Page)
        } else {
            (self.give_ups >= GIVE_UPS).then_some(Silence::Tokens)
        }
    }

    /// A token came.
    pub fn answered(&mut self, now: Millis) {
        self.page_is_broken |= self.silent_pages >= SILENT_PAGES;
        self.start_over(now);
    }

    /// Drops all evidence.
    fn start_over(&mut self, now: Millis) {
        *self = Self {
            out_until: if self.rests {
                self.out_until
            } else {
                Millis(0)
            },
            rests: self.rests,
            sleep: self.sleep,
            page_is_broken: self.page_is_broken,
            since: now,
            ..Self::default()
        };
    }

    /// Its engine is a new process.
    pub fn restarted(&mut self, now: Millis) {
        *self = Self {
            since: now,
            ..Self::default()
        };
    }

    /// It answered a request that was the client's fault: a worker that is tried again is there. Whether it generates is
    /// another matter.
    pub fn is_there(&mut self, breaker: Breaker) {
        let had_silent_page = self.silent_pages >= SILENT_PAGES;
        if had_silent_page {
            (self.silent_pages, self.page_is_broken) = (0, true);
        }
        let was_out = had_silent_page || self.failures >= breaker.failures;
        if was_out && self.silence().is_none() && !self.rests {
            self.out_until = Millis(0);
        }
    }

    /// The request `id` was sent to it. If it had been kept out, the others wait for what comes of it.
    pub fn tried(&mut self, id: BookingId, breaker: Breaker, now: Millis) {
        if self.silence().is_some() {
            if !self.is_out(now) {
                self.probe = Some(id);
                self.keep_out(PROBE_MS, now);
            }
        } else if self.failures >= breaker.failures {
            self.keep_out(breaker.cooldown_ms, now);
        }
    }

    fn keep_out(&mut self, ms: u64, now: Millis) {
        self.out_until = self.out_until.max(after(ms, now));
        self.rests = false;
    }

    /// How long an unreachable worker is left alone.
    fn pause_ms(&self, breaker: Breaker) -> u64 {
        let most = match self.silent_pages {
            0 => DOUBLINGS,
            _ => DOUBLINGS_OF_SILENT_PAGE,
        };
        let first_ms = breaker.cooldown_ms.saturating_mul(COOLDOWNS);
        first_ms.saturating_mul(1 << self.tries.min(most))
    }

    /// Counts a failure against it.
    pub fn blame(&mut self, blame: Blame, breaker: Breaker, now: Millis) {
        let was_silent = self.silence().is_some();
        self.failures = self.failures.saturating_add(blame.failures);
        self.give_ups = self.give_ups.saturating_add(blame.give_ups);
        if blame.failures > 0 && self.failures >= breaker.failures {
            self.keep_out(breaker.cooldown_ms, now);
        }
        if !was_silent && self.silence().is_some() {
            self.keep_out(self.pause_ms(breaker), now);
        }
    }

    /// Takes back a failure that was not the worker's.
    pub fn excuse(&mut self, blame: Blame, breaker: Breaker) {
        let was_out = self.silence().is_some() || self.failures >= breaker.failures;
        self.failures = self.failures.saturating_sub(blame.failures);
        self.give_ups = self.give_ups.saturating_sub(blame.give_ups);
        let is_out = self.silence().is_some() || self.failures >= breaker.failures;
        if was_out && !is_out && !self.rests {
            (self.out_until, self.probe, self.tries) = (Millis(0), None, 0);
        }
    }

    /// The request `id` ended before the worker answered; `let_down` if its worker kept it waiting for too long.
    /// Failures are added to the worker's record before this call.
    pub fn ended(
        &mut self,
        id: BookingId,
        (ending, let_down): (Ending, bool),
        breaker: Breaker,
        now: Millis,
    ) {
        match ending {
            Ending::Backpressure => self.pushed_back(breaker.backpressure_ms, now),
            Ending::Client => self.is_there(breaker),
            _ => {}
        }
        if self.probe != Some(id) {
            return;
        }
        self.probe = None;
        if self.silence().is_none() {
            return;
        }
        // One that ended otherwise shows nothing: another one may try.
        self.out_until = now;
        if let_down || matches!(ending, Ending::Failed | Ending::Backpressure) {
            self.tries = self.tries.saturating_add(1);
            self.keep_out(self.pause_ms(breaker), now);
        }
    }

    /// It said that it has too much to do.
    pub fn pushed_back(&mut self, rest_ms: u64, now: Millis) {
        self.rests |= !self.is_out(now);
        self.out_until = self.out_until.max(after(rest_ms, now));
    }

    /// Its metrics page had no answer.
    pub fn page_failed(&mut self, breaker: Breaker, now: Millis) {
        if self.page_is_broken {
            return;
        }
        let was_silent = self.silence().is_some();
        self.silent_pages = (self.silent_pages + 1).min(SILENT_PAGES);
        if !was_silent && self.silence().is_some() {
            self.keep_out(self.pause_ms(breaker), now);
        }
    }

    /// Its metrics page was answered after `took_ms`.
    pub fn page_answered(&mut self, took_ms: u64, now: Millis) {
        let was_silent = std::mem::take(&mut self.silent_pages);
        self.page_is_broken = false;
        if was_silent >= SILENT_PAGES {
            self.start_over(now);
        } else if self.silence().is_some()
            && self.probe.is_none()
            && (was_silent > 0 || took_ms >= SLOW_PAGE_MS)
        {
            // It was silent when clients gave up, and is no longer: one may try at once.
            self.out_until = now;
        }
    }

    /// Forgets the request that tries it.
    pub fn forget_probe(&mut self) {
        if self.probe.take().is_some() {
            self.out_until = Millis(0);
        }
    }
}

fn after(ms: u64, now: Millis) -> Millis {
    Millis(now.0.saturating_add(ms))
}

#[cfg(test)]
mod tests;
