//! Whether the model still describes the fleet: its errors against those it had when it was trained, and the rows it is
//! asked about against those it was trained on.
//!
//! Errors are averages of the latest requests, each capped, so that one request that hung weighs no more than one that
//! was badly predicted. A model is off when its error is several times that of the hold-out and knowing nothing but the
//! mean cost would be as good: where costs grow with the load, errors grow too, and a model that still tells the cheap
//! worker from the dear one is worth its errors.

use std::collections::HashMap;

use crate::features::{COLUMNS, Row};

/// Requests that an average remembers.
const WINDOW: f32 = 48.0;
/// Requests before anything is said.
const FEW: u32 = 16;
const SOME: u32 = 32;
/// An error counts up to so many of the hold-out, and so many times what costs differ from their mean.
const CAP: f32 = 10.0;
const SPREADS: f32 = 4.0;
/// In errors of the hold-out.
const GROSS: f32 = 6.0;
const OFF: f32 = 3.0;
const BACK: f32 = 2.0;
/// An error of this part of the mean's own is no better than the mean.
const USELESS: f32 = 0.9;
const USEFUL: f32 = 0.7;
/// Decisions in a row in which all workers had equal predictions.
const FLAT: u32 = 32;

/// Averages of the latest errors.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Monitor {
    seen: u32,
    /// Errors of the model, and of the mean, in errors of the hold-out.
    error: f32,
    naive: f32,
    off: bool,
}

impl Monitor {
    fn observe(&mut self, error: f32, naive: f32, others: bool) {
        self.seen = self.seen.saturating_add(1);
        let newest = (1.0 / self.seen as f32).max(1.0 / WINDOW);
        self.error += newest * (error - self.error);
        self.naive += newest * (naive - self.naive);
        let useless = self.error > USELESS * self.naive;
        self.off = if self.off {
            self.error > BACK && self.error > USEFUL * self.naive
        } else {
            let gross = self.seen >= FEW && self.error > GROSS;
            // A single worker needs less evidence: the others may have seen the requests that it lacks.
            let bad = self.seen >= SOME && self.error > OFF && !others;
            useless && (gross || bad)
        };
    }
}

/// Errors of one model since it decides.
#[derive(Debug, Default)]
pub struct Drift {
    /// Error of the hold-out, and no less than the resolution of costs.
    baseline: f32,
    /// The latest costs, and how far they are from that.
    mean: f32,
    spread: f32,
    fleet: Monitor,
    workers: HashMap<u64, Monitor>,
    flat: u32,
}

impl Drift {
    /// Another model decides from now on, whose hold-out had errors of `baseline` on average.
    pub fn start(&mut self, baseline: f32) {
        *self = Self {
            baseline,
            mean: self.mean,
            spread: self.spread,
            ..Self::default()
        };
    }

    /// A request that was expected to cost `predicted` on the worker registered as `order` cost `cost`.
    pub fn observe(&mut self, order: u64, predicted: f32, cost: f32) {
        if self.fleet.seen == 0 && self.mean == 0.0 {
            self.mean = cost;
        }
        let cap = CAP * self.baseline + SPREADS * self.spread;
        let (error, naive) = (predicted - cost, self.mean - cost);
        let [error, naive] = [error, naive].map(|error| error.abs().min(cap));
        self.mean -= (self.mean - cost).clamp(-cap, cap) / WINDOW;
        self.spread += (naive - self.spread) / WINDOW;
        let [error, naive] = [error, naive].map(|error| error / self.baseline);
        self.fleet.observe(error, naive, false);
        let worker = self.workers.entry(order).or_default();
        worker.observe(error, naive, true);
    }

    /// A decision between several different rows; `flat` if the model predicted one cost for all.
    pub fn scored(&mut self, flat: bool) {
        self.flat = if flat { self.flat.saturating_add(1) } else { 0 };
    }

    /// Whether the model is off.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.fleet.off || self.flat >= FLAT
    }

    /// Whether it is off on the worker registered as `order`.
    #[must_use]
    pub fn is_off_on(&self, order: u64) -> bool {
        self.workers.get(&order).is_some_and(|worker| worker.off)
    }

    /// Workers it is off on.
    #[must_use]
    pub fn off(&self) -> usize {
        self.workers.values().filter(|worker| worker.off).count()
    }

    /// Latest error in errors of the hold-out.
    #[must_use]
    pub fn error(&self) -> f32 {
        self.fleet.error
    }

    /// The worker registered as `order` is gone.
    pub fn forget(&mut self, order: u64) {
        self.workers.remove(&order);
    }
}

/// Rows before anything is said of a loaded model.
const COMPARED: u32 = 64;
/// In standard deviations of the model.
const FAR: f32 = 5.0;
/// Times its standard deviation.
const WIDE: f32 = 10.0;

/// The inputs of a loaded model, against those it was trained on.
#[derive(Debug, Clone, PartialEq)]
pub struct Normaliser {
    mean: Vec<f32>,
    std: Vec<f32>,
    seen: u32,
    own_mean: [f32; COLUMNS],
    own_squares: [f32; COLUMNS],
    /// Whether it does not fit what was seen so far.
    pub mismatch: bool,
}

impl Normaliser {
    /// That of a model that was trained elsewhere.
    #[must_use]
    pub fn new((mean, std): (&[f32], &[f32])) -> Self {
        Self {
            mean: mean.into(),
            std: std.into(),
            seen: 0,
            own_mean: [0.0; COLUMNS],
            own_squares: [0.0; COLUMNS],
            mismatch: false,
        }
    }

