//! How long selections took, in fixed buckets.
//!
//! Reading a clock twice costs about 0.15 us on a virtual machine, a few per cent of a selection. So one in
//! [`Timing::EVERY`] is timed: about 0.02 us each.

use std::sync::atomic::{AtomicU64, Ordering};

/// A histogram of durations. No call takes a lock.
#[derive(Debug, Default)]
pub struct Timing {
    counts: [AtomicU64; Timing::BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
    calls: AtomicU64,
}

impl Timing {
    /// One in this many is timed, beginning with the first.
    pub const EVERY: u64 = 8;

    /// Upper bounds of the buckets, inclusive; the last bucket has none.
    pub const BOUNDS_NS: [u64; 17] = [
        1_000,
        2_000,
        3_000,
        4_000,
        6_000,
        8_000,
        10_000,
        15_000,
        20_000,
        50_000,
        100_000,
        200_000,
        500_000,
        1_000_000,
        10_000_000,
        100_000_000,
        1_000_000_000,
    ];

    /// Counts a selection that begins, and returns whether it is to be timed.
    pub fn is_due(&self) -> bool {
        self.calls
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(Self::EVERY)
    }

    /// Adds one duration.
    pub fn add(&self, ns: u64) {
        // From the small end: nearly every selection ends in one of the first buckets.
        let bucket = Self::BOUNDS_NS.iter().position(|bound| ns <= *bound);
        let bucket = bucket.unwrap_or(Self::BOUNDS_NS.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Durations per bucket and their sum, as of about now.
    pub fn read(&self) -> ([u64; Self::BOUNDS_NS.len() + 1], u64) {
        let counts = self.counts.each_ref();
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        (counts, self.sum_ns.load(Ordering::Relaxed))
    }

    /// Forgets all.
    pub fn clear(&self) {
        for count in self.counts.iter().chain([&self.sum_ns, &self.calls]) {
            count.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_every_eight_is_due() {
        let timing = Timing::default();
        let due: Vec<usize> = (0..20).filter(|_| timing.is_due()).collect();
        assert_eq!(due, [0, 8, 16]);
    }

    #[test]
    fn a_duration_counts_in_the_first_bucket_that_reaches_it() {
        let timing = Timing::default();
        for ns in [0, 1_000, 1_001, 20_001, 1_000_000_000, 1_000_000_001] {
            timing.add(ns);
        }
        let (counts, sum) = timing.read();
        let mut expected = [0; Timing::BOUNDS_NS.len() + 1];
        for (bucket, count) in [(0, 2), (1, 1), (9, 1), (16, 1), (17, 1)] {
            expected[bucket] = count;
        }
        assert_eq!((counts, sum), (expected, 2_000_022_003));
        timing.clear();
        assert_eq!(timing.read(), ([0; 18], 0));
    }
}
