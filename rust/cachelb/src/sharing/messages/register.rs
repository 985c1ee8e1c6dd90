//! The state of the fleet that routers share: its workers, their properties, whether they take requests.
//!
//! For every worker the last word counts: one on whether it is there and its properties, one on whether it takes
//! requests. Words are ordered by their version, which is the same everywhere: a number above all that the router had
//! heard of, and the router that spoke. So in whatever order words arrive, or twice, all routers agree. A worker that
//! was taken out is remembered, or else an older word would bring it back, up to a number of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cachelb_core::error::{Error, Result};

use super::words::Version;
use crate::fleet::about::Word;

/// Workers taken out that are remembered; of more, those taken out first are forgotten.
const MOST_GONE: usize = 4096;
/// Workers with words; words on further ones are refused.
const MOST_WORKERS: usize = 1 << 16;
/// Bytes of all words that are kept, about.
const MOST_BYTES: usize = 1 << 26;
/// The changes of a worker to apply.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Due {
    /// Whether it is there, if somebody else had the last word.
    pub standing: Option<Word>,
    /// Whether it takes requests, if anybody said.
    pub ready: Option<bool>,
}

/// The last words on a worker.
#[derive(Debug, Clone, PartialEq, Default)]
struct Said {
    /// Whether it is there.
    standing: Option<(Version, Word)>,
    /// Whether it takes requests.
    ready: Option<(Version, Word)>,
}

impl Said {
    /// Bytes it takes under a name, about.
    fn bytes(&self, name: &str) -> usize {
        let both = self.standing.iter().chain(&self.ready);
        let words = both.map(|(_, word)| match word {
            Word::Here(about) => {
                let names = about.gpu.iter().chain(&about.models);
                names.map(|name| size_of::<String>() + name.len()).sum()
            }
            _ => 0,
        });
        size_of::<(Arc<str>, Self)>() + 64 + name.len() + words.sum::<usize>()
    }

    fn of(&self, word: &Word) -> Option<&(Version, Word)> {
        match word {
            Word::Ready(_) => self.ready.as_ref(),
            _ => self.standing.as_ref(),
        }
    }

    /// When it was taken out, if it was.
    fn gone(&self) -> Option<Version> {
        let standing = self.standing.as_ref();
        standing.and_then(|(version, word)| (*word == Word::Gone).then_some(*version))
    }
}

/// The last words on every worker.
#[derive(Debug, Default)]
pub struct Register {
    origin: u64,
    /// Counter of the highest version.
    counter: u64,
    said: HashMap<Arc<str>, Said>,
    /// Versions of workers taken out.
    gone: BTreeSet<(Version, Arc<str>)>,
    /// Bytes of all that is said.
    bytes: usize,
    /// Workers with a last word of another router that is not applied here yet, and whether it was on their standing.
    due: BTreeMap<Arc<str>, bool>,
}

impl Register {
    /// An empty register, of the router `origin`.
    #[must_use]
    pub fn new(origin: u64) -> Self {
        Self {
            origin,
            ..Self::default()
        }
    }

    /// Records a word of this router, already applied. Returns its version, `None` if it equals the last word.
    pub fn say(&mut self, name: &str, word: Word) -> Option<Version> {
        if let Word::Ready(_) = word {
            // The last word on its standing may still be another router's.
            self.due.retain(|due, standing| **due != *name || *standing);
        } else {
            self.due.remove(name);
        }
        let last = self.said.get(name).and_then(|said| said.of(&word));
        if last.is_some_and(|(_, last)| *last == word) {
            return None;
        }
        let version = Version {
            counter: self.counter.saturating_add(1),
            origin: self.origin,
        };
        self.set(name, version, word).then_some(version)
    }

    /// Another router said something of a worker. Returns whether it is the last word.
    pub fn hear(&mut self, name: &str, version: Version, word: Word) -> bool {
        let last = self.said.get(name).and_then(|said| said.of(&word));
        if last.is_some_and(|(last, _)| *last >= version) {
            return false;
        }
        let new = last.is_none_or(|(_, last)| *last != word);
        let standing = !matches!(word, Word::Ready(_));
        let taken = self.set(name, version, word);
        if taken && new {
            *self.due.entry(name.into()).or_default() |= standing;
        }
        taken
    }

    fn set(&mut self, name: &str, version: Version, word: Word) -> bool {
        let known = self.said.get(name);
        if known.is_none() && self.said.len() >= MOST_WORKERS {
            return false;
        }
        let before = known.map_or(0, |said| said.bytes(name));
        let mut after = known.cloned().unwrap_or_default();
        match word {
            Word::Ready(_) => after.ready = Some((version, word)),
            _ => after.standing = Some((version, word)),
        }
        let bytes = self.bytes - before + after.bytes(name);
        if bytes > MOST_BYTES {
            return false;
        }
        self.bytes = bytes;
        let name: Arc<str> = name.into();
        self.counter = self.counter.max(version.counter);
        let said = self.said.entry(Arc::clone(&name)).or_default();
        if let Some(before) = said.gone() {
            self.gone.remove(&(before, Arc::clone(&name)));
        }
        *said = after;
        if let Some(version) = said.gone() {
            self.gone.insert((version, name));
        }
        if self.gone.len() > MOST_GONE
            && let Some((_, oldest)) = self.gone.pop_first()
        {
            let said = self.said.remove(&oldest);
            self.bytes -= said.map_or(0, |said| said.bytes(&oldest));
            self.due.remove(&oldest);
        }
        true
    }

    /// Workers with a last word of another router that is not applied here yet.
    #[must_use]
    pub fn due(&self) -> Vec<(Arc<str>, Due)> {
        let due = self.due.iter();
        due.map(|(name, standing)| (Arc::clone(name), self.what_is_due(name, *standing)))
            .collect()
    }

    /// Takes the changes of a worker, to apply them.
    pub fn take(&mut self, name: &str) -> Option<Due> {
        let standing = self.due.remove(name)?;
        Some(self.what_is_due(name, standing))
    }

    fn what_is_due(&self, name: &str, standing: bool) -> Due {
        let Some(said) = self.said.get(name) else {
            return Due::default();
        };
        let word = said.standing.as_ref().filter(|_| standing);
        Due {
            standing: word.map(|(_, word)| word.clone()),
            ready: match said.ready {
                Some((_, Word::Ready(ready))) => Some(ready),
                _ => None,
            },
        }
    }

    /// Every last word, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Version, &Word)> {
        let mut all = Vec::with_capacity(self.said.len());
        for (name, said) in &self.said {
            let both = said.standing.iter().chain(&said.ready);
            all.extend(both.map(|(version, word)| (&**name, *version, word)));
        }
        all.sort_by_key(|entry| entry.1);
        all.into_iter()
    }

    /// Heap bytes, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes
            + self.gone.len() * size_of::<(Version, Arc<str>)>()
            + self.due.len() * size_of::<Arc<str>>()
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first disagreement.
    pub fn validate(&self) -> Result<()> {
        let bytes = self.said.iter().map(|(name, said)| said.bytes(name));
        let bytes: usize = bytes.sum();
        if bytes == self.bytes && bytes <= MOST_BYTES {
            return Ok(());
        }
        let broken = format!("words take {bytes} bytes, {} are counted", self.bytes);
        Err(Error::Invariant(broken))
    }
}

#[cfg(test)]
#[path = "tests/register.rs"]
pub(super) mod tests;
