//! A message: whose entries, which numbers they have, and whether they arrived whole.

use super::bytes::Bytes;
use cachelb_core::error::{Error, Result};
use cachelb_core::hashing::{Hasher, Identity, Namespace, hash_text};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

const MAGIC: &[u8; 4] = b"clbs";
/// Rises with every change of what entries there are or what they mean: who cannot read one of them cannot know what it
/// missed, so other versions are refused as a whole.
const VERSION: u8 = 4;
const HEAD: usize = 4 + 1 + 1 + 8 + 8 + 4;
const CHECKSUM: usize = 8;

/// Equal for two models of two routers if equal prompts have equal hashes there, in every namespace. Tells nothing of
/// seed and key but by trying.
#[must_use]
pub fn fingerprint(hasher: &Hasher, model: Option<&str>) -> u64 {
    let tokens: Vec<u32> = (0..=2 * hasher.block_size() as u32).collect();
    let (mut chain, mut keyed) = (Vec::new(), Vec::new());
    hasher.hash(&tokens, Namespace::default(), &[], &mut chain);
    let namespace = hasher.namespace(Identity {
        salt: Some("fingerprint"),
        ..Identity::default()
    });
    hash_text(b"fingerprint", 4, namespace, hasher.seed(), &mut keyed);
    chain.append(&mut keyed);
    let sum = chain.iter().fold(hasher.scheme() as u64, |sum, hash| {
        xxh3_64_with_seed(&hash.0.to_le_bytes(), sum)
    });
    xxh3_64_with_seed(model.unwrap_or_default().as_bytes(), sum)
}

/// The purpose of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The events since the message before.
    Delta,
    /// The whole state: replaces what the origin sent before. Events from the number on follow in deltas.
    Snapshot,
    /// More of the same snapshot.
    Continued,
    /// The blocks that workers hold, for a router that starts later: a snapshot in one piece.
    Kept,
    /// Last words on workers, heard whenever they come, in any order: they have no numbers.
    Words,
    /// All before `first` were sent. In place of entries: when, in microseconds of the sender's own clock.
    Heartbeat,
}

/// By the byte that stands for each.
const KINDS: [Kind; 6] = {
    use Kind::{Continued, Delta, Heartbeat, Kept, Snapshot, Words};
    [Delta, Snapshot, Continued, Kept, Words, Heartbeat]
};

/// Entries of one router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its purpose.
    pub kind: Kind,
    /// Names the router's life: another one after every start.
    pub origin: u64,
    /// Number of the first entry; of a snapshot, of the next one; of what is kept, when it was, in milliseconds of
    /// 1970.
    pub first: u64,
    /// How many entries; 0 ends a snapshot. Not counted in `Kind::Kept`.
    pub count: u32,
    /// The entries.
    pub entries: &'a [u8],
}

impl<'a> Message<'a> {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + self.entries.len() + CHECKSUM);
        self.begin(&mut out);
        out.extend_from_slice(self.entries);
        let checksum = xxh3_64(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    fn begin(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        out.push(VERSION);
        out.push(self.kind as u8);
        out.extend_from_slice(&self.origin.to_le_bytes());
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`Error::BadMessage`] for anything but the unchanged bytes of a message of this version.
    pub fn decode(bytes: &'a [u8]) -> Result<Self> {
        let refuse = |why: &str| Error::BadMessage(why.into());
        let (content, checksum) = bytes
            .split_last_chunk()
            .ok_or_else(|| refuse("it is too short"))?;
        let (head, entries) = content
            .split_first_chunk::<HEAD>()
            .ok_or_else(|| refuse("it is too short"))?;
        if head[..4] != *MAGIC {
            return Err(refuse("it does not start like one of cachelb"));
        }
        if head[4] != VERSION {
            let text = format!("its version is {}, this is {VERSION}", head[4]);
            return Err(refuse(&text));
        }
        if xxh3_64(content) != u64::from_le_bytes(*checksum) {
            return Err(refuse(
                "its checksum does not match: it is damaged or cut off",
            ));
        }
        let kind = KINDS.get(usize::from(head[5])).copied();
        let kind = kind.ok_or_else(|| refuse(&format!("unknown kind {}", head[5])))?;
        let mut numbers = Bytes(&head[6..]);
        Ok(Self {
            kind,
            origin: numbers.word()?,
            first: numbers.word()?,
            count: u32::from_le_bytes([head[22], head[23], head[24], head[25]]),
            entries,
        })
    }

    /// When a heartbeat was sent, in microseconds of its sender's own clock; `None` for other messages.
    #[must_use]
    pub fn sent_us(&self) -> Option<u64> {
        let bytes = self.entries.try_into().ok()?;
        (self.kind == Kind::Heartbeat).then(|| u64::from_le_bytes(bytes))
    }
}

