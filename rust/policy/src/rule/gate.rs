//! The spill gate: whether a holder is so loaded that its prefix should gain another holder.
//!
//! Only the load of the chosen candidate is compared with the mean: a queue elsewhere never breaks affinity. Both
//! margins are needed: the relative one alone fires on noise at low load, the absolute one alone is blind at high load.

use cachelb_core::rng::Rng;

use crate::rule::view::{Candidate, lowest, mean_load};

/// The absolute margin over the mean load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Margin {
    /// `min(32, max(4, 2 * sqrt(mean)))`: two standard deviations of a Poisson load, within bounds.
    Auto,
    /// As `Auto`, for one of that many routers, which sees its share of the load only.
    AutoAmong(f64),
    /// A fixed number of requests per unit of weight.
    Fixed(f64),
}

/// Both margins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpillGate {
    /// Times the mean load.
    pub load_factor: f64,
    /// Over the mean load.
    pub margin: Margin,
}

impl SpillGate {
    /// With the defaults of its options, for one router.
    pub const DEFAULT: Self = Self {
        load_factor: 1.25,
        margin: Margin::Auto,
    };

    /// Whether `load` is above both margins over `mean`.
    #[must_use]
    pub fn is_over(&self, load: f64, mean: f64) -> bool {
        let auto = |routers: f64| {
            let least = (4.0 / routers).max(1.0);
            (2.0 * mean.sqrt()).clamp(least, (32.0 / routers).max(least))
        };
        let margin = match self.margin {
            Margin::Auto => auto(1.0),
            Margin::AutoAmong(routers) => auto(routers),
            Margin::Fixed(requests) => requests,
        };
        load > self.load_factor * mean && load > mean + margin
    }

    /// Another row to use instead of `chosen`: the least loaded one, if `chosen` is over the gate.
    pub(crate) fn spill(&self, rows: &[Candidate], chosen: usize, rng: &mut Rng) -> Option<usize> {
        if !self.is_over(rows[chosen].load(), mean_load(rows)) {
            return None;
        }
        lowest(rows, rng, |_| true, Candidate::load).filter(|row| *row != chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_margins_must_be_exceeded() {
        let cases = [
            (100.0, 50.0, 1.1, Margin::Fixed(32.0), true),
            (10.0, 5.0, 1.1, Margin::Fixed(32.0), false),
            (10.0, 5.0, 1.1, Margin::Fixed(2.0), true),
            (10.0, 5.0, 1.25, Margin::Auto, true),
            (0.0, 25.0, 1.25, Margin::Auto, false),
            (5.0, 1.25, 1.25, Margin::Auto, false),
            (6.0, 1.5, 1.25, Margin::Auto, true),
            (0.0, 0.0, 1.25, Margin::Auto, false),
            (1.0, 1.0 / 3.0, 1.25, Margin::Auto, false),
            (1040.0, 1000.0, 1.25, Margin::Auto, false),
            (4.0, 1.0, 1.25, Margin::Auto, false),
            (4.0, 1.0, 1.25, Margin::AutoAmong(4.0), true),
            (2.9, 1.0, 1.25, Margin::AutoAmong(4.0), false),
            (300.0, 200.0, 1.25, Margin::AutoAmong(1.0), true),
            (12.5, 9.9, 1.25, Margin::AutoAmong(16.0), true),
        ];
        for (load, mean, load_factor, margin, over) in cases {
            let gate = SpillGate {
                load_factor,
                margin,
            };
            assert_eq!(
                gate.is_over(load, mean),
                over,
                "load {load}, mean {mean}, {gate:?}"
            );
        }
    }
}
