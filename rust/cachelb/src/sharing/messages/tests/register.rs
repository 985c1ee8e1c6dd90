use std::collections::BTreeMap;

use super::*;
use crate::About;
use cachelb_core::groups::Resuming;
use proptest::prelude::*;

pub(crate) fn words() -> impl Strategy<Value = Word> {
    let about = (
        (0.1..9.0_f64, 0..3_u8, 1..5_u32, any::<u64>()),
        proptest::option::of(any::<u32>()),
        proptest::option::of((1..9_u64, any::<u64>(), 0..5_u64, 0..2_u64)),
        proptest::option::of("[a-z]{0,5}"),
        proptest::collection::vec("[a-zä]{0,6}", 0..3),
    );
    let about = about.prop_map(
        |((weight, role, dp_size, slow_start_ms), kv_blocks, resuming, gpu, models)| About {
            weight,
            role,
            dp_size,
            slow_start_ms,
            kv_blocks,
            resuming: resuming.and_then(|(a, b, c, d)| Resuming::from_numbers([a, b, c, d, d])),
            gpu,
            models,
        },
    );
    prop_oneof![
        Just(Word::Gone),
        Just(Word::Draining),
        about.prop_map(Word::Here),
        any::<bool>().prop_map(Word::Ready),
    ]
}

/// Names and whether the word is on readiness.
type Last = BTreeMap<(String, bool), (Version, Word)>;

fn key(name: &str, word: &Word) -> (String, bool) {
    (name.to_owned(), matches!(word, Word::Ready(_)))
}

fn said(register: &Register) -> Last {
    let all = register.iter();
    all.map(|(name, version, word)| (key(name, word), (version, word.clone())))
        .collect()
}

#[test]
fn impossible_workers_are_refused_by_what_is_wrong() {
    let about = About::default();
    let changes: [(fn(&mut About), _); 6] = [
        (|bad| bad.weight = 0.0, "cannot be 0"),
        (|bad| bad.weight = f64::NAN, "cannot be NaN"),
        (|bad| bad.role = 3, "role 3 and 1 ranks"),
        (|bad| bad.dp_size = 0, "role 0 and 0 ranks"),
        (|bad| bad.dp_size = 4097, "role 0 and 4097 ranks"),
        (|bad| bad.models = vec![String::new(); 1025], "1025 models"),
    ];
    for (change, expected) in changes {
        let mut about = about.clone();
        change(&mut about);
        let mut bytes = Vec::new();
        Word::Here(about).put(&mut bytes);
        let Err(Error::BadMessage(text)) = Word::decode(&bytes) else {
            panic!("{expected} was not refused");
        };
        assert!(text.contains(expected), "{text}");
    }
    assert!(Word::decode(&[9]).is_err());
}

#[test]
fn what_is_said_again_is_no_news_and_what_is_due_is_done_once() {
    let (mut a, mut b) = (Register::new(1), Register::new(2));
    let due = |standing, ready| Some(Due { standing, ready });
    let first = a.say("w", Word::Gone).unwrap();
    assert_eq!(a.say("w", Word::Gone), None);
    assert!(b.hear("w", first, Word::Gone));
    assert!(!b.hear("w", first, Word::Gone), "again");
    assert_eq!(b.take("w"), due(Some(Word::Gone), None));
    // Its own word is done.
    assert_eq!((b.take("w"), a.take("w")), (None, None));
    // Readiness has a word of its own.
    let ready = a.say("w", Word::Ready(false)).unwrap();
    assert!(b.hear("w", ready, Word::Ready(false)));
    assert_eq!(b.take("w"), due(None, Some(false)));
    // A change made here meanwhile is later than the word received.
    let back = a.say("w", Word::Draining).unwrap();
    assert!(b.hear("w", back, Word::Draining));
    assert!(b.say("w", Word::Ready(true)).unwrap() > back);
    let both = due(Some(Word::Draining), Some(true)).unwrap();
    assert_eq!(b.due(), [("w".into(), both)]);
    assert!(b.say("w", Word::Gone).unwrap() > back);
    assert_eq!((b.take("w"), b.due()), (None, vec![]));
}

#[test]
fn of_workers_taken_out_a_bounded_number_is_remembered() {
    let mut register = Register::new(1);
    for at in 0..MOST_GONE + 10 {
        register.say(&format!("w{at}"), Word::Gone);
    }
    register.validate().unwrap();
    assert_eq!(register.iter().count(), MOST_GONE);
    let last = said(&register);
    assert!(!last.contains_key(&("w9".into(), false)));
    assert_eq!(last[&("w10".into(), false)].1, Word::Gone);
    for at in 0..MOST_WORKERS {
        let version = Version {
            counter: 9,
            origin: at as u64,
        };
        register.hear(&format!("other{at}"), version, Word::Draining);
    }
    assert_eq!(register.iter().count(), MOST_WORKERS);
    register.validate().unwrap();
}

proptest! {
    /// In whatever order words arrive, routers that received all of them agree on those of the highest version.
    #[test]
    fn the_last_word_is_the_same_in_any_order(
        talk in proptest::collection::vec((0..3_usize, 0..4_u8, words(), any::<u8>()), 1..60),
        order in any::<u64>(),
    ) {
        let mut registers: Vec<Register> = (1..=3).map(Register::new).collect();
        let mut all: Vec<(String, Version, Word)> = Vec::new();
        for (at, name, word, hears) in talk {
            let name = format!("w{name}");
            if let Some(version) = registers[at].say(&name, word.clone()) {
                all.push((name, version, word));
            }
            let (name, version, word) = match all.len() {
                0 => continue,
                n => all[usize::from(hears) % n].clone(),
            };
            registers[(at + 1) % 3].hear(&name, version, word);
        }
        let mut expected = Last::new();
        for (name, version, word) in &all {
            let last = expected.entry(key(name, word)).or_insert((*version, word.clone()));
            if *version > last.0 {
                *last = (*version, word.clone());
            }
        }
        let mut rng = cachelb_core::rng::Rng::new(order);
        for register in &mut registers {
            let mut left = all.clone();
            while !left.is_empty() {
                let (name, version, word) = left.swap_remove(rng.below(left.len()));
                register.hear(&name, version, word);
                register.validate().unwrap();
            }
            prop_assert_eq!(said(register), expected.clone());
        }
    }
}
