//! Changes of a worker's cache as gateways see them.

use cachelb_core::ids::{Medium, SequenceHash};

/// A change that a worker reports of its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The block called so can be found now; `parent` is the block before it.
    Stored {
        /// Its hash.
        hash: SequenceHash,
        /// Hash of the block before it, `None` for a first one.
        parent: Option<SequenceHash>,
        /// Memory that it is in now.
        medium: Medium,
    },
    /// It cannot be found in that memory any more, nor resumed behind.
    Removed {
        /// Its hash.
        hash: SequenceHash,
        /// Memory that it was in.
        medium: Medium,
    },
    /// Nothing can be found any more.
    Cleared,
    /// All groups that do not attend to the whole prefix can resume behind a block, which can be found.
    Marked {
        /// Its hash.
        hash: SequenceHash,
    },
    /// They cannot any more.
    Unmarked {
        /// Its hash.
        hash: SequenceHash,
    },
}
