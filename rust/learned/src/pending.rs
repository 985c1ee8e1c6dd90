//! Decisions whose cost is not known yet, and what becomes of them.
//!
//! A row is kept from the selection until its booking is answered, or for a reward that needs the end until then. It
//! leaves with its booking whatever happens, so there are never more rows than open bookings. Only measured
//! requests give samples: not those that failed, were given up or whose first token was not reported.

use std::collections::HashMap;

use cachelb_core::ids::BookingId;
use cachelb_core::ids::Millis;

use crate::features::{Row, Sample};

/// Longer than this is no measurement.
const ABSURD_S: f64 = 3_600.0;

/// The cost that is learned.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Reward {
    /// Seconds to its first token.
    #[default]
    Ttft,
    /// Seconds to its end. If the caller said how long an output to expect, that of an output of that length.
    E2e,
    /// 1 if its first token took longer than so many milliseconds, else 0: the mean is the share that did.
    Slo {
        /// The objective.
        ttft_ms: f64,
    },
}

impl Reward {
    /// Differences below this part of it are noise: a clock of milliseconds, a share of a hundredth.
    #[must_use]
    pub fn resolution(self) -> f32 {
        match self {
            Self::Ttft | Self::E2e => 0.01,
            Self::Slo { .. } => 0.1,
        }
    }
}

/// Rewards that taught nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    /// Served, without a report of the first token.
    pub missing: u64,
    /// It came before the request.
    pub negative: u64,
    /// It took more than an hour.
    pub absurd: u64,
    /// Not a number.
    pub not_finite: u64,
}

/// The features and the prediction at a selection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pending {
    /// The features of the worker that serves the request.
    pub row: Row,
    /// Its registration order.
    pub order: u64,
    /// When.
    pub at: Millis,
    /// The prediction of the model, if it was asked and the row is in its range.
    pub predicted: Option<f32>,
    /// Version of that model.
    pub version: u64,
    /// Output tokens the caller expects.
    pub expected_output: Option<u64>,
    /// When the first token came.
    pub first_token: Option<Millis>,
}

/// A measured pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The features and the prediction.
    pub pending: Pending,
    /// And what it cost.
    pub sample: Sample,
}

/// All of them.
#[derive(Debug)]
pub struct PendingRows {
    reward: Reward,
    /// Times to a first token are cut to so many seconds: how late a hopeless request was teaches nothing.
    clip_s: f64,
    open: HashMap<BookingId, Pending>,
    dropped: Dropped,
}

fn seconds(from: Millis, to: Millis) -> f64 {
    (to.0 as f64 - from.0 as f64) / 1e3
}

impl PendingRows {
    /// None yet.
    #[must_use]
    pub fn new(reward: Reward, clip_s: f64) -> Self {
        Self {
            reward,
            clip_s,
            open: HashMap::new(),
            dropped: Dropped::default(),
        }
    }

    /// Rows whose cost is not known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The requests that gave no sample.
    #[must_use]
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// A request was routed.
    pub fn open(&mut self, booking: BookingId, pending: Pending) {
        self.open.insert(booking, pending);
    }

    /// Its worker answered.
    pub fn answered(
        &mut self,
        booking: BookingId,
        first_token: Option<Millis>,
    ) -> Option<Measured> {
        if self.reward == Reward::E2e {
            self.open.get_mut(&booking)?.first_token = first_token;
            return None;
        }
        let pending = self.open.remove(&booking)?;
        let Some(at) = first_token else {
            self.dropped.missing += 1;
            return None;
        };
        self.measured(pending, seconds(pending.at, at))
    }

    /// It was served to its end.
    pub fn served(
        &mut self,
        booking: BookingId,
        output_tokens: Option<u64>,
        now: Millis,
    ) -> Option<Measured> {
        if self.reward != Reward::E2e {
            return None;
        }
        let pending = self.open.remove(&booking)?;
        let total = seconds(pending.at, now);
        let took = match (pending.first_token, pending.expected_output, output_tokens) {
            (Some(first), Some(expected), Some(got)) if got > 1 && expected > 0 => {
                let waited = seconds(pending.at, first).min(self.clip_s);
                let per_token = seconds(first, now) / (got - 1) as f64;
                waited + per_token * (expected - 1) as f64
            }
            (Some(first), _, _) => {
                let waited = seconds(pending.at, first);
                total - waited + waited.min(self.clip_s)
            }
            (None, _, _) => total,
        };
        self.measured(pending, took)
    }

    fn measured(&mut self, pending: Pending, took: f64) -> Option<Measured> {
        let cost = match self.judge(took) {
            Ok(cost) => cost,
            Err(why) => {
                *why += 1;
                return None;
            }
        };
        let sample = Sample {
            row: pending.row,
            cost,
        };
        Some(Measured { pending, sample })
    }

