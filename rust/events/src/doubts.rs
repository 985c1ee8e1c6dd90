//! Names that are gone although the engine may have one more copy.
//!
//! A store from the root that repeats what is held is taken for a report. If it was none, a copy is missing from the
//! count and the last removal comes too early. A later report that contains such a block must still be taken for one:
//! as a store of new blocks it would add copies that nobody has, of everything else it names.

use std::collections::{HashMap, VecDeque};

use super::batch::Name;

/// Names remembered; the oldest are forgotten first.
const MAX_DOUBTS: usize = 1 << 14;

/// The names of one space.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// Name -> its number in the queue.
    names: HashMap<Name, u64>,
    queue: VecDeque<(Name, u64)>,
    next: u64,
}

impl Doubts {
    pub(super) fn insert(&mut self, name: Name) {
        self.names.insert(name, self.next);
        self.queue.push_back((name, self.next));
        self.next += 1;
        if self.queue.len() > MAX_DOUBTS
            && let Some((oldest, number)) = self.queue.pop_front()
            && self.names.get(&oldest) == Some(&number)
        {
            self.names.remove(&oldest);
        }
    }

    #[inline]
    pub(super) fn contains(&self, name: Name) -> bool {
        !self.names.is_empty() && self.names.contains_key(&name)
    }

    /// Takes a name out; false if it is not in.
    #[inline]
    pub(super) fn remove(&mut self, name: Name) -> bool {
        !self.names.is_empty() && self.names.remove(&name).is_some()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.names.capacity() * (size_of::<(Name, u64)>() + 1)
            + self.queue.capacity() * size_of::<(Name, u64)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten_and_the_renewed_are_not() {
        let mut doubts = Doubts::default();
        for name in 0..MAX_DOUBTS as u64 {
            doubts.insert(Name::Int(name));
        }
        assert!(doubts.remove(Name::Int(0)) && !doubts.remove(Name::Int(0)));
        doubts.insert(Name::Int(0));
        doubts.insert(Name::Int(u64::MAX));
        assert!(doubts.contains(Name::Int(0)));
        assert!(!doubts.contains(Name::Int(1)));
        assert!(doubts.contains(Name::Int(2)));
    }
}
