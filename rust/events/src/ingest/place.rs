//! Which space a store belongs to, what comes before it, and whether it fits.

use cachelb_core::hashing::Identity;
use cachelb_core::ids::{Medium, SequenceHash};

use super::super::batch::{Attention, Name, Place};
use super::super::incoming::Incoming;
use super::super::pages::Before;
use super::super::space::Space;
use super::super::stats::DropReason;
use super::{Ingest, MAX_ADAPTER_BYTES, MAX_ADAPTERS, Refusal};

/// Cache groups times media that are told apart.
const MAX_SPACES: usize = 64;

/// Whether blocks of an engine can be mapped to own ones: one size must be a multiple of the other.
#[must_use]
pub fn sizes_fit(engine: u32, ours: u32) -> bool {
    engine > 0 && (engine.is_multiple_of(ours) || ours.is_multiple_of(engine))
}

/// What comes before a store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base {
    /// The hash that its own chain continues: of an own block, or of a page.
    pub(super) chain: Option<SequenceHash>,
    /// The same for own blocks.
    pub(super) before: Before,
    /// Number of the namespace, used once.
    pub(super) namespace: u32,
}

impl Ingest {
    /// The medium a store is in, or why it is dropped.
    pub(super) fn admit(
        &mut self,
        place: Place,
        group: Option<u32>,
        attention: Attention,
    ) -> Result<Medium, DropReason> {
        let medium = match place {
            Place::Unsaid => Medium::Gpu,
            Place::In(medium) => medium,
            Place::Shared => return Err(DropReason::SharedPool),
            Place::Unknown => return Err(DropReason::UnknownMedium),
        };
        if self.groups.admit(group, attention) {
            Ok(medium)
        } else {
            Err(DropReason::AttentionGroup)
        }
    }

    pub(super) fn remember_adapter(&mut self, name: &str) {
        let fits = !name.is_empty() && name.len() <= MAX_ADAPTER_BYTES;
        if fits && self.adapters.len() < MAX_ADAPTERS && !self.adapters.contains(name) {
            self.adapters.insert(name.to_owned());
        }
    }

    pub(super) fn find_space(&self, group: Option<u32>, medium: Medium) -> Option<usize> {
        self.spaces
            .iter()
            .position(|space| space.group == group && space.medium == medium)
    }

    /// The space of a store, made if it is new and there is room for one more.
    pub(super) fn space_at(&mut self, group: Option<u32>, medium: Medium) -> Option<usize> {
        if let Some(at) = self.find_space(group, medium) {
            return Some(at);
        }
        if self.spaces.len() >= MAX_SPACES {
            return None;
        }
        self.spaces.push(Space::new(group, medium));
        if self.spaces.iter().filter(|s| s.medium == medium).count() > 1 {
            self.count_references(medium);
        }
        Some(self.spaces.len() - 1)
    }

    /// From now on several names may refer to one own block.
    pub(super) fn count_references(&mut self, medium: Medium) {
        let here = self.spaces.iter().filter(|space| space.medium == medium);
        let lane = &mut self.lanes[medium as usize];
        if !lane.is_counting() {
            lane.count(here.flat_map(Space::references));
        }
    }

    /// Whether blocks of this size can be taken, and the space has to start over for them.
    pub(super) fn check_size(&mut self, store: &Incoming<'_>) -> Result<bool, DropReason> {
        let ours = self.settings.hasher.block_size() as u32;
        let space = self
            .find_space(store.group, store.medium)
            .map(|at| &self.spaces[at]);
        let learned = space.and_then(Space::block_size);
        if learned == Some(store.size) {
            return Ok(false);
        }
        if !sizes_fit(store.size, ours) {
            if self.engine_block_size().is_none() {
                self.refused.get_or_insert(Refusal::BlockSize {
                    engine: store.size,
                    ours,
                });
            }
            return Err(DropReason::BlockSize);
        }
        let settled = space.is_some_and(Space::is_settled);
        match learned {
            None => Ok(false),
            // All that came so far were single short blocks: ends of prompts shorter than a block.
            Some(short) if short < store.size && !settled && store.parent.is_none() => Ok(true),
            Some(_) => Err(DropReason::BlockSize),
        }
    }

    /// What a store follows; `None` if its parent is not known.
    pub(super) fn base(&mut self, store: &Incoming<'_>) -> Option<Result<Base, DropReason>> {
        let Some(parent) = store.parent else {
            let namespace = self.settings.hasher.namespace(Identity {
                lora: store.lora,
                salt: store.salt,
                model: None,
            });
            let number = self.namespaces.take(namespace).ok_or(DropReason::Full);
            return Some(number.map(|namespace| Base {
                chain: None,
                before: Before::Block(None),
                namespace,
            }));
        };
        let base = self.base_after(store, parent)?;
        self.namespaces.share(base.namespace);
        Some(Ok(base))
    }

    fn base_after(&self, store: &Incoming<'_>, parent: Name) -> Option<Base> {
        let own = self.find_space(store.group, store.medium);
        if let Some(end) = own.and_then(|at| self.spaces[at].end(parent)) {
            let (chain, before) = match (end.page, end.block) {
                (Some(page), None) => (SequenceHash(page), Before::Page(page)),
                (Some(page), block) => (SequenceHash(page), Before::Block(block)),
                (None, block) => (block?, Before::Block(block)),
            };
            return Some(Base {
                chain: Some(chain),
                before,
                namespace: end.namespace,
            });
        }
        // Offloaded blocks may follow ones that never left the device.
        let mut elsewhere = self.spaces.iter().filter_map(|space| space.end(parent));
        let (end, block) = elsewhere.find_map(|end| Some((end, end.block?)))?;
        Some(Base {
            chain: Some(block),
            before: Before::Block(Some(block)),
            namespace: end.namespace,
        })
    }
}
