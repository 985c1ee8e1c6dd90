//! The name that a worker goes by in every output: its key without credentials.
//!
//! A key is often a URL, and a URL may carry a user, a password or a token in its query. None of them is part of the
//! name, so that none can show in a header, a label, a record, a log line or a message to another router. The slash at
//! the end of a URL is dropped too: `http://gpu0/` and `http://gpu0` are one worker. A worker whose password is changed
//! keeps its name, and with it the state of its cache. Only workers of one fleet that differ in nothing but
//! credentials get a tag, [`Name::tagged`].

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use cachelb_core::hashing::{Hasher, NamespaceKey};

/// Key of the hashes in tags of names: only its owners can test a guess at the credentials.
#[derive(Debug, Clone, Copy)]
pub struct TagKey {
    key: NamespaceKey,
    seed: u64,
}

impl TagKey {
    /// The key of a router or policy with this hasher; without a secret, that of the process.
    #[must_use]
    pub fn of(hasher: &Hasher) -> Self {
        Self {
            key: hasher.key().unwrap_or_else(NamespaceKey::of_process),
            seed: hasher.seed(),
        }
    }
}

/// Display form of a worker's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name<'a> {
    /// The key without credentials.
    pub shown: Cow<'a, str>,
    /// Whether something was left out that may be secret.
    pub is_secret: bool,
}

impl<'a> Name<'a> {
    /// The name of the worker with key `raw`.
    #[must_use]
    pub fn of(raw: &'a str) -> Self {
        let bytes = raw.as_bytes();
        if !bytes.contains(&b'@') && !bytes.contains(&b'?') && bytes.last() != Some(&b'/') {
            return Self {
                shown: Cow::Borrowed(raw),
                is_secret: false,
            };
        }
        let (scheme, rest) = match raw.find("://") {
            Some(at) => raw.split_at(at + 3),
            None => ("", raw),
        };
        let login = login_length(scheme, rest);
        let end = rest[login..].find('?').map_or(rest.len(), |at| login + at);
        let is_secret = login > 0 || (!scheme.is_empty() && end < rest.len());
        let mut kept = if is_secret { &rest[login..end] } else { rest };
        if !scheme.is_empty() {
            kept = kept.trim_end_matches('/');
        }
        let shown = if login > 0 {
            Cow::Owned([scheme, kept].concat())
        } else {
            Cow::Borrowed(&raw[..scheme.len() + kept.len()])
        };
        Self { shown, is_secret }
    }

    /// The name beside another worker of the same name. The tag is 64 bits of a keyed hash of the credentials; it is a
    /// step of the path, so that what reads host and port from a name still can.
    #[must_use]
    pub fn tagged(&self, raw: &str, key: TagKey) -> String {
        let tag = key.key.tag(key.seed, whole(raw));
        format!("{}/~{tag:016x}", self.shown)
    }
}

/// A key without the slashes at the end of a URL.
#[must_use]
pub fn whole(raw: &str) -> &str {
    let begin = raw.find("://").map_or(raw.len(), |at| at + 3);
    &raw[..begin + raw[begin..].trim_end_matches('/').len()]
}

/// Bytes of user and password at the start of `rest`, with the `@`. Without a scheme there must be a `:` before the
/// `@`.
fn login_length(scheme: &str, rest: &str) -> usize {
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    if let Some(at) = authority.rfind('@') {
        let named = !scheme.is_empty() || authority[..at].contains(':');
        return if named { at + 1 } else { 0 };
    }
    // A password in which `/`, `?` or `#` were not percent-encoded cuts the authority short: the text behind the colon
    // is no port then.
    let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
    let cut = authority.len() < rest.len() && !port.ends_with(']');
    if !scheme.is_empty() && cut && !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return rest.rfind('@').map_or(0, |at| at + 1);
    }
    0
}

