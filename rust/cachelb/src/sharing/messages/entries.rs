//! Entries as bytes: a tag, numbers of seven bits per byte, hashes as eight bytes.

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::RouteKey;
use cachelb_core::ids::SequenceHash;

use super::bytes::{Bytes, put_number, put_text};
use super::words::Version;
use crate::fleet::about::Word;

/// Hashes of one entry, still in the bytes they came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chain<'a>(&'a [[u8; 8]]);

impl<'a> Chain<'a> {
    /// How many.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// The hashes, from the root's side on.
    pub fn iter(self) -> impl Iterator<Item = SequenceHash> + 'a {
        self.0
            .iter()
            .map(|bytes| SequenceHash(u64::from_le_bytes(*bytes)))
    }
}

/// Routes of one entry, still in the bytes they came in: of each its blocks and its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keys<'a>(&'a [[u8; KEY]]);

/// Bytes of a route.
const KEY: usize = 4 + 8;

impl<'a> Keys<'a> {
    /// Those that [`Keys::pack`] made bytes of.
    #[must_use]
    pub fn of(packed: &'a [[u8; KEY]]) -> Self {
        Self(packed)
    }

    /// A prefix of `depth` blocks as bytes.
    #[must_use]
    pub fn pack(key: RouteKey, depth: u32) -> [u8; KEY] {
        let mut bytes = [0; KEY];
        bytes[..4].copy_from_slice(&depth.to_le_bytes());
        bytes[4..].copy_from_slice(&key.0.to_le_bytes());
        bytes
    }

    /// Keys and blocks, the first that go first.
    pub fn iter(self) -> impl Iterator<Item = (RouteKey, u32)> + 'a {
        self.0.iter().map(|bytes| {
            let (mut depth, mut key) = ([0; 4], [0; 8]);
            depth.copy_from_slice(&bytes[..4]);
            key.copy_from_slice(&bytes[4..]);
            (RouteKey(u64::from_le_bytes(key)), u32::from_le_bytes(depth))
        })
    }
}

/// One event at the router that sends it. It numbers models and workers itself and names each before its first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry<'a> {
    /// From here on, `index` is the model whose blocks are cut and hashed by `fingerprint`.
    Pool {
        /// Its number.
        index: u32,
        /// Equal for models whose hashes mean the same.
        fingerprint: u64,
    },
    /// From here on, `index` is the worker called `name`, whose cache was lost `epoch` times.
    Worker {
        /// Its number.
        index: u32,
        /// How often its cache was lost, as far as the router knows.
        epoch: u64,
        /// Its name.
        name: &'a str,
    },
    /// A request was booked.
    Booked {
        /// Names the booking until it is closed.
        key: u64,
        /// The model.
        pool: u32,
        /// The worker.
        worker: u32,
        /// Length of the prompt.
        prompt_tokens: u64,
        /// How much of it the worker must compute.
        prefill_tokens: u64,
    },
    /// A worker holds a chain: because of the booking `key`, which takes it back if it fails, or for 0 since long.
    Placed {
        /// The booking.
        key: u64,
        /// The model.
        pool: u32,
        /// The worker.
        worker: u32,
        /// The block before the chain, `None` for the root.
        anchor: Option<SequenceHash>,
        /// The chain, never empty.
        chain: Chain<'a>,
    },
    /// A worker can resume prompts behind these of its blocks, beside others that were said.
    Resumed {
        /// The model.
        pool: u32,
        /// The worker.
        worker: u32,
        /// The blocks, never none.
        blocks: Chain<'a>,
    },
    /// The first token of a booking came.
    FirstToken {
        /// The booking.
        key: u64,
    },
    /// A booking ended.
    Closed {
        /// The booking.
        key: u64,
        /// Whether the worker failed it.
        failed: bool,
    },
    /// The worker's cache was lost, for the `epoch`th time.
    Cleared {
        /// The worker.
        worker: u32,
        /// How often by now.
        epoch: u64,
    },
    /// A worker served prefixes that end with messages, sent as their keys alone.
    Learned {
        /// The model.
        pool: u32,
        /// Which of the model's rules learned it.
        part: u32,
        /// The worker.
        worker: u32,
        /// How long ago.
        age_ms: u64,
        /// The prefixes, never none.
        keys: Keys<'a>,
    },
    /// Somebody's last word on a worker, which any router may pass on.
    Stated {
        /// The worker's name.
        name: &'a str,
        /// When it was said.
        version: Version,
        /// A [`Word`] as bytes.
        word: &'a [u8],
    },
}

