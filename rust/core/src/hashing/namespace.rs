//! Namespaces separate the prompts of one adapter, cache salt or model from all others.
//!
//! Adapter, salt and model are chosen by clients, who must not find two that share a namespace. So a namespace is 128 bits
//! of SipHash-2-4 under a key, over tag, length and bytes of every part. Without a key it is Dynamo's published rule:
//! equal everywhere, and easily forged, as its parts are added.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

use siphasher::sip128::{Hasher128, SipHasher24};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::chained::Seeds;
use crate::ids::SequenceHash;

/// Names whose prompts are kept apart; an empty one counts as absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity<'a> {
    /// The `LoRA` adapter.
    pub lora: Option<&'a str>,
    /// The cache salt.
    pub salt: Option<&'a str>,
    /// One of several models that share an index.
    pub model: Option<&'a str>,
    /// Other input of an engine beside the prompt, such as a digest of images.
    pub beside: Option<&'a str>,
}

impl<'a> Identity<'a> {
    /// The parts that are there, each with its tag.
    fn parts(self) -> impl Iterator<Item = (u8, &'a str)> {
        let parts = [self.lora, self.salt, self.model, self.beside];
        (0..)
            .zip(parts)
            .filter_map(|(tag, part)| Some((tag, part.filter(|text| !text.is_empty())?)))
    }
}

/// First hashed byte for a tag, which no part of an [`Identity`] has.
const NAMES: u8 = 0xff;
/// First hashed byte for a session.
const SESSIONS: u8 = 0xfe;
/// First hashed byte for the names in a capture.
const CAPTURES: u8 = 0xfd;

/// A key of namespaces that only its owners can compute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NamespaceKey([u8; 16]);

impl NamespaceKey {
    /// A key of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The key of this process, drawn at its first use.
    #[must_use]
    pub fn of_process() -> Self {
        static KEY: LazyLock<u128> = LazyLock::new(|| {
            let random = RandomState::new();
            u128::from(random.hash_one(0)) << 64 | u128::from(random.hash_one(1))
        });
        Self(KEY.to_le_bytes())
    }

    /// The key of a session that these parts name; those that are absent differ from empty ones.
    #[must_use]
    pub fn session(self, parts: &[Option<&str>]) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&[SESSIONS]);
        for part in parts {
            let length = part.map_or(u64::MAX, |text| text.len() as u64);
            hasher.write(&length.to_le_bytes());
            hasher.write(part.unwrap_or_default().as_bytes());
        }
        let hash = hasher.finish128();
        (u128::from(hash.h2) << 64 | u128::from(hash.h1)).to_le_bytes()
    }

    /// A tag of a text that is no namespace, of 64 bits.
    #[must_use]
    pub fn tag(self, seed: u64, text: &str) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&[NAMES]);
        hasher.write(&seed.to_le_bytes());
        hasher.write(text.as_bytes());
        hasher.finish128().h1
    }

    /// A name for something of a kind, of 64 bits.
    #[must_use]
    pub fn name(self, kind: u8, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&[CAPTURES, kind]);
        hasher.write(bytes);
        hasher.finish128().h1
    }

    /// Other names of prefixes, which cannot be compared with those under another key: one for every `step` blocks, each
    /// of these blocks and all before them.
    #[must_use]
    pub fn rename(self, blocks: &[SequenceHash], step: usize) -> Vec<u64> {
        let mut before = 0;
        let links = blocks.chunks_exact(step.max(1)).map(|link| {
            let mut hasher = SipHasher24::new_with_key(&self.0);
            hasher.write_u64(before);
            for block in link {
                hasher.write_u64(block.0);
            }
            before = hasher.finish128().h1;
            before
        });
        links.collect()
    }
}

impl fmt::Debug for NamespaceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NamespaceKey(..)")
    }
}

/// Moves the seeds of hashes: the lower half those of blocks, the upper half those of chains.
///
/// The default namespace is that of the base model without a salt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Namespace {
    block: u64,
    chain: u64,
}

impl Namespace {
    /// Namespace of an adapter name and a salt by the published rule, see [`Self::of`].
    #[must_use]
    pub fn new(lora: Option<&str>, salt: Option<&str>) -> Self {
        let identity = Identity {
            lora,
            salt,
            ..Identity::default()
        };
        Self::of(None, identity)
    }

    /// Namespace under a key, or for `None` by the published rule.
    #[must_use]
    pub fn of(key: Option<NamespaceKey>, identity: Identity<'_>) -> Self {
        if identity.parts().next().is_none() {
            return Self::default();
        }
        let Some(key) = key else {
            let part = |(tag, text): (u8, &str)| xxh3_64_with_seed(text.as_bytes(), tag.into());
            return Self {
                block: identity.parts().map(part).fold(0, u64::wrapping_add),
                chain: 0,
            };
        };
        let mut hasher = SipHasher24::new_with_key(&key.0);
        for (tag, text) in identity.parts() {
            hasher.write(&[tag]);
            hasher.write(&(text.len() as u64).to_le_bytes());
            hasher.write(text.as_bytes());
        }
        let hash = hasher.finish128();
        Self {
            block: hash.h1,
            chain: hash.h2,
        }
    }

    /// The namespace that stands for another one under a number.
    pub(super) fn numbered(number: u32) -> Self {
        Self {
            block: number.into(),
            chain: 0,
        }
    }

    /// The number that [`super::Spaces`] gave it; of another namespace, it means nothing.
    #[must_use]
    pub fn number(self) -> u32 {
        self.block as u32
    }

