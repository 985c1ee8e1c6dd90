//! Spreads keys over a table, each table in its own way.
//!
//! Clients choose block hashes and tokens, and where the seed of the hashes is public, which ones meet in a table as well.
//! A multiplication by a random odd number costs a nanosecond.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The random odd number.
#[derive(Debug, Clone, Copy)]
pub struct SeededHash(u64);

impl Default for SeededHash {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish() | 1)
    }
}

impl SeededHash {
    /// Spreads a key over the high bits, and keys of a progression as well as others: one multiplication makes another
    /// progression of them, which one number in a thousand puts into a few buckets.
    #[inline]
    pub(crate) fn high(self, key: u64) -> u64 {
        self.all(key ^ self.0).wrapping_mul(self.0)
    }

    /// Spreads a key over all bits.
    #[inline]
    pub(crate) fn all(self, key: u64) -> u64 {
        let product = u128::from(key) * u128::from(self.0);
        product as u64 ^ (product >> 64) as u64
    }
}

/// For maps whose keys are a few numbers.
impl BuildHasher for SeededHash {
    type Hasher = SeededHasher;

    fn build_hasher(&self) -> SeededHasher {
        SeededHasher {
            mix: *self,
            hash: 0,
        }
    }
}

/// Hashes a few numbers.
#[derive(Debug)]
pub struct SeededHasher {
    mix: SeededHash,
    hash: u64,
}

impl Hasher for SeededHasher {
    fn finish(&self) -> u64 {
        self.hash
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u32(&mut self, key: u32) {
        self.write_u64(u64::from(key));
    }

    #[inline]
    fn write_u64(&mut self, key: u64) {
        self.hash = self.mix.all(self.hash ^ key);
    }

    #[inline]
    fn write_u128(&mut self, key: u128) {
        self.write_u64(key as u64);
        self.write_u64((key >> 64) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_a_number_of_its_own() {
        let (one, two) = (SeededHash::default(), SeededHash::default());
        assert_ne!(one.0, two.0);
        assert!(one.0 % 2 == 1 && two.0 % 2 == 1);
        assert_eq!(one.hash_one(7_u64), one.all(7));
    }
}
