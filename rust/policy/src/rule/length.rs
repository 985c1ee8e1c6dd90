//! How long a prompt is, in tokens and as its blocks count it.

/// The length of a prompt. Blocks of token ids count tokens; those of text count units of four bytes, of which a prompt
/// has more or fewer than it has tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Length {
    tokens: u64,
    units: u64,
}

impl Length {
    /// So many tokens; `units` is 0 for as many.
    #[must_use]
    pub fn new(tokens: u64, units: u64) -> Self {
        let units = if units == 0 { tokens } else { units };
        Self { tokens, units }
    }

    /// As blocks count it.
    #[must_use]
    pub fn units(self) -> u64 {
        self.units
    }

    /// Its blocks of so many units that an engine reuses at most: it computes the last token again.
    #[must_use]
    pub fn reusable_blocks(self, block_size: u64) -> u64 {
        self.units.saturating_sub(1) / block_size.max(1)
    }

    /// Tokens of a part of the prompt, never all: engines compute the last one again.
    #[must_use]
    pub fn tokens_of(self, units: u64) -> u64 {
        if self.units == self.tokens {
            return units;
        }
        let tokens = u128::from(units) * u128::from(self.tokens) / u128::from(self.units.max(1));
        // Fits: fewer than the prompt has.
        tokens.min(self.tokens.saturating_sub(1).into()) as u64
    }

    /// As `tokens_of`, for a part that credits scaled.
    #[must_use]
    pub fn tokens_within(self, units: f64) -> f64 {
        if self.units == self.tokens {
            return units;
        }
        let tokens = units * self.tokens as f64 / self.units.max(1) as f64;
        tokens.min(self.tokens.saturating_sub(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::Length;

    #[test]
    fn a_part_of_a_text_has_its_share_of_the_tokens() {
        let tokens = [(1_000, 0), (1_000, 1_000), (500, 1_000), (2_000, 1_000)];
        let of = |(tokens, units)| Length::new(tokens, units).tokens_of(600);
        assert_eq!(tokens.map(of), [600, 600, 300, 1_200]);
        let within = |(tokens, units)| {
            Length::new(tokens, units)
                .tokens_within(600.0)
                .total_cmp(&(of((tokens, units)) as f64))
        };
        assert_eq!(tokens.map(within), [Ordering::Equal; 4]);
    }

    #[test]
    fn one_token_of_a_text_is_left_to_compute() {
        for (tokens, units) in [(1, 1_000), (0, 1_000), (7, 1_000), (u64::MAX - 1, u64::MAX)] {
            let length = Length::new(tokens, units);
            assert!(length.tokens_of(units) <= tokens.saturating_sub(1));
            assert!(length.tokens_within(units as f64) <= tokens as f64);
        }
    }
}
