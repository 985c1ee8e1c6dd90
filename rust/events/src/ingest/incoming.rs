//! One store of blocks with tokens, in a message or among the orphans.

use cachelb_core::hashing::MmObject;
use cachelb_core::ids::Medium;

use crate::batch::{Batch, Extra, Name, Store};

/// A store, its spans resolved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming<'a> {
    pub(crate) names: &'a [Name],
    pub(crate) parent: Option<Name>,
    pub(crate) tokens: &'a [u32],
    pub(crate) extras: &'a [Extra],
    /// Tokens per name.
    pub(crate) size: u32,
    pub(crate) medium: Medium,
    pub(crate) group: Option<u32>,
    pub(crate) lora: Option<&'a str>,
    pub(crate) salt: Option<&'a str>,
}

impl<'a> Incoming<'a> {
    /// `None` if the event points outside its batch.
    pub(crate) fn of(batch: &'a Batch, store: &Store, medium: Medium) -> Option<Self> {
        let text = |span: Option<crate::batch::Span>| match span {
            None => Some(None),
            Some(span) => batch.text.get(span.range()).map(Some),
        };
        Some(Self {
            names: batch.names.get(store.names.range())?,
            parent: store.parent,
            tokens: batch.tokens.get(store.tokens.range())?,
            extras: batch.extras.get(store.extras.range())?,
            size: store.block_size,
            medium,
            group: store.group,
            lora: text(store.lora)?,
            salt: text(store.salt)?,
        })
    }

    /// Whether there are as many tokens as the names stand for.
    pub(crate) fn adds_up(&self) -> bool {
        let announced = self.names.len() as u64 * u64::from(self.size);
        self.size > 0 && announced == self.tokens.len() as u64
    }

    /// The objects, each over all tokens of its block: events do not state its offset within the block.
    pub(crate) fn objects(&self, out: &mut Vec<MmObject>) {
        let size = self.size as usize;
        out.clear();
        out.extend(self.extras.iter().map(|extra| MmObject {
            hash: extra.hash,
            start: (extra.block as usize).saturating_mul(size),
            len: size,
        }));
    }
}
