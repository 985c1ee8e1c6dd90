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
use super::super::lane::Lane;
use super::super::names::Held;
use super::super::namespaces::Namespaces;
use super::super::table::Value;
use super::{Form, Space};

/// What a space keeps once a message is lost.
#[derive(Debug, Default)]
pub(super) struct Doubtful {
    /// The name before a name.
    before: HashMap<Name, Name>,
    /// Own blocks that were found to be there, not yet passed on.
    settled: u64,
}

impl Doubtful {
    /// The name is known no longer.
    pub(super) fn forget(&mut self, name: Name) {
        if !self.before.is_empty() {
            self.before.remove(&name);
        }
    }

    /// A store named what was doubtful.
    pub(super) fn settle(&mut self, blocks: usize) {
        self.settled += blocks as u64;
    }

    pub(super) fn clear(&mut self) {
        self.before = HashMap::new();
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.before.capacity() * (size_of::<(Name, Name)>() + 1)
    }
}

impl Space {
    /// A message is lost: every name is doubtful, but those that `keeps` does not want by their last own block, and those of
    /// pages, are forgotten. Nothing is referred to in the lane.
    pub(in super::super) fn make_doubtful(
        &mut self,
        keeps: impl Fn(SequenceHash) -> bool,
        namespaces: &mut Namespaces,
    ) {
        self.doubts.clear();
        if let Some(Form::Pages(_)) = self.form() {
            self.forget_names(namespaces);
            return;
        }
        let entries: Vec<(Name, Held)> = self.names.entries().collect();
        for (name, held) in entries {
            if self.last_block(held).is_some_and(&keeps) {
                self.names.change(name, Held::doubtful);
            } else {
                self.vacate(name, held, namespaces);
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

    /// Forgets the doubtful names; what they stood for is no longer followed. Returns whether there were any.
    pub(in super::super) fn forget_doubtful(&mut self, namespaces: &mut Namespaces) -> bool {
        let doubtful = |(_, held): &(Name, Held)| held.is_doubtful();
        let entries: Vec<(Name, Held)> = self.names.entries().filter(doubtful).collect();
        for (name, held) in &entries {
            self.vacate(*name, *held, namespaces);
        }
        !entries.is_empty()
    }

    /// Forgets a name that the lane does not refer to the blocks of.
    fn vacate(&mut self, name: Name, held: Held, namespaces: &mut Namespaces) {
        self.names.change(name, |_| Held::VACANT);
        self.doubtful.forget(name);
        namespaces.give_back(held.namespace());
        if let Some(Form::Wide(runs)) = self.form() {
            runs.free.push(held.identity() as u32);
        }
    }

    /// The last own block of what a name stands for; none in a space of pages.
    fn last_block(&self, held: Held) -> Option<SequenceHash> {
        let last = match &self.learned.as_ref()?.form {
            Form::Same => held.identity(),
            Form::Wide(runs) => *runs.get(held.identity()).last()?,
            Form::Pages(_) => return None,
        };
        Some(SequenceHash(last))
    }

    /// The last own block of a doubtful name.
    pub(in super::super) fn doubtful_end(&self, name: Name) -> Option<SequenceHash> {
        let held = self.names.get(name).filter(|held| held.is_doubtful())?;
        self.last_block(held)
    }

    /// Keeps that each of `names` follows the one before it, the first one `parent`.
    pub(in super::super) fn link(&mut self, parent: Option<Name>, names: &[Name]) {
        let before = parent.into_iter().chain(names.iter().copied());
        let skipped = usize::from(parent.is_none());
        for (name, before) in names.iter().skip(skipped).zip(before) {
            self.doubtful.before.insert(*name, before);
        }
    }

    /// A doubtful name and all before it are there after all, in one copy each at least. Returns their own blocks, as far as
    /// it is known which name is before which; `each` is told of the names.
    pub(in super::super) fn settle_path(
        &mut self,
        name: Name,
        lane: &mut Lane,
        mut each: impl FnMut(Name),
    ) -> usize {
        let mut blocks = 0;
        let mut next = Some(name);
        while let Some(name) = next.filter(|name| self.doubtful_end(*name).is_some()) {
            let mut held = Held::VACANT;
            self.names.change(name, |before| {
                held = before.more();
                held
            });
            let mut acquire = |block| {
                lane.acquire(block);
                blocks += 1;
            };
            match self.learned.as_ref().map(|learned| &learned.form) {
                Some(Form::Same) => acquire(held.identity()),
                Some(Form::Wide(runs)) => {
                    runs.get(held.identity()).iter().copied().for_each(acquire);
                }
                Some(Form::Pages(_)) | None => {}
            }
            each(name);
            next = self.doubtful.before.get(&name).copied();
        }
        self.doubtful.settle(blocks);
        blocks
    }

    /// Own blocks that were found to be there since the last call.
    pub(in super::super) fn take_settled(&mut self) -> u64 {
        std::mem::take(&mut self.doubtful.settled)
    }

    /// Checks that only of known names it is kept what they follow.
    pub(super) fn validate_doubtful(&self) -> Result<()> {
        let mut linked = self.doubtful.before.keys();
        match linked.find(|name| !self.knows(**name)) {
            Some(name) => Err(Error::Invariant(format!(
                "{name:?} follows another name and is not known"
            ))),
            None => Ok(()),
        }
    }
}
