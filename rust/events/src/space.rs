//! The names of one cache group in one medium, and the own blocks they stand for.
//!
//! An engine block is one own block, or several, or a part of one. Which it is, is learned from the first store.

mod doubtful;

use std::cmp::Ordering;
use std::collections::HashMap;

use cachelb_core::error::{Error, Result};
use cachelb_core::hashing::Hasher;
use cachelb_core::ids::{Medium, SequenceHash};

use self::doubtful::Doubtful;
use super::batch::Name;
use super::doubts::Doubts;
use super::lane::Lane;
use super::names::{Held, Names};
use super::namespaces::Namespaces;
use super::pages::{Before, Change, Pages};
use super::table::Value;

/// How an engine's blocks map to own ones.
#[derive(Debug)]
pub(super) enum Form {
    /// One to one.
    Same,
    /// A name covers several own blocks.
    Wide(Runs),
    /// An own block needs several names.
    Pages(Box<Pages>),
}

/// What a store tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Copies that were made.
    Copies,
    /// What is there anyway.
    Report,
}

/// What a removal took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removed {
    /// The name is not known.
    Nothing,
    /// A doubtful name: what was removed may be another copy, of a store that waits for its parent.
    Doubtful,
    /// A copy that was counted.
    Copy,
}

/// Own blocks of wide names: runs of equal length.
#[derive(Debug)]
pub(super) struct Runs {
    length: usize,
    blocks: Vec<u64>,
    free: Vec<u32>,
}

impl Runs {
    fn put(&mut self, run: &[SequenceHash]) -> u64 {
        let hashes = run.iter().map(|hash| hash.0);
        if let Some(at) = self.free.pop() {
            let from = at as usize * self.length;
            for (slot, hash) in self.blocks[from..].iter_mut().zip(hashes) {
                *slot = hash;
            }
            return u64::from(at);
        }
        self.blocks.extend(hashes);
        (self.blocks.len() / self.length) as u64 - 1
    }

    fn get(&self, at: u64) -> &[u64] {
        let from = at as usize * self.length;
        &self.blocks[from..from + self.length]
    }
}

/// The engine's block size as far as a space knows it, and what follows.
#[derive(Debug)]
struct Learned {
    size: u32,
    form: Form,
    /// Whether blocks before or after each other came in this size: a single block may be the short end of a prompt.
    settled: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) group: Option<u32>,
    pub(super) medium: Medium,
    names: Names,
    learned: Option<Learned>,
    doubts: Doubts,
    doubtful: Doubtful,
    /// Whether blocks are ever removed. Some senders never do.
    pub(super) has_removals: bool,
}

/// What ends at a named block.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    /// The own block that ends there, if one does.
    pub(super) block: Option<SequenceHash>,
    /// The page that ends there, in a space of pages.
    pub(super) page: Option<u64>,
    /// Number of the namespace.
    pub(super) namespace: u32,
}

impl Space {
    pub(super) fn new(group: Option<u32>, medium: Medium) -> Self {
        Self {
            group,
            medium,
            names: Names::default(),
            learned: None,
            doubts: Doubts::default(),
            doubtful: Doubtful::default(),
            has_removals: false,
        }
    }

    /// Tokens of an engine block.
    pub(super) fn block_size(&self) -> Option<u32> {
        self.learned.as_ref().map(|learned| learned.size)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.learned.as_ref().is_some_and(|l| l.settled)
    }

    pub(super) fn settle(&mut self) {
        if let Some(learned) = &mut self.learned {
            learned.settled = true;
        }
    }

    /// Takes `size` for the engine's block size; the space must be empty and the sizes fit.
    pub(super) fn learn(&mut self, size: u32, hasher: &Hasher) -> Result<()> {
        let ours = hasher.block_size();
        let theirs = size as usize;
        let form = match theirs.cmp(&ours) {
            Ordering::Equal => Form::Same,
            Ordering::Greater => Form::Wide(Runs {
                length: theirs / ours,
                blocks: Vec::new(),
                free: Vec::new(),
            }),
            Ordering::Less => {
                let pages = Hasher::new(hasher.scheme(), theirs, hasher.seed())?;
                Form::Pages(Box::new(Pages::new(*hasher, pages)))
            }
        };
        self.learned = Some(Learned {
            size,
            form,
            settled: false,
        });
        Ok(())
    }

