//! Rule H against what the chat templates of some families make of random conversations and one change of each, in
//! each API.
//!
//! `CACHELB_RULE_PAIRS` sets how many pairs are tried per API and family; run many with `cargo test --release`.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::apis::Api;
use super::engines::chat_of;
use super::families::{FAMILIES, Family};
use super::talks::{CHANGES, Style, Talk, change, number, talk};
use super::{common, stream};
use crate::canon::DIGEST;
use crate::{Engine, Profile};

fn pairs() -> usize {
    std::env::var("CACHELB_RULE_PAIRS").map_or(50_000, |text| text.parse().expect("a number"))
}

/// Digests may look like anything.
fn without_digests(mut canonical: &[u8]) -> String {
    let mut bytes = Vec::new();
    while let Some(at) = canonical.iter().position(|byte| *byte == DIGEST) {
        bytes.extend_from_slice(&canonical[..at]);
        canonical = canonical.get(at + 17..).unwrap_or_default();
    }
    bytes.extend_from_slice(canonical);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The canonical bytes that bodies share with the first of them: the numbers of texts in them, and whether they are
/// all.
struct Shared(Vec<(Vec<String>, bool)>);

impl Shared {
    fn new(profile: Profile, api: Api, bodies: &[String]) -> Self {
        let mut canonical = bodies.iter().map(|body| stream(profile, api.path(), body));
        let base = canonical.next().expect("a body");
        let others = canonical.map(|other| {
            let shared = without_digests(&base[..common(&base, &other)]);
            let marks = shared.match_indices('#').filter_map(|(at, _)| {
                let mark = &shared[at..=at + shared[at..].find(';')?];
                let digits = mark.bytes().filter(u8::is_ascii_digit).count();
                (digits + 2 == mark.len()).then(|| mark.to_owned())
            });
            (marks.collect(), base == other)
        });
        Self(others.collect())
    }

    /// A shared prefix of canonical bytes is shared by the rendered prompts: every numbered text in the one lies in the
    /// other too, unless it is not rendered at all. How many texts the body `at` shares, or what is wrong.
    fn check(&self, at: usize, [seen, other]: [&str; 2]) -> Result<usize, String> {
        let (marks, equal) = &self.0[at];
        let same = common(seen.as_bytes(), other.as_bytes());
        for mark in marks {
            let found = [seen, other].map(|rendered| rendered.find(mark));
            let behind = |found: &usize| found + mark.len() > same;
            if found.iter().flatten().any(behind) {
                return Err(format!("{mark} is shared"));
            }
        }
        if *equal && seen != other {
            return Err("they are equal".to_owned());
        }
        Ok(marks.len())
    }
}

/// Values made once per key.
struct Cache<K, V>(Vec<(K, V)>);

impl<K: PartialEq, V> Cache<K, V> {
    fn get(&mut self, key: K, make: impl FnOnce() -> V) -> &V {
        let at = self.0.iter().position(|known| known.0 == key);
        let at = at.unwrap_or_else(|| {
            let value = make();
            self.0.push((key, value));
            self.0.len() - 1
        });
        &self.0[at].1
    }
}

/// Texts that pairs share, and how many pairs share one behind their difference, with the shortest of them.
#[derive(Default)]
struct Tried {
    shared: usize,
    wrong: usize,
    shortest: Option<String>,
}

impl Tried {
    fn fail(&mut self, report: String) {
        self.wrong += 1;
        let shorter = |known: &String| known.len() <= report.len();
        if !self.shortest.as_ref().is_some_and(shorter) {
            self.shortest = Some(report);
        }
    }

    /// Tries a conversation and its changes, the `round`th.
    fn round(
        &mut self,
        talks: &[Talk],
        api: Api,
        round: usize,
        families: &[(Vec<Profile>, Family)],
    ) {
        let bodies: Vec<String> = talks.iter().map(|talk| Style(0).body(talk, api)).collect();
        let (mut read, mut chats) = (Cache(Vec::new()), Cache(Vec::new()));
        for (profiles, family) in families {
            let profile = profiles[round % profiles.len()];
            let engine = match profile.engine {
                Engine::Unset if (round / profiles.len()).is_multiple_of(2) => Engine::Vllm,
                Engine::Unset => Engine::Sglang,
                engine => engine,
            };
            let merges = family.merges(profile);
            let canonical = read.get(profile, || Shared::new(profile, api, &bodies));
            let chats: &Vec<Talk> = chats.get((engine, merges), || {
                let chats = talks.iter().map(|talk| chat_of(talk, api, engine, merges));
                chats.collect()
            });
            let rendered: Vec<String> = chats.iter().map(|chat| family.render(chat)).collect();
            for at in 1..talks.len() {
                let both = [&rendered[0], &rendered[at]].map(String::as_str);
                match canonical.check(at - 1, both) {
                    Ok(shared) => self.shared += shared,
                    Err(wrong) => self.fail(format!(
                        "{wrong}, {} {engine:?} {profile:?}\n{}\n{}\n{}",
                        family.name,
                        both.join("\n"),
                        bodies[0],
                        bodies[at]
                    )),
                }
            }
        }
    }
}

fn try_all(api: Api) {
    let mut runner = TestRunner::deterministic();
    let (mut rounds, mut tried) = (0, Tried::default());
    let families = FAMILIES.map(|family| (family.profiles(), family));
    let conversations = talk();
    while rounds * (CHANGES as usize) < pairs() {
        let tree = conversations.new_tree(&mut runner);
        let mut talk = tree.expect("a conversation").current();
        number(&mut talk);
        let mut talks = vec![talk];
        for what in 0..CHANGES {
            let mut other = talks[0].clone();
            change(&mut other, what, runner.rng().next_u32() as usize);
            talks.push(other);
        }
        tried.round(&talks, api, rounds, &families);
        rounds += 1;
    }
    let Tried {
        shared,
        wrong,
        shortest,
    } = tried;
    let pairs = rounds * CHANGES as usize;
    let count = FAMILIES.len();
    eprintln!("{api:?}: {pairs} pairs for each of {count} families share {shared} texts");
    let shortest = shortest.unwrap_or_default();
    assert_eq!(
        wrong,
        0,
        "pairs of {} share too much: {shortest}",
        pairs * count
    );
    assert!(shared > pairs * count, "{shared} texts are shared");
}

#[test]
fn chats_share_nothing_behind_a_change() {
    try_all(Api::Chat);
}

#[test]
fn messages_share_nothing_behind_a_change() {
    try_all(Api::Messages);
}

#[test]
fn responses_share_nothing_behind_a_change() {
    try_all(Api::Responses);
}
