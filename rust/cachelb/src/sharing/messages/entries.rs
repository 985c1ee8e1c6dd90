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

const POOL: u8 = 1;
const WORKER: u8 = 2;
const BOOKED: u8 = 3;
const PLACED: u8 = 4;
const ROOTED: u8 = 5;
const FIRST: u8 = 6;
const CLOSED: u8 = 7;
const FAILED: u8 = 8;
const CLEARED: u8 = 9;
const LEARNED: u8 = 10;
const STATED: u8 = 11;
const RESUMED: u8 = 12;

fn put_chain(out: &mut Vec<u8>, chain: &[SequenceHash], read: Chain<'_>) {
    put_number(out, (chain.len() + read.len()) as u64);
    for hash in chain.iter().copied().chain(read.iter()) {
        out.extend_from_slice(&hash.0.to_le_bytes());
    }
}

/// Appends an entry. A chain is given as it is kept, since bytes of it are what entries are read from.
pub fn put(out: &mut Vec<u8>, entry: Entry<'_>, chain: &[SequenceHash]) {
    match entry {
        Entry::Pool { index, fingerprint } => {
            put_head(out, POOL, [index.into()]);
            out.extend_from_slice(&fingerprint.to_le_bytes());
        }
        Entry::Worker { index, epoch, name } => {
            put_head(out, WORKER, [index.into(), epoch]);
            put_text(out, name);
        }
        Entry::Booked {
            key,
            pool,
            worker,
            prompt_tokens,
            prefill_tokens,
        } => {
            let (pool, worker) = (pool.into(), worker.into());
            let numbers = [key, pool, worker, prompt_tokens, prefill_tokens];
            put_head(out, BOOKED, numbers);
        }
        Entry::Placed {
            key,
            pool,
            worker,
            anchor,
            chain: read,
        } => {
            let tag = if anchor.is_some() { PLACED } else { ROOTED };
            put_head(out, tag, [key, pool.into(), worker.into()]);
            if let Some(anchor) = anchor {
                out.extend_from_slice(&anchor.0.to_le_bytes());
            }
            put_chain(out, chain, read);
        }
        Entry::Resumed {
            pool,
            worker,
            blocks,
        } => {
            put_head(out, RESUMED, [pool.into(), worker.into()]);
            put_chain(out, chain, blocks);
        }
        Entry::FirstToken { key } => put_head(out, FIRST, [key]),
        Entry::Closed { key, failed } => put_head(out, if failed { FAILED } else { CLOSED }, [key]),
        Entry::Cleared { worker, epoch } => put_head(out, CLEARED, [worker.into(), epoch]),
        Entry::Learned {
            pool,
            part,
            worker,
            age_ms,
            keys,
        } => {
            let count = keys.0.len() as u64;
            let numbers = [pool.into(), part.into(), worker.into(), age_ms, count];
            put_head(out, LEARNED, numbers);
            out.extend_from_slice(keys.0.as_flattened());
        }
        Entry::Stated {
            name,
            version,
            word,
        } => {
            out.push(STATED);
            put_text(out, name);
            put_number(out, version.counter);
            out.extend_from_slice(&version.origin.to_le_bytes());
            out.extend_from_slice(word);
        }
    }
}

fn put_head<const N: usize>(out: &mut Vec<u8>, tag: u8, numbers: [u64; N]) {
    out.push(tag);
    for number in numbers {
        put_number(out, number);
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

    fn chain(&mut self) -> Result<Chain<'a>> {
        let hashes = self.bytes.items()?;
        if hashes.is_empty() {
            return Err(Error::BadMessage("an entry on blocks has none".into()));
        }
        Ok(Chain(hashes))
    }

    fn keys(&mut self) -> Result<Keys<'a>> {
        let keys = Keys(self.bytes.items()?);
        if keys.0.is_empty() || keys.iter().any(|(_, depth)| depth == 0) {
            return Err(Error::BadMessage("a route has no blocks".into()));
        }
        Ok(keys)
    }

    /// The bytes of a word, which can be read.
    fn a_word(&mut self) -> Result<&'a [u8]> {
        let before = self.bytes.0;
        Word::read(&mut self.bytes)?;
        Ok(&before[..before.len() - self.bytes.0.len()])
    }

    fn read(&mut self) -> Result<Entry<'a>> {
        let bytes = &mut self.bytes;
        Ok(match bytes.byte()? {
            POOL => Entry::Pool {
                index: bytes.small()?,
                fingerprint: bytes.word()?,
            },
            WORKER => Entry::Worker {
                index: bytes.small()?,
                epoch: bytes.number()?,
                name: bytes.text()?,
            },
            BOOKED => Entry::Booked {
                key: bytes.number()?,
                pool: bytes.small()?,
                worker: bytes.small()?,
                prompt_tokens: bytes.number()?,
                prefill_tokens: bytes.number()?,
            },
            tag @ (PLACED | ROOTED) => Entry::Placed {
                key: bytes.number()?,
                pool: bytes.small()?,
                worker: bytes.small()?,
                anchor: match tag {
                    PLACED => Some(SequenceHash(bytes.word()?)),
                    _ => None,
                },
                chain: self.chain()?,
            },
            RESUMED => Entry::Resumed {
                pool: bytes.small()?,
                worker: bytes.small()?,
                blocks: self.chain()?,
            },
            FIRST => Entry::FirstToken {
                key: bytes.number()?,
            },
            tag @ (CLOSED | FAILED) => Entry::Closed {
                key: bytes.number()?,
                failed: tag == FAILED,
            },
            CLEARED => Entry::Cleared {
                worker: bytes.small()?,
                epoch: bytes.number()?,
            },
            LEARNED => Entry::Learned {
                pool: bytes.small()?,
                part: bytes.small()?,
                worker: bytes.small()?,
                age_ms: bytes.number()?,
                keys: self.keys()?,
            },
            STATED => Entry::Stated {
                name: bytes.text()?,
                version: Version {
                    counter: bytes.number()?,
                    origin: bytes.word()?,
                },
                word: self.a_word()?,
            },
            other => return Err(Error::BadMessage(format!("unknown entry {other}"))),
        })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.0.is_empty() {
            return None;
        }
        let entry = self.read();
        if entry.is_err() {
            self.bytes.0 = &[];
        }
        Some(entry)
    }
}

#[cfg(test)]
#[path = "tests/entries.rs"]
mod tests;
