//! How far a forest may grow.

use super::nodes::Node;
use super::recency::Record;
use super::{Forest, Shape};

/// Up to what a forest may grow.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) bytes: usize,
    /// Units that the latest record had no room for, if it ended early.
    pub(crate) cut: Option<usize>,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            bytes: usize::MAX,
            cut: None,
        }
    }
}

impl Limit {
    pub(crate) fn is_set(&self) -> bool {
        self.bytes != usize::MAX
    }
}

impl<S: Shape> Forest<S> {
    /// Units of so many bytes for which there is room beside a node that they make, `None` if there is none for the node.
    pub(crate) fn room(&self, unit: usize) -> Option<usize> {
        let node = size_of::<Node<S::Own>>() + size_of::<Record>();
        let left = self.limit.bytes.checked_sub(self.memory_bytes() + node)?;
        Some(left / unit)
    }
}
