//! The seeded generator behind ties, samples and random starts.
//!
//! xoshiro256++ (Blackman and Vigna, 2019), its state filled by splitmix64, so that any 64-bit seed gives a good state.
//! Four words of state: a dry run copies it. Not for secrets.

/// A small seeded generator; equal seeds give equal streams on every platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Self {
            state: [next(), next(), next(), next()],
        }
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Uniform in `0..n` without modulo bias (multiply and reject, Lemire 2019); 0 for `n` = 0.
    pub fn below(&mut self, n: usize) -> usize {
        let n = n as u64;
        loop {
            let wide = u128::from(self.bits()) * u128::from(n);
            let low = wide as u64;
            if low >= n || low >= n.wrapping_neg().checked_rem(n).unwrap_or(0) {
                return (wide >> 64) as usize;
            }
        }
    }

    /// Uniform in `[0, 1)` with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_streams_and_others_differ() {
        let (mut a, mut b, mut c) = (Rng::new(7), Rng::new(7), Rng::new(8));
        let left: Vec<u64> = (0..100).map(|_| a.bits()).collect();
        let same: Vec<u64> = (0..100).map(|_| b.bits()).collect();
        let other: Vec<u64> = (0..100).map(|_| c.bits()).collect();
        assert_eq!(left, same);
        assert_ne!(left, other);
    }

    #[test]
    fn splitmix_state_follows_the_published_vector() {
        // First outputs of splitmix64 from seed 1234567 (reference implementation by Vigna).
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(Rng::new(1_234_567).state[..3], expected);
    }

    #[test]
    fn draws_are_uniform_within_five_sigma() {
        let mut rng = Rng::new(1);
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            counts[rng.below(7)] += 1;
        }
        let sigma = (70_000.0_f64 * (1.0 / 7.0) * (6.0 / 7.0)).sqrt();
        for count in counts {
            assert!(
                (f64::from(count) - 10_000.0).abs() < 5.0 * sigma,
                "{counts:?}"
            );
        }
    }

    #[test]
    fn unit_stays_below_one_and_below_zero_is_zero() {
        let mut rng = Rng::new(3);
        assert!((0..10_000).all(|_| (0.0..1.0).contains(&rng.unit())));
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
    }
}
