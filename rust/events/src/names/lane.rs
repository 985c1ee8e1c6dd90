//! How many names refer to an own block in one medium, counted only once that can be more than one.

use crate::names::table::Table;

/// The references of one medium.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// `None`: every block has one reference.
    references: Option<Table<u64, u32>>,
}

impl Lane {
    pub(crate) fn is_counting(&self) -> bool {
        self.references.is_some()
    }

    /// Starts counting from the blocks that are referred to, each as often as it is.
    pub(crate) fn count(&mut self, blocks: impl Iterator<Item = u64>) {
        let mut references = Table::default();
        for block in blocks {
            references.change(block, |n| n + 1);
        }
        self.references = Some(references);
    }

    /// A reference more; true if it is the first, as far as is known.
    #[inline]
    pub(crate) fn acquire(&mut self, block: u64) -> bool {
        let Some(references) = &mut self.references else {
            return true;
        };
        let mut first = false;
        references.change(block, |n| {
            first = n == 0;
            n + 1
        });
        first
    }

    /// A reference less; true if it was the last.
    #[inline]
    pub(crate) fn release(&mut self, block: u64) -> bool {
        let Some(references) = &mut self.references else {
            return true;
        };
        let mut last = true;
        references.change(block, |n| {
            last = n <= 1;
            n.saturating_sub(1)
        });
        last
    }

    /// Whether anything refers to a block; unknown, hence false, without counting.
    pub(crate) fn refers_to(&self, block: u64) -> bool {
        let references = self.references.as_ref();
        references.is_some_and(|references| references.get(block).is_some())
    }

    /// Nothing is referred to any more.
    pub(crate) fn clear(&mut self) {
        if let Some(references) = &mut self.references {
            references.clear();
        }
    }

    /// The references counted, for comparison.
    #[cfg(test)]
    pub(crate) fn references(&self) -> Option<&Table<u64, u32>> {
        self.references.as_ref()
    }
}
