//! Tokens and text as a tree takes them: not hashed, one unit each, in the lower half of the place of a hash.
//!
//! The upper half is the number of the namespace ([`super::Spaces`]), so that prompts that begin alike under two
//! adapters have nothing in common; its last bit is set for text, which becomes units of [`UNIT_BYTES`] bytes, about a
//! token.

use super::{MmObject, Namespace, distinguish};
use crate::ids::SequenceHash;

/// Bytes of text in a unit.
pub const UNIT_BYTES: usize = 4;

fn unit(space: u32, value: u32) -> SequenceHash {
    SequenceHash(u64::from(space) << 32 | u64::from(value))
}

/// Writes one unit per token to `out`.
pub(super) fn widen(
    tokens: &[u32],
    namespace: Namespace,
    mm: &[MmObject],
    out: &mut [SequenceHash],
) {
    let space = namespace.number() << 1;
    if mm.is_empty() {
        for (token, slot) in tokens.iter().zip(out) {
            *slot = unit(space, *token);
        }
        return;
    }
    let mut tokens = tokens.to_vec();
    distinguish(&mut tokens, mm);
    widen(&tokens, namespace, &[], out);
}

/// Replaces the content of `out` with the units of `text`; a tail that fills none is left out.
pub(super) fn widen_text(text: &[u8], namespace: Namespace, out: &mut Vec<SequenceHash>) {
    let space = namespace.number() << 1 | 1;
    out.clear();
    out.extend(
        text.as_chunks::<UNIT_BYTES>()
            .0
            .iter()
            .map(|bytes| unit(space, u32::from_le_bytes(*bytes))),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashing::{Hasher, Scheme, Spaces};

    fn units(tokens: &[u32], namespace: Namespace, mm: &[MmObject]) -> Vec<u64> {
        let hasher = Hasher::new(Scheme::Units, 1, 7).unwrap();
        let mut out = vec![SequenceHash(9); 3];
        hasher.hash(tokens, namespace, mm, &mut out);
        out.into_iter().map(|unit| unit.0).collect()
    }

    #[test]
    fn a_token_is_its_own_unit() {
        let plain = Namespace::default();
        assert_eq!(units(&[5, 0, u32::MAX], plain, &[]), [5, 0, 0xffff_ffff]);
        assert_eq!(units(&[], plain, &[]), []);
        assert!(Hasher::new(Scheme::Units, 16, 7).is_err());
    }

    #[test]
    fn namespaces_text_and_objects_are_kept_apart() {
        let salted = Spaces::default().number(Namespace::new(None, Some("s")));
        let salted = salted.unwrap();
        let (plain, other) = (
            units(&[5], Namespace::default(), &[]),
            units(&[5], salted, &[]),
        );
        assert_eq!((plain[0] as u32, other[0] as u32), (5, 5));
        assert_ne!(plain[0] >> 32, other[0] >> 32);
        let mut text = Vec::new();
        let hasher = Hasher::new(Scheme::Units, 1, 7).unwrap();
        hasher.hash_text(b"\x05\0\0\0ab", 4, Namespace::default(), &mut text);
        assert_eq!(text.len(), 1, "the tail fills no unit");
        assert_eq!(text[0].0 as u32, 5);
        assert_ne!(text[0].0, plain[0]);
        let image = |hash| MmObject {
            hash,
            start: 1,
            len: 2,
        };
        let with = |hash| units(&[1, 8, 8, 3], Namespace::default(), &[image(hash)]);
        let (one, two) = (with(1), with(2));
        assert_eq!((one[0], one[3]), (1, 3));
        assert!(one[1] == one[2] && one[1] != 8 && one[1] != two[1]);
    }
}
