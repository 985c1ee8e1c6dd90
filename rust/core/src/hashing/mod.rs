//! Tokens, or text, to sequence hashes.
//!
//! A block is `block_size` consecutive tokens; a tail that does not fill one has no hash. [`Scheme::Chained`] is the
//! identity everything exact relies on: a sequence hash names a block *and all before it*. It equals the hashes of
//! Dynamo's block manager for seed 1337. Cost: one XXH3 call per block plus one 16-byte step of the chain, whose
//! latency (about 14 cycles) is the floor for small blocks.

mod chained;
mod multimodal;
mod namespace;
mod positional;
mod spaces;
mod text;
mod units;

pub use chained::hash_blocks;
pub use multimodal::{MmObject, distinguish};
pub use namespace::{Identity, Namespace, NamespaceKey};
pub use spaces::Spaces;
pub use text::{hash_text, hash_text_into};
pub use units::UNIT_BYTES;

use crate::error::{Error, Result};
use crate::ids::SequenceHash;

#[cfg(target_endian = "big")]
compile_error!("token slices are hashed as they lie in memory, which must be little-endian");

/// Seed of Dynamo's block hashes; the default wherever a seed may be chosen.
pub const DEFAULT_SEED: u64 = 1337;

/// Largest accepted number of tokens in a block.
pub const MAX_BLOCK_SIZE: usize = 1024;

/// How blocks become hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Scheme {
    /// Hash of the block, chained with the hash of everything before it.
    #[default]
    Chained,
    /// Chained, over windows of one token more than a block: the blocks of an Eagle draft model, which also sees the
    /// token that follows.
    Eagle,
    /// Hash of position and block, without the chain: equal blocks at equal positions alias although their prefixes
    /// differ. Kept for study; inexact by design.
    Positional,
    /// No hash: tokens as they are, for a tree that compares them. The upper half is the number of the namespace, which
    /// [`Spaces`] gives.
    Units,
}

impl Scheme {
    /// Every scheme that hashes.
    pub const ALL: [Self; 3] = [Self::Chained, Self::Eagle, Self::Positional];

    /// Name as used in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Chained => "chained",
            Self::Eagle => "eagle",
            Self::Positional => "positional",
            Self::Units => "units",
        }
    }

    /// The scheme called `name`, for the argument called `setting`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for any other name.
    pub fn parse(setting: &'static str, name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|scheme| scheme.name() == name)
            .ok_or_else(|| {
                Error::setting(
                    setting,
                    "\"chained\", \"eagle\" or \"positional\"",
                    format_args!("{name:?}"),
                )
            })
    }

    /// Tokens that one block's hash covers.
    fn window(self, block_size: usize) -> usize {
        match self {
            Self::Chained | Self::Positional | Self::Units => block_size,
            Self::Eagle => block_size + 1,
        }
    }
}

/// A scheme with its block size and seed, checked once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hasher {
    scheme: Scheme,
    block_size: usize,
    seed: u64,
    key: Option<NamespaceKey>,
}

impl Hasher {
    /// A hasher for blocks of `block_size` tokens.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] unless `1 <= block_size <= 1024`.
    pub fn new(scheme: Scheme, block_size: usize, seed: u64) -> Result<Self> {
        if !(1..=MAX_BLOCK_SIZE).contains(&block_size) {
            return Err(Error::setting("block_size", "from 1 to 1024", block_size));
        }
        if scheme == Scheme::Units && block_size > 1 {
            return Err(Error::setting(
                "block_size",
                "1, if tokens are not hashed",
                block_size,
            ));
        }
        Ok(Self {
            scheme,
            block_size,
            seed,
            key: None,
        })
    }

    /// This hasher with namespaces under a key, or by the published rule.
    #[must_use]
    pub fn keyed(self, key: Option<NamespaceKey>) -> Self {
        Self { key, ..self }
    }

    /// The key of its namespaces, `None` for the published rule.
    #[must_use]
    pub fn key(&self) -> Option<NamespaceKey> {
        self.key
    }

