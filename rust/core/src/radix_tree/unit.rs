//! The units of a tree, and the keys of its lookups.
//!
//! A label is a stretch of stored units: the bytes of UTF-8 text, or tokens. Lengths in answers and sizes are *counted*:
//! in characters for text, in tokens otherwise. A *step* is never divided: a character, or a page of tokens.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use crate::ids::SequenceHash;

/// Most tokens of a page.
pub const MAX_PAGE_SIZE: usize = 1 << 12;

/// Element of a label.
pub trait Unit: Copy + Eq + Default + Debug + Send + Sync + 'static {
    /// Whether every stored unit is counted.
    const PLAIN: bool;

    /// Number of the kind in a snapshot.
    const KIND: u32;

    /// Appends a label to a snapshot.
    fn put(label: &[Self], out: &mut Vec<u8>);
    /// The label of these bytes, if they are one.
    fn read(bytes: &[u8]) -> Option<Vec<Self>>;
    /// As a number.
    fn word(self) -> u32;
    /// Length of a label, in counted units.
    fn count(label: &[Self]) -> usize;
    /// Stored units of the first `counted`.
    fn prefix(label: &[Self], counted: usize) -> usize;
    /// Stored units of a step that starts with this one.
    fn step(self, page: usize) -> usize;
    /// The last place up to `at` where a step of the label ends.
    fn floor(label: &[Self], at: usize, page: usize) -> usize;
    /// Stored units of the whole steps in a stretch that starts with one.
    fn whole(stretch: &[Self], page: usize) -> usize;
}

