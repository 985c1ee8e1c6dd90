//! Names whose copies a lost message may have removed.
//!
//! What such a name stands for is known still, so a later event can settle it: a store that names it or follows it shows
//! that it is there, a removal that it is not. Its own blocks are not referred to in the lane, which counts what is sure.
//!
//! Which name follows which is kept from the first loss on, to settle whole paths. It cannot be told from own blocks: an
//! engine may have several names for one of them, before and after a restart or with a salt that it does not tell.

use std::collections::HashMap;

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::SequenceHash;

use super::super::batch::Name;
use super::super::names::{Held, Names};
use super::super::namespaces::Namespaces;
use super::super::references::Uses;
use super::{Layout, Space};

/// What a space keeps once a message is lost.
#[derive(Debug, Default)]
pub(in super::super) struct Doubtful {
    /// The name before a name.
    before: HashMap<Name, Name>,
    /// Own blocks that were found to be there, not yet passed on.
    pub(in super::super) settled: u64,
}

impl Doubtful {
    /// Keeps that each of `names` follows the one before it, the first one `parent`.
    pub(in super::super) fn link(&mut self, parent: Option<Name>, names: &[Name]) {
        let before = parent.into_iter().chain(names.iter().copied());
        let skipped = usize::from(parent.is_none());
        for (name, before) in names.iter().skip(skipped).zip(before) {
            self.before.insert(*name, before);
        }
    }

    /// The name is known no longer.
    pub(super) fn forget(&mut self, name: Name) {
        if !self.before.is_empty() {
            self.before.remove(&name);
        }
    }

    pub(super) fn clear(&mut self) {
        self.before = HashMap::new();
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.before.capacity() * (size_of::<(Name, Name)>() + 1)
    }

    /// Checks that only of known names it is kept what they follow.
    pub(super) fn validate(&self, names: &Names) -> Result<()> {
        let mut linked = self.before.keys();
        match linked.find(|name| names.get(**name).is_none()) {
            Some(name) => Err(Error::Invariant(format!(
                "{name:?} follows another name and is not known"
            ))),
            None => Ok(()),
        }
    }
}

impl Space {
    /// A message is lost: every name is doubtful, but those that `keeps` does not want by their last own block are forgotten.
    /// Nothing is referred to in the lane.
    pub(in super::super) fn make_doubtful(
        &mut self,
        keeps: impl Fn(SequenceHash) -> bool,
        uses: &mut Uses<'_>,
    ) {
        let entries: Vec<(Name, Held)> = self.names.entries().collect();
        if let Some(pages) = self.layout.as_mut().and_then(Layout::pages_mut) {
            pages.doubt();
        }
        for (name, held) in entries {
            let layout = self.layout.as_ref();
            let end = layout.and_then(|layout| layout.last_block(held));
            self.names.change(name, Held::doubtful);
            // A page within a block has no end.
            if !end.is_none_or(&keeps) {
                self.vacate(name, held.doubtful(), uses);
            }
        }
    }

    /// Forgets every name; nothing is referred to in the lane.
    pub(in super::super) fn forget_names(&mut self, namespaces: &mut Namespaces) {
        for held in self.names.iter() {
            namespaces.give_back(held.namespace());
        }
        self.reset();
    }

    /// Forgets the doubtful names and what they stood for: a removal could not find it any more.
    pub(in super::super) fn forget_doubtful(&mut self, uses: &mut Uses<'_>) {
        let doubtful = |(_, held): &(Name, Held)| held.is_doubtful();
        let entries: Vec<(Name, Held)> = self.names.entries().filter(doubtful).collect();
        for (name, held) in entries {
            self.vacate(name, held, uses);
        }
    }

    /// Forgets a doubtful name.
    fn vacate(&mut self, name: Name, held: Held, uses: &mut Uses<'_>) {
        self.names.change(name, |_| Held::VACANT);
        self.doubtful.forget(name);
        if let Some(layout) = &mut self.layout {
            layout.release(held, uses);
        }
    }

    /// The last own block of a doubtful name, or the one before a page within a block, unless that is the root.
    #[expect(
        clippy::option_option,
        reason = "a doubtful name may have nothing but the root before it"
    )]
    pub(in super::super) fn doubtful_end(&self, name: Name) -> Option<Option<SequenceHash>> {
        let held = self.names.get(name).filter(|held| held.is_doubtful())?;
        let layout = self.layout.as_ref()?;
        let pages = layout.pages();
        Some(pages.map_or_else(
            || layout.last_block(held),
            |pages| pages.nearest(held.identity()),
        ))
    }

    /// A doubtful name and all before it are there after all, in one copy each at least. Returns their own blocks, as far as
    /// it is known which name is before which; `each` is told of the names.
    pub(in super::super) fn settle_path(
        &mut self,
        name: Name,
        uses: &mut Uses<'_>,
        mut each: impl FnMut(Name),
    ) -> usize {
        let mut blocks = 0;
        let mut next = Some(name);
        while let Some(name) = next.filter(|name| self.doubtful_end(*name).is_some()) {
            let mut settled = Held::VACANT;
            self.names.change(name, |held| {
                settled = held.more();
                settled
            });
            if let Some(pages) = self.layout.as_mut().and_then(Layout::pages_mut) {
                pages.settle(settled.identity());
            }
            let layout = self.layout.iter();
            for block in layout.flat_map(|layout| layout.blocks(settled)) {
                uses.lane.acquire(block.0);
                blocks += 1;
            }
            each(name);
            next = self.doubtful.before.get(&name).copied();
        }
        self.doubtful.settled += blocks as u64;
        blocks
    }
}
