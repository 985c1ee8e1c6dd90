//! The cache of an engine as its events report it: names of blocks, their references, and the resulting holdings.
//!
//! After a lost message no copy counted before is there for sure: it may have held removals, stores and a clear. The
//! blocks that names stand for are still known, since names are hashes of content within one life of an engine. So the
//! names of device memory become doubtful until an event names them again.

mod hold;
mod resume;
mod spaces;

#[cfg(test)]
use std::collections::HashMap;

use cachelb_core::hashing::{Hasher, Identity, MmObject, Scheme};
use cachelb_core::ids::{Medium, SequenceHash};

pub(crate) use self::spaces::{Base, Spaces};
use crate::holdings::Holdings;
use crate::hybrid::links::Links;
use crate::ingest::incoming::Incoming;
use crate::names::pages::{Before, Change};
use crate::names::references::References;
use crate::names::space::Space;
use crate::settings::{IngestSettings, Refusal, sizes_fit};
use crate::stats::DropReason;

/// See the module.
#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) hasher: Hasher,
    max_blocks: u64,
    pub(crate) spaces: Spaces,
    pub(crate) references: References,
    /// Once there is a cache group beside those that attend to the whole prefix.
    pub(crate) links: Option<Box<Links>>,
    /// Why the events of the engine cannot be used.
    pub(crate) refused: Option<Refusal>,
    /// Blocks, or pages, of the current store.
    pub(crate) identities: Vec<SequenceHash>,
    objects: Vec<MmObject>,
    changes: Vec<Change>,
}

