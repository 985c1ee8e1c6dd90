//! One rule of the ingester per test, with blocks of four tokens.

use std::collections::HashSet;

use cachelb_core::hashing::{Hasher, MmObject, Namespace, Scheme};
use cachelb_core::ids::SequenceHash;

use super::*;
use crate::{Attention, Extra, Name, Span, Store};

mod forms;
mod rules;

/// Holdings that take everything.
#[derive(Debug, Default)]
pub(super) struct Sets {
    held: HashSet<(SequenceHash, Medium)>,
    /// Every block that was ever stored in any medium, for chains that begin behind one.
    known: HashSet<SequenceHash>,
}

impl Holdings for Sets {
    fn store(
        &mut self,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> u32 {
        assert!(parent.is_none_or(|parent| self.known.contains(&parent)));
        self.known.extend(hashes);
        hashes
            .iter()
            .map(|hash| u32::from(self.held.insert((*hash, medium))))
            .sum()
    }

    fn spread(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        Medium::ALL.iter().any(|m| self.holds(hash, *m)) && self.held.insert((hash, medium))
    }

    fn remove(&mut self, hashes: &[SequenceHash], medium: Medium) -> u32 {
        hashes
            .iter()
            .map(|hash| u32::from(self.held.remove(&(*hash, medium))))
            .sum()
    }

    fn clear(&mut self) -> u64 {
        let held = self.held.len() as u64;
        self.held.clear();
        held
    }

    fn doubt(&mut self) -> u64 {
        let doubted = self
            .held
            .drain()
            .filter(|(_, medium)| *medium == Medium::Gpu);
        let doubted: Vec<_> = doubted
            .map(|(hash, _)| (hash, Medium::Speculative))
            .collect();
        self.held.extend(&doubted);
        doubted.len() as u64
    }

    fn path_to(&self, hash: SequenceHash) -> Vec<SequenceHash> {
        vec![hash]
    }

    fn holds(&self, hash: SequenceHash, medium: Medium) -> bool {
        self.held.contains(&(hash, medium))
    }
}

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
        Self {
            ingest: Ingest::new(settings),
            to: Sets::default(),
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

    pub(super) fn depth(&self, tokens: &[u32]) -> usize {
        self.depth_in(tokens, Namespace::default(), Medium::Gpu)
    }

    pub(super) fn held(&self) -> usize {
        self.to.held.len()
    }

    pub(super) fn dropped(&self, reason: DropReason) -> u64 {
        self.ingest.stats().dropped(reason)
    }
}

/// Four equal tokens per block.
pub(super) fn blocks(contents: &[u32]) -> Vec<u32> {
    contents.iter().flat_map(|content| [*content; 4]).collect()
}
