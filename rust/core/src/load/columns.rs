//! Per-slot load columns.

use crate::error::{Error, Result};
use crate::ids::Millis;

use super::pace::{Prefill, Speed};

/// Weight of the newest observation in the average prefill speed.
const NEWEST: f64 = 0.1;

/// A number that may be unknown. Unknown is NaN in memory, so that a column of them is a plain column of floats, but it
/// is never read as a number: every read handles its absence.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct Known(f64);

impl Known {
    /// Not reported.
    pub const UNKNOWN: Self = Self(f64::NAN);

    /// The number, or `None`.
    #[must_use]
    #[inline]
    pub fn get(self) -> Option<f64> {
        (!self.0.is_nan()).then_some(self.0)
    }

    /// Whether there is a number.
    #[must_use]
    pub fn is_known(self) -> bool {
        !self.0.is_nan()
    }
}

impl From<Option<f64>> for Known {
    /// A reported NaN becomes an infinity, which [`Report::check`] refuses.
    #[inline]
    fn from(value: Option<f64>) -> Self {
        value.map_or(Self::UNKNOWN, |value| {
            Self(if value.is_nan() { f64::INFINITY } else { value })
        })
    }
}

impl Default for Known {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

impl PartialEq for Known {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

/// The load that an engine reports.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct Report {
    /// Requests being computed.
    pub running: Known,
    /// Requests waiting to be computed.
    pub waiting: Known,
    /// Prompt tokens waiting to be computed.
    pub queued_tokens: Known,
    /// Fraction of the KV cache in use, 0 to 1.
    pub kv_usage: Known,
    /// Prompt tokens computed per second.
    pub prefill_tps: Known,
    /// Output tokens computed per second.
    pub gen_tps: Known,
    /// When the engine was in this state.
    pub at: Millis,
}

impl Report {
    /// An empty report.
    pub const NONE: Self = Self {
        running: Known::UNKNOWN,
        waiting: Known::UNKNOWN,
        queued_tokens: Known::UNKNOWN,
        kv_usage: Known::UNKNOWN,
        prefill_tps: Known::UNKNOWN,
        gen_tps: Known::UNKNOWN,
        at: Millis(0),
    };

    /// Whether it holds any number.
    #[must_use]
    pub fn is_known(&self) -> bool {
        let columns = [
            self.running,
            self.waiting,
            self.queued_tokens,
            self.kv_usage,
            self.prefill_tps,
            self.gen_tps,
        ];
        columns.into_iter().any(Known::is_known)
    }

    /// The part of each of `ranks` ranks of the engine, which share its counts.
    #[must_use]
    pub fn share(&self, ranks: usize) -> Self {
        let part = |value: Known| Known(value.0 / ranks as f64);
        Self {
            running: part(self.running),
            waiting: part(self.waiting),
            queued_tokens: part(self.queued_tokens),
            prefill_tps: part(self.prefill_tps),
            gen_tps: part(self.gen_tps),
            ..*self
        }
    }

    /// Requests on the engine, `None` unless it reports both kinds.
    #[must_use]
    pub fn live(&self) -> Option<u64> {
        let (running, waiting) = (self.running.get()?, self.waiting.get()?);
        #[expect(clippy::cast_sign_loss, reason = "checked to be positive")]
        Some((running + waiting).ceil() as u64)
    }

