//! Slots whose load may have changed since it was looked at last, a bit each.

use super::columns::Load;

#[derive(Debug, Default)]
pub(super) struct Changed(Vec<u64>);

impl Changed {
    /// Makes room for slots `0..slots`.
    pub fn reserve(&mut self, slots: usize) {
        self.0.resize(slots.div_ceil(64).max(self.0.len()), 0);
    }

    /// Marks a slot that has room.
    #[inline]
    pub fn mark(&mut self, slot: u32) {
        self.0[slot as usize / 64] |= 1 << (slot % 64);
    }

    pub fn contains(&self, slot: u32) -> bool {
        let word = self.0.get(slot as usize / 64);
        word.is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Calls `look` with every marked slot, which stays marked if it returns true.
    pub fn retain(&mut self, loads: &[Load], mut look: impl FnMut(u32, &Load) -> bool) {
        for (at, word) in self.0.iter_mut().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                let slot = at * 64 + rest.trailing_zeros() as usize;
                if !look(slot as u32, &loads[slot]) {
                    *word &= !(rest & rest.wrapping_neg());
                }
                rest &= rest - 1;
            }
        }
    }
}
