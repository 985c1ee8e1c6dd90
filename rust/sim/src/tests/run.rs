//! Whole runs with a gateway that goes round.

use std::convert::Infallible;
use std::ops::Range;

use cachelb::selector::Role;

use super::*;

type Told = Result<(), Infallible>;

/// Sends requests to one worker after another, and checks the notices.
#[derive(Debug, Default)]
pub struct InTurn {
    workers: u32,
    next: u32,
    down: Vec<u32>,
    now: f64,
    open: std::collections::BTreeMap<u64, u32>,
    tickets: u64,
    reports: u32,
    /// Notices of answers, with their times.
    pub heard: Vec<(&'static str, f64)>,
    /// Whether load reports had queued tokens, and answers cached ones.
    pub known: [std::collections::BTreeSet<bool>; 2],
    /// Blocks of the workers by their changes.
    pub held: std::collections::BTreeMap<u32, std::collections::BTreeSet<SequenceHash>>,
    cleared: std::collections::BTreeSet<u32>,
    /// The worker that it names to take cached blocks from.
    pub source: Option<u32>,
    /// The last of the workers, which only compute prompts.
    prefill: u32,
}

impl InTurn {
    pub fn with_prefill(workers: u32, prefill: u32) -> Self {
        Self {
            prefill,
            ..Self::new(workers)
        }
    }

    pub fn new(workers: u32) -> Self {
        Self {
            workers,
            ..Self::default()
        }
    }

    fn pick(&mut self, attempt: &Attempt<'_>, among: Range<u32>) -> Option<Placed> {
        let up = |worker: &u32| !self.down.contains(worker) && !attempt.tried.contains(worker);
        let count = among.end - among.start;
        let mut order = (0..count).map(|i| among.start + (self.next + i) % count);
        let worker = order.find(up)?;
        self.next = worker + 1;
        self.tickets += 1;
        self.open.insert(self.tickets, attempt.id);
        Some(Placed {
            worker,
            ticket: self.tickets,
            predicted_tokens: 0,
            reason: 0,
            gateway: 0,
            source: self.source,
        })
    }

    fn heard_of(&mut self, placed: Placed, what: &'static str, now: f64) {
        self.at(now);
        assert!(self.open.contains_key(&placed.ticket));
        self.heard.push((what, now));
    }

    fn changed(&mut self, worker: u32, changes: &[Change], now: f64) {
        self.at(now);
        let held = self.held.entry(worker).or_default();
        for change in changes {
            match *change {
                Change::Stored { medium, .. } | Change::Removed { medium, .. }
                    if medium != Medium::Gpu => {}
                Change::Stored { hash, .. } => assert!(held.insert(hash), "stored twice"),
                Change::Removed { hash, .. } => {
                    // After a gap that was not closed, what lies before it is not known.
                    let known = held.remove(&hash) || self.cleared.contains(&worker);
                    assert!(known, "removed unknown");
                }
                Change::Marked { hash } | Change::Unmarked { hash } => {
                    assert!(held.contains(&hash), "marked and not held");
                }
                Change::Cleared => {
                    held.clear();
                    self.cleared.insert(worker);
                }
            }
        }
    }

    fn at(&mut self, now: f64) {
        assert!(now >= self.now, "time goes back from {} to {now}", self.now);
        self.now = now;
    }
}

impl Gateway for InTurn {
    type Error = Infallible;

    fn select(&mut self, attempt: &Attempt<'_>) -> Result<Option<Placed>, Infallible> {
        self.at(attempt.now);
        Ok(self.pick(attempt, 0..self.workers))
    }

    fn select_pair(&mut self, attempt: &Attempt<'_>) -> Result<Option<Pair>, Infallible> {
        self.at(attempt.now);
        let first = self.workers - self.prefill;
        let Some(decode) = self.pick(attempt, 0..first) else {
            return Ok(None);
        };
        let prefill = self.pick(attempt, first..self.workers);
        Ok(Some(Pair { prefill, decode }))
    }

    fn notice(&mut self, placed: Placed, notice: Notice, now: f64) -> Told {
        match notice {
            Notice::FirstToken => self.heard_of(placed, "first token", now),
            Notice::Tokens(_) => self.heard_of(placed, "tokens", now),
            Notice::Finished(_) | Notice::Failed | Notice::Cancelled => {
                if let Notice::Finished(cached) = notice {
                    self.heard.push(("finished", now));
                    self.known[1].insert(cached.is_some());
                }
                self.at(now);
                assert!(self.open.remove(&placed.ticket).is_some(), "ends once");
            }
        }
        Ok(())
    }