    /// Takes the next size for the engine's; the space must be empty.
    pub(super) fn unlearn(&mut self) {
        self.learned = None;
    }

    /// The form, once learned.
    pub(super) fn form(&mut self) -> Option<&mut Form> {
        self.learned.as_mut().map(|learned| &mut learned.form)
    }

    /// Own blocks per name, at least one.
    fn width(&self) -> usize {
        match self.learned.as_ref().map(|learned| &learned.form) {
            Some(Form::Wide(runs)) => runs.length,
            _ => 1,
        }
    }

    /// Blocks, own or the engine's, whichever are more, that this space remembers.
    pub(super) fn weight(&self) -> u64 {
        let kept = match self.learned.as_ref().map(|learned| &learned.form) {
            Some(Form::Pages(pages)) => pages.len(),
            _ => 0,
        };
        (self.names.len() * self.width()).max(kept) as u64
    }

    /// Tokens in all copies of its blocks.
    pub(super) fn tokens(&self) -> u64 {
        self.names.copies() * u64::from(self.block_size().unwrap_or(0))
    }

    pub(super) fn prefetch(&self, names: &[Name]) {
        for &name in names {
            self.names.prefetch(name);
        }
    }

    /// Hints that what a name stands for will be read; the name was fetched.
    pub(super) fn prefetch_held(&self, name: Name) {
        self.names.prefetch_held(name);
    }

    pub(super) fn knows(&self, name: Name) -> bool {
        self.names.get(name).is_some()
    }

    /// The engine may have a copy of a block that is not counted.
    pub(super) fn doubt(&mut self, name: Name) {
        if self.knows(name) {
            self.names.change(name, Held::doubted);
        } else {
            self.doubts.insert(name);
        }
    }

    /// Whether a name that is not known may still be held.
    pub(super) fn doubts(&self, name: Name) -> bool {
        self.doubts.contains(name)
    }

    /// What ends at a named block.
    pub(super) fn end(&self, name: Name) -> Option<End> {
        let held = self.names.get(name)?;
        let identity = held.identity();
        let (block, page) = match &self.learned.as_ref()?.form {
            Form::Same => (Some(SequenceHash(identity)), None),
            Form::Wide(runs) => (runs.get(identity).last().copied().map(SequenceHash), None),
            Form::Pages(pages) => (pages.block_ending(identity), Some(identity)),
        };
        Some(End {
            block,
            page,
            namespace: held.namespace(),
        })
    }

    /// The own blocks of a name that is there for sure and the number of its namespace; none in a space of pages.
    pub(super) fn blocks_of(&self, name: Name, out: &mut Vec<SequenceHash>) -> Option<u32> {
        let held = self.names.get(name).filter(|held| !held.is_doubtful())?;
        out.clear();
        match &self.learned.as_ref()?.form {
            Form::Same => out.push(SequenceHash(held.identity())),
            Form::Wide(runs) => {
                out.extend(runs.get(held.identity()).iter().copied().map(SequenceHash));
            }
            Form::Pages(_) => return None,
        }
        Some(held.namespace())
    }

