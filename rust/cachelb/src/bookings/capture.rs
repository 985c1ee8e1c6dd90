//! The prompts of the latest decisions as block hashes, kept until they are read, while a capture runs.
//!
//! Hashes are copied as selections have them, and renamed under the key of the capture by the reader, so that
//! a selection pays for a copy only. Prompts that do not fit are counted and left out.

use cachelb_core::hashing::NamespaceKey;
use cachelb_core::ids::SequenceHash;

use crate::request::{Request, Wanted};

/// Tokens that a block of a capture has at least: trees have blocks of one.
const LEAST_TOKENS: u32 = 16;

/// The prompt of one decision.
#[derive(Debug)]
pub struct Captured {
    /// Number of the decision.
    pub number: u64,
    /// Length of the prompt, as its blocks count it.
    pub units: u64,
    /// Tokens per block of `hashes`.
    block_size: u32,
    hashes: Box<[SequenceHash]>,
    session: Box<[u8]>,
    tenant: u64,
}

/// A captured prompt renamed under the key of the capture.
#[derive(Debug, PartialEq, Eq)]
pub struct Renamed {
    /// Tokens per block.
    pub block_size: u32,
    /// One for each full block.
    pub blocks: Vec<u64>,
    /// The conversation, if it has a name.
    pub session: Option<u64>,
    /// The tenant, if there is one.
    pub tenant: Option<u64>,
}

impl Captured {
    /// Names of blocks, conversation and tenant under `key`.
    #[must_use]
    pub fn renamed(&self, key: NamespaceKey) -> Renamed {
        let step = LEAST_TOKENS.div_ceil(self.block_size);
        let name = |kind: u8, bytes: &[u8]| key.name(kind, bytes);
        Renamed {
            block_size: self.block_size * step,
            blocks: key.rename(&self.hashes, step as usize),
            session: (!self.session.is_empty()).then(|| name(0, &self.session)),
            tenant: (self.tenant != 0).then(|| name(1, &self.tenant.to_le_bytes())),
        }
    }
}

/// Prompts that wait to be read.
#[derive(Debug)]
pub struct Capture {
    /// Its key.
    pub key: NamespaceKey,
    waiting: Vec<Captured>,
    /// Bytes that the waiting prompts take.
    pub(crate) bytes: usize,
    max_bytes: usize,
    missed: u64,
}

impl Capture {
    /// Keeps at most so many bytes.
    #[must_use]
    pub fn new(key: NamespaceKey, max_bytes: usize) -> Self {
        Self {
            key,
            waiting: Vec::new(),
            bytes: 0,
            max_bytes,
            missed: 0,
        }
    }

    /// The waiting prompts, and how many were left out since the last time.
    pub fn take(&mut self) -> (Vec<Captured>, u64) {
        self.bytes = 0;
        let waiting = std::mem::take(&mut self.waiting);
        (waiting, std::mem::take(&mut self.missed))
    }

    /// Keeps the prompt of a decision that was booked. For a pair that is the prompt of the decode half.
    pub(crate) fn add(&mut self, request: &Request<'_>, block_size: u32) {
        if request.wanted == Wanted::Prefill {
            return;
        }
        let hashes = request.blocks.map_or(&[][..], |(hashes, _)| hashes);
        let family = request.family.and_then(|family| family.own);
        let named = request.key.filter(|_| request.key_is_session);
        let session = family.as_ref().map(|own| &own[..]).or(named);
        let session = session.unwrap_or_default();
        let bytes = size_of::<Captured>() + size_of_val(hashes) + session.len();
        if self.bytes + bytes > self.max_bytes {
            self.missed += 1;
            return;
        }
        self.bytes += bytes;
        self.waiting.push(Captured {
            number: request.number,
            units: match request.prompt_units {
                0 => request.prompt_tokens,
                units => units,
            },
            block_size,
            hashes: hashes.into(),
            session: session.into(),
            tenant: request.passage.map_or(0, |passage| passage.tenant.0),
        });
    }
}

#[cfg(test)]
mod tests {
    use cachelb_core::block_tracker::Origin;
    use proptest::prelude::*;

    use super::*;

    const KEY: NamespaceKey = NamespaceKey::new([1; 16]);

    fn captured(hashes: &[SequenceHash], block_size: u32) -> Captured {
        let mut capture = Capture::new(KEY, usize::MAX);
        let request = Request {
            blocks: Some((hashes, Origin::Tokens)),
            ..Request::default()
        };
        capture.add(&request, block_size);
        capture.take().0.remove(0)
    }

    proptest! {
        /// Blocks of few values, so that prompts share prefixes, and equal blocks follow different ones.
        #[test]
        fn equal_names_are_equal_prefixes_of_one_key(
            a in prop::collection::vec(0..2_u64, 0..40), b in prop::collection::vec(0..2_u64, 0..40),
            block_size in 1..20_u32, key: [u8; 16], other: [u8; 16],
        ) {
            let [a, b] = [a, b].map(|blocks| blocks.into_iter().map(SequenceHash).collect::<Vec<_>>());
            let (key, other) = (NamespaceKey::new(key), NamespaceKey::new(other));
            let step = LEAST_TOKENS.div_ceil(block_size) as usize;
            let [of_a, of_b] = [&a, &b].map(|blocks| captured(blocks, block_size).renamed(key).blocks);
            prop_assert_eq!(of_a.len(), a.len() / step);
            for (at, (one, two)) in of_a.iter().zip(&of_b).enumerate() {
                let end = (at + 1) * step;
                prop_assert_eq!(one == two, a[..end] == b[..end]);
            }
            let elsewhere = captured(&a, block_size).renamed(other).blocks;
            prop_assert!(key == other || of_a.iter().all(|name| !elsewhere.contains(name)));
        }
    }

    #[test]
    fn prompts_beyond_the_bytes_are_counted_and_room_comes_back_with_a_reading() {
        let hashes = [SequenceHash(1); 100];
        let request = Request {
            blocks: Some((&hashes, Origin::Tokens)),
            ..Request::default()
        };
        let mut capture = Capture::new(KEY, 2_000);
        for _ in 0..2 {
            (0..5).for_each(|_| capture.add(&request, 16));
            assert!(capture.bytes <= 2_000);
            let (taken, missed) = capture.take();
            assert_eq!((taken.len(), missed), (2, 3));
        }
    }

    #[test]
    fn a_session_is_never_kept_as_it_is_and_differs_from_a_tenant() {
        let request = Request {
            key: Some(&[7, 0, 0, 0, 0, 0, 0, 0]),
            key_is_session: true,
            passage: Some(crate::selector::Passage {
                tenant: crate::selector::Tenant(7),
                ..crate::selector::Passage::default()
            }),
            ..Request::default()
        };
        let mut capture = Capture::new(KEY, usize::MAX);
        capture.add(&request, 16);
        let renamed = capture.take().0[0].renamed(KEY);
        assert!(renamed.session.is_some() && renamed.session != Some(7));
        assert_ne!(renamed.session, renamed.tenant);
        capture.add(&Request::default(), 16);
        let renamed = capture.take().0[0].renamed(KEY);
        assert_eq!((renamed.session, renamed.tenant), (None, None));
    }
}
