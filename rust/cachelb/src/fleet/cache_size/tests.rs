//! The check against an engine that hands out its blocks one by one.

#![expect(clippy::cast_sign_loss, reason = "sizes are positive")]

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use cachelb_core::groups::Resuming;
use cachelb_core::ids::{BookingId, Millis, SequenceHash, WorkerId};
use cachelb_core::load::{Known, Report, Work};
use cachelb_policy::RoundRobin;
use proptest::prelude::*;

use crate::Selector;
use crate::fleet::block_sizes::Facts;
use crate::fleet::worker::Profile;
use crate::selector::{News, Placements, PoolSettings, Settings};
use crate::tests::with_workers;

const SIZE: u64 = 16;

/// A request as its engine has it.
struct Job {
    id: BookingId,
    prompt: Vec<u64>,
    prompt_tokens: u64,
    output: u64,
    generated: u64,
}

/// An engine that admits what has room to the end, and the router before it.
struct Bench {
    selector: Selector,
    id: WorkerId,
    now: u64,
    /// Blocks that it has, and tokens of each.
    blocks: usize,
    size: u64,
    waiting: VecDeque<Job>,
    running: Vec<Job>,
    requests: u64,
    /// Whether outputs are counted as they come, or at the end.
    counts: bool,
}

fn profile(kv_blocks: u32, size: u64) -> Profile {
    Profile {
        engine: Facts {
            kv_blocks: Some(kv_blocks),
            block_size: Some(size as u32),
            ..Facts::default()
        },
        ..Profile::default()
    }
}

impl Bench {
    fn new((blocks, size): (usize, u64), stated: Profile) -> Self {
        let settings = Settings {
            registered: true,
            max_report_age_ms: 2_000,
            ..Settings::default()
        };
        let rule = Box::new(RoundRobin::new(true));
        let pool = PoolSettings::new(rule, SIZE as u32, Placements::default());
        let mut selector = with_workers(settings, pool, &[]);
        let id = selector.workers_mut().add("a", stated, Millis(0));
        Self {
            selector,
            id,
            now: 0,
            blocks,
            size,
            waiting: VecDeque::new(),
            running: Vec::new(),
            requests: 0,
            counts: true,
        }
    }

    fn come(&mut self, shared: (u64, u64), (own, tail, output): (u64, u64, u64)) {
        self.requests += 1;
        let (group, shared) = shared;
        let mut prompt: Vec<u64> = (0..shared).map(|at| group * 1_000 + at).collect();
        prompt.extend((0..own).map(|at| (self.requests + 1) * 1_000_000 + at));
        let prompt_tokens = (shared + own) * SIZE + tail;
        let work = Work {
            prompt_tokens,
            prefill_tokens: own * SIZE,
            estimate_ms: 0.0,
            block_size: SIZE as u32,
        };
        let path: Vec<SequenceHash> = prompt.iter().map(|&block| SequenceHash(block)).collect();
        let book = &mut self.selector.bookings.book;
        let id = book.book(self.id, work, Millis(self.now)).unwrap();
        book.hold(id, 0, &path);
        self.waiting.push_back(Job {
            id,
            prompt,
            prompt_tokens,
            output,
            generated: 0,
        });
    }

    /// Blocks in use: full ones of prompts once, and for each request the others.
    fn held(&self) -> usize {
        let per_block = (self.size / SIZE) as usize;
        let (mut full, mut rest) = (HashSet::new(), 0);
        for job in &self.running {
            let blocks = job.prompt.chunks_exact(per_block);
            rest += (job.prompt_tokens + job.generated).div_ceil(self.size) as usize - blocks.len();
            full.extend(blocks.map(|block| block[per_block - 1]));
        }
        full.len() + rest
    }

    /// A token of every request that runs.
    fn step(&mut self) {
        self.now += 20;
        let now = Millis(self.now);
        let most = |job: &Job| (job.prompt_tokens + job.output).div_ceil(self.size) as usize;
        let mut taken: usize = self.running.iter().map(most).sum();
        while let Some(job) = self.waiting.pop_front() {
            taken += most(&job);
            if taken > self.blocks && !self.running.is_empty() {
                self.waiting.push_front(job);
                break;
            }
            self.running.push(job);
        }
        let book = &mut self.selector.bookings.book;
        for job in &mut self.running {
            job.generated += 1;
            if self.counts {
                book.tokens(job.id, 1, now);
            } else {
                book.first_token(job.id, now);
            }
        }
        self.running.retain(|job| {
            let goes_on = job.generated < job.output;
            if !goes_on {
                book.counted(job.id, job.output, now);
                book.close(job.id);
            }
            goes_on
        });
    }