    /// The cost of what took so many seconds, or the count of what is wrong with that.
    fn judge(&mut self, took: f64) -> std::result::Result<f32, &mut u64> {
        let dropped = &mut self.dropped;
        if !took.is_finite() {
            return Err(&mut dropped.not_finite);
        }
        if took < 0.0 {
            return Err(&mut dropped.negative);
        }
        if took > ABSURD_S {
            return Err(&mut dropped.absurd);
        }
        Ok(match self.reward {
            Reward::Ttft => took.min(self.clip_s) as f32,
            Reward::E2e => took as f32,
            Reward::Slo { ttft_ms } => f32::from(u8::from(took * 1e3 > ttft_ms)),
        })
    }

    /// It closed.
    pub fn ended(&mut self, booking: BookingId) {
        self.open.remove(&booking);
    }

    /// The worker registered as `order` is gone, and its bookings with it.
    pub fn forget(&mut self, order: u64) {
        self.open.retain(|_, pending| pending.order != order);
    }

    /// Every booking is closed in an unknown way.
    pub fn clear(&mut self) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::COLUMNS;

    fn booking(entry: u32) -> BookingId {
        BookingId {
            entry,
            generation: 0,
        }
    }

    fn pending(order: u64, expected_output: Option<u64>) -> Pending {
        Pending {
            row: Row {
                values: [0.0; COLUMNS],
                gpu: Row::NO_GPU,
            },
            order,
            at: Millis(1_000),
            predicted: None,
            version: 0,
            expected_output,
            first_token: None,
        }
    }

    fn cost(measured: Option<Measured>) -> Option<f32> {
        measured.map(|measured| measured.sample.cost)
    }

    #[test]
    fn the_time_to_the_first_token_is_clipped_and_told_once() {
        let mut rows = PendingRows::new(Reward::Ttft, 15.0);
        for (first, expected) in [(1_250, 0.25), (1_000, 0.0), (900_000, 15.0)] {
            rows.open(booking(0), pending(0, None));
            let told = rows.answered(booking(0), Some(Millis(first)));
            assert_eq!(cost(told), Some(expected));
            assert_eq!(rows.answered(booking(0), Some(Millis(first))), None);
            assert_eq!(rows.served(booking(0), None, Millis(first)), None);
        }
        assert!(rows.is_empty());
    }

    #[test]
    fn what_is_no_measurement_is_dropped_and_counted() {
        let mut rows = PendingRows::new(Reward::Ttft, 15.0);
        for told in [None, Some(999), Some(3_601_001)] {
            rows.open(booking(0), pending(0, None));
            assert_eq!(rows.answered(booking(0), told.map(Millis)), None);
        }
        for took in [f64::NAN, f64::INFINITY] {
            assert_eq!(rows.measured(pending(0, None), took), None);
        }
        let expected = Dropped {
            missing: 1,
            negative: 1,
            absurd: 1,
            not_finite: 2,
        };
        assert_eq!((rows.dropped(), rows.len()), (expected, 0));
    }

    #[test]
    fn an_end_counts_as_if_the_output_had_been_the_expected_one() {
        let mut rows = PendingRows::new(Reward::E2e, 15.0);
        for (expected, got, cost) in [
            (None, Some(11), 2.5),
            (Some(101), Some(11), 20.5),
            (Some(101), None, 2.5),
            (Some(101), Some(1), 2.5),
        ] {
            rows.open(booking(0), pending(0, expected));
            assert_eq!(rows.answered(booking(0), Some(Millis(1_500))), None);
            let told = rows.served(booking(0), got, Millis(3_500));
            assert_eq!(self::cost(told), Some(cost), "{expected:?} {got:?}");
        }
        rows.open(booking(1), pending(0, None));
        let told = rows.served(booking(1), None, Millis(2_000));
        assert_eq!(cost(told), Some(1.0));
    }

    #[test]
    fn a_missed_objective_costs_one() {
        let mut rows = PendingRows::new(Reward::Slo { ttft_ms: 500.0 }, 15.0);
        for (first, missed) in [(1_500, 0.0), (1_501, 1.0)] {
            rows.open(booking(0), pending(0, None));
            let told = rows.answered(booking(0), Some(Millis(first)));
            assert_eq!(cost(told), Some(missed));
        }
    }

    #[test]
    fn rows_leave_with_their_booking_or_their_worker() {
        let mut rows = PendingRows::new(Reward::Ttft, 15.0);
        for order in 0..4 {
            rows.open(booking(order as u32), pending(order % 2, None));
        }
        rows.ended(booking(0));
        rows.forget(1);
        assert_eq!(rows.len(), 1);
        rows.clear();
        assert!(rows.is_empty());
    }
}
