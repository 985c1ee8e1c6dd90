//! Entries as bytes: a tag, numbers of seven bits per byte, hashes as eight bytes.

use crate::error::{Error, Result};
use crate::ids::SequenceHash;

/// Hashes of one entry, still in the bytes they came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chain<'a>(&'a [[u8; 8]]);

impl<'a> Chain<'a> {
    /// How many.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The hashes, from the root's side on.
    pub fn iter(self) -> impl Iterator<Item = SequenceHash> + 'a {
        self.0
            .iter()
            .map(|bytes| SequenceHash(u64::from_le_bytes(*bytes)))
    }
}

/// One thing that happened at the router that says so. It numbers models and workers itself and names each before its
/// first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry<'a> {
    /// From here on, `index` is the model whose blocks are cut and hashed as `fingerprint` says.
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

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends an entry. A chain is given as it is kept, since bytes of it are what entries are read from.
pub fn put(out: &mut Vec<u8>, entry: Entry<'_>, chain: &[SequenceHash]) {
    match entry {
        Entry::Pool { index, fingerprint } => {
            out.push(POOL);
            number(out, index.into());
            out.extend_from_slice(&fingerprint.to_le_bytes());
        }
        Entry::Worker { index, epoch, name } => {
            out.push(WORKER);
            number(out, index.into());
            number(out, epoch);
            number(out, name.len() as u64);
            out.extend_from_slice(name.as_bytes());
        }
        Entry::Booked {
            key,
            pool,
            worker,
            prompt_tokens,
            prefill_tokens,
        } => {
            out.push(BOOKED);
            for value in [
                key,
                pool.into(),
                worker.into(),
                prompt_tokens,
                prefill_tokens,
            ] {
                number(out, value);
            }
        }
        Entry::Placed {
            key,
            pool,
            worker,
            anchor,
            chain: read,
        } => {
            out.push(if anchor.is_some() { PLACED } else { ROOTED });
            number(out, key);
            number(out, pool.into());
            number(out, worker.into());
            if let Some(anchor) = anchor {
                out.extend_from_slice(&anchor.0.to_le_bytes());
            }
            number(out, (chain.len() + read.len()) as u64);
            for hash in chain.iter().copied().chain(read.iter()) {
                out.extend_from_slice(&hash.0.to_le_bytes());
            }
        }
        Entry::FirstToken { key } => {
            out.push(FIRST);
            number(out, key);
        }
        Entry::Closed { key, failed } => {
            out.push(if failed { FAILED } else { CLOSED });
            number(out, key);
        }
        Entry::Cleared { worker, epoch } => {
            out.push(CLEARED);
            number(out, worker.into());
            number(out, epoch);
        }
    }
}

/// Entries read one by one; ends after the first that cannot be read.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    bytes: &'a [u8],
}

impl<'a> Entries<'a> {
    /// Those in `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.bytes.split_first().ok_or_else(cut_off)?;
        self.bytes = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Error::BadMessage("a number is out of range".into()))
    }

    fn small(&mut self) -> Result<u32> {
        let value = self.number()?;
        u32::try_from(value)
            .map_err(|_| Error::BadMessage(format!("{value} is no number of a worker or model")))
    }

    fn word(&mut self) -> Result<u64> {
        let (head, rest) = self.bytes.split_first_chunk().ok_or_else(cut_off)?;
        self.bytes = rest;
        Ok(u64::from_le_bytes(*head))
    }

    fn text(&mut self) -> Result<&'a str> {
        let length = self.number()?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (text, rest) = self.bytes.split_at_checked(length).ok_or_else(cut_off)?;
        self.bytes = rest;
        std::str::from_utf8(text)
            .map_err(|_| Error::BadMessage("the name of a worker is not UTF-8".into()))
    }

    fn chain(&mut self) -> Result<Chain<'a>> {
        let count = self.number()?;
        let (hashes, _) = self.bytes.as_chunks();
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let hashes = hashes.get(..count).ok_or_else(cut_off)?;
        if hashes.is_empty() {
            return Err(Error::BadMessage("a placement has no blocks".into()));
        }
        self.bytes = &self.bytes[8 * count..];
        Ok(Chain(hashes))
    }

    fn read(&mut self) -> Result<Entry<'a>> {
        Ok(match self.byte()? {
            POOL => Entry::Pool {
                index: self.small()?,
                fingerprint: self.word()?,
            },
            WORKER => Entry::Worker {
                index: self.small()?,
                epoch: self.number()?,
                name: self.text()?,
            },
            BOOKED => Entry::Booked {
                key: self.number()?,
                pool: self.small()?,
                worker: self.small()?,
                prompt_tokens: self.number()?,
                prefill_tokens: self.number()?,
            },
            tag @ (PLACED | ROOTED) => Entry::Placed {
                key: self.number()?,
                pool: self.small()?,
                worker: self.small()?,
                anchor: match tag {
                    PLACED => Some(SequenceHash(self.word()?)),
                    _ => None,
                },
                chain: self.chain()?,
            },
            FIRST => Entry::FirstToken {
                key: self.number()?,
            },
            tag @ (CLOSED | FAILED) => Entry::Closed {
                key: self.number()?,
                failed: tag == FAILED,
            },
            CLEARED => Entry::Cleared {
                worker: self.small()?,
                epoch: self.number()?,
            },
            other => return Err(Error::BadMessage(format!("unknown entry {other}"))),
        })
    }
}

