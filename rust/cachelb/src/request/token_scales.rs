//! Tokens of texts, learned from the engines' counts of their prompts.
//!
//! The index compares texts in pieces of a fixed number of bytes: those name blocks and never change. How many tokens such
//! a text has is another matter, a mean over the latest requests to a model.

use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Names of models share the slots by their hash.
const SLOTS: usize = 256;
/// Prior count of a slot: as many tokens as units, of so many units.
const PRIOR: u64 = 1_024;
/// A slot that has seen so many units counts later ones double.
const MEMORY: u64 = 1 << 20;
/// Tokens that a unit of four bytes can have; a count beyond them is of more than the text.
const MOST: u64 = 4;
/// Units that a token can take.
const LONGEST: u64 = 16;

/// Scales by model and kind of prompt.
#[derive(Debug)]
pub struct Scales {
    /// Units below tokens, in half a word each.
    slots: Box<[AtomicU64; SLOTS]>,
}

/// A text to learn from, once its tokens are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    slot: u8,
    /// Its length as the index counts it.
    pub units: u64,
}

impl Sample {
    /// A text of `units` units, of a `kind` of prompts to a model.
    #[must_use]
    pub fn new(model: Option<&str>, kind: u8, units: u64) -> Self {
        let name = model.unwrap_or_default().as_bytes();
        Self {
            slot: xxh3_64_with_seed(name, kind.into()) as u8,
            units,
        }
    }
}

impl Default for Scales {
    fn default() -> Self {
        let fresh = packed((PRIOR, PRIOR));
        Self {
            slots: Box::new(std::array::from_fn(|_| AtomicU64::new(fresh))),
        }
    }
}

fn packed((tokens, units): (u64, u64)) -> u64 {
    tokens << 32 | units
}

fn unpacked(slot: u64) -> (u64, u64) {
    (slot >> 32, slot & u64::from(u32::MAX))
}

impl Scales {
    /// The tokens that the text most likely has.
    #[must_use]
    pub fn tokens(&self, text: Sample) -> u64 {
        let slot = self.slots[usize::from(text.slot)].load(Ordering::Relaxed);
        let (tokens, units) = unpacked(slot);
        let tokens = u128::from(text.units) * u128::from(tokens);
        // Fits: at most `MOST` tokens a unit.
        tokens.div_ceil(u128::from(units)) as u64
    }

    /// An engine counted the tokens of the text.
    pub fn learn(&self, text: Sample, tokens: u64) {
        let units = text.units;
        let is_whole =
            tokens <= units.saturating_mul(MOST) && units <= tokens.saturating_mul(LONGEST);
        if units == 0 || units > MEMORY || !is_whole {
            return;
        }
        let seen = |slot: u64| {
            let mut seen = unpacked(slot);
            if seen.1 > MEMORY {
                seen = (seen.0.div_ceil(2), seen.1 / 2);
            }
            Some(packed((seen.0 + tokens, seen.1 + units)))
        };
        let slot = &self.slots[usize::from(text.slot)];
        // It always gives a value.
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, seen);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(units: u64) -> Sample {
        Sample::new(Some("m"), 0, units)
    }

    #[test]
    fn a_text_has_a_token_per_unit_until_an_engine_says_otherwise() {
        let scales = Scales::default();
        assert_eq!(scales.tokens(text(1_000)), 1_000);
        for _ in 0..100 {
            scales.learn(text(2_000), 3_000);
        }
        let learned = scales.tokens(text(1_000));
        assert!((1_495..=1_500).contains(&learned), "{learned}");
        let others = [
            Sample::new(Some("n"), 0, 1_000),
            Sample::new(Some("m"), 1, 1_000),
        ];
        assert_eq!(others.map(|other| scales.tokens(other)), [1_000; 2]);
    }

    #[test]
    fn what_was_asked_long_ago_is_forgotten() {
        let scales = Scales::default();
        for tokens in [500_000, 100_000] {
            (0..40).for_each(|_| scales.learn(text(200_000), tokens));
        }
        let learned = scales.tokens(text(1_000));
        assert!((500..=505).contains(&learned), "{learned}");
    }

    proptest! {
        /// Whatever engines count, a unit has between a sixteenth of a token and four.
        #[test]
        fn the_scale_stays_in_bounds(samples in prop::collection::vec((any::<u64>(), any::<u64>()), 0..200)) {
            let scales = Scales::default();
            for (units, tokens) in samples {
                let units = units >> (units & 63);
                scales.learn(text(units), tokens >> (tokens & 63));
                let learned = scales.tokens(text(1_600));
                prop_assert!((100..=6_400).contains(&learned), "{learned}");
            }
        }
    }
}
