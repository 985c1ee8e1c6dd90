//! Changes of the fleet itself: published statements on workers, and received ones that are to be applied here.
//!
//! The owner of the list of workers applies received changes, outside (`changes_due`, `take_change`), and publishes
//! local ones (`publish_changes`), both in one step with the change: if two happen at once, the one that is later for
//! all must be applied last. In a journal the entry behind a change begins a new message, so that the change can be
//! applied before the rest is received.

use std::sync::Arc;

use super::messages::{Due, Entry, Kind, Register, Version};
use super::snapshot::{PART, Parts};
use super::{Exchange, Sharing};
use crate::fleet::about::Word;

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
    pub(super) fn publish_changes(&mut self, name: &str, words: impl IntoIterator<Item = Word>) {
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

    /// Publishes the latest changes of others again.
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

    /// Latest change of a worker that others published, to be applied now.
    pub(super) fn take_change(&mut self, name: &str) -> Option<Due> {
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
    /// Latest changes of workers that others published and that are not applied here yet.
    #[must_use]
    pub(super) fn changes_due(&self) -> Vec<(Arc<str>, Due)> {
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