    /// Its report, which includes `others` requests of another router.
    fn report(&mut self, others: u64) {
        let usage = (self.held() as f64 / self.blocks as f64 * 100.0).round() / 100.0;
        let report = Report {
            running: Known::from(Some((self.running.len() as u64 + others) as f64)),
            waiting: Known::from(Some(self.waiting.len() as f64)),
            kv_usage: Known::from(Some(usage.min(1.0))),
            at: Millis(self.now),
            ..Report::NONE
        };
        let mut workers = self.selector.workers_mut();
        workers
            .set_report(&["a".into()], &report, Millis(self.now))
            .unwrap();
    }

    /// So many steps with arrivals every few, and a report after every fifth.
    fn run(&mut self, steps: u64, others: u64) {
        for _ in 0..steps {
            let shortest = if self.counts { 20 } else { 400 };
            let turn = self.now / 20;
            let booked = self.waiting.len() + self.running.len();
            if turn.is_multiple_of(2) && booked < 40 {
                let own = 1 + turn * 7 % 37;
                self.come(
                    (turn % 3, 5 * (turn % 2)),
                    (own, turn % 16, shortest + turn % 60),
                );
            }
            self.step();
            if turn.is_multiple_of(5) {
                self.report(others);
            }
        }
    }

    fn learned(&self) -> Option<u32> {
        let member = self.selector.fleet.member(self.id).unwrap();
        member.profile.engine.learned
    }

    /// How many times its size is taken for its size.
    fn off(&self) -> f64 {
        let member = self.selector.fleet.member(self.id).unwrap();
        let capacity = member.sizes().capacity(SIZE as u32).unwrap();
        f64::from(capacity) * SIZE as f64 / (self.blocks as f64 * self.size as f64)
    }
}

fn within(off: f64, most: f64) -> bool {
    off.ln().abs() < most.ln()
}

proptest! {
    #[test]
    fn a_wrong_size_is_replaced_and_a_right_one_stays(
        (tokens, factor, size) in (10_000_u64..100_000, -3.0_f64..3.0, prop::sample::select(vec![16, 32, 64])),
        (most, every) in (8_usize..60, 1_u64..4),
        mut arrivals in prop::collection::vec(
            ((0_u64..4, 0_u64..20), (8_u64..40, 0..SIZE, 2_u64..120)), 200..300),
    ) {
        let (blocks, factor) = ((tokens / size) as usize, factor.exp2());
        let stated = (blocks as f64 * factor) as u32;
        let mut bench = Bench::new((blocks, size), profile(stated, size));
        while !arrivals.is_empty() || !bench.running.is_empty() {
            let has_room = bench.waiting.len() + bench.running.len() < most;
            if has_room && (bench.now / 20).is_multiple_of(every) && let Some((shared, own)) = arrivals.pop() {
                bench.come(shared, own);
            }
            bench.step();
            bench.report(0);
        }
        let off = bench.off();
        prop_assert!(within(off, 2.0), "{off} times {blocks} blocks; {stated} stated");
        if within(factor, 1.3) {
            prop_assert_eq!(bench.learned(), None);
        }
        if !within(factor, 2.0) {
            prop_assert!(within(off, 1.5), "{off} times {blocks} blocks; {stated} stated");
        }
        bench.selector.validate().unwrap();
    }
}

const BLOCKS: u32 = 4_000;