    /// Seeds of the hashes in this namespace.
    #[must_use]
    pub(super) fn seeds(self, seed: u64) -> Seeds {
        Seeds {
            block: seed.wrapping_add(self.block),
            chain: seed.wrapping_add(self.chain),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    const KEY: Option<NamespaceKey> = Some(NamespaceKey([7; 16]));

    fn of<'a>(
        key: Option<NamespaceKey>,
        lora: &'a str,
        salt: &'a str,
        model: &'a str,
    ) -> (u64, u64) {
        let identity = Identity {
            lora: Some(lora),
            salt: Some(salt),
            model: Some(model),
            ..Identity::default()
        };
        let namespace = Namespace::of(key, identity);
        (namespace.block, namespace.chain)
    }

    /// Computed with another implementation, which agrees with the vectors of the reference. Old vectors never change:
    /// routers that share state agree on them.
    #[test]
    fn a_keyed_namespace_is_siphash_over_tag_length_and_bytes() {
        let salted = (0x50ea_f99d_24ed_1b4d, 0x9df1_e110_a589_81c2);
        assert_eq!(of(KEY, "", "tenant-1", ""), salted);
        let whole = (0x0cd5_a900_e16f_a8a2, 0x2139_ac70_2a50_9446);
        assert_eq!(of(KEY, "adapter-a", "tenant-1", "llama"), whole);
        assert_eq!(of(KEY, "", "", ""), (0, 0), "the default one has no key");
    }

    #[test]
    fn parts_neither_run_into_each_other_nor_stand_for_each_other() {
        let names = ["", "a", "b", "ab", "abc", "bc", "c", "\0", "a\0"];
        let mut seen = HashMap::new();
        for lora in names {
            for salt in names {
                for model in names {
                    let before = seen.insert(of(KEY, lora, salt, model), (lora, salt, model));
                    assert_eq!(before, None, "{lora:?} {salt:?} {model:?}");
                }
            }
        }
        let other = Some(NamespaceKey([8; 16]));
        assert_ne!(of(KEY, "a", "", ""), of(other, "a", "", ""));
    }

    #[test]
    fn the_key_of_the_process_stays_and_is_not_shown() {
        let key = NamespaceKey::of_process();
        assert_eq!(key, NamespaceKey::of_process());
        assert_ne!(key.0, [0; 16]);
        assert_eq!(format!("{key:?}"), "NamespaceKey(..)");
    }

    proptest! {
        /// Three of four namespaces, two adapters by two salts, never give the fourth: neither by sums nor by exclusive
        /// ors, in either half. By the published rule sums always do.
        #[test]
        fn no_namespace_follows_from_others(
            a in "[a-z]{1,12}", b in "[A-Z]{1,12}", s in "[a-z]{1,12}", t in "[A-Z]{1,12}", key: [u8; 16],
        ) {
            let square = |key| [(&a, &s), (&b, &s), (&a, &t), (&b, &t)].map(|(x, y)| [of(key, x, y, ""), of(key, "", x, y)]);
            let [aa, ba, at, bt] = square(None).map(|both| both[0].0);
            prop_assert_eq!(ba.wrapping_sub(aa), bt.wrapping_sub(at));
            let keyed = square(Some(NamespaceKey(key)));
            for way in 0..2 {
                let halves = [keyed.map(|both| both[way].0), keyed.map(|both| both[way].1)];
                for [aa, ba, at, bt] in halves {
                    prop_assert_ne!(ba.wrapping_sub(aa), bt.wrapping_sub(at));
                    prop_assert_ne!(ba ^ aa, bt ^ at);
                    prop_assert_ne!(ba.wrapping_sub(at), aa.wrapping_sub(bt));
                }
            }
        }
    }

    /// Namespaces cut to 16 bits, and lists of names that the attacker may combine: one of 2^8 adapters with one of 2^8
    /// models reaches any of 2^16 values by the published rule, whose sums are found by sorting, without a question to
    /// the router. With a key, pairs that cancel for one salt are worth no more than chance for another.
    #[test]
    fn a_birthday_search_over_parts_finds_nothing_with_a_key() {
        let names = |kind: &str| (0..256).map(|i| format!("{kind}{i}")).collect::<Vec<_>>();
        let (adapters, models) = (names("adapter"), names("model"));
        let cut = |namespace: (u64, u64)| namespace.0 as u16;
        // The parts alone, which the attacker can compute or was shown, and the victim's salt.
        let forged = |key: Option<NamespaceKey>| {
            let victim = cut(of(key, "", "victim", ""));
            let own = cut(of(key, "", "mine", ""));
            let by_model: HashMap<u16, &String> = models
                .iter()
                .map(|model| (cut(of(key, "", "", model)), model))
                .collect();
            let wanted = |adapter: &String| {
                let part = cut(of(key, adapter, "", ""));
                by_model.get(&victim.wrapping_sub(own).wrapping_sub(part))
            };
            let pairs = adapters.iter().filter_map(|a| Some((a, *wanted(a)?)));
            let pairs: Vec<_> = pairs.collect();
            let hits = pairs
                .iter()
                .filter(|(adapter, model)| cut(of(key, adapter, "mine", model)) == victim);
            (pairs.len(), hits.count())
        };
        let (found, worked) = forged(None);
        assert!(found > 0);
        assert_eq!(worked, found, "every sum that was found is a forgery");
        let keyed = (0..32).map(|key| forged(Some(NamespaceKey([key; 16]))));
        let (found, worked) = keyed.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        assert!(
            found >= 16 && worked <= 1,
            "{worked} of {found} guesses at 16 bits"
        );
        let all: HashSet<u16> = adapters.iter().map(|a| cut(of(KEY, a, "", ""))).collect();
        assert!(all.len() > 240, "halves look random");
    }
}