/// Whether a byte is not the first of its character.
#[inline]
fn continues(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

impl Unit for u8 {
    const PLAIN: bool = false;
    const KIND: u32 = 1;

    fn put(label: &[Self], out: &mut Vec<u8>) {
        out.extend_from_slice(label);
    }

    fn read(bytes: &[u8]) -> Option<Vec<Self>> {
        std::str::from_utf8(bytes).is_ok().then(|| bytes.to_vec())
    }

    #[inline]
    fn word(self) -> u32 {
        self.into()
    }

    fn count(label: &[Self]) -> usize {
        // Sums of a byte each, which the compiler turns into vectors.
        let firsts = |bytes: &[u8]| {
            let sum: u8 = bytes.iter().map(|byte| u8::from(!continues(*byte))).sum();
            usize::from(sum)
        };
        label.chunks(192).map(firsts).sum()
    }

    fn prefix(label: &[Self], counted: usize) -> usize {
        let (mut at, mut left) = (0, counted);
        for chunk in label.chunks(128) {
            let here = Self::count(chunk);
            if here > left {
                let mut firsts = (0..chunk.len()).filter(|i| !continues(chunk[*i]));
                return at + firsts.nth(left).unwrap_or(chunk.len());
            }
            left -= here;
            at += chunk.len();
        }
        at
    }

    #[inline]
    fn step(self, _page: usize) -> usize {
        match self {
            0..0xC0 => 1,
            0xC0..0xE0 => 2,
            0xE0..0xF0 => 3,
            0xF0.. => 4,
        }
    }

    #[inline]
    fn floor(label: &[Self], at: usize, _page: usize) -> usize {
        let mut at = at;
        while at > 0 && label.get(at).is_some_and(|byte| continues(*byte)) {
            at -= 1;
        }
        at
    }

    fn whole(stretch: &[Self], page: usize) -> usize {
        let last = stretch
            .iter()
            .rposition(|byte| !continues(*byte))
            .unwrap_or(0);
        let complete = stretch
            .get(last)
            .is_none_or(|first| last + first.step(page) <= stretch.len());
        if complete { stretch.len() } else { last }
    }
}

impl Unit for u32 {
    const PLAIN: bool = true;
    const KIND: u32 = 2;

    fn put(label: &[Self], out: &mut Vec<u8>) {
        out.extend(label.iter().flat_map(|token| token.to_le_bytes()));
    }

    fn read(bytes: &[u8]) -> Option<Vec<Self>> {
        let (tokens, rest) = bytes.as_chunks();
        let tokens = tokens.iter().map(|token| u32::from_le_bytes(*token));
        rest.is_empty().then(|| tokens.collect())
    }

    #[inline]
    fn word(self) -> u32 {
        self
    }

    #[inline]
    fn count(label: &[Self]) -> usize {
        label.len()
    }

    #[inline]
    fn prefix(label: &[Self], counted: usize) -> usize {
        counted.min(label.len())
    }

    #[inline]
    fn step(self, page: usize) -> usize {
        page
    }

    #[inline]
    fn floor(_label: &[Self], at: usize, page: usize) -> usize {
        at - at % page
    }

    #[inline]
    fn whole(stretch: &[Self], page: usize) -> usize {
        stretch.len() - stretch.len() % page
    }
}

/// The key of a lookup or an insert: a sequence of units, in any form that the caller has.
#[allow(clippy::len_without_is_empty, reason = "no caller needs it")]
pub trait Key<U> {
    /// Stored units.
    fn len(&self) -> usize;
    /// Keys of different namespaces have nothing in common.
    fn namespace(&self) -> u32 {
        0
    }
    /// One unit.
    fn unit(&self, at: usize) -> U;
    /// Leading units of `label` that equal those from `at` on.
    fn common(&self, at: usize, label: &[U]) -> usize;
    /// A stretch of it.
    fn copy(&self, range: Range<usize>) -> Arc<[U]>;
}

/// Units compared at once: as slices, which is a call of `memcmp`.
const STRIDE: usize = 256;

/// Leading items that two slices share.
fn common<T: Eq>(a: &[T], b: &[T]) -> usize {
    let most = a.len().min(b.len());
    let (a, b) = (&a[..most], &b[..most]);
    let strides = a.chunks_exact(STRIDE).zip(b.chunks_exact(STRIDE));
    let mut at = strides.take_while(|(a, b)| a == b).count() * STRIDE;
    let rest = a[at..].chunks_exact(16).zip(b[at..].chunks_exact(16));
    at += rest.take_while(|(a, b)| a == b).count() * 16;
    let rest = a[at..].iter().zip(&b[at..]);
    at + rest.take_while(|(a, b)| a == b).count()
}

impl Key<u8> for str {
    fn len(&self) -> usize {
        str::len(self)
    }

    #[inline]
    fn unit(&self, at: usize) -> u8 {
        self.as_bytes()[at]
    }

    fn common(&self, at: usize, label: &[u8]) -> usize {
        common(&self.as_bytes()[at..], label)
    }

    fn copy(&self, range: Range<usize>) -> Arc<[u8]> {
        Arc::from(&self.as_bytes()[range])
    }
}

impl Key<u32> for [u32] {
    fn len(&self) -> usize {
        <[u32]>::len(self)
    }

    #[inline]
    fn unit(&self, at: usize) -> u32 {
        self[at]
    }

    fn common(&self, at: usize, label: &[u32]) -> usize {
        common(&self[at..], label)
    }

    fn copy(&self, range: Range<usize>) -> Arc<[u32]> {
        Arc::from(&self[range])
    }
}

/// Tokens in the low halves; the high half of the first is the namespace.
impl Key<u32> for [SequenceHash] {
    fn len(&self) -> usize {
        <[SequenceHash]>::len(self)
    }

    fn namespace(&self) -> u32 {
        self.first().map_or(0, |hash| (hash.0 >> 32) as u32)
    }

    #[inline]
    fn unit(&self, at: usize) -> u32 {
        self[at].0 as u32
    }

    fn common(&self, at: usize, label: &[u32]) -> usize {
        let same = |(a, b): (&SequenceHash, &u32)| a.0 as u32 == *b;
        let rest = &self[at..];
        let pairs = rest.chunks_exact(16).zip(label.chunks_exact(16));
        // No way out of the inner loop, so that it is vectorised.
        let equal = |(a, b): (&[SequenceHash], &[u32])| {
            a.iter()
                .zip(b)
                .fold(0, |all, (a, b)| all | (a.0 as u32 ^ b))
                == 0
        };
        let whole = pairs.take_while(|pair| equal((pair.0, pair.1))).count() * 16;
        let tail = rest[whole..].iter().zip(&label[whole..]);
        whole + tail.take_while(|pair| same((pair.0, pair.1))).count()
    }

    fn copy(&self, range: Range<usize>) -> Arc<[u32]> {
        self[range].iter().map(|hash| hash.0 as u32).collect()
    }
}