#[test]
fn a_contradiction_is_reported_once_and_another_statement_is_checked_anew() {
    let mut bench = Bench::new((BLOCKS as usize, SIZE), profile(4 * BLOCKS, SIZE));
    bench.run(400, 0);
    let learned = bench.learned().unwrap();
    let reported = |stated: u32, learned: u32| {
        vec![(
            "a".into(),
            News::Contradiction("kv_blocks", stated.into(), learned.into()),
        )]
    };
    assert_eq!(bench.selector.take_news(), reported(4 * BLOCKS, learned));
    assert!(within(bench.off(), 1.1));
    bench.run(400, 0);
    assert_eq!(bench.selector.take_news(), []);

    let add = |bench: &mut Bench, stated| {
        let mut workers = bench.selector.workers_mut();
        workers.add("a", profile(stated, SIZE), Millis(bench.now));
    };
    add(&mut bench, 4 * BLOCKS);
    assert_eq!(bench.learned(), Some(learned), "nothing else is stated");
    add(&mut bench, 3 * BLOCKS);
    assert_eq!(bench.learned(), None);
    bench.run(400, 0);
    let learned = bench.learned().unwrap();
    assert_eq!(bench.selector.take_news(), reported(3 * BLOCKS, learned));

    // By its metrics.
    let facts = Facts {
        kv_blocks: Some(BLOCKS / 3),
        ..Facts::default()
    };
    let mut workers = bench.selector.workers_mut();
    workers.learn("a", &["a".into()], facts).unwrap();
    assert_eq!(bench.learned(), None);
    bench.run(400, 0);
    assert!(bench.learned().is_some() && within(bench.off(), 1.1));

    // By its reports alone.
    bench.blocks *= 2;
    bench.run(400, 0);
    assert!(within(bench.off(), 1.1));
    bench.selector.validate().unwrap();
}

#[test]
fn reports_that_say_nothing_of_the_size_change_nothing() {
    let hybrid = Profile {
        engine: Facts {
            resuming: Resuming::from_numbers([1_024, 0, 0, 0, 0]),
            ..profile(4 * BLOCKS, SIZE).engine
        },
        ..Profile::default()
    };
    let wrong = || profile(4 * BLOCKS, SIZE);
    for (why, stated, others, counts) in [
        ("none", wrong(), 0, true),
        ("requests of others", wrong(), 3, true),
        (
            "outputs that nothing counts",
            profile(BLOCKS, SIZE),
            0,
            false,
        ),
        ("cache groups", hybrid, 0, true),
        ("nothing stated", Profile::default(), 0, true),
    ] {
        let mut bench = Bench::new((BLOCKS as usize, SIZE), stated);
        bench.counts = counts;
        bench.run(600, others);
        assert_eq!(bench.learned().is_some(), why == "none", "{why}");
    }
}

#[test]
fn ranks_that_report_together_have_one_size() {
    let mut bench = Bench::new((BLOCKS as usize, SIZE), Profile::default());
    let names: [Arc<str>; 2] = ["b#0".into(), "b#1".into()];
    for (name, requests) in names.iter().zip([9, 1]) {
        let ranked = Profile {
            ranked: true,
            ..profile(8_000, SIZE)
        };
        bench.id = bench.selector.workers_mut().add(name, ranked, Millis(0));
        for _ in 0..=requests {
            bench.come((0, 0), (100, 0, 2));
        }
        let book = &mut bench.selector.bookings.book;
        let ids: Vec<BookingId> = bench.waiting.drain(..).map(|job| job.id).collect();
        for &id in &ids {
            book.first_token(id, Millis(10));
            book.tokens(id, 1, Millis(30));
        }
        book.close(ids[0]);
    }
    for at in 31..39 {
        assert_eq!(bench.learned(), None);
        let report = Report {
            running: Known::from(Some(10.0)),
            waiting: Known::from(Some(0.0)),
            kv_usage: Known::from(Some(0.25)),
            at: Millis(at),
            ..Report::NONE
        };
        let mut workers = bench.selector.workers_mut();
        workers.set_report(&names, &report, Millis(at)).unwrap();
    }
    let fleet = bench.selector.fleet();
    let learned = names.each_ref().map(|name| {
        let member = fleet.member(fleet.find(name).unwrap());
        member.unwrap().profile.engine.learned
    });
    // A thousand blocks are half of those in use of both.
    assert!(
        matches!(learned, [Some(1_990..2_030), Some(_)]),
        "{learned:?}"
    );
    assert_eq!(learned[0], learned[1]);
    assert_eq!(bench.selector.take_news().len(), 1);
}