/// The functions that write and read entries, of a table of their bytes: a tag, then the fields by the methods of
/// [`Out`] and [`Bytes`] that are named. A field behind `;` follows from the tag.
macro_rules! layout {
    ($($tag:literal => $name:ident { $($field:ident: $part:ident),* $(; $fixed:ident: $value:tt)? })*) => {
        /// Appends an entry. A chain is given as it is kept, since bytes of it are what entries are read from.
        pub fn put(out: &mut Vec<u8>, entry: Entry<'_>, chain: &[SequenceHash]) {
            let mut out = Out { bytes: out, chain };
            match entry {
                $(Entry::$name { $($field,)* $($fixed: $value)? } => {
                    out.bytes.push($tag);
                    $(out.$part($field);)*
                })*
            }
        }

        fn read<'a>(bytes: &mut Bytes<'a>) -> Result<Entry<'a>> {
            Ok(match bytes.byte()? {
                $($tag => Entry::$name { $($field: bytes.$part()?,)* $($fixed: $value)? },)*
                other => return Err(Error::BadMessage(format!("unknown entry {other}"))),
            })
        }
    };
}

layout! {
    1 => Pool { index: small, fingerprint: word }
    2 => Worker { index: small, epoch: number, name: text }
    3 => Booked { key: number, pool: small, worker: small, prompt_tokens: number, prefill_tokens: number }
    5 => Placed { key: number, pool: small, worker: small, chain: chain; anchor: None }
    4 => Placed { key: number, pool: small, worker: small, anchor: anchor, chain: chain }
    6 => FirstToken { key: number }
    7 => Closed { key: number; failed: false }
    8 => Closed { key: number; failed: true }
    9 => Cleared { worker: small, epoch: number }
    10 => Learned { pool: small, part: small, worker: small, age_ms: number, keys: keys }
    11 => Stated { name: text, version: version, word: last_word }
    12 => Resumed { pool: small, worker: small, blocks: chain }
}

/// Where entries are written, and the beginning of their chain.
struct Out<'a> {
    bytes: &'a mut Vec<u8>,
    chain: &'a [SequenceHash],
}

impl Out<'_> {
    fn number(&mut self, number: u64) {
        put_number(self.bytes, number);
    }

    fn small(&mut self, number: u32) {
        self.number(number.into());
    }

    fn word(&mut self, word: u64) {
        self.bytes.extend_from_slice(&word.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        put_text(self.bytes, text);
    }

    fn anchor(&mut self, anchor: Option<SequenceHash>) {
        if let Some(anchor) = anchor {
            self.word(anchor.0);
        }
    }

    fn chain(&mut self, read: Chain<'_>) {
        self.number((self.chain.len() + read.len()) as u64);
        for hash in self.chain.iter().copied().chain(read.iter()) {
            self.word(hash.0);
        }
    }

    fn keys(&mut self, keys: Keys<'_>) {
        self.number(keys.0.len() as u64);
        self.bytes.extend_from_slice(keys.0.as_flattened());
    }

    fn version(&mut self, version: Version) {
        self.number(version.counter);
        self.word(version.origin);
    }

    fn last_word(&mut self, word: &[u8]) {
        self.bytes.extend_from_slice(word);
    }
}

impl<'a> Bytes<'a> {
    fn anchor(&mut self) -> Result<Option<SequenceHash>> {
        Ok(Some(SequenceHash(self.word()?)))
    }

    fn chain(&mut self) -> Result<Chain<'a>> {
        let hashes = self.items()?;
        if hashes.is_empty() {
            return Err(Error::BadMessage("an entry on blocks has none".into()));
        }
        Ok(Chain(hashes))
    }

    fn keys(&mut self) -> Result<Keys<'a>> {
        let keys = Keys(self.items()?);
        if keys.0.is_empty() || keys.iter().any(|(_, depth)| depth == 0) {
            return Err(Error::BadMessage("a route has no blocks".into()));
        }
        Ok(keys)
    }

    fn version(&mut self) -> Result<Version> {
        Ok(Version {
            counter: self.number()?,
            origin: self.word()?,
        })
    }

    /// The bytes of a word, which can be read.
    fn last_word(&mut self) -> Result<&'a [u8]> {
        let before = self.0;
        Word::read(self)?;
        Ok(&before[..before.len() - self.0.len()])
    }
}

/// Entries read one by one; ends after the first that cannot be read.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    bytes: Bytes<'a>,
}

impl<'a> Entries<'a> {
    /// Those in `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes: Bytes(bytes),
        }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.0.is_empty() {
            return None;
        }
        let entry = read(&mut self.bytes);
        if entry.is_err() {
            self.bytes.0 = &[];
        }
        Some(entry)
    }
}

#[cfg(test)]
#[path = "tests/entries.rs"]
mod tests;
