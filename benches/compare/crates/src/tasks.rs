//! The measured tasks. Contenders take turns; where a round is timed as a whole, the fastest counts: other work of the
//! machine only slows it.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::contenders::all;
use crate::counting::live_bytes;
use crate::random::Random;
use crate::rows::Row;
use crate::timing::Samples;
use crate::workload::{Prompts, Said, Truth, churn, fill, is_right, tell};

const WORKERS: u32 = 64;
const HELD_BLOCKS: u32 = 1_000_000;
const ASKED: u32 = 512;
const TURN: usize = 8;
const ROUNDS: usize = 5;
const CHURNED_WORKERS: u32 = 8;
const STEPS: u32 = 8_000;
const STEP: u32 = 64;

/// Token ids to hashes.
pub fn hashing(calls: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for blocks in [32, 128, 2_048] {
        let prompts: Vec<Vec<u32>> = (0..8)
            .map(|nth| Prompts { blocks, shared: 0 }.tokens(nth))
            .collect();
        // Dynamo's indexes have one hash, and smg's tree has none.
        let mut contenders = all(1);
        contenders.retain(|one| {
            ![
                "dynamo ConcurrentRadixTreeCompressed",
                "dynamo PositionalIndexer",
                "smg-radix-tree",
            ]
            .contains(&one.name())
        });
        let mut samples: Vec<Samples> = contenders.iter().map(|_| Samples::default()).collect();
        let mut tokens_crate = Samples::default();
        for call in 0..calls {
            let tokens = &prompts[call % prompts.len()];
            for (contender, samples) in contenders.iter_mut().zip(&mut samples) {
                samples.time(|| contender.hash(black_box(tokens)));
            }
            tokens_crate
                .time(|| dynamo_tokens::TokenBlockSequence::split_tokens(black_box(tokens), 16, 0));
        }
        let task = format!("hash/{}", blocks * 16);
        for (contender, samples) in contenders.iter().zip(&mut samples) {
            let (name, note) = match contender.name() {
                "dynamo RadixTree" => (
                    "dynamo-kv-router",
                    "hashes of blocks alone, not of what is before them",
                ),
                "kv-index ChainIndex" => ("kv-index", "likewise"),
                name => (name, ""),
            };
            rows.push(Row::timed(&task, name, samples, note));
        }
        rows.push(Row::timed(
            &task,
            "dynamo-tokens",
            &mut tokens_crate,
            "split_tokens: keeps the tokens of each block too",
        ));
    }
    rows
}

/// Leading blocks of a prompt that each worker holds, among a million blocks.
pub fn matching(calls: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for blocks in [32, 128, 512] {
        let prompts = Prompts {
            blocks,
            shared: blocks * 3 / 4,
        };
        let said = fill(&prompts, HELD_BLOCKS / (blocks - prompts.shared), WORKERS);
        let mut truth = Truth::default();
        said.iter().for_each(|one| truth.apply(one));
        let (asked, names) = questions(&prompts, said.len() as u32);
        let right: Vec<_> = names
            .iter()
            .map(|names| truth.overlaps(names, WORKERS))
            .collect();
        drop(truth);
        let mut contenders = all(WORKERS);
        for contender in &mut contenders {
            tell(contender.as_mut(), &said);
            contender.prepare(&asked);
        }
        let mut samples: Vec<Samples> = contenders.iter().map(|_| Samples::default()).collect();
        let mut answer = Vec::new();
        for first in (0..calls).step_by(TURN) {
            for (contender, samples) in contenders.iter_mut().zip(&mut samples) {
                for call in first..calls.min(first + TURN) {
                    samples.time(|| contender.ask(call % asked.len(), &mut answer));
                }
            }
        }
        for (contender, samples) in contenders.iter_mut().zip(&mut samples) {
            let wrong = (0..asked.len()).filter(|nth| {
                contender.ask(*nth, &mut answer);
                !is_right(&mut answer, &right[*nth])
            });
            let wrong = wrong.count();
            let row = Row::timed(
                &format!("match/{}", blocks * 16),
                contender.name(),
                samples,
                contender.note(),
            );
            rows.push(row.answered(wrong, asked.len()));
        }
    }
    rows
}

/// Prompts to ask for, by turns: one that leaves a held one halfway, one that no worker holds, two that are held.
fn questions(prompts: &Prompts, held: u32) -> (Vec<Vec<u32>>, Vec<Vec<u64>>) {
    let mut random = Random(3);
    let ask = |nth: u32| {
        let of = random.below(held);
        let (mut tokens, mut names) = (prompts.tokens(of), prompts.names(of));
        let from = match nth % 4 {
            0 => names.len() / 2,
            1 => 0,
            _ => names.len(),
        };
        for (at, name) in names.iter_mut().enumerate().skip(from) {
            *name = u64::MAX - u64::from(nth) * 10_000 - at as u64;
            tokens[at * 16] = 200_000 + nth;
        }
        (tokens, names)
    };
    (0..ASKED).map(ask).unzip()
}

fn stream() -> (Prompts, Vec<Said>) {
    let prompts = Prompts {
        blocks: 512,
        shared: 0,
    };
    let said = churn(&prompts, STEPS, STEP, CHURNED_WORKERS, 32);
    (prompts, said)
}

