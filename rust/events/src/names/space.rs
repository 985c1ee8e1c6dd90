//! The names of one cache group in one medium, and the own blocks they stand for.
//!
//! An engine block is one own block, or several, or a part of one. Which it is, is learned from the first store.

mod doubtful;
mod layout;

#[cfg(test)]
use std::collections::HashMap;

#[cfg(test)]
use cachelb_core::error::Error;
use cachelb_core::error::Result;
use cachelb_core::hashing::Hasher;
use cachelb_core::ids::{Medium, SequenceHash};

pub(crate) use self::layout::Layout;
use crate::batch::Name;
use crate::names::namespaces::Namespaces;
use crate::names::pages::{Change, Page, Pages};
use crate::names::references::Uses;
use crate::names::table::Value;
use crate::names::{Held, Names};

/// Mean bytes of a name with what it refers to.
const NAME: usize = 40;
/// Mean bytes of a page.
const PAGE: usize = 120;

/// Meaning of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Copies that were made.
    Copies,
    /// A report of present copies.
    Report,
}

impl Kind {
    /// A store names a held block.
    fn again(self, held: Held) -> Held {
        match self {
            Self::Copies => held.more(),
            Self::Report => held,
        }
    }
}

/// Effect of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Removed {
    /// The name is not known.
    Nothing,
    /// A doubtful name: what was removed may be another copy, of a store that waits for its parent.
    Doubtful,
    /// A copy that was counted.
    Copy,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) group: Option<u32>,
    pub(crate) medium: Medium,
    pub(crate) names: Names,
    /// Once the engine's block size is known.
    pub(crate) layout: Option<Layout>,
    /// Whether blocks are ever removed. Some senders never do.
    pub(crate) has_removals: bool,
}

/// The block or page that ends at a named block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    /// The own block that ends there, if one does.
    pub(crate) block: Option<SequenceHash>,
    /// The page that ends there, in a space of pages.
    pub(crate) page: Option<u64>,
    /// Number of the namespace.
    pub(crate) namespace: u32,
}

impl Space {
    pub(crate) fn new(group: Option<u32>, medium: Medium) -> Self {
        Self {
            group,
            medium,
            names: Names::default(),
            layout: None,
            has_removals: false,
        }
    }

    /// Tokens of an engine block.
    pub(crate) fn block_size(&self) -> Option<u32> {
        self.layout.as_ref().map(|layout| layout.size)
    }

    /// Takes `size` for the engine's block size, unless that is known; the sizes must fit.
    pub(crate) fn learn(&mut self, size: u32, hasher: &Hasher) -> Result<()> {
        if self.layout.is_none() {
            self.layout = Some(Layout::new(size, hasher)?);
        }
        Ok(())
    }

    /// Blocks, own or the engine's, whichever are more, that this space remembers.
    pub(crate) fn weight(&self) -> u64 {
        let Some(layout) = &self.layout else {
            return 0;
        };
        let pages = layout.pages().map_or(0, Pages::len);
        (self.names.len() * layout.width()).max(pages) as u64
    }

    /// Tokens in all copies of its blocks.
    pub(crate) fn tokens(&self) -> u64 {
        self.names.copies() * u64::from(self.block_size().unwrap_or(0))
    }

    /// The block or page that ends at a named block.
    pub(crate) fn end(&self, name: Name) -> Option<End> {
        let held = self.names.get(name)?;
        let layout = self.layout.as_ref()?;
        Some(End {
            block: layout.last_block(held),
            page: layout.pages().map(|_| held.identity()),
            namespace: held.namespace(),
        })
    }

    /// The own blocks of a name that is there for sure, the number of its namespace and the tokens it stands for; none in
    /// a space of pages.
    pub(crate) fn blocks_of(&self, name: Name, out: &mut Vec<SequenceHash>) -> Option<(u32, u32)> {
        let held = self.names.get(name).filter(|held| !held.is_doubtful())?;
        let layout = self.layout.as_ref().filter(|l| l.pages().is_none())?;
        out.clear();
        out.extend(layout.blocks(held));
        Some((held.namespace(), layout.size))
    }

    /// Whether a block of that name is there for sure.
    pub(crate) fn knows_sure(&self, name: &Name) -> bool {
        let held = self.names.get(*name);
        held.is_some_and(|held| !held.is_doubtful())
    }

