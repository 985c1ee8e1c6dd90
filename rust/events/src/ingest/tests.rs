//! One rule of the ingester per test, with blocks of four tokens.

use cachelb_core::hashing::{Hasher, MmObject, Namespace, Scheme};

use super::*;
use crate::{Attention, Extra, Name, Span, Store};

mod forms;
mod groups;
mod rules;

use crate::tests::events_model::sets::Sets;

/// A batch under construction.
#[derive(Debug, Default)]
pub(super) struct Says(Batch);

/// A store as a test writes it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Blocks<'a> {
    pub names: &'a [u64],
    pub parent: Option<u64>,
    pub tokens: &'a [u32],
    pub size: u32,
    pub place: Place,
    pub group: Option<u32>,
    pub attention: Attention,
    pub window: Option<u32>,
    pub lora: Option<&'a str>,
    pub salt: Option<&'a str>,
    pub extras: &'a [(u32, u64)],
}

impl Says {
    fn span<T>(buffer: &mut Vec<T>, items: impl Iterator<Item = T>) -> Span {
        let start = buffer.len() as u32;
        buffer.extend(items);
        Span {
            start,
            len: buffer.len() as u32 - start,
        }
    }

    fn text(&mut self, text: &str) -> Span {
        let start = self.0.text.len() as u32;
        self.0.text.push_str(text);
        Span {
            start,
            len: text.len() as u32,
        }
    }

    pub(super) fn store(mut self, blocks: Blocks<'_>) -> Self {
        let event = Store {
            names: Self::span(
                &mut self.0.names,
                blocks.names.iter().map(|n| Name::Int(*n)),
            ),
            parent: blocks.parent.map(Name::Int),
            tokens: Self::span(&mut self.0.tokens, blocks.tokens.iter().copied()),
            block_size: blocks.size,
            place: blocks.place,
            group: blocks.group,
            attention: blocks.attention,
            window: blocks.window,
            lora: blocks.lora.map(|text| self.text(text)),
            salt: blocks.salt.map(|text| self.text(text)),
            extras: Self::span(
                &mut self.0.extras,
                blocks
                    .extras
                    .iter()
                    .map(|&(block, hash)| Extra { block, hash }),
            ),
        };
        self.0.events.push(Event::Store(event));
        self
    }

    /// Blocks of four tokens, named, behind `parent`.
    pub(super) fn stored(self, parent: Option<u64>, names: &[u64], tokens: &[u32]) -> Self {
        self.store(Blocks {
            names,
            parent,
            tokens,
            size: 4,
            ..Blocks::default()
        })
    }

    pub(super) fn removed_at(mut self, names: &[u64], place: Place, group: Option<u32>) -> Self {
        let names = Self::span(&mut self.0.names, names.iter().map(|n| Name::Int(*n)));
        self.0.events.push(Event::Remove(Remove {
            names,
            place,
            group,
        }));
        self
    }

    pub(super) fn removed(self, names: &[u64]) -> Self {
        self.removed_at(names, Place::Unsaid, None)
    }

    pub(super) fn cleared(mut self) -> Self {
        self.0.events.push(Event::Clear);
        self
    }
}

/// An ingester with its holdings.
#[derive(Debug)]
pub(super) struct Bench {
    pub ingest: Ingest,
    pub to: Sets,
    pub now: Millis,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with(4, |_| ())
    }

    pub(super) fn with(block_size: usize, change: impl FnOnce(&mut IngestSettings)) -> Self {
        let mut settings =
            IngestSettings::new(Hasher::new(Scheme::Chained, block_size, 7).unwrap());
        change(&mut settings);
        let mut to = Sets::default();
        to.whole_chains = true;
        Self {
            ingest: Ingest::new(settings),
            to,
            now: Millis(0),
        }
    }

    /// Applies a message and checks that everything still adds up.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a message is built where it is heard"
    )]
    pub(super) fn hear(&mut self, says: Says) -> u32 {
        let applied = self.ingest.apply(&says.0, self.now, &mut self.to);
        self.ingest.validate(&self.to).unwrap();
        applied
    }

    /// Leading blocks of a prompt held in a medium.
    pub(super) fn depth_in(&self, tokens: &[u32], namespace: Namespace, medium: Medium) -> usize {
        let mut hashes = Vec::new();
        self.ingest
            .settings
            .hasher
            .hash(tokens, namespace, &[], &mut hashes);
        hashes
            .iter()
            .take_while(|hash| self.to.holds(**hash, medium))
            .count()
    }

    /// Whether the block at `at` of a prompt with objects is held.
    pub(super) fn holds_with(&self, tokens: &[u32], objects: &[MmObject], at: usize) -> bool {
        let mut all = Vec::new();
        let hasher = self.ingest.settings.hasher;
        hasher.hash(tokens, Namespace::default(), objects, &mut all);
        self.to.holds(all[at], Medium::Gpu)
    }

    pub(super) fn depth(&self, tokens: &[u32]) -> usize {
        self.depth_in(tokens, Namespace::default(), Medium::Gpu)
    }

    /// Stores blocks of four equal tokens each.
    pub(super) fn store(&mut self, parent: Option<u64>, names: &[u64], contents: &[u32]) -> u32 {
        self.hear(Says::default().stored(parent, names, &blocks(contents)))
    }

    /// Stores engine blocks of `size` tokens.
    pub(super) fn sized(
        &mut self,
        parent: Option<u64>,
        names: &[u64],
        tokens: &[u32],
        size: u32,
    ) -> u32 {
        self.hear(Says::default().store(Blocks {
            names,
            parent,
            tokens,
            size,
            ..Blocks::default()
        }))
    }

    pub(super) fn remove(&mut self, names: &[u64]) -> u32 {
        self.hear(Says::default().removed(names))
    }

    /// How much of a prompt of four equal tokens per block is held.
    pub(super) fn depth_of(&self, contents: &[u32]) -> usize {
        self.depth(&blocks(contents))
    }

    pub(super) fn orphans(&self) -> u32 {
        self.ingest.orphans.blocks
    }

    pub(super) fn stats(&self) -> &EventStats {
        &self.ingest.stats
    }

    pub(super) fn held(&self) -> usize {
        self.to.held.len()
    }

    pub(super) fn dropped(&self, reason: DropReason) -> u64 {
        self.ingest.stats.dropped(reason)
    }
}

/// Four equal tokens per block.
pub(super) fn blocks(contents: &[u32]) -> Vec<u32> {
    contents.iter().flat_map(|content| [*content; 4]).collect()
}