    /// Checks the ranges, so that no rule ever meets an infinity or a negative load.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] naming the value that is infinite, negative or out of range.
    pub fn check(&self) -> Result<()> {
        if let Some(value) = self.kv_usage.get().filter(|v| !(0.0..=1.0).contains(v)) {
            return Err(Error::setting("kv_usage", "between 0 and 1", value));
        }
        for (name, value) in [
            ("running", self.running),
            ("waiting", self.waiting),
            ("queued_tokens", self.queued_tokens),
            ("gen_tps", self.gen_tps),
        ] {
            if let Some(value) = value.get().filter(|v| !(v.is_finite() && *v >= 0.0)) {
                return Err(Error::setting(name, "a finite number, 0 or more", value));
            }
        }
        if let Some(value) = self
            .prefill_tps
            .get()
            .filter(|v| !(v.is_finite() && *v > 0.0))
        {
            return Err(Error::setting(
                "prefill_tps",
                "a finite number above 0",
                value,
            ));
        }
        Ok(())
    }
}

/// Load of one worker slot. The columns that `adaptive` reads of every worker lie in the first cache line, those it
/// reads of one with waiting prompts in the second: rows hold the rest.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Load {
    /// Requests booked and not closed that have no first token.
    pub pending: u32,
    /// Requests from other clients, by the latest report.
    pub others: u32,
    /// Twice the pairs of tokens that attention compares in the pending prefill tokens.
    pub pending_pairs: u64,
    /// Blocks that the prompts in flight hold: those that bookings named once each, the others by their number.
    pub active_blocks: u64,
    /// Blocks filled by the outputs of bookings.
    pub output_blocks: u64,
    /// How fast it computes prompts.
    pub speed: Speed,
    /// How fast it generates, in tokens of one request per millisecond.
    pub decode: Speed,
    /// Incarnation the numbers belong to; `None` for a vacant slot.
    pub(super) generation: Option<u32>,
    /// Requests booked and not closed.
    pub inflight: u32,
    /// Bookings closed since the report.
    pub closed: u32,
    /// Uncached prompt tokens of bookings without a first token.
    pub pending_prefill_tokens: u64,
    /// Blocks held by bookings past their first token.
    pub decode_blocks: u64,
    /// Full blocks of the prompts of bookings without a first token.
    pub prompt_blocks: u64,
    /// Relative capacity; divides loads.
    pub weight: f64,
    /// Logical time of the last cold pick, 0 for never.
    pub last_cold_pick: u64,
    /// Estimated milliseconds of prefill of bookings without a first token, by rules that estimate it.
    pub pending_ms: f64,
    /// When the prefill at the head of that queue began.
    pub head_since: Millis,
    /// Uncached prompt tokens booked since the report.
    pub dispatched_tokens: u64,
    /// Prompt tokens per second, averaged over the bookings that got a first token.
    pub observed_prefill_tps: Known,
    /// Latest engine report.
    pub report: Report,
}

impl Load {
    /// Requests in flight: those booked, and those of other clients while the report of them is fresh.
    #[must_use]
    pub fn requests(&self, now: Millis, max_report_age_ms: u64) -> u32 {
        if self.others == 0 || now.0.saturating_sub(self.report.at.0) > max_report_age_ms {
            return self.inflight;
        }
        self.inflight.saturating_add(self.others)
    }

    /// Which share of the prompts' blocks bookings past their first token hold, where each counts its own.
    #[must_use]
    #[inline]
    pub fn begun_share(&self) -> f64 {
        let begun = self.decode_blocks.saturating_sub(self.output_blocks) as f64;
        begun / (self.prompt_blocks as f64 + begun).max(1.0)
    }

    /// A vacant slot, and a worker without load so far.
    pub const VACANT: Self = Self {
        generation: None,
        inflight: 0,
        pending: 0,
        others: 0,
        closed: 0,
        pending_prefill_tokens: 0,
        decode_blocks: 0,
        dispatched_tokens: 0,
        weight: 1.0,
        last_cold_pick: 0,
        pending_ms: 0.0,
        head_since: Millis(0),
        prompt_blocks: 0,
        output_blocks: 0,
        pending_pairs: 0,
        speed: Speed::UNKNOWN,
        decode: Speed::UNKNOWN,
        active_blocks: 0,
        observed_prefill_tps: Known::UNKNOWN,
        report: Report::NONE,
    };

    /// A booking of that much work got its first token or closed without one.
    pub(super) fn leave_queue(&mut self, prefill: Prefill, prompt_blocks: u64, estimate_ms: f64) {
        self.pending -= 1;
        self.pending_prefill_tokens -= prefill.tokens;
        self.pending_pairs -= prefill.pairs;
        self.prompt_blocks -= prompt_blocks;
        // An empty queue is exactly 0: rounding errors of a sum must not add up over days.
        self.pending_ms = if self.pending == 0 {
            0.0
        } else {
            (self.pending_ms - estimate_ms).max(0.0)
        };
    }

    pub(super) fn observe_prefill(&mut self, tps: f64) {
        let average = self.observed_prefill_tps.get();
        let tps = average.map_or(tps, |average| average + NEWEST * (tps - average));
        self.observed_prefill_tps = Some(tps).into();
    }
}