fn cut_off() -> Error {
    Error::BadMessage("it ends within an entry".into())
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let entry = self.read();
        if entry.is_err() {
            self.bytes = &[];
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries() -> impl Strategy<Value = (Entry<'static>, Vec<SequenceHash>)> {
        let hash = any::<u64>().prop_map(SequenceHash);
        let empty = Chain(&[]);
        prop_oneof![
            (any::<u32>(), any::<u64>())
                .prop_map(|(index, fingerprint)| (Entry::Pool { index, fingerprint }, vec![])),
            (any::<u32>(), any::<u64>()).prop_map(|(index, epoch)| (
                Entry::Worker {
                    index,
                    epoch,
                    name: "gpu-ä"
                },
                vec![]
            )),
            (
                any::<u64>(),
                0..9_u32,
                0..300_u32,
                any::<u64>(),
                any::<u64>()
            )
                .prop_map(|(key, pool, worker, prompt_tokens, prefill_tokens)| (
                    Entry::Booked {
                        key,
                        pool,
                        worker,
                        prompt_tokens,
                        prefill_tokens
                    },
                    vec![]
                )),
            (
                any::<u64>(),
                any::<u32>(),
                proptest::option::of(hash),
                proptest::collection::vec(any::<u64>().prop_map(SequenceHash), 1..40)
            )
                .prop_map(move |(key, worker, anchor, chain)| (
                    Entry::Placed {
                        key,
                        pool: 0,
                        worker,
                        anchor,
                        chain: empty
                    },
                    chain
                )),
            (any::<u64>(), any::<bool>()).prop_map(|(key, failed)| if failed {
                (Entry::FirstToken { key }, vec![])
            } else {
                (Entry::Closed { key, failed: true }, vec![])
            }),
            any::<u64>().prop_map(|epoch| (Entry::Cleared { worker: 7, epoch }, vec![])),
        ]
    }

    /// The entry with the chain in it, comparable.
    fn plain(entry: Entry<'_>) -> (String, Vec<SequenceHash>) {
        match entry {
            Entry::Placed { chain, .. } => {
                let bare = match entry {
                    Entry::Placed {
                        key,
                        pool,
                        worker,
                        anchor,
                        ..
                    } => format!("{key} {pool} {worker} {anchor:?}"),
                    _ => String::new(),
                };
                (bare, chain.iter().collect())
            }
            other => (format!("{other:?}"), vec![]),
        }
    }

    proptest! {
        #[test]
        fn entries_come_back_and_cut_ones_are_refused(
            all in proptest::collection::vec(entries(), 0..20),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            let mut ends = vec![0];
            for (entry, chain) in &all {
                put(&mut bytes, *entry, chain);
                ends.push(bytes.len());
            }
            let read: Vec<_> = Entries::new(&bytes).map(|e| plain(e.unwrap())).collect();
            prop_assert_eq!(read.len(), all.len());
            for ((entry, chain), read) in all.iter().zip(read) {
                let mut expected = plain(*entry);
                expected.1.clone_from(chain);
                prop_assert_eq!(expected, read);
            }
            let cut = cut.index(bytes.len() + 1);
            let broken = Entries::new(&bytes[..cut]).any(|entry| entry.is_err());
            prop_assert_eq!(broken, !ends.contains(&cut));
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let read = Entries::new(&bytes).count();
            prop_assert!(read <= bytes.len());
        }
    }
}