/// A [`Kind::Kept`] message that is written piece by piece, so that all of it is never in memory.
///
/// Before the checksum, which tells damage, it has a seal, which only a router with the same seed can make: without it
/// forged entries would be accepted, and an index relies on hashes that follow from each other.
pub struct Keeping {
    seal: Xxh3,
    sum: Xxh3,
}

impl std::fmt::Debug for Keeping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeping").finish_non_exhaustive()
    }
}

impl Keeping {
    /// Begins it, in a router with this seed; `out` gets its first bytes.
    #[must_use]
    pub fn begin(kept_ms: u64, seed: u64, out: &mut Vec<u8>) -> Self {
        let start = out.len();
        let message = Message {
            kind: Kind::Kept,
            origin: 0,
            first: kept_ms,
            count: 0,
            entries: &[],
        };
        message.begin(out);
        let key = xxh3_64_with_seed(b"seal of kept state", seed);
        let mut keeping = Self {
            seal: Xxh3::with_seed(key),
            sum: Xxh3::new(),
        };
        keeping.add(&out[start..]);
        keeping
    }

    /// Entries that follow.
    pub fn add(&mut self, entries: &[u8]) {
        self.seal.update(entries);
        self.sum.update(entries);
    }

    /// Ends it; `out` gets its last bytes.
    pub fn end(&self, out: &mut Vec<u8>) {
        let seal = self.seal.digest().to_le_bytes();
        out.extend_from_slice(&seal);
        let mut sum = self.sum.clone();
        sum.update(&seal);
        out.extend_from_slice(&sum.digest().to_le_bytes());
    }

    /// The entries of a message that was written so in a router with this seed, `None` of any other.
    #[must_use]
    pub fn open<'a>(message: &Message<'a>, seed: u64) -> Option<&'a [u8]> {
        let (entries, seal) = message.entries.split_last_chunk()?;
        let mut keeping = Self::begin(message.first, seed, &mut Vec::new());
        keeping.seal.update(entries);
        let same = keeping.seal.digest() == u64::from_le_bytes(*seal);
        // The seal covers a head with zeros there.
        let blank = message.origin == 0 && message.count == 0;
        (same && blank && message.kind == Kind::Kept).then_some(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_come_back_and_damaged_ones_are_refused(
            (origin, first, count) in any::<(u64, u64, u32)>(),
            entries in proptest::collection::vec(any::<u8>(), 0..100),
            kind in prop_oneof![
                Just(Kind::Delta),
                Just(Kind::Snapshot),
                Just(Kind::Continued),
                Just(Kind::Kept),
                Just(Kind::Words),
                Just(Kind::Heartbeat)
            ],
            (at, flip) in (any::<prop::sample::Index>(), 1..=255_u8),
        ) {
            let message = Message { kind, origin, first, count, entries: &entries };
            let mut bytes = message.encode();
            prop_assert_eq!(Message::decode(&bytes), Ok(message));
            prop_assert!(Message::decode(&bytes[..at.index(bytes.len())]).is_err());
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(Message::decode(&bytes).is_err());
        }
    }

    #[test]
    fn what_is_kept_piece_by_piece_is_a_message_with_a_seal() {
        let mut bytes = Vec::new();
        let mut keeping = Keeping::begin(77, 3, &mut bytes);
        for piece in [&b"ab"[..], b"", &[7; 1000]] {
            keeping.add(piece);
            bytes.extend_from_slice(piece);
        }
        keeping.end(&mut bytes);
        let message = Message::decode(&bytes).unwrap();
        assert_eq!(message.encode(), bytes);
        assert_eq!((message.kind, message.first), (Kind::Kept, 77));
        let entries = Keeping::open(&message, 3).unwrap();
        assert_eq!((entries.len(), &entries[..3]), (1002, &b"ab\x07"[..]));
        assert_eq!(Keeping::open(&message, 4), None);
        let first = 78;
        assert_eq!(Keeping::open(&Message { first, ..message }, 3), None);
        let origin = 1;
        assert_eq!(Keeping::open(&Message { origin, ..message }, 3), None);
        let count = 1;
        assert_eq!(Keeping::open(&Message { count, ..message }, 3), None);
        let entries = &message.entries[1..];
        assert_eq!(Keeping::open(&Message { entries, ..message }, 3), None);
        let entries = &[];
        assert_eq!(Keeping::open(&Message { entries, ..message }, 3), None);
    }

    #[test]
    fn other_versions_are_refused_by_their_number() {
        let message = Message {
            kind: Kind::Delta,
            origin: 1,
            first: 0,
            count: 0,
            entries: &[],
        };
        let mut bytes = message.encode();
        bytes[4] += 1;
        let text = format!("its version is {}, this is {VERSION}", VERSION + 1);
        assert_eq!(Message::decode(&bytes), Err(Error::BadMessage(text)));
    }
}
