//! Stretches of units that several structures keep in one allocation.
//!
//! A prompt that the radix tree holds is also the path of the requests that wait for it: both refer to the same units.

use std::ops::{Deref, Range};
use std::sync::Arc;

/// Heap bytes of an allocation beside its units: those of the allocator, and two counts.
pub(crate) const ALLOCATION: usize = 32;

/// A view of units that may be shared. It never changes.
#[derive(Debug, Clone)]
pub struct SharedSlice<U> {
    /// `None` for no units.
    all: Option<Arc<[U]>>,
    start: u32,
    len: u32,
}

impl<U> Default for SharedSlice<U> {
    fn default() -> Self {
        Self {
            all: None,
            start: 0,
            len: 0,
        }
    }
}

impl<U> Deref for SharedSlice<U> {
    type Target = [U];

    #[inline]
    fn deref(&self) -> &[U] {
        let (start, len) = (self.start as usize, self.len as usize);
        match &self.all {
            Some(all) => &all[start..start + len],
            None => &[],
        }
    }
}

impl<U: Copy> SharedSlice<U> {
    /// A view of all of `units`.
    ///
    /// # Panics
    /// For 2^32 units or more.
    #[must_use]
    pub fn new(units: impl Into<Arc<[U]>>) -> Self {
        let all = units.into();
        let len = u32::try_from(all.len()).expect("paths are shorter than 2^32 units");
        Self {
            all: Some(all),
            start: 0,
            len,
        }
    }

    /// The units in `range`, in the same allocation if they are half of it or more: no view keeps more than twice its
    /// size alive.
    #[must_use]
    pub fn view(&self, range: Range<usize>) -> Option<Self> {
        debug_assert!(range.end <= self.len(), "a part lies within the whole");
        let all = self.all.as_ref()?;
        (2 * range.len() >= all.len()).then(|| Self {
            all: Some(Arc::clone(all)),
            start: self.start + range.start as u32,
            len: range.len() as u32,
        })
    }

    /// The units in `range`, copied if [`Self::view`] gives none.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        let view = self.view(range.clone());
        view.unwrap_or_else(|| Self::new(&self[range]))
    }
}

impl<U> SharedSlice<U> {
    /// The allocation, to find out what else refers to it.
    pub(crate) fn allocation(&self) -> Option<&Arc<[U]>> {
        self.all.as_ref()
    }

    /// Heap bytes of the whole allocation.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let bytes = |all: &Arc<[U]>| size_of_val(&**all) + ALLOCATION;
        self.all.as_ref().map_or(0, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_shared_from_half_of_the_allocation_on() {
        let whole = SharedSlice::new(*b"abcdefgh");
        let (upper, lower) = (whole.part(0..3), whole.part(3..8));
        assert_eq!((&*upper, &*lower), (&b"abc"[..], &b"defgh"[..]));
        assert_eq!(upper.heap_bytes(), 3 + ALLOCATION);
        assert_eq!(lower.heap_bytes(), 8 + ALLOCATION);
        assert!(whole.view(0..4).is_some() && lower.view(0..3).is_none());
        assert_eq!(&*lower.part(1..5), b"efgh");
        assert_eq!(&*lower.part(1..2), b"e");
        assert!(SharedSlice::<u8>::default().is_empty());
    }
}
