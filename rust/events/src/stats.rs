//! What became of events and messages.

/// Why a message, an event or a block was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The message is not what engines send; nothing of it was applied.
    Undecodable,
    /// A message names a data-parallel rank the worker does not have.
    UnknownRank,
    /// An event of a type nobody here knows.
    UnknownEvent,
    /// An event of a known type without what it needs.
    MalformedEvent,
    /// A store in a medium nobody here knows.
    UnknownMedium,
    /// A store in a pool that workers share.
    SharedPool,
    /// A cache group that does not attend to the whole prefix.
    AttentionGroup,
    /// Hashes, block size and tokens do not agree.
    TokenCount,
    /// Blocks of a size that cannot be mapped to the router's.
    BlockSize,
    /// Names without tokens, of blocks nobody announced.
    Placeholder,
    /// Blocks whose parent did not show up in time, or for which there was no room.
    Orphan,
    /// A store beyond the number of blocks that are remembered.
    Full,
}

impl DropReason {
    /// Every reason.
    pub const ALL: [Self; 12] = [
        Self::Undecodable,
        Self::UnknownRank,
        Self::UnknownEvent,
        Self::MalformedEvent,
        Self::UnknownMedium,
        Self::SharedPool,
        Self::AttentionGroup,
        Self::TokenCount,
        Self::BlockSize,
        Self::Placeholder,
        Self::Orphan,
        Self::Full,
    ];

    /// Name used in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Undecodable => "undecodable",
            Self::UnknownRank => "unknown-rank",
            Self::UnknownEvent => "unknown-event",
            Self::MalformedEvent => "malformed-event",
            Self::UnknownMedium => "unknown-medium",
            Self::SharedPool => "shared-pool",
            Self::AttentionGroup => "attention-group",
            Self::TokenCount => "token-count",
            Self::BlockSize => "block-size",
            Self::Placeholder => "placeholder",
            Self::Orphan => "orphan",
            Self::Full => "full",
        }
    }
}

cachelb_core::counted! {
    /// Counters of one stream; they only rise.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct EventStats {
        /// Messages applied.
        pub messages: u64,
        /// Blocks announced by the stores that were applied.
        pub stored_blocks: u64,
        /// Blocks named by the removals that were applied.
        pub removed_blocks: u64,
        /// Removed blocks that were not known.
        pub unknown_removals: u64,
        /// Stores that repeated what was held and added no copy.
        pub reannounced: u64,
        /// Stores that waited for their parent.
        pub parked: u64,
        /// Blocks that became doubtful since a message was lost.
        pub doubted_blocks: u64,
        /// Doubtful blocks that were there after all, as a later event showed.
        pub settled_blocks: u64,
    }
    beside {
        /// Stores applied.
        pub stores: u64,
        /// Removals applied.
        pub removals: u64,
        /// Clears applied.
        pub clears: u64,
        dropped: [u64; DropReason::ALL.len()],
    }
}

impl EventStats {
    /// Counts a drop.
    pub fn drop(&mut self, reason: DropReason, n: u64) {
        self.dropped[reason as usize] += n;
    }

    /// Drops for `reason`.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }
}
