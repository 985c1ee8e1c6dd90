//! Counters of events and messages.

cachelb_core::named! {
    /// Why a message, an event or a block was dropped.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    DropReason {
        /// The message has no form that engines send; nothing of it was applied.
        Undecodable = "undecodable",
        /// A message names a data-parallel rank the worker does not have.
        UnknownRank = "unknown-rank",
        /// An event of an unknown type.
        UnknownEvent = "unknown-event",
        /// An event of a known type that lacks a required field.
        MalformedEvent = "malformed-event",
        /// A field that is not known, or of a type that is not; the rest of its event was used.
        UnknownField = "unknown-field",
        /// A store in an unknown medium.
        UnknownMedium = "unknown-medium",
        /// A store in a pool that workers share.
        SharedPool = "shared-pool",
        /// A cache group that is neither indexed nor followed.
        AttentionGroup = "attention-group",
        /// A store whose block size, kind or window is not that of its group.
        GroupContradiction = "group-contradiction",
        /// Hashes, block size and tokens do not agree.
        TokenCount = "token-count",
        /// Blocks of a size that cannot be mapped to the router's.
        BlockSize = "block-size",
        /// Names without tokens, of blocks that were not announced.
        Placeholder = "placeholder",
        /// Blocks whose parent did not show up in time, or for which there was no room.
        Orphan = "orphan",
        /// A store beyond the number of blocks that are remembered.
        Full = "full",
    }
}

/// One cache group of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStats {
    /// Its number; `None` if stores do not state it.
    pub id: Option<u32>,
    /// Attention of its layers, as engines call it; "unsaid" if they leave it out.
    pub kind: String,
    /// Its window in tokens.
    pub window: Option<u32>,
    /// Tokens per block, 0 if that is not known.
    pub block_size: u32,
    /// Blocks it holds, according to its events.
    pub blocks: u64,
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
        /// Stores that repeated held blocks and added no copy.
        pub reannounced: u64,
        /// Stores that waited for their parent.
        pub parked: u64,
        /// Stores applied of cache groups that do not attend to the whole prefix.
        pub side_stores: u64,
        /// Blocks of such groups whose names stood for nothing when their message was over.
        pub side_parked: u64,
        /// Blocks of such groups that were given up, since their names never stood for anything.
        pub side_unresolved: u64,
        /// Cache groups of a kind whose rule is not known: nothing can be resumed with them.
        pub unknown_kinds: u64,
        /// Blocks that became doubtful since a message was lost.
        pub doubted_blocks: u64,
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