impl Mirror {
    /// A mirror without blocks.
    pub(crate) fn new(settings: &IngestSettings) -> Self {
        let scheme = settings.hasher.scheme();
        Self {
            hasher: settings.hasher,
            max_blocks: settings.max_blocks,
            spaces: Spaces::default(),
            references: References::new(),
            links: None,
            refused: (scheme != Scheme::Chained).then_some(Refusal::Scheme(scheme)),
            identities: Vec::new(),
            objects: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// Whether blocks of this size can be taken, and the space has to start over for them.
    pub(crate) fn check_size(&mut self, store: &Incoming<'_>) -> Result<bool, DropReason> {
        let ours = self.hasher.block_size() as u32;
        let layout = self.spaces.of(store).and_then(|s| s.layout.as_ref());
        let learned = layout.map(|layout| (layout.size, layout.settled));
        if learned.is_some_and(|(size, _)| size == store.size) {
            return Ok(false);
        }
        if !sizes_fit(store.size, ours) {
            if self.spaces.block_size().is_none() {
                self.refused.get_or_insert(Refusal::BlockSize {
                    engine: store.size,
                    ours,
                });
            }
            return Err(DropReason::BlockSize);
        }
        match learned {
            None => Ok(false),
            // All that came so far were single short blocks: ends of prompts shorter than a block.
            Some((short, false)) if short < store.size && store.parent.is_none() => Ok(true),
            Some(_) => Err(DropReason::BlockSize),
        }
    }

    /// The position of a store; `None` if its parent is not known.
    pub(crate) fn base(&mut self, store: &Incoming<'_>) -> Option<Result<Base, DropReason>> {
        if let Some(parent) = store.parent {
            let base = self.spaces.after(store, parent)?;
            self.references.namespaces.share(base.namespace);
            return Some(Ok(base));
        }
        let namespace = self.hasher.namespace(Identity {
            lora: store.lora,
            salt: store.salt,
            ..Identity::default()
        });
        let number = self.references.namespaces.take(namespace);
        Some(number.ok_or(DropReason::Full).map(|namespace| Base {
            chain: None,
            before: Before::Block(None),
            namespace,
        }))
    }

    /// The space of a store whose names fit into it and the bound; it is made if it is new.
    pub(crate) fn prepare(
        &mut self,
        store: &Incoming<'_>,
        to: &mut dyn Holdings,
    ) -> Result<usize, DropReason> {
        let at = self
            .space_at(store.group, store.medium)
            .ok_or(DropReason::AttentionGroup)?;
        if !self.make_room(at, store, to) {
            return Err(DropReason::Full);
        }
        let space = &mut self.spaces.all[at];
        space
            .learn(store.size, &self.hasher)
            .map_err(|_| DropReason::BlockSize)?;
        if let Some(layout) = &mut space.layout {
            layout.settled |= store.parent.is_some() || store.names.len() > 1;
        }
        self.refused = None;
        Ok(at)
    }

    /// The space of a store, made if it is new and there is room for one more.
    fn space_at(&mut self, group: Option<u32>, medium: Medium) -> Option<usize> {
        if let Some(at) = self.spaces.find(group, medium) {
            return Some(at);
        }
        let at = self.spaces.add(group, medium)?;
        if self.spaces.of_medium(medium).count() > 1 {
            self.count_references(medium);
        }
        Some(at)
    }

    /// From now on several names may refer to one own block.
    fn count_references(&mut self, medium: Medium) {
        let referred = self.spaces.references(medium);
        self.references.count(medium, referred);
    }

    /// Makes room for the names of a store within the bound. Returns whether they fit.
    fn make_room(&mut self, at: usize, store: &Incoming<'_>, to: &mut dyn Holdings) -> bool {
        let own = store.tokens.len() / self.hasher.block_size();
        let more = own.max(store.names.len()) as u64;
        let most = self.max_blocks;
        if self.spaces.weight() + more <= most {
            return true;
        }
        // A sender without removals would fill it for good.
        if self.spaces.all[at].has_removals || store.parent.is_some() {
            return false;
        }
        self.empty(at, to);
        self.spaces.weight() + more <= most
    }

    /// Links may have stayed for names that are forgotten.
    fn has_stale_links(&mut self) {
        if let Some(links) = &mut self.links {
            links.stale = true;
        }
    }

    /// Forgets the names of a space.
    fn empty(&mut self, at: usize, to: &mut dyn Holdings) {
        self.has_stale_links();
        let space = &mut self.spaces.all[at];
        let medium = space.medium;
        space.empty(&mut self.references.of(medium, to));
        space.take_changes(&mut self.changes);
        self.references.pass_on(&self.changes, medium, to);
        self.references.flush(to);
    }

    /// Forgets the names of the space of a store, and their size.
    pub(crate) fn start_over(&mut self, store: &Incoming<'_>, to: &mut dyn Holdings) {
        if let Some(at) = self.spaces.find(store.group, store.medium) {
            self.empty(at, to);
            self.spaces.all[at].layout = None;
        }
    }

    /// A message is lost for good: what it may concern is doubtful, and dropped where doubt is not kept, in other media
    /// than device memory. Returns the blocks that are doubtful now, and those of side groups that no longer wait.
    pub(crate) fn lost(&mut self, to: &mut dyn Holdings) -> (u64, u64) {
        let doubted = self.references.doubt(to);
        for at in 0..self.spaces.all.len() {
            if self.spaces.all[at].medium != Medium::Gpu {
                self.empty(at, to);
                continue;
            }
            let uses = &mut self.references.of(Medium::Gpu, to);
            let space = &mut self.spaces.all[at];
            space.make_doubtful(|block| to.holds(block, Medium::Speculative), uses);
            // The blocks of pages that went are held no more.
            space.take_changes(&mut self.changes);
        }
        self.references.flush(to);
        let unresolved = self.links.as_mut().map_or(0, |links| links.lost(to));
        self.sweep_links(to);
        (doubted, unresolved)
    }

    /// Whether a store follows a doubtful block that the holdings gave up meanwhile, as if its parent were not known.
    pub(crate) fn follows_nothing(&self, store: &Incoming<'_>, to: &dyn Holdings) -> bool {
        let space = self.spaces.find(store.group, Medium::Gpu);
        let parent = space.zip(store.parent);
        let end = parent.and_then(|(at, parent)| self.spaces.all[at].doubtful_end(parent));
        end.is_some_and(|end| to.path_to(end).is_empty())
    }

    /// Forgets the blocks, not their size; the holdings were cleared. Returns the blocks of side groups
    /// that no longer wait.
    pub(crate) fn clear(&mut self) -> u64 {
        self.spaces.all.iter_mut().for_each(Space::reset);
        self.references.clear();
        self.links.as_mut().map_or(0, |links| links.clear())
    }

    /// Memory of the parts that grow with the names; the rest has bounds.
    pub(crate) fn memory_bytes(&self) -> usize {
        let spaces: usize = self.spaces.all.iter().map(Space::memory_bytes).sum();
        let links = self.links.as_ref().map_or(0, |links| links.memory_bytes());
        spaces + links
    }

    /// Checks the structure, and that `to` holds every block that a name refers to.
    #[cfg(test)]
    pub(crate) fn validate(&self, to: &dyn Holdings) -> cachelb_core::Result<()> {
        let mut namespaces = HashMap::new();
        for space in &self.spaces.all {
            space.validate(&mut namespaces)?;
        }
        self.references.validate(&namespaces)?;
        if let Some(links) = &self.links {
            links.validate(|name| self.spaces.know(name))?;
        }
        for medium in Medium::ALL {
            let found = self.spaces.references(medium);
            self.references.validate_lane(medium, found, to)?;
        }
        Ok(())
    }
}
