//! Changes of the fleet itself: what is said of workers, and what others said that is to be done here.
//!
//! Whoever keeps the list of workers does what was said, outside (`words_due`, `take_word`), and says what was changed here
//! (`say_words`), both in one step with the change: of two that happen at once, the one that is later for all must be done
//! last. In a journal what follows a word begins a new message, so that it can be done before the rest is heard.

use std::sync::Arc;

use crate::router::selector::Selector;
use crate::share::{Due, Entry, Kind, Message, Register, Word, put};

/// Bytes of a message of words.
const PART: usize = 1 << 13;

impl Selector {
    /// From now on the fleet itself is shared, too; for a selector that shares.
    pub fn share_fleet(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            sharing.words = Some(Register::new(sharing.origin));
        }
    }

    /// A worker was changed here.
    pub fn say_words(&mut self, name: &str, words: impl IntoIterator<Item = Word>) {
        let Some(sharing) = &mut self.sharing else {
            return;
        };
        let Some(register) = &mut sharing.words else {
            return;
        };
        for word in words {
            let mut bytes = Vec::new();
            word.put(&mut bytes);
            if let Some(version) = register.say(name, word) {
                let entry = Entry::Stated {
                    name,
                    version,
                    word: &bytes,
                };
                sharing.journal.say(entry, &[]);
            }
        }
        sharing.journal.cut();
    }

    /// Says again what others said last.
    pub(super) fn repeat_words(&mut self) {
        let Some(sharing) = &mut self.sharing else {
            return;
        };
        let words = sharing.words.iter().flat_map(Register::iter);
        for (name, version, word) in words.filter(|(_, v, _)| v.origin != sharing.origin) {
            let mut bytes = Vec::new();
            word.put(&mut bytes);
            let entry = Entry::Stated {
                name,
                version,
                word: &bytes,
            };
            sharing.journal.say(entry, &[]);
        }
        sharing.journal.cut();
    }

    /// What others said last of workers, and nobody here did yet.
    #[must_use]
    pub fn words_due(&self) -> Vec<(Arc<str>, Due)> {
        let words = self.sharing.as_ref().and_then(|s| s.words.as_ref());
        words.map_or_else(Vec::new, Register::due)
    }

    /// What others said last of a worker, for who does it now.
    pub fn take_word(&mut self, name: &str) -> Option<Due> {
        self.sharing.as_mut()?.words.as_mut()?.take(name)
    }

    /// What others said of a worker is not done here: nobody knows it.
    pub fn count_stranger(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            sharing.told.strangers += 1;
        }
    }

    /// Messages with the last word on every worker, told before a snapshot.
    #[must_use]
    pub fn snapshot_words(&self) -> Vec<Vec<u8>> {
        let Some(sharing) = &self.sharing else {
            return Vec::new();
        };
        let mut messages = Vec::new();
        let (mut entries, mut count) = (Vec::new(), 0);
        let mut flush = |entries: &mut Vec<u8>, count: &mut u32| {
            let message = Message {
                kind: Kind::Words,
                origin: sharing.origin,
                first: 0,
                count: std::mem::take(count),
                entries,
            };
            messages.push(message.encode());
            entries.clear();
        };
        for (name, version, word) in sharing.words.iter().flat_map(Register::iter) {
            let mut bytes = Vec::new();
            word.put(&mut bytes);
            let entry = Entry::Stated {
                name,
                version,
                word: &bytes,
            };
            put(&mut entries, entry, &[]);
            count += 1;
            if entries.len() >= PART {
                flush(&mut entries, &mut count);
            }
        }
        if count > 0 {
            flush(&mut entries, &mut count);
        }
        messages
    }
}
