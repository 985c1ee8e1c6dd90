//! A tree of either kind behind one lock, with workers by name (see [`NamedIndex`]).
//!
//! The first key that is inserted decides whether it is a tree of text or of tokens. Long evictions are
//! done in parts, between which waiting calls get the lock.

use std::time::Duration;

use super::{PrefixOverlaps, Progress, RadixTree, Use};
use crate::error::{Error, Result};
use crate::ids::{Millis, WorkerId};
use crate::named_index::{self, Expiring, NamedIndex};
use crate::registry::WorkerRegistry;
use crate::snapshot::{Format, Reader, begin, put_slots, put32, put64, refuse, seal};

/// Between parts of an eviction: about as long as a thread takes to wake up.
const BREATH: Duration = Duration::from_micros(50);
/// The version differs from those of other things.
const FORMAT: Format = Format {
    magic: b"cachelb\0",
    name: "snapshot",
    version: 0x7265_6501,
};

/// A key of either kind.
#[derive(Debug, Clone, Copy)]
pub enum Prompt<'a> {
    /// Characters.
    Text(&'a str),
    /// Token ids.
    Tokens(&'a [u32]),
}

/// A tree of the kind that the first key decided.
#[derive(Debug)]
pub enum Tree {
    /// Nothing was inserted yet.
    Unset,
    /// A tree of characters.
    Text(RadixTree<u8>),
    /// A tree of token ids.
    Tokens(RadixTree<u32>),
}

/// Runs an expression for either kind of tree.
macro_rules! each {
    ($tree:expr, $unset:expr, $name:ident => $work:expr) => {
        match $tree {
            Tree::Unset => $unset,
            Tree::Text($name) => $work,
            Tree::Tokens($name) => $work,
        }
    };
}

/// Answer buffer of lookups, reused between calls.
#[derive(Debug, Default)]
pub struct PrefixAnswer {
    depths: PrefixOverlaps,
    /// Workers with the units they hold, at least 1; in slot order, or in that of `among`.
    pub found: Vec<(WorkerId, u32)>,
}

/// The tree.
pub type NamedTree = NamedIndex<TreeSettings, Tree>;
/// Questions to a tree that stands still.
pub type TreeView<'a> = named_index::View<'a, TreeSettings, Tree>;
/// Changes to a tree that no other thread sees half-made.
pub type TreeEdit<'a> = named_index::Edit<'a, TreeSettings, Tree>;

/// Settings of both kinds.
#[derive(Debug, Clone, Copy)]
pub struct TreeSettings {
    page: usize,
    max_units: Option<u64>,
}

impl NamedTree {
    /// An empty tree; see `RadixTree::new`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`].
    pub fn new(page: usize, max_units: Option<u64>) -> Result<Self> {
        // The kind with the wider range of settings.
        RadixTree::<u32>::new(page, max_units)?;
        let settings = TreeSettings { page, max_units };
        Ok(Self::of(settings, WorkerRegistry::new(), Tree::Unset))
    }

    /// Tokens per page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.settings.page
    }

    /// Most (worker, unit) pairs.
    #[must_use]
    pub fn max_units(&self) -> Option<u64> {
        self.settings.max_units
    }

    /// Repeats `part` under the write lock until it is done; in between, it leaves the lock to calls that wait.
    ///
    /// # Errors
    /// Those of `part`.
    pub fn in_parts(&self, mut part: impl FnMut(TreeEdit<'_>) -> Result<bool>) -> Result<()> {
        while !part(self.edit())? {
            std::thread::sleep(BREATH);
        }
        Ok(())
    }

    /// The tree that [`TreeView::snapshot`] wrote, with times to live moved to the clock that reads `now`.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] for anything but the unchanged bytes of a snapshot of this version.
    pub fn restore(bytes: &[u8], now: Millis) -> Result<Self> {
        let mut reader = Reader::open(bytes, &FORMAT)?;
        let (page, units) = (reader.u32()? as usize, reader.u64()?);
        let max_units = (units < u64::MAX).then_some(units);
        RadixTree::<u32>::new(page, max_units).or_else(|why| refuse(why.to_string()))?;
        let registry = WorkerRegistry::from_slots(reader.slots()?)?;
        let tree = match reader.u32()? {
            0 => Tree::Unset,
            1 => Tree::Text(RadixTree::restore(reader.bytes, now)?),
            2 => Tree::Tokens(RadixTree::restore(reader.bytes, now)?),
            other => return refuse(format!("unknown kind of keys {other}")),
        };
        let same =
            each!(&tree, true, tree => tree.page_size() == page && tree.max_units() == max_units);
        if !same {
            return refuse("its settings contradict each other");
        }
        let tree = Self::of(TreeSettings { page, max_units }, registry, tree);
        tree.view()
            .validate()
            .or_else(|why| refuse(why.to_string()))?;
        Ok(tree)
    }
}

// === impl Tree ===

impl Expiring for Tree {
    fn next_expiry(&self) -> Option<Millis> {
        each!(self, None, tree => tree.next_expiry())
    }
}

impl Tree {
    fn worker_in(&self, slot: u32) -> Option<WorkerId> {
        each!(self, None, tree => tree.worker_in(slot))
    }

    fn wrong_kind(&self) -> Error {
        Error::KeyKind(match self {
            Self::Text(_) => "text",
            Self::Tokens(_) | Self::Unset => "tokens",
        })
    }
}

// === impl TreeView ===

impl TreeView<'_> {
    /// Finds every worker that holds leading units of the prompt; with `among`, of those names only, unknown ones
    /// ignored.
    ///
    /// # Errors
    /// [`Error::KeyKind`].
    pub fn overlaps(
        &self,
        prompt: Prompt<'_>,
        among: Option<&[&str]>,
        answer: &mut PrefixAnswer,
    ) -> Result<()> {
        self.find(prompt, true, among, answer)
    }

    /// Finds the workers that hold most of the prompt; returns how much.
    ///
    /// # Errors
    /// [`Error::KeyKind`].
    pub fn match_prefix(
        &self,
        prompt: Prompt<'_>,
        among: Option<&[&str]>,
        answer: &mut PrefixAnswer,
    ) -> Result<u32> {
        self.find(prompt, among.is_some(), among, answer)?;
        let found = &mut answer.found;
        let most = found.iter().map(|(_, units)| *units).max().unwrap_or(0);
        found.retain(|(_, units)| *units == most);
        Ok(most)
    }

    /// Finds all holders, or those of the longest match.
    fn find(
        &self,
        prompt: Prompt<'_>,
        all: bool,
        among: Option<&[&str]>,
        answer: &mut PrefixAnswer,
    ) -> Result<()> {
        let PrefixAnswer { depths, found } = answer;
        found.clear();
        match (&*self.state, prompt) {
            (Tree::Text(tree), Prompt::Text(text)) if all => tree.overlaps(text, depths),
            (Tree::Text(tree), Prompt::Text(text)) => tree.match_prefix(text, depths),
            (Tree::Tokens(tree), Prompt::Tokens(tokens)) if all => tree.overlaps(tokens, depths),
            (Tree::Tokens(tree), Prompt::Tokens(tokens)) => tree.match_prefix(tokens, depths),
            (Tree::Unset, _) => return Ok(()),
            (tree, _) => return Err(tree.wrong_kind()),
        }
        match among {
            None => {
                let each = depths.iter();
                let each =
                    each.filter_map(|(slot, units)| Some((self.state.worker_in(slot)?, units)));
                found.extend(each);
            }
            Some(names) => {
                for name in names {
                    if let Some(worker) = self.owner.registry.get(name) {
                        let held = (worker, depths.depth(worker.slot));
                        if held.1 > 0 && !found.contains(&held) {
                            found.push(held);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Units held by the worker called `name`, 0 for an unknown one; without a name, the sum over workers.
    #[must_use]
    pub fn size(&self, name: Option<&str>) -> u64 {
        let Some(name) = name else {
            return each!(&*self.state, 0, tree => tree.total());
        };
        let worker = self.owner.registry.get(name);
        let count = |worker| each!(&*self.state, 0, tree => tree.count(worker).unwrap_or(0));
        worker.map_or(0, count)
    }

    /// Heap bytes of the tree.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        each!(&*self.state, 0, tree => tree.memory_bytes())
    }

    /// The tree as bytes. Times to live are kept as the time left at `now`.
    #[must_use]
    pub fn snapshot(&self, now: Millis) -> Vec<u8> {
        let mut out = begin(&FORMAT);
        put32(&mut out, self.owner.settings.page as u32);
        put64(&mut out, self.owner.settings.max_units.unwrap_or(u64::MAX));
        put_slots(&self.owner.registry.slots(), &mut out);
        let kind = match &*self.state {
            Tree::Unset => 0,
            Tree::Text(_) => 1,
            Tree::Tokens(_) => 2,
        };
        put32(&mut out, kind);
        each!(&*self.state, {}, tree => tree.snapshot(now, &mut out));
        seal(out)
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first broken invariant.
    pub fn validate(&self) -> Result<()> {
        each!(&*self.state, Ok(()), tree => tree.validate())?;
        for (name, id) in self.owner.registry.ids() {
            if self.state.worker_in(id.slot) != Some(id) {
                return Err(Error::Invariant(format!(
                    "worker {name:?} is registered and unknown to the tree"
                )));
            }
        }
        Ok(())
    }
}

// === impl TreeEdit ===

impl TreeEdit<'_> {
    /// Records that `name`, registered if new, holds the prompt; returns the units newly held.
    ///
    /// # Errors
    /// [`Error::KeyKind`].
    pub fn insert(&mut self, prompt: Prompt<'_>, name: &str, how: Use) -> Result<u32> {
        let TreeSettings { page, max_units } = self.owner.settings;
        if let Tree::Unset = *self.state {
            *self.state = match prompt {
                Prompt::Text(_) if page > 1 => return Err(self.state.wrong_kind()),
                Prompt::Text(_) => Tree::Text(RadixTree::new(1, max_units)?),
                Prompt::Tokens(_) => Tree::Tokens(RadixTree::new(page, max_units)?),
            };
        }
        match (&*self.state, prompt) {
            (Tree::Text(_), Prompt::Text(_)) | (Tree::Tokens(_), Prompt::Tokens(_)) => {}
            (tree, _) => return Err(tree.wrong_kind()),
        }
        let (worker, added) = self.owner.registry.get_or_add(name);
        if added {
            each!(&mut *self.state, {}, tree => tree.add_worker(worker, u32::MAX));
        }
        match (&mut *self.state, prompt) {
            (Tree::Text(tree), Prompt::Text(text)) => tree.insert(worker, text, how),
            (Tree::Tokens(tree), Prompt::Tokens(tokens)) => tree.insert(worker, tokens, how),
            _ => Ok(0),
        }
    }

    /// Evicts a part of what is held beyond `max_units`, by one worker or by all together.
    ///
    /// # Errors
    /// None today; an unknown name holds nothing.
    pub fn evict(&mut self, name: Option<&str>, max_units: u64, steps: u32) -> Result<Progress> {
        let done = Progress::NONE;
        let Some(name) = name else {
            return Ok(each!(&mut *self.state, done, tree => tree.evict_part(max_units, steps)));
        };
        match self.owner.registry.get(name) {
            Some(worker) => each!(
                &mut *self.state,
                Ok(done),
                tree => tree.evict_worker_part(worker, max_units, steps)
            ),
            None => Ok(done),
        }
    }

    /// A part of `RadixTree::evict_oldest_uses`.
    ///
    /// # Errors
    /// None today; an unknown name holds nothing.
    pub fn evict_oldest(&mut self, name: &str, min_units: u64, steps: u32) -> Result<Progress> {
        let done = Progress::NONE;
        match self.owner.registry.get(name) {
            Some(worker) => each!(
                &mut *self.state,
                Ok(done),
                tree => tree.evict_oldest_uses(worker, min_units, steps)
            ),
            None => Ok(done),
        }
    }

    /// Forgets `name` and all it still holds; returns the units dropped.
    ///
    /// # Errors
    /// None today; an unknown name holds nothing.
    pub fn remove_worker(&mut self, name: &str) -> Result<u64> {
        match self.owner.registry.remove(name) {
            Some(worker) => each!(&mut *self.state, Ok(0), tree => tree.remove_worker(worker)),
            None => Ok(0),
        }
    }

    /// Drops a part of what lived to its end at or before `now`; returns whether nothing is left that did.
    pub fn expire(&mut self, now: Millis) -> bool {
        each!(&mut *self.state, {}, tree => drop(tree.expire(now)));
        self.state.due() > now.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_call_that_waits_is_served_between_parts() {
        let tree = NamedTree::new(1, None).unwrap();
        let served = AtomicBool::new(false);
        let mut parts = 0;
        thread::scope(|scope| {
            let changed = tree.in_parts(|_edit| {
                parts += 1;
                if parts == 1 {
                    scope.spawn(|| {
                        let view = tree.view();
                        served.store(true, Ordering::Relaxed);
                        drop(view);
                    });
                }
                Ok(parts == 100_000 || served.load(Ordering::Relaxed))
            });
            changed.unwrap();
        });
        assert!(parts < 100_000, "the call waited for all of them");
    }
}
