//! Changes of the fleet itself: what is said of workers, and what others said that is to be done here.
//!
//! Whoever keeps the list of workers does what was said, outside (`changes_due`, `take_change`), and says what was changed here
//! (`publish_changes`), both in one step with the change: of two that happen at once, the one that is later for all must be done
//! last. In a journal what follows a word begins a new message, so that it can be done before the rest is heard.

use std::sync::Arc;

use cachelb_share::{Due, Entry, Kind, Register, Version, Word};

use super::snapshot::{PART, Parts};
use super::{Exchange, Sharing};

/// Calls `each` with the entries of `words`.
fn entries<'a>(
    words: impl Iterator<Item = (&'a str, Version, &'a Word)>,
    mut each: impl FnMut(Entry<'_>),
) {
    for (name, version, word) in words {
        let mut bytes = Vec::new();
        word.put(&mut bytes);
        each(Entry::Stated {
            name,
            version,
            word: &bytes,
        });
    }
}

impl Exchange<'_> {
    /// From now on the fleet itself is shared, too; for a selector that shares.
    pub fn share_fleet(&mut self) {
        if let Some(sharing) = &mut self.0.sharing {
            sharing.words = Some(Register::new(sharing.origin));
        }
    }

    /// A worker was changed here.
    pub fn publish_changes(&mut self, name: &str, words: impl IntoIterator<Item = Word>) {
        let Some(sharing) = &mut self.0.sharing else {
            return;
        };
        let Some(register) = &mut sharing.words else {
            return;
        };
        for word in words {
            if let Some(version) = register.say(name, word.clone()) {
                let said = std::iter::once((name, version, &word));
                entries(said, |entry| sharing.journal.say(entry, &[]));
            }
        }
        sharing.journal.cut();
    }

    /// Publishes again what others published last.
    pub(super) fn repeat_changes(&mut self) {
        if let Some(sharing) = &mut self.0.sharing {
            let Sharing {
                words,
                origin,
                journal,
                ..
            } = &mut **sharing;
            let words = words.iter().flat_map(Register::iter);
            let of_others = words.filter(|(_, version, _)| version.origin != *origin);
            entries(of_others, |entry| journal.say(entry, &[]));
            journal.cut();
        }
    }

    /// What others published last of a worker, to be done now.
    pub fn take_change(&mut self, name: &str) -> Option<Due> {
        self.0.sharing.as_mut()?.words.as_mut()?.take(name)
    }

    /// A change that another router made cannot be done here.
    pub fn count_stranger(&mut self) {
        if let Some(sharing) = &mut self.0.sharing {
            sharing.counters.strangers += 1;
        }
    }
}

impl Sharing {
    /// What others published last of workers, and was not done here yet.
    #[must_use]
    pub fn changes_due(&self) -> Vec<(Arc<str>, Due)> {
        self.words.as_ref().map_or_else(Vec::new, Register::due)
    }

    /// Messages with the latest change of every worker, sent before a snapshot.
    #[must_use]
    pub fn snapshot_changes(&self) -> Vec<Vec<u8>> {
        let mut parts = Parts::new(self, Kind::Words, PART);
        let words = self.words.iter().flat_map(Register::iter);
        entries(words, |entry| parts.put(entry, &[]));
        parts.end()
    }
}