/// Names of the workers with keys `raws`, all there are. Keys that differ only in credentials each get a tag, but for
/// one that has the plain name already: `holder` is the key of the worker with a name. A worker that has a tag by now
/// (`known`) keeps it.
#[must_use]
pub fn names_of<'a>(
    raws: &[&'a str],
    tags: TagKey,
    known: impl Fn(&str) -> bool,
    holder: impl Fn(&str) -> Option<&'a str>,
) -> Vec<String> {
    let names: Vec<Name<'_>> = raws.iter().map(|raw| Name::of(raw)).collect();
    let (mut count, mut plain) = (HashMap::new(), HashSet::new());
    for name in &names {
        *count.entry(&*name.shown).or_insert(0_u32) += 1;
        if !name.is_secret {
            plain.insert(&*name.shown);
        }
    }
    (names.iter().zip(raws))
        .map(|(name, &raw)| {
            let shown = &*name.shown;
            if name.is_secret {
                let tagged = name.tagged(raw, tags);
                let holds = || holder(shown) == Some(raw) && !plain.contains(shown);
                if known(&tagged) || (count[shown] > 1 && !holds()) {
                    return tagged;
                }
            }
            shown.to_owned()
        })
        .collect()
}

/// The name that a worker with key `raw` goes by, among names that are `known`.
#[must_use]
pub fn resolve(raw: &str, tags: TagKey, known: impl Fn(&str) -> bool) -> String {
    let name = Name::of(raw);
    if name.is_secret {
        let tagged = name.tagged(raw, tags);
        if known(&tagged) {
            return tagged;
        }
    }
    name.shown.into_owned()
}

#[cfg(test)]
mod tests {
    use cachelb_core::hashing::Scheme;

    use super::*;

    #[test]
    fn credentials_and_the_last_slash_are_no_part_of_a_name() {
        for (raw, shown, is_secret) in [
            ("gpu0", "gpu0", false),
            ("gpu0/", "gpu0/", false),
            ("node@rack", "node@rack", false),
            ("what?", "what?", false),
            ("http://gpu0:8000", "http://gpu0:8000", false),
            ("http://gpu0:8000/", "http://gpu0:8000", false),
            ("http://gpu0:8000/v1//", "http://gpu0:8000/v1", false),
            ("http://gpu0:8000/@me/x", "http://gpu0:8000/@me/x", false),
            ("http://gpu0/@me", "http://gpu0/@me", false),
            ("http://[::1]:8000/@me/", "http://[::1]:8000/@me", false),
            ("http://[::1]/@me", "http://[::1]/@me", false),
            ("http://gpu0:8000#1", "http://gpu0:8000#1", false),
            ("http://me:secret@gpu0:8000", "http://gpu0:8000", true),
            ("http://secret@gpu0:8000/", "http://gpu0:8000", true),
            ("http://:secret@gpu0", "http://gpu0", true),
            ("http://me:se@cret@gpu0:8000", "http://gpu0:8000", true),
            ("http://me:se/cret@gpu0/v1", "http://gpu0/v1", true),
            ("http://me:se?c#ret@gpu0:8000", "http://gpu0:8000", true),
            ("http://gpu0/v1/?key=secret", "http://gpu0/v1", true),
            ("http://gpu0?key=secret@x", "http://gpu0", true),
            ("grpc://me:secret@[::1]:1?a=b#c", "grpc://[::1]:1", true),
            ("me:secret@gpu0:8000", "gpu0:8000", true),
        ] {
            let name = Name::of(raw);
            assert_eq!((&*name.shown, name.is_secret), (shown, is_secret), "{raw}");
            assert_eq!(Name::of(&name.shown).shown, name.shown, "{raw}");
        }
    }

    #[test]
    fn a_tag_tells_credentials_apart_and_depends_on_key_and_seed() {
        let (a, b) = ("http://a:1@gpu0", "http://b:2@gpu0");
        let tagged = |raw: &str, seed, key: Option<u8>| {
            let hasher = Hasher::new(Scheme::Chained, 16, seed).unwrap();
            let key = key.map(|byte| NamespaceKey::new([byte; 16]));
            Name::of(raw).tagged(raw, TagKey::of(&hasher.keyed(key)))
        };
        assert_ne!(tagged(a, 1, None), tagged(b, 1, None));
        assert_ne!(tagged(a, 1, None), tagged(a, 2, None));
        assert_ne!(tagged(a, 1, Some(1)), tagged(a, 1, Some(2)));
        assert_ne!(tagged(a, 1, None), tagged(a, 1, Some(1)));
        let again = tagged(a, 1, Some(1));
        assert_eq!(again, tagged(a, 1, Some(1)), "routers of one secret agree");
        assert_eq!(again.len(), "http://gpu0/~".len() + 16);
        assert_eq!(*Name::of(&again).shown, again, "a name is its own name");
    }
}
