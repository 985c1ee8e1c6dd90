//! One decoded message: events over flat buffers that are reused from message to message.

use cachelb_core::ids::Medium;

/// An engine's name of a block, valid within one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Name {
    /// An integer; signed ones by their bits.
    Int(u64),
    /// Bytes, by the XXH3-128 hash of all of them.
    Wide(u128),
}

/// A stretch of one of the batch's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First item.
    pub start: u32,
    /// Items.
    pub len: u32,
}

impl Span {
    /// As a range.
    #[must_use]
    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// The place of blocks that an event states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// Not stated: device memory for a store, every medium for a removal.
    #[default]
    Unsaid,
    /// A medium of the worker.
    In(Medium),
    /// A pool that workers share, which is not a property of this one.
    Shared,
    /// An unknown medium.
    Unknown,
}

/// Attention of the layers of a cache group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Attention {
    /// Not stated.
    #[default]
    Unsaid,
    /// The whole prefix: full, MLA and sink attention.
    Full,
    /// A window of the last tokens, whose length the store states.
    Sliding,
    /// A state at the end of a block, and none before it.
    Mamba,
    /// The tokens of one chunk.
    Chunked,
    /// No prefix that is looked up: encoders and cross-attention.
    Aside,
    /// A kind whose rule is not known, by its name in [`Batch::text`].
    Other(Span),
}

/// A part of a block's identity beside its tokens: an image, or the digest of prompt embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extra {
    /// Position of the block in the event.
    pub block: u32,
    /// Hash of the object.
    pub hash: u64,
}

/// Blocks that became available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Store {
    /// Names of the blocks, a chain, in [`Batch::names`].
    pub names: Span,
    /// Name of the block before the first.
    pub parent: Option<Name>,
    /// Their tokens in [`Batch::tokens`]; empty for a placeholder.
    pub tokens: Span,
    /// Tokens per block, 0 for a placeholder.
    pub block_size: u32,
    /// Where they lie.
    pub place: Place,
    /// Cache group.
    pub group: Option<u32>,
    /// Attention of that group.
    pub attention: Attention,
    /// Its window in tokens.
    pub window: Option<u32>,
    /// Name of the adapter in [`Batch::text`]; `lora_id=7` where the engine only numbers its adapters.
    pub lora: Option<Span>,
    /// Salt of a store that starts at the root, in [`Batch::text`].
    pub salt: Option<Span>,
    /// In [`Batch::extras`], by block.
    pub extras: Span,
}

/// Blocks that were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remove {
    /// Their names in [`Batch::names`].
    pub names: Span,
    /// Where they lay.
    pub place: Place,
    /// Cache group.
    pub group: Option<u32>,
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Blocks became available.
    Store(Store),
    /// Blocks were removed.
    Remove(Remove),
    /// The whole cache was dropped.
    Clear,
}

impl Event {
    /// The place of its blocks, `None` for an event of the whole cache.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        match self {
            Self::Store(store) => Some(store.place),
            Self::Remove(remove) => Some(remove.place),
            Self::Clear => None,
        }
    }
}

/// One decoded message.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// Wall-clock seconds at which the engine made it.
    pub ts: f64,
    /// Data-parallel rank that the message states.
    pub rank: Option<u32>,
    /// Events in the order given.
    pub events: Vec<Event>,
    /// Names of blocks.
    pub names: Vec<Name>,
    /// Tokens of blocks.
    pub tokens: Vec<u32>,
    /// Objects of blocks.
    pub extras: Vec<Extra>,
    /// Adapter names and salts.
    pub text: String,
    /// Names of the first fields that were passed over.
    pub fields: Vec<String>,
    /// Fields that were passed over.
    pub unknown_fields: u32,
    /// Events of an unknown type.
    pub unknown_events: u32,
    /// Events of a known type that are malformed.
    pub malformed_events: u32,
}

impl Batch {
    /// Empties it; the buffers keep their memory.
    pub fn clear(&mut self) {
        self.ts = 0.0;
        self.rank = None;
        self.events.clear();
        self.names.clear();
        self.tokens.clear();
        self.extras.clear();
        self.text.clear();
        self.fields.clear();
        self.unknown_fields = 0;
        self.unknown_events = 0;
        self.malformed_events = 0;
    }

    /// Counts a field that is passed over.
    pub(crate) fn pass_over(&mut self, field: &str) {
        const FEW: usize = 64;
        self.unknown_fields += 1;
        if self.fields.len() < FEW && !field.is_empty() && field.len() <= FEW {
            self.fields.push(field.to_owned());
        }
    }

    /// Names of a span.
    #[must_use]
    pub fn names_of(&self, span: Span) -> &[Name] {
        &self.names[span.range()]
    }

    /// Tokens of a span.
    #[must_use]
    pub fn tokens_of(&self, span: Span) -> &[u32] {
        &self.tokens[span.range()]
    }

    /// Text of a span.
    #[must_use]
    pub fn text_of(&self, span: Span) -> &str {
        &self.text[span.range()]
    }
}