    /// A request was routed.
    pub fn observe(&mut self, row: &Row) {
        self.seen = self.seen.saturating_add(1);
        let columns = self.own_mean.iter_mut().zip(&mut self.own_squares);
        for (value, (mean, squares)) in row.values.iter().zip(columns) {
            let before = value - *mean;
            *mean += before / self.seen as f32;
            *squares += before * (value - *mean);
        }
        if self.seen.is_multiple_of(COMPARED) {
            self.mismatch = self.differs();
            if self.seen >= 16 * COMPARED {
                // Old observations should not hide recent ones.
                self.seen = 0;
                self.own_squares = [0.0; COLUMNS];
                self.own_mean = [0.0; COLUMNS];
            }
        }
    }

    fn differs(&self) -> bool {
        let columns = self.mean.len().min(COLUMNS);
        (0..columns).any(|j| {
            let std = self.std[j].max(1e-3 * self.mean[j].abs()).max(1e-6);
            let own = (self.own_squares[j] / self.seen as f32).sqrt();
            (self.own_mean[j] - self.mean[j]).abs() > FAR * std || own > WIDE * std
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Costs between .1 and .5 that a model with a hold-out error of .02 predicts with an error of `error(cost)`.
    fn after(requests: u32, error: impl Fn(f32) -> f32) -> Drift {
        let mut drift = Drift::default();
        drift.start(0.02);
        feed(&mut drift, requests, error);
        drift
    }

    fn feed(drift: &mut Drift, requests: u32, error: impl Fn(f32) -> f32) {
        for i in 0..requests {
            let cost = 0.1 + 0.1 * ((i * 7) % 5) as f32;
            drift.observe(u64::from(i % 4), cost + error(cost), cost);
        }
    }

    #[test]
    fn a_model_as_good_as_its_hold_out_stays() {
        let drift = after(1_000, |_| 0.02);
        assert!(!drift.is_off() && drift.off() == 0);
        assert!((drift.error() - 1.0).abs() < 0.01);
    }

    #[test]
    fn wrong_models_are_off_within_a_few_answers() {
        type Error = fn(f32) -> f32;
        let wrong: [(&str, Error); 4] = [
            ("inverted", |cost| 0.6 - 2.0 * cost),
            ("huge", |_| 1e6),
            ("constant", |cost| 5.0 - cost),
            ("zero", |cost| -cost),
        ];
        for (name, error) in wrong {
            assert!(after(SOME, error).is_off(), "{name}");
            assert!(!after(FEW - 1, error).is_off(), "{name}");
        }
    }

    #[test]
    fn one_request_that_hung_is_not_a_drift() {
        let mut drift = after(500, |_| 0.02);
        drift.observe(0, 0.2, 15.0);
        assert!(!drift.is_off() && !drift.is_off_on(0));
    }

    #[test]
    fn errors_that_grow_with_the_costs_do_not_end_a_model_that_tells_them_apart() {
        let mut drift = after(500, |_| 0.02);
        for i in 0..500_u32 {
            let cost = 1.0 + ((i * 7) % 5) as f32 * 0.5;
            drift.observe(0, cost * 1.08, cost);
        }
        assert!(drift.error() > OFF && !drift.is_off());
    }

    #[test]
    fn a_model_that_fits_again_is_back() {
        let mut drift = after(200, |_| 0.5);
        assert!(drift.is_off());
        feed(&mut drift, 300, |_| 0.02);
        assert!(!drift.is_off());
        let mut drift = after(200, |_| 0.5);
        drift.start(0.02);
        assert!(!drift.is_off(), "another model");
    }

    #[test]
    fn a_worker_apart_is_found_alone() {
        let mut drift = after(400, |_| 0.01);
        for i in 0..400_u32 {
            let cost = 0.1 + 0.1 * ((i * 7) % 5) as f32;
            let slow = if i % 8 == 0 { 1.0 } else { 0.0 };
            drift.observe(u64::from(i % 8), cost, cost + slow);
        }
        assert_eq!((drift.is_off(), drift.off()), (false, 1));
        assert!(drift.is_off_on(0));
        drift.forget(0);
        assert!(!drift.is_off_on(0));
    }

    #[test]
    fn a_model_that_tells_nobody_apart_is_off() {
        let mut drift = after(10, |_| 0.0);
        for _ in 0..FLAT {
            assert!(!drift.is_off());
            drift.scored(true);
        }
        assert!(drift.is_off());
        drift.scored(false);
        assert!(!drift.is_off());
    }

    #[test]
    fn a_normaliser_of_other_units_is_found() {
        let row = |tokens: f32| Row {
            values: [tokens; COLUMNS],
            gpu: 0,
        };
        for (mean, std, fits) in [(100.0, 30.0, true), (6.0, 2.0, false), (100.0, 1.0, false)] {
            let (mean, std) = ([mean; COLUMNS], [std; COLUMNS]);
            let mut normaliser = Normaliser::new((&mean, &std));
            for i in 0..COMPARED {
                assert!(!normaliser.mismatch);
                normaliser.observe(&row(60.0 + (i % 9) as f32 * 10.0));
            }
            assert_eq!(normaliser.mismatch, !fits);
        }
    }
}
