//! Cases in which indexes have been seen to answer wrongly; those of `python -m benches.structures --task answers`.

use crate::contenders::{BLOCK, Contender};

enum Step {
    Store(Option<char>, &'static str),
    Remove(&'static str),
}

struct Case {
    name: &'static str,
    steps: &'static [Step],
    asked: &'static str,
    right: u32,
}

use Step::{Remove, Store};

const CASES: &[Case] = &[
    Case {
        name: "a chain",
        steps: &[Store(None, "abcde")],
        asked: "abcde",
        right: 5,
    },
    Case {
        name: "a hole that was stored again",
        steps: &[Store(None, "abcde"), Remove("b"), Store(Some('a'), "b")],
        asked: "abcde",
        right: 5,
    },
    Case {
        name: "a head that was stored again",
        steps: &[Store(None, "abc"), Remove("a"), Store(None, "a")],
        asked: "abc",
        right: 3,
    },
    Case {
        name: "a hole",
        steps: &[Store(None, "abcde"), Remove("c")],
        asked: "abcde",
        right: 2,
    },
    Case {
        name: "an unknown parent",
        steps: &[Store(None, "ab"), Store(Some('x'), "cd")],
        asked: "abcd",
        right: 2,
    },
    Case {
        name: "an unknown removal",
        steps: &[Store(None, "abc"), Remove("x")],
        asked: "abc",
        right: 3,
    },
    Case {
        name: "the same tail behind another head",
        steps: &[Store(None, "abcd")],
        asked: "abef",
        right: 2,
    },
    Case {
        name: "another block in the middle",
        steps: &[Store(None, "abcd")],
        asked: "axcd",
        right: 1,
    },
];

/// Plays every case on a contender of its own: how many there are, and the wrong answers.
pub fn play(make: impl Fn() -> Box<dyn Contender>) -> (usize, Vec<String>) {
    let wrong = CASES.iter().filter_map(|case| {
        let mut contender = make();
        for step in case.steps {
            match step {
                Store(parent, blocks) => {
                    let names: Vec<u64> = blocks.chars().map(u64::from).collect();
                    contender.store(0, parent.map(u64::from), &names, &tokens(blocks));
                }
                Remove(blocks) => {
                    let names: Vec<u64> = blocks.chars().map(u64::from).collect();
                    contender.remove(0, &names);
                }
            }
        }
        contender.flush();
        contender.prepare(&[tokens(case.asked)]);
        let mut answer = Vec::new();
        contender.ask(0, &mut answer);
        let got = answer
            .iter()
            .find(|(worker, _)| *worker == 0)
            .map_or(0, |(_, depth)| *depth);
        (got != case.right).then(|| format!("{}: {got} instead of {}", case.name, case.right))
    });
    (CASES.len(), wrong.collect())
}

fn tokens(blocks: &str) -> Vec<u32> {
    blocks
        .chars()
        .flat_map(|block| (0..BLOCK as u32).map(move |at| u32::from(block) * 100 + at))
        .collect()
}