    /// One copy more of every name, or of those without any if this is a report. A name that stood for something else is
    /// forgotten as that first. Returns the own blocks that names did not refer to before.
    pub(crate) fn add(
        &mut self,
        names: &[Name],
        identities: &[SequenceHash],
        namespace: u32,
        kind: Kind,
        uses: &mut Uses<'_>,
    ) -> usize {
        let Some(layout) = &mut self.layout else {
            return 0;
        };
        let mut new = 0;
        for (&name, part) in names.iter().zip(identities.chunks_exact(layout.width())) {
            let mut before = Held::VACANT;
            self.names.change(name, |held| {
                let is_same = !held.is_vacant() && layout.matches(held, part);
                if is_same && !held.is_doubtful() {
                    return kind.again(held);
                }
                new += part.len();
                for block in part {
                    uses.lane.acquire(block.0);
                }
                if is_same {
                    return held.more();
                }
                before = held;
                uses.namespaces.share(namespace);
                Held::first(layout.put(part), namespace)
            });
            if !before.is_vacant() {
                layout.release(before, uses);
            }
        }
        new
    }

    /// One page name more, in a space of pages.
    pub(crate) fn add_page(
        &mut self,
        name: Name,
        page: &Page<'_>,
        namespace: u32,
        kind: Kind,
        namespaces: &mut Namespaces,
    ) {
        let Some(pages) = self.layout.as_mut().and_then(Layout::pages_mut) else {
            return;
        };
        let mut other = Held::VACANT;
        self.names.change(name, |held| {
            if !held.is_vacant() && held.identity() == page.hash {
                if held.is_doubtful() {
                    pages.settle(page.hash);
                    return held.more();
                }
                return kind.again(held);
            }
            other = held;
            namespaces.share(namespace);
            pages.acquire(page, namespaces.get(namespace));
            Held::first(page.hash, namespace)
        });
        if !other.is_vacant() {
            namespaces.give_back(other.namespace());
            pages.release(other.identity(), !other.is_doubtful());
        }
    }

    /// One copy less of a name.
    pub(crate) fn remove(&mut self, name: Name, uses: &mut Uses<'_>) -> Removed {
        let Some(layout) = &mut self.layout else {
            return Removed::Nothing;
        };
        self.has_removals = true;
        let (before, after) = self.names.remove_copy(name);
        if before.is_vacant() {
            return Removed::Nothing;
        }
        if after.is_vacant() {
            layout.release(before, uses);
        }
        if before.is_doubtful() {
            Removed::Doubtful
        } else {
            Removed::Copy
        }
    }

    /// The own blocks that became complete or incomplete since the last call, in a space of pages.
    pub(crate) fn take_changes(&mut self, out: &mut Vec<Change>) {
        out.clear();
        if let Some(pages) = self.layout.as_mut().and_then(Layout::pages_mut) {
            pages.take_changes(out);
        }
    }

    /// Forgets every name.
    pub(crate) fn empty(&mut self, uses: &mut Uses<'_>) {
        if let Some(layout) = &mut self.layout {
            for (_, held) in self.names.entries() {
                layout.release(held, uses);
            }
        }
        self.reset();
    }

    /// Forgets every name and nothing else: its references are gone already.
    pub(crate) fn reset(&mut self) {
        self.names.clear();
        if let Some(layout) = &mut self.layout {
            layout.clear();
        }
    }

    /// Own blocks, each as often as something refers to it that is there for sure.
    pub(crate) fn references(&self) -> impl Iterator<Item = u64> {
        let sure = self.names.iter().filter(|held| !held.is_doubtful());
        let layout = self.layout.as_ref();
        let blocks = sure.filter_map(move |held| Some(layout?.blocks(held)));
        let pages = layout.and_then(Layout::pages).into_iter();
        let complete = pages.flat_map(Pages::complete);
        blocks.flatten().map(|block| block.0).chain(complete)
    }

    /// Heap bytes, within a factor of two: the mean of a name, and of a page with its tokens.
    pub(crate) fn memory_bytes(&self) -> usize {
        let pages = self.layout.as_ref().and_then(Layout::pages);
        self.names.len() * NAME + pages.map_or(0, Pages::len) * PAGE
    }

    /// Checks the structure, and adds to the uses of each namespace.
    #[cfg(test)]
    pub(crate) fn validate(&self, namespaces: &mut HashMap<u32, u32>) -> Result<()> {
        self.names.validate()?;
        let mut identities = HashMap::new();
        for held in self.names.iter() {
            *namespaces.entry(held.namespace()).or_default() += 1;
            *identities.entry(held.identity()).or_default() += 1;
        }
        match &self.layout {
            Some(layout) => layout.validate(&identities),
            None if self.names.len() > 0 => {
                Err(Error::Invariant("names of blocks of no size".to_owned()))
            }
            None => Ok(()),
        }
    }
}
