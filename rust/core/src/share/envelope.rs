//! A message: whose entries, which numbers they have, and whether they arrived whole.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::error::{Error, Result};
use crate::hashing::{Hasher, Namespace};

const MAGIC: &[u8; 4] = b"clbs";
const VERSION: u8 = 1;
const HEAD: usize = 4 + 1 + 1 + 8 + 8 + 4;
const CHECKSUM: usize = 8;

/// Equal for two models of two routers if equal prompts have equal hashes there. Tells nothing of the seed but by trying.
#[must_use]
pub fn fingerprint(hasher: &Hasher, model: Option<&str>) -> u64 {
    let tokens: Vec<u32> = (0..=2 * hasher.block_size() as u32).collect();
    let mut chain = Vec::new();
    hasher.hash(&tokens, Namespace::default(), &[], &mut chain);
    let sum = chain.iter().fold(hasher.scheme() as u64, |sum, hash| {
        xxh3_64_with_seed(&hash.0.to_le_bytes(), sum)
    });
    xxh3_64_with_seed(model.unwrap_or_default().as_bytes(), sum)
}

/// What a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What happened since the message before.
    Delta,
    /// All that is known: replaces what the origin said before. What happens from the number on follows in deltas.
    Snapshot,
    /// More of the same snapshot.
    Continued,
    /// All before `first` were sent. In place of entries: when, in microseconds of the sender's own clock.
    Heartbeat,
}

/// Entries of one router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// What it is for.
    pub kind: Kind,
    /// Names the router's life: another one after every start.
    pub origin: u64,
    /// Number of the first entry; of a snapshot, of the next one.
    pub first: u64,
    /// How many entries; 0 ends a snapshot.
    pub count: u32,
    /// The entries.
    pub entries: &'a [u8],
}

impl<'a> Message<'a> {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + self.entries.len() + CHECKSUM);
        out.extend_from_slice(MAGIC);
        out.push(VERSION);
        out.push(self.kind as u8);
        out.extend_from_slice(&self.origin.to_le_bytes());
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(self.entries);
        let checksum = xxh3_64(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
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
            return Err(refuse("it does not start like a message of cachelb"));
        }
        if head[4] != VERSION {
            let text = format!("its version is {}, this is {VERSION}", head[4]);
            return Err(Error::BadMessage(text));
        }
        if xxh3_64(content) != u64::from_le_bytes(*checksum) {
            return Err(refuse(
                "its checksum does not match: it is damaged or cut off",
            ));
        }
        let kind = match head[5] {
            0 => Kind::Delta,
            1 => Kind::Snapshot,
            2 => Kind::Continued,
            3 => Kind::Heartbeat,
            other => return Err(Error::BadMessage(format!("unknown kind {other}"))),
        };
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let count = (word(HEAD - 8) >> 32) as u32;
        Ok(Self {
            kind,
            origin: word(6),
            first: word(14),
            count,
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_come_back_and_damaged_ones_are_refused(
            (origin, first, count) in any::<(u64, u64, u32)>(),
            entries in proptest::collection::vec(any::<u8>(), 0..100),
            kind in prop_oneof![Just(Kind::Delta), Just(Kind::Snapshot), Just(Kind::Continued), Just(Kind::Heartbeat)],
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
}