/// Blocks stored and removed per second, to drain; hashing of tokens included.
pub fn events() -> Vec<Row> {
    let (prompts, said) = stream();
    let mut truth = Truth::default();
    said.iter().for_each(|one| truth.apply(one));
    let asked: Vec<u32> = (0..512).step_by(8).collect();
    let right: Vec<_> = asked
        .iter()
        .map(|nth| truth.overlaps(&prompts.names(*nth), CHURNED_WORKERS))
        .collect();
    let tokens: Vec<_> = asked.iter().map(|nth| prompts.tokens(*nth)).collect();
    let blocks: usize = said
        .iter()
        .map(|one| one.stored.len() + one.removed.len())
        .sum();
    let count = all(1).len();
    let mut best = vec![Duration::MAX; count];
    let mut rows: Vec<(Option<Row>, usize)> = (0..count).map(|_| (None, 0)).collect();
    for _ in 0..ROUNDS {
        for (nth, mut contender) in all(CHURNED_WORKERS).into_iter().enumerate() {
            let begin = Instant::now();
            tell(contender.as_mut(), &said);
            best[nth] = best[nth].min(begin.elapsed());
            contender.prepare(&tokens);
            let mut answer = Vec::new();
            rows[nth].1 += (0..asked.len())
                .filter(|at| {
                    contender.ask(*at, &mut answer);
                    !is_right(&mut answer, &right[*at])
                })
                .count();
            let rate = blocks as f64 / best[nth].as_secs_f64();
            rows[nth].0 = Some(Row::figure(
                "events",
                contender.name(),
                rate,
                "blocks/s",
                contender.note(),
            ));
        }
    }
    rows.into_iter()
        .filter_map(|(row, wrong)| Some(row?.answered(wrong, asked.len() * ROUNDS)))
        .collect()
}

/// Bytes per block and holder, of prompts that share nothing with one holder, and the same after a turnover.
pub fn memory() -> Vec<Row> {
    let prompts = Prompts {
        blocks: 128,
        shared: 0,
    };
    let said = fill(&prompts, 4_000, WORKERS);
    let (_, churned) = stream();
    let held = 32 * CHURNED_WORKERS as usize * 512;
    let mut rows = Vec::new();
    for nth in 0..all(1).len() {
        let before = live_bytes();
        let mut contender = all(WORKERS).swap_remove(nth);
        tell(contender.as_mut(), &said);
        let bytes = (live_bytes() - before) as f64 / f64::from(4_000 * 128);
        rows.push(Row::figure(
            "memory/filled",
            contender.name(),
            bytes,
            "bytes/block",
            "allocated, of 512,000 blocks with one holder each",
        ));
    }
    for nth in 0..all(1).len() {
        let before = live_bytes();
        let mut contender = all(CHURNED_WORKERS).swap_remove(nth);
        tell(contender.as_mut(), &churned);
        let bytes = (live_bytes() - before) as f64 / held as f64;
        rows.push(Row::figure("memory/churned", contender.name(), bytes, "bytes/block", "allocated, per block and holder, of 131,072 that are left of 512,000, two holders each"));
    }
    rows
}

/// Lookups per second of several threads on one unchanging index.
pub fn threads(calls: usize) -> Vec<Row> {
    let prompts = Prompts {
        blocks: 128,
        shared: 96,
    };
    let said = fill(&prompts, HELD_BLOCKS / 32, WORKERS);
    let (asked, _) = questions(&prompts, said.len() as u32);
    let mut contenders = all(WORKERS);
    for contender in &mut contenders {
        tell(contender.as_mut(), &said);
        contender.prepare(&asked);
    }
    let mut rows = Vec::new();
    for threads in [1, 2, 4, 8, 16] {
        let mut best = vec![0.0_f64; contenders.len()];
        for _ in 0..ROUNDS {
            for (contender, best) in contenders.iter().zip(&mut best) {
                let readers: Option<Vec<_>> = (0..threads).map(|_| contender.reader()).collect();
                let Some(readers) = readers else {
                    continue;
                };
                let each = calls * 128 / threads;
                let barrier = Barrier::new(threads);
                let rate = std::thread::scope(|scope| {
                    let handles: Vec<_> = readers
                        .into_iter()
                        .enumerate()
                        .map(|(number, make)| {
                            let (barrier, asked) = (&barrier, asked.len());
                            scope.spawn(move || {
                                let mut read = make();
                                barrier.wait();
                                let begin = Instant::now();
                                let seen = (0..each)
                                    .map(|call| read((number * 37 + call) % asked))
                                    .sum::<usize>();
                                black_box(seen);
                                (begin, Instant::now())
                            })
                        })
                        .collect();
                    // By the threads' own clocks: with fewer cores, some are done before this one is woken.
                    let times = handles
                        .into_iter()
                        .map(|handle| handle.join().expect("readers do not panic"));
                    let (begin, end) = times
                        .reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))
                        .expect("there is a thread");
                    (each * threads) as f64 / (end - begin).as_secs_f64()
                });
                *best = best.max(rate);
            }
        }
        for (contender, best) in contenders.iter().zip(best).filter(|(_, best)| *best > 0.0) {
            rows.push(Row::figure(
                &format!("threads/{threads}"),
                contender.name(),
                best,
                "calls/s",
                "lookups of 2,048 tokens that were hashed before",
            ));
        }
    }
    rows
}

/// The cases that went wrong somewhere.
pub fn answers() -> Vec<Row> {
    (0..all(1).len())
        .map(|nth| {
            let name = all(1)[nth].name();
            let (count, wrong) = crate::cases::play(|| all(1).swap_remove(nth));
            Row::figure(
                "answers",
                name,
                wrong.len() as f64,
                "wrong",
                &wrong.join("; "),
            )
            .answered(wrong.len(), count)
        })
        .collect()
}
