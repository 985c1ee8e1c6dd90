//! Where all is known that an engine computed: its prompt, and the answer behind it.

use std::collections::HashSet;

use cachelb_core::collections::seeded_hash::SeededHash;
use cachelb_core::ids::SequenceHash;

/// Ends of each age.
const MOST: usize = 1 << 15;

type Ends = HashSet<(u32, SequenceHash), SeededHash>;

/// Ends of paths, by worker slot and last block, behind which the worker computed nothing that its router has not seen.
/// Those that were noted long ago are forgotten: less is known then.
#[derive(Debug, Default)]
pub(crate) struct KnownEnds {
    young: Ends,
    old: Ends,
}

impl KnownEnds {
    /// All is known up to `last` and behind it.
    pub fn add(&mut self, slot: u32, last: SequenceHash) {
        if self.young.len() >= MOST {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert((slot, last));
    }

    /// Something is computed behind `last`.
    pub fn remove(&mut self, slot: u32, last: SequenceHash) {
        self.young.remove(&(slot, last));
        self.old.remove(&(slot, last));
    }

    /// The worker in `slot` is gone, or holds nothing.
    pub fn forget(&mut self, slot: u32) {
        for ends in [&mut self.young, &mut self.old] {
            ends.retain(|(of, _)| *of != slot);
        }
    }

    pub fn has(&self, slot: u32, last: SequenceHash) -> bool {
        self.young.contains(&(slot, last)) || self.old.contains(&(slot, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_ends_are_forgotten() {
        let mut ends = KnownEnds::default();
        for number in 0..=3 * MOST as u64 {
            ends.add(1, SequenceHash(number));
        }
        assert!(ends.young.len() + ends.old.len() <= 2 * MOST);
        let known = |number: usize| ends.has(1, SequenceHash(number as u64));
        assert!(!known(0) && known(2 * MOST) && known(3 * MOST));
    }

    #[test]
    fn an_end_is_one_of_its_worker_until_something_follows() {
        let mut ends = KnownEnds::default();
        let last = SequenceHash(7);
        ends.add(1, last);
        ends.add(2, last);
        ends.remove(1, last);
        assert_eq!((ends.has(1, last), ends.has(2, last)), (false, true));
        ends.forget(2);
        assert!(!ends.has(2, last));
    }
}
