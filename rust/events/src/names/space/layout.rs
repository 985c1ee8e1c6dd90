//! How an engine's blocks map to own ones: one is one own block, or several, or a part of one.

use std::cmp::Ordering;
#[cfg(test)]
use std::collections::HashMap;

#[cfg(test)]
use cachelb_core::error::Error;
use cachelb_core::error::Result;
use cachelb_core::hashing::Hasher;
use cachelb_core::ids::SequenceHash;

use crate::names::Held;
use crate::names::pages::Pages;
use crate::names::references::Uses;

#[derive(Debug)]
enum Form {
    /// One to one.
    Same,
    /// A name covers several own blocks.
    Wide(Runs),
    /// An own block needs several names.
    Pages(Box<Pages>),
}

/// Own blocks of wide names: runs of equal length.
#[derive(Debug)]
struct Runs {
    length: usize,
    blocks: Vec<u64>,
    free: Vec<u32>,
}

impl Runs {
    fn new(length: usize) -> Self {
        Self {
            length,
            blocks: Vec::new(),
            free: Vec::new(),
        }
    }

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

/// The engine's block size as learned in a space, and the form of its names' identities.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Tokens of an engine block.
    pub(crate) size: u32,
    /// Whether blocks before or after each other came in this size: a single block may be the short end of a prompt.
    pub(crate) settled: bool,
    /// Hashes own blocks, or pages.
    pub(crate) hasher: Hasher,
    form: Form,
}

impl Layout {
    /// For engine blocks of a size that fits own ones.
    pub(crate) fn new(size: u32, own: &Hasher) -> Result<Self> {
        let (ours, theirs) = (own.block_size(), size as usize);
        let mut hasher = *own;
        let form = match theirs.cmp(&ours) {
            Ordering::Equal => Form::Same,
            Ordering::Greater => Form::Wide(Runs::new(theirs / ours)),
            Ordering::Less => {
                hasher = Hasher::new(own.scheme(), theirs, own.seed())?;
                Form::Pages(Box::new(Pages::new(*own, hasher)))
            }
        };
        Ok(Self {
            size,
            settled: false,
            hasher,
            form,
        })
    }

    /// The pages, if own blocks need several names.
    pub(crate) fn pages(&self) -> Option<&Pages> {
        match &self.form {
            Form::Pages(pages) => Some(pages),
            Form::Same | Form::Wide(_) => None,
        }
    }

    pub(super) fn pages_mut(&mut self) -> Option<&mut Pages> {
        match &mut self.form {
            Form::Pages(pages) => Some(pages),
            Form::Same | Form::Wide(_) => None,
        }
    }

    /// Own blocks per name, at least one.
    #[inline]
    pub(super) fn width(&self) -> usize {
        match &self.form {
            Form::Wide(runs) => runs.length,
            Form::Same | Form::Pages(_) => 1,
        }
    }

    /// The own blocks of a name; none of one that is a page.
    pub(super) fn blocks(&self, held: Held) -> impl Iterator<Item = SequenceHash> {
        let identity = held.identity();
        let (one, run): (_, &[u64]) = match &self.form {
            Form::Same => (Some(identity), &[]),
            Form::Wide(runs) => (None, runs.get(identity)),
            Form::Pages(_) => (None, &[]),
        };
        one.into_iter().chain(run.iter().copied()).map(SequenceHash)
    }

    /// The own block that ends with a name, if one does.
    #[inline]
    pub(super) fn last_block(&self, held: Held) -> Option<SequenceHash> {
        let identity = held.identity();
        match &self.form {
            Form::Same => Some(SequenceHash(identity)),
            Form::Wide(runs) => runs.get(identity).last().copied().map(SequenceHash),
            Form::Pages(pages) => pages.block_ending(identity),
        }
    }

    /// Whether a name stands for `part`.
    #[inline]
    pub(super) fn matches(&self, held: Held, part: &[SequenceHash]) -> bool {
        match &self.form {
            // The last block of a run identifies all of them.
            Form::Wide(runs) => {
                runs.get(held.identity()).last().copied() == part.last().map(|h| h.0)
            }
            Form::Same | Form::Pages(_) => part.first().is_some_and(|h| h.0 == held.identity()),
        }
    }

    /// The identity of a new name of own blocks.
    #[inline]
    pub(super) fn put(&mut self, part: &[SequenceHash]) -> u64 {
        match &mut self.form {
            Form::Wide(runs) => runs.put(part),
            Form::Same | Form::Pages(_) => part[0].0,
        }
    }

    /// Ends the references of a forgotten name. Blocks of a doubtful one are gone unless a certain name refers to them.
    pub(super) fn release(&mut self, held: Held, uses: &mut Uses<'_>) {
        uses.namespaces.give_back(held.namespace());
        let mut release = |block| uses.release(block, !held.is_doubtful());
        match &mut self.form {
            Form::Same => release(held.identity()),
            Form::Wide(runs) => {
                let blocks = runs.get(held.identity()).iter();
                blocks.copied().for_each(release);
                runs.free.push(held.identity() as u32);
            }
            Form::Pages(pages) => pages.release(held.identity(), !held.is_doubtful()),
        }
    }

    /// Forgets all names.
    pub(super) fn clear(&mut self) {
        match &mut self.form {
            Form::Wide(runs) => *runs = Runs::new(runs.length),
            Form::Pages(pages) => pages.clear(),
            Form::Same => {}
        }
    }

    /// Checks the structure against the names, of each identity so many.
    #[cfg(test)]
    pub(super) fn validate(&self, identities: &HashMap<u64, u32>) -> Result<()> {
        match &self.form {
            Form::Wide(runs) => {
                let used = runs.blocks.len() / runs.length - runs.free.len();
                if used == identities.len() && identities.values().all(|names| *names == 1) {
                    return Ok(());
                }
                Err(Error::Invariant(format!(
                    "{used} runs for {} names",
                    identities.values().sum::<u32>()
                )))
            }
            Form::Pages(pages) => pages.validate(identities),
            Form::Same => Ok(()),
        }
    }
}