    fn news(&mut self, news: News<'_>, now: f64) -> Told {
        match news {
            News::Report(_, load, at) => {
                self.at(now);
                assert!(at <= now && (0.0..=1.0).contains(&load.kv_usage));
                self.reports += 1;
                self.known[0].insert(load.queued_tokens.is_some());
            }
            News::Changed(worker, changes) => self.changed(worker, changes, now),
            News::Lost(worker) => self.changed(worker, &[Change::Cleared], now),
            News::Ready(worker, ready) => {
                self.at(now);
                self.down.retain(|down| *down != worker);
                if !ready {
                    self.down.push(worker);
                }
            }
            News::PoolChanged(_) | News::Feed(..) => {}
        }
        Ok(())
    }
}

pub fn fleet(workers: usize, kv_blocks: u32) -> Vec<WorkerSettings> {
    let worker = WorkerSettings {
        engine: settings(kv_blocks),
        timing: a_second(),
        prefill_only: false,
        role: Role::Both,
        link: Link {
            kv_bytes: 1e3,
            bandwidth: 1e6,
            latency: 0.5,
        },
        slowdown: Vec::new(),
        pool: None,
        tier: None,
        peers: None,
    };
    vec![worker; workers]
}

/// Requests `(arrival, prompt tokens, output tokens, family of the prompt)`.
pub fn workload(rows: &[(f64, u32, u32, u64)]) -> Workload {
    let mut w = Workload {
        block_size: 16,
        offsets: vec![0],
        ..Workload::default()
    };
    for &(arrival, prompt, output, family) in rows {
        w.arrival.push(arrival);
        w.parent.push(-1);
        w.think.push(0.0);
        w.prompt_tokens.push(prompt);
        w.output_tokens.push(output);
        let blocks = 0..u64::from(prompt / 16);
        w.hashes
            .extend(blocks.map(|depth| SequenceHash(family * 10_000 + depth)));
        w.offsets.push(w.hashes.len() as u64);
    }
    w
}

/// Options with so much network delay.
pub fn delayed(net_delay: f64) -> Options {
    Options {
        net_delay,
        ..Options::default()
    }
}

/// Runs to the end, and recounts everything after each event.
pub fn done(w: &Workload, fleet: &[WorkerSettings], options: &Options) -> (Outcomes, InTurn) {
    let prefill = fleet.iter().filter(|w| w.role == Role::Prefill).count();
    let mut gateway = InTurn::with_prefill(fleet.len() as u32, prefill as u32);
    let mut run = Run::new(w, fleet, &mut gateway, options).unwrap();
    run.validate().unwrap();
    while run.step().unwrap_or_else(|never| match never {}) {
        run.validate().unwrap();
    }
    let outcomes = run.finish();
    assert!(gateway.open.is_empty(), "{:?}", gateway.open);
    (outcomes, gateway)
}

#[test]
fn times_are_those_of_passes_and_delays() {
    let w = workload(&[(0.0, 32, 3, 1)]);
    let (out, gateway) = done(&w, &fleet(1, 64), &delayed(0.25));
    assert_eq!(out.status, [Status::Finished]);
    assert_eq!((out.first_token[0], out.finish[0]), (1.5, 3.5));
    assert_eq!(out.gaps.mean(), Some(1.0));
    let p50 = out.gaps.quantile(0.5).unwrap();
    assert!((p50 - 1.0).abs() < 0.005, "{p50}");
    assert!((out.busy[0] - 3.0).abs() < 1e-9 && gateway.reports >= 30);
    assert_eq!(gateway.held[&0].len(), 2);
}

#[test]
fn a_follower_arrives_when_its_parent_is_over_and_its_thought_too() {
    let mut w = workload(&[(2.0, 32, 1, 1), (0.0, 32, 1, 1)]);
    w.arrival[1] = f64::NAN;
    w.parent[1] = 0;
    w.think[1] = 10.0;
    let (out, _) = done(&w, &fleet(1, 64), &delayed(0.0));
    assert_eq!(out.arrival, [2.0, 13.0]);
    assert_eq!(out.cached_tokens, [0, 16]);
}

#[test]
fn a_crash_is_retried_elsewhere_and_the_worker_comes_back_empty() {
    let w = workload(&[(0.0, 64, 20, 1), (0.0, 64, 20, 2), (60.0, 64, 1, 1)]);
    let options = Options {
        incidents: vec![(5.0, 0, Incident::Crash), (30.0, 0, Incident::Join)],
        ..Options::default()
    };
    let (out, _) = done(&w, &fleet(2, 64), &options);
    assert_eq!(out.status, [Status::Finished; 3]);
    assert_eq!((out.retries[0], out.worker[0]), (1, 1));
    let (out, _) = done(&w, &fleet(1, 64), &options);
    // Tried there already.
    assert_eq!(out.status[..2], [Status::Rejected; 2]);
}

#[test]
fn a_pinned_request_goes_nowhere_else_until_its_worker_fails_it() {
    let rows = (1..=4).map(|i| (i as f64 * 10.0, 32, if i < 4 { 2 } else { 20 }, i));
    let w = workload(&rows.collect::<Vec<_>>());
    let options = Options {
        pinned: vec![1, 1, -1, 1],
        incidents: vec![(42.0, 1, Incident::Crash)],
        ..Options::default()
    };
    let (out, _) = done(&w, &fleet(2, 64), &options);
    assert_eq!(out.worker, [1, 1, 0, 0]);
    assert_eq!(out.retries, [0, 0, 0, 1]);
    let options = Options {
        pinned: vec![2],
        ..Options::default()
    };
    let mut gateway = InTurn::new(2);
    assert!(Run::new(&w, &fleet(2, 64), &mut gateway, &options).is_err());
}

#[test]
fn what_fits_nowhere_is_told_apart() {
    let w = workload(&[(0.0, 1_000, 1, 1), (0.0, 16, 1, 2)]);
    let (out, _) = done(&w, &fleet(2, 16), &Options::default());
    assert_eq!(out.status, [Status::TooLong, Status::Finished]);
}

#[test]
fn columns_that_disagree_are_refused() {
    let good = workload(&[(0.0, 16, 1, 1), (1.0, 16, 1, 1)]);
    let changes: [fn(&mut Workload); 6] = [
        |w| w.arrival[1] = f64::NAN,
        |w| w.parent[0] = 1,
        |w| w.prompt_tokens[0] = 0,
        |w| w.offsets[1] = 9,
        |w| w.think.truncate(1),
        |w| w.block_size = 0,
    ];
    for change in changes {
        let mut bad = good.clone();
        change(&mut bad);
        let (mut gateway, options) = (InTurn::new(1), Options::default());
        let stopped = run(&bad, &fleet(1, 64), &mut gateway, &options, |_| true);
        assert!(matches!(stopped, Err(Stopped::Invalid(_))));
    }
}
