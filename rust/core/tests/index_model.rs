//! Random operations on [`cachelb_core::index::BlockIndex`], compared with the naive model after every one.

mod model;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cachelb_core::index::Matcher;
use model::driver::Driver;
use model::ops::{HashKind, Op, Shape, Word};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// One family of random histories.
struct Run {
    name: &'static str,
    shape: Shape,
    /// Histories, in percent of `PROPTEST_CASES`; workers and capacities up to the shape's are drawn for each.
    cases_percent: u32,
    /// Writes per history; each is followed by a search.
    writes: usize,
    /// Structure and held sets are checked once per so many writes.
    validate_every: usize,
}

impl Run {
    fn config(&self) -> Config {
        let config = Config::default();
        Config {
            cases: (self.cases_percent * config.cases).div_ceil(100),
            failure_persistence: None,
            max_shrink_iters: 0,
            ..config
        }
    }
}

const fn shape(workers: u32, alphabet: u8, max_len: usize, max_capacity: u32) -> Shape {
    Shape {
        workers,
        alphabet,
        max_len,
        max_capacity,
        prefix_closed: false,
        torn: false,
    }
}

/// Name, shape, share of the cases in percent, writes of each, and between how many of them it is validated.
const fn run(
    name: &'static str,
    shape: Shape,
    (cases_percent, writes, validate_every): (u32, usize, usize),
) -> Run {
    Run {
        name,
        shape,
        cases_percent,
        writes,
        validate_every,
    }
}

const FEW: Run = run("few workers", shape(6, 2, 12, 24), (1330, 100, 1));
const DEEP: Run = run("deep", shape(4, 3, 40, 80), (470, 120, 1));
const CLOSED: Run = {
    let mut shape = shape(5, 2, 20, 40);
    shape.prefix_closed = true;
    run("recorded only", shape, (280, 100, 1))
};
const TORN: Run = {
    let mut shape = shape(4, 2, 10, 24);
    shape.torn = true;
    run("torn", shape, (590, 100, 1))
};
const MANY: Run = run("many workers", shape(300, 2, 16, 60), (47, 400, 4));
const LONG: Run = run("long", shape(3, 2, 300, 700), (47, 150, 10));
/// Paths that cross the index's storage chunks of 4,096 blocks.
const HUGE: Run = run("huge", shape(2, 2, 9000, 15_000), (2, 50, 10));

/// The settings that a history's seed decides.
fn setting(run: &Run, seed: u64) -> (Matcher, HashKind, u32, Shape) {
    let matcher = [Matcher::Kary, Matcher::Binary, Matcher::Linear][(seed % 3) as usize];
    let hashes = HashKind::ALL[(seed / 3 % 4) as usize];
    let capacity = 1 + (seed / 12 % u64::from(run.shape.max_capacity)) as u32;
    let workers = 1 + (seed / 100_000 % u64::from(run.shape.workers)) as u32;
    (
        matcher,
        hashes,
        capacity,
        Shape {
            workers,
            ..run.shape
        },
    )
}

fn play(run: &Run, seed: u64, words: &[Word]) -> Result<u64, TestCaseError> {
    let (matcher, hashes, capacity, shape) = setting(run, seed);
    let mut driver = Driver::new(matcher, hashes, shape, capacity);
    let mut operations = 0;
    for (at, &word) in words.iter().enumerate() {
        let op = Op::decode(word, &shape);
        operations += driver.step(&op)?;
        if (at + 1).is_multiple_of(run.validate_every) {
            driver.validate()?;
        }
        if (at + 1).is_multiple_of(50) {
            driver.check_purity(&[0; 8])?;
            driver.compare_held_sets()?;
        }
    }
    driver.compare_held_sets()?;
    driver.check_memory()?;
    Ok(operations)
}

/// The failure of this history, if any; a panic counts.
fn failure(run: &Run, seed: u64, words: &[Word]) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| play(run, seed, words))) {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Some(format!(
                "panic: {}",
                text.or(panic.downcast_ref::<&str>().copied())
                    .unwrap_or("of another type")
            ))
        }
    }
}

/// Leaves out operations that the failure does not need. Histories have a fixed length, so proptest cannot do this.
fn shortest(run: &Run, seed: u64, words: &[Word]) -> Vec<Word> {
    let mut words = words.to_vec();
    let mut chunk = words.len();
    while chunk > 0 {
        let mut at = 0;
        while at < words.len() {
            let mut fewer = words.clone();
            fewer.drain(at..(at + chunk).min(words.len()));
            if failure(run, seed, &fewer).is_some() {
                words = fewer;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    words
}

fn drive(run: &Run) {
    let config = run.config();
    let promised = 2 * u64::from(config.cases) * run.writes as u64;
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[17; 32]);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let done = Cell::new(0);
    let histories = (
        any::<u64>(),
        prop::collection::vec(any::<Word>(), run.writes),
    );
    let outcome = runner.run(&histories, |(seed, words)| {
        let operations = play(run, seed, &words)?;
        done.set(done.get() + operations);
        Ok(())
    });
    if let Err(TestError::Fail(_, (seed, words))) = outcome {
        let words = shortest(run, seed, &words);
        let why = failure(run, seed, &words).unwrap_or_default();
        let (matcher, hashes, capacity, shape) = setting(run, seed);
        let ops: Vec<_> = words
            .iter()
            .map(|&word| format!("{:?}\n", Op::decode(word, &shape)))
            .collect();
        panic!(
            "{}, {matcher:?}, {hashes:?}, capacity {capacity}, {} workers: {why}\n{}",
            run.name,
            shape.workers,
            ops.concat()
        );
    }
    assert_eq!(
        done.get(),
        promised,
        "{}: fewer operations than promised",
        run.name
    );
    eprintln!("{}: {} operations", run.name, done.get());
}

#[test]
fn few_workers_match_the_model() {
    drive(&FEW);
}

#[test]
fn deep_paths_match_the_model() {
    drive(&DEEP);
}

#[test]
fn recorded_paths_match_the_model_and_stay_prefix_closed() {
    drive(&CLOSED);
}

#[test]
fn torn_chains_match_the_model() {
    drive(&TORN);
}

#[test]
fn many_workers_match_the_model() {
    drive(&MANY);
}

#[test]
fn long_runs_match_the_model() {
    drive(&LONG);
}

#[test]
fn runs_over_several_chunks_match_the_model() {
    drive(&HUGE);
}