    /// The names that do not stand for their part of `identities` yet, each with whether it stands for something else.
    pub(super) fn unknown<'a>(
        &'a self,
        names: &'a [Name],
        identities: &'a [SequenceHash],
    ) -> impl Iterator<Item = (Name, bool)> + 'a {
        let parts = identities.chunks_exact(self.width());
        names.iter().zip(parts).filter_map(|(&name, part)| {
            let (Some(held), Some(learned)) = (self.names.get(name), &self.learned) else {
                return Some((name, false));
            };
            (!same(&learned.form, held, part)).then_some((name, true))
        })
    }

    /// One copy more of every name, or of those without any if this is a report. A name that stood for something else is forgotten as that first; own blocks nobody
    /// refers to any more go to `gone`. Returns the own blocks that names did not refer to before.
    #[expect(
        clippy::too_many_arguments,
        reason = "names, what they are, and what counts them"
    )]
    pub(super) fn add(
        &mut self,
        names: &[Name],
        identities: &[SequenceHash],
        namespace: u32,
        kind: Kind,
        namespaces: &mut Namespaces,
        lane: &mut Lane,
        gone: &mut Vec<SequenceHash>,
    ) -> usize {
        let width = self.width();
        let Some(learned) = &mut self.learned else {
            return 0;
        };
        let mut new = 0;
        for (&name, part) in names.iter().zip(identities.chunks_exact(width)) {
            let mut before = Held::VACANT;
            let (form, doubts) = (&mut learned.form, &mut self.doubts);
            let doubtful = &mut self.doubtful;
            self.names.change(name, |held| {
                if held.is_doubtful() && same(form, held, part) {
                    new += part.len();
                    for block in part {
                        lane.acquire(block.0);
                    }
                    doubtful.settle(part.len());
                    return held.more();
                }
                if !held.is_vacant() && same(form, held, part) {
                    return if kind == Kind::Report {
                        held.doubted()
                    } else {
                        held.more()
                    };
                }
                before = held;
                new += part.len();
                namespaces.share(namespace);
                if let Form::Same | Form::Wide(_) = form {
                    for block in part {
                        lane.acquire(block.0);
                    }
                }
                let identity = match form {
                    Form::Wide(runs) => runs.put(part),
                    Form::Same | Form::Pages(_) => part[0].0,
                };
                let first = Held::first(identity, namespace);
                if doubts.remove(name) {
                    first.doubted()
                } else {
                    first
                }
            });
            if !before.is_vacant() {
                forget(form, (name, before), namespaces, doubtful, lane, gone);
            }
        }
        new
    }

    /// One page name more, in a space of pages.
    #[expect(clippy::too_many_arguments, reason = "a page and what it is of")]
    pub(super) fn add_page(
        &mut self,
        name: Name,
        page: SequenceHash,
        before: Before,
        tokens: &[u32],
        objects: &[u64],
        namespace: u32,
        kind: Kind,
        namespaces: &mut Namespaces,
    ) {
        let Some(Form::Pages(pages)) = self.learned.as_mut().map(|learned| &mut learned.form)
        else {
            return;
        };
        let mut other = Held::VACANT;
        let doubts = &mut self.doubts;
        self.names.change(name, |held| {
            if !held.is_vacant() && held.identity() == page.0 {
                return if kind == Kind::Report {
                    held.doubted()
                } else {
                    held.more()
                };
            }
            other = held;
            namespaces.share(namespace);
            pages.acquire(page.0, before, tokens, objects, namespaces.get(namespace));
            let first = Held::first(page.0, namespace);
            if doubts.remove(name) {
                first.doubted()
            } else {
                first
            }
        });
        if !other.is_vacant() {
            namespaces.give_back(other.namespace());
            pages.release(other.identity());
        }
    }

    /// One copy less of a name.
    pub(super) fn remove(
        &mut self,
        name: Name,
        namespaces: &mut Namespaces,
        lane: &mut Lane,
        gone: &mut Vec<SequenceHash>,
    ) -> Removed {
        let Some(learned) = &mut self.learned else {
            return Removed::Nothing;
        };
        self.has_removals = true;
        let (mut before, mut after) = (Held::VACANT, Held::VACANT);
        self.names.change(name, |held| {
            before = held;
            after = held.less();
            after
        });
        if before.is_vacant() {
            return Removed::Nothing;
        }
        if after.is_vacant() {
            if before.is_in_doubt() {
                self.doubts.insert(name);
            }
            let doubtful = &mut self.doubtful;
            forget(
                &mut learned.form,
                (name, before),
                namespaces,
                doubtful,
                lane,
                gone,
            );
        }
        if before.is_doubtful() {
            Removed::Doubtful
        } else {
            Removed::Copy
        }
    }

    /// The own blocks that became complete or incomplete since the last call; false, and none, unless this is a space of
    /// pages.
    pub(super) fn take_changes(&mut self, out: &mut Vec<Change>) -> bool {
        out.clear();
        if let Some(Form::Pages(pages)) = self.form() {
            pages.take_changes(out);
            return true;
        }
        false
    }

    /// Forgets every name; own blocks nobody refers to any more go to `gone`.
    pub(super) fn empty(
        &mut self,
        namespaces: &mut Namespaces,
        lane: &mut Lane,
        gone: &mut Vec<SequenceHash>,
    ) {
        if let Some(learned) = &mut self.learned {
            for named in self.names.entries() {
                let doubtful = &mut self.doubtful;
                forget(&mut learned.form, named, namespaces, doubtful, lane, gone);
            }
        }
        self.names.clear();
        self.doubts.clear();
        self.doubtful.clear();
    }

    /// Forgets every name and nothing else: what they referred to is gone already.
    pub(super) fn reset(&mut self) {
        self.names.clear();
        self.doubts.clear();
        self.doubtful.clear();
        match self.form() {
            Some(Form::Wide(runs)) => {
                runs.blocks = Vec::new();
                runs.free = Vec::new();
            }
            Some(Form::Pages(pages)) => pages.clear(),
            Some(Form::Same) | None => {}
        }
    }

    /// Own blocks, each as often as something refers to it that is there for sure.
    pub(super) fn references(&self) -> Vec<u64> {
        let sure = self.names.iter().filter(|held| !held.is_doubtful());
        match self.learned.as_ref().map(|learned| &learned.form) {
            None => Vec::new(),
            Some(Form::Same) => sure.map(Held::identity).collect(),
            Some(Form::Wide(runs)) => {
                let run = |held: Held| runs.get(held.identity()).iter().copied();
                sure.flat_map(run).collect()
            }
            Some(Form::Pages(pages)) => pages.complete().collect(),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let form = match self.learned.as_ref().map(|learned| &learned.form) {
            Some(Form::Wide(runs)) => runs.blocks.capacity() * 8 + runs.free.capacity() * 4,
            Some(Form::Pages(pages)) => pages.memory_bytes(),
            _ => 0,
        };
        self.names.memory_bytes() + self.doubts.memory_bytes() + self.doubtful.memory_bytes() + form
    }

    /// Checks the structure, and adds to the uses of each namespace.
    pub(super) fn validate(&self, namespaces: &mut HashMap<u32, u32>) -> Result<()> {
        self.names.validate()?;
        self.validate_doubtful()?;
        let mut identities = HashMap::new();
        for held in self.names.iter() {
            *namespaces.entry(held.namespace()).or_default() += 1;
            *identities.entry(held.identity()).or_default() += 1;
        }
        match self.learned.as_ref().map(|learned| &learned.form) {
            None if self.names.len() > 0 => {
                Err(Error::Invariant("names of blocks of no size".to_owned()))
            }
            Some(Form::Wide(runs)) => {
                let used = runs.blocks.len() / runs.length - runs.free.len();
                if used == self.names.len() && identities.len() == used {
                    return Ok(());
                }
                Err(Error::Invariant(format!(
                    "{used} runs for {} names",
                    self.names.len()
                )))
            }
            Some(Form::Pages(pages)) => pages.validate(&identities),
            _ => Ok(()),
        }
    }
}

