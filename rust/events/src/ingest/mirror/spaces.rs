//! The spaces of a stream: one per cache group and medium.

use cachelb_core::ids::{Medium, SequenceHash};

use crate::batch::Name;
use crate::ingest::incoming::Incoming;
use crate::names::pages::Before;
use crate::names::space::Space;

/// Most spaces, which are cache groups times media.
const MAX_SPACES: usize = 64;

/// The position of a store in its chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Base {
    /// The hash that its own chain continues: of an own block, or of a page.
    pub chain: Option<SequenceHash>,
    /// The page or own block before it.
    pub before: Before,
    /// Number of the namespace, used once.
    pub namespace: u32,
}

/// In the order they came.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    pub all: Vec<Space>,
}

impl Spaces {
    pub fn find(&self, group: Option<u32>, medium: Medium) -> Option<usize> {
        let is_it = |space: &Space| space.group == group && space.medium == medium;
        self.all.iter().position(is_it)
    }

    /// Whether a name stands for something.
    pub fn know(&self, name: Name) -> bool {
        self.all.iter().any(|space| space.names.get(name).is_some())
    }

    /// The space of a store.
    pub fn of(&self, store: &Incoming<'_>) -> Option<&Space> {
        self.find(store.group, store.medium).map(|at| &self.all[at])
    }

    /// A new space, if there is room for one more.
    pub fn add(&mut self, group: Option<u32>, medium: Medium) -> Option<usize> {
        let at = self.all.len();
        (at < MAX_SPACES).then(|| {
            self.all.push(Space::new(group, medium));
            at
        })
    }

    /// Those of a medium.
    pub fn of_medium(&self, medium: Medium) -> impl Iterator<Item = &Space> {
        self.all.iter().filter(move |space| space.medium == medium)
    }

    /// Own blocks in a medium, each as often as something refers to it.
    pub fn references(&self, medium: Medium) -> impl Iterator<Item = u64> {
        self.of_medium(medium).flat_map(Space::references)
    }

    /// Tokens per block of the engine: in device memory if that is known, else anywhere.
    pub fn block_size(&self) -> Option<u32> {
        let mut on_device = self.of_medium(Medium::Gpu).filter_map(Space::block_size);
        let mut all = self.all.iter().filter_map(Space::block_size);
        on_device.next().or_else(|| all.next())
    }

    /// Blocks remembered, the engine's or own ones, whichever are more.
    pub fn weight(&self) -> u64 {
        self.all.iter().map(Space::weight).sum()
    }

    /// The position of a store behind `parent`; `None` if that is not known. It adds no use of the namespace.
    pub fn after(&self, store: &Incoming<'_>, parent: Name) -> Option<Base> {
        if let Some(end) = self.of(store).and_then(|space| space.end(parent)) {
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
        let found = self.nearest(store.group, |space| {
            let end = space.end(parent)?;
            Some((end.block?, end.namespace))
        });
        let (block, namespace) = found?;
        Some(Base {
            chain: Some(block),
            before: Before::Block(Some(block)),
            namespace,
        })
    }

    /// The own blocks of a name wherever it is known; see [`Space::blocks_of`].
    pub fn blocks_of(
        &self,
        name: Name,
        group: Option<u32>,
        out: &mut Vec<SequenceHash>,
    ) -> Option<(u32, u32)> {
        let (blocks, found) = self.nearest(group, |space| {
            let found = space.blocks_of(name, out)?;
            Some((out.clone(), found))
        })?;
        *out = blocks;
        Some(found)
    }

    /// The block that a name stands for outside its own space: in the same group, else in the others if they agree. Caches of one
    /// engine may use one name for several things.
    fn nearest<T: PartialEq>(
        &self,
        group: Option<u32>,
        mut look: impl FnMut(&Space) -> Option<T>,
    ) -> Option<T> {
        for same in [true, false] {
            let spaces = self.all.iter().filter(|s| (s.group == group) == same);
            let mut found = spaces.filter_map(&mut look);
            if let Some(first) = found.next() {
                return found.all(|other| other == first).then_some(first);
            }
        }
        None
    }
}