    /// The namespace of an adapter, a salt and a model.
    #[must_use]
    pub fn namespace(&self, identity: Identity<'_>) -> Namespace {
        Namespace::of(self.key, identity)
    }

    /// The scheme.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Tokens per block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Full blocks in a prompt of `tokens` tokens, that is, how many hashes it has.
    #[must_use]
    pub fn block_count(&self, tokens: usize) -> usize {
        match self.scheme {
            Scheme::Chained | Scheme::Positional | Scheme::Units => tokens / self.block_size,
            Scheme::Eagle => tokens.saturating_sub(1) / self.block_size,
        }
    }

    /// Replaces the content of `out` with one hash per full block of `tokens`.
    pub fn hash(
        &self,
        tokens: &[u32],
        namespace: Namespace,
        mm: &[MmObject],
        out: &mut Vec<SequenceHash>,
    ) {
        // Growth alone is zero-filled: a buffer that is reused costs nothing here.
        out.resize(self.block_count(tokens.len()), SequenceHash(0));
        self.hash_into(tokens, namespace, mm, out);
    }

    /// Writes one hash per full block of `tokens` to `out`.
    ///
    /// `out` must hold [`Self::block_count`] hashes; if it is shorter, the blocks beyond it are not hashed.
    pub fn hash_into(
        &self,
        tokens: &[u32],
        namespace: Namespace,
        mm: &[MmObject],
        out: &mut [SequenceHash],
    ) {
        debug_assert_eq!(out.len(), self.block_count(tokens.len()));
        self.continue_into(None, tokens, namespace, mm, out);
    }

    /// Replaces the content of `out` with one hash per full block of `tokens`, which follow a prompt whose last block has
    /// the hash `parent` (`None`: nothing comes before). Objects lie relative to the first of `tokens`.
    ///
    /// The hashes are those that the whole prompt has at once. Positions cannot be continued: under
    /// [`Scheme::Positional`] they count from the first of `tokens`.
    pub fn hash_after(
        &self,
        parent: Option<SequenceHash>,
        tokens: &[u32],
        namespace: Namespace,
        mm: &[MmObject],
        out: &mut Vec<SequenceHash>,
    ) {
        out.resize(self.block_count(tokens.len()), SequenceHash(0));
        self.continue_into(parent, tokens, namespace, mm, out);
    }

    fn continue_into(
        &self,
        parent: Option<SequenceHash>,
        tokens: &[u32],
        namespace: Namespace,
        mm: &[MmObject],
        out: &mut [SequenceHash],
    ) {
        let seeds = namespace.seeds(self.seed);
        match self.scheme {
            Scheme::Chained if mm.is_empty() => {
                chained::hash_slices(parent, tokens, self.block_size, seeds, out);
            }
            Scheme::Chained | Scheme::Eagle => {
                chained::hash_windows(self, parent, tokens, seeds, mm, out);
            }
            Scheme::Positional => positional::hash_windows(self, tokens, seeds, mm, out),
            Scheme::Units => units::widen(tokens, namespace, mm, out),
        }
    }

    /// Replaces the content of `out` with one hash per full chunk of `text`; see [`hash_text`].
    pub fn hash_text(
        &self,
        text: &[u8],
        chunk_bytes: usize,
        namespace: Namespace,
        out: &mut Vec<SequenceHash>,
    ) {
        match self.scheme {
            Scheme::Units => units::widen_text(text, namespace, out),
            _ => hash_text(text, chunk_bytes, namespace, self.seed, out),
        }
    }

    /// Content of every block that has a hash: the bytes of its window and the multimodal hashes it overlaps.
    fn windows<'a>(
        &self,
        tokens: &'a [u32],
        mm: &'a [MmObject],
    ) -> impl Iterator<Item = multimodal::Window<'a>> {
        multimodal::windows(
            tokens,
            self.block_size,
            self.scheme.window(self.block_size),
            mm,
        )
    }
}

#[cfg(test)]
mod tests;