fn same(form: &Form, held: Held, part: &[SequenceHash]) -> bool {
    match form {
        // The last block of a run tells what all of them are.
        Form::Wide(runs) => runs.get(held.identity()).last().copied() == part.last().map(|h| h.0),
        Form::Same | Form::Pages(_) => part.first().is_some_and(|h| h.0 == held.identity()),
    }
}

/// Ends what a forgotten name referred to. What a doubtful one stood for is gone unless another name is sure of it.
fn forget(
    form: &mut Form,
    (name, held): (Name, Held),
    namespaces: &mut Namespaces,
    doubtful: &mut Doubtful,
    lane: &mut Lane,
    gone: &mut Vec<SequenceHash>,
) {
    namespaces.give_back(held.namespace());
    doubtful.forget(name);
    let was_sure = !held.is_doubtful();
    let mut release = |block: u64| {
        let is_gone = if was_sure {
            lane.release(block)
        } else {
            !lane.refers_to(block)
        };
        if is_gone {
            gone.push(SequenceHash(block));
        }
    };
    match form {
        Form::Same => release(held.identity()),
        Form::Wide(runs) => {
            runs.get(held.identity()).iter().copied().for_each(release);
            runs.free.push(held.identity() as u32);
        }
        Form::Pages(pages) => pages.release(held.identity()),
    }
}
