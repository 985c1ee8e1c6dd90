//! Decisions whose cost is not known yet, and what becomes of them.
//!
//! A row is kept with its booking from the selection until that is answered, or for a reward that needs the end until
//! then, so there are never more rows than open bookings. Only measured
//! requests give samples: not those that failed, were given up or whose first token was not reported.

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

/// A row, until its cost is known.
pub type Held = Option<Box<Pending>>;

/// How costs are measured, and the count of all rows.
#[derive(Debug)]
pub struct PendingRows {
    reward: Reward,
    /// Times to a first token are cut to so many seconds: how late a hopeless request was teaches nothing.
    clip_s: f64,
    /// Rows whose cost is not known.
    pub open: usize,
    /// The requests that gave no sample.
    pub dropped: Dropped,
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
            open: 0,
            dropped: Dropped::default(),
        }
    }

    /// A request was routed.
    pub fn open(&mut self, pending: Pending) -> Held {
        self.open += 1;
        Some(Box::new(pending))
    }

    fn take(&mut self, held: &mut Held) -> Option<Pending> {
        let pending = held.take()?;
        self.open -= 1;
        Some(*pending)
    }

    /// Its worker answered.
    pub fn answered(&mut self, held: &mut Held, first_token: Option<Millis>) -> Option<Measured> {
        if self.reward == Reward::E2e {
            held.as_mut()?.first_token = first_token;
            return None;
        }
        let pending = self.take(held)?;
        let Some(at) = first_token else {
            self.dropped.missing += 1;
            return None;
        };
        self.measured(pending, seconds(pending.at, at))
    }

    /// It was served to its end.
    pub fn served(
        &mut self,
        held: &mut Held,
        output_tokens: Option<u64>,
        now: Millis,
    ) -> Option<Measured> {
        if self.reward != Reward::E2e {
            return None;
        }
        let pending = self.take(held)?;
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

    /// Its booking closed.
    pub fn ended(&mut self, held: &mut Held) {
        self.take(held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::COLUMNS;

    fn pending(expected_output: Option<u64>) -> Pending {
        Pending {
            row: Row {
                values: [0.0; COLUMNS],
                gpu: Row::NO_GPU,
            },
            order: 0,
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
            let mut held = rows.open(pending(None));
            let told = rows.answered(&mut held, Some(Millis(first)));
            assert_eq!(cost(told), Some(expected));
            assert_eq!(rows.answered(&mut held, Some(Millis(first))), None);
            assert_eq!(rows.served(&mut held, None, Millis(first)), None);
        }
        assert_eq!(rows.open, 0);
    }

    #[test]
    fn what_is_no_measurement_is_dropped_and_counted() {
        let mut rows = PendingRows::new(Reward::Ttft, 15.0);
        for told in [None, Some(999), Some(3_601_001)] {
            let mut held = rows.open(pending(None));
            assert_eq!(rows.answered(&mut held, told.map(Millis)), None);
        }
        for took in [f64::NAN, f64::INFINITY] {
            assert_eq!(rows.measured(pending(None), took), None);
        }
        let expected = Dropped {
            missing: 1,
            negative: 1,
            absurd: 1,
            not_finite: 2,
        };
        assert_eq!((rows.dropped, rows.open), (expected, 0));
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
            let mut held = rows.open(pending(expected));
            assert_eq!(rows.answered(&mut held, Some(Millis(1_500))), None);
            let told = rows.served(&mut held, got, Millis(3_500));
            assert_eq!(self::cost(told), Some(cost), "{expected:?} {got:?}");
        }
        let mut held = rows.open(pending(None));
        let told = rows.served(&mut held, None, Millis(2_000));
        assert_eq!(cost(told), Some(1.0));
    }

    #[test]
    fn a_missed_objective_costs_one() {
        let mut rows = PendingRows::new(Reward::Slo { ttft_ms: 500.0 }, 15.0);
        for (first, missed) in [(1_500, 0.0), (1_501, 1.0)] {
            let mut held = rows.open(pending(None));
            let told = rows.answered(&mut held, Some(Millis(first)));
            assert_eq!(cost(told), Some(missed));
        }
    }

    #[test]
    fn rows_leave_with_their_booking() {
        let mut rows = PendingRows::new(Reward::Ttft, 15.0);
        let [mut answered, mut ended] = [(), ()].map(|()| rows.open(pending(None)));
        assert_eq!(rows.open, 2);
        rows.answered(&mut answered, Some(Millis(1_500)));
        rows.ended(&mut answered);
        assert_eq!(rows.open, 1);
        rows.ended(&mut ended);
        assert_eq!(rows.open, 0);
    }
}
