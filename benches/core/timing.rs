//! Per-call timings. A median hides pauses and a mean hides everything else, so each call is timed alone; the clock's
//! own cost is part of each figure and stated beside it.

use std::time::Instant;

/// Nanoseconds of single calls.
#[derive(Debug, Default)]
pub struct Samples(Vec<u64>);

impl Samples {
    /// Times `call` and returns what it returned.
    pub fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let answer = call();
        let elapsed = start.elapsed();
        self.0
            .push(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
        answer
    }

    /// Calls timed.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Median and 99th percentile in nanoseconds.
    pub fn percentiles(&mut self) -> (f64, f64) {
        self.0.sort_unstable();
        let at = |permille: usize| self.0[(self.0.len() - 1) * permille / 1000] as f64;
        (at(500), at(990))
    }
}

/// The time of an empty call, in nanoseconds.
pub fn clock_cost() -> f64 {
    let mut samples = Samples::default();
    for _ in 0..10_000 {
        samples.time(|| ());
    }
    samples.percentiles().0
}
