//! Speculative blocks are held for every request that waits for its first token, and go with the last of them: selectors
//! with every kind of memory of prompts against a ledger of owners per block.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

#[path = "../../core/tests/ledger/mod.rs"]
mod ledger;
#[path = "../../policy/tests/rules/mod.rs"]
mod rules;

use cachelb::selector::{
    BatchTerms, Eligibility, Ending, Offer, Offers, Placements, PoolSettings, Profile, Request,
    Selector, Settings, Usage, Wanted,
};
use cachelb_core::block_tracker::Origin;
use cachelb_core::hashing::Scheme;
use cachelb_core::ids::{Millis, SequenceHash};
use cachelb_core::load::BookingId;
use cachelb_policy::{Content, Ended, Rule, Session, SessionMode};
use proptest::prelude::*;

use ledger::{Ledger, blocks};

const WORKERS: [&str; 3] = ["a", "b", "c"];
const TTL_MS: u64 = 10_000;

/// Where a selector remembers prompts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Memory {
    Index,
    Tree,
    /// A tree of the rule's own.
    Prompts,
}

/// A policy under test: its name, its rule, and where it remembers prompts.
type Case = (&'static str, fn(&str) -> Box<dyn Rule>, Memory);

fn rule(name: &str) -> Box<dyn Rule> {
    let mut all = rules::every_rule().into_iter();
    all.find(|(other, _)| *other == name).unwrap().1
}

fn in_session(name: &str) -> Box<dyn Rule> {
    let sticky = rules::sessions(SessionMode::Sticky);
    Box::new(Session::new(sticky, Some(rule(name))))
}

const CASES: [Case; 7] = [
    ("cache-aware", rule, Memory::Index),
    ("cache-aware", rule, Memory::Tree),
    ("kv-aware", rule, Memory::Index),
    ("learned", rule, Memory::Index),
    ("prefix-affinity", rule, Memory::Prompts),
    ("prefix-affinity", in_session, Memory::Prompts),
    ("overlap-cost", in_session, Memory::Index),
];

#[derive(Debug, Clone)]
enum Op {
    Select(Vec<u64>),
    /// A prefill and a decode worker for one prompt.
    Pair(Vec<u64>),
    /// One more place for a request that then gives up the first one.
    Retry(usize),
    /// Several at once, and whether the last of them can be placed.
    Batch(Vec<Vec<u64>>, bool),
    FirstToken(usize),
    End(usize, Ending),
    /// Time passes; silent bookings expire.
    Wait(u64),
    Leave(usize),
}

fn path() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(1_u64..3, 1..6)
}

fn op() -> impl Strategy<Value = Op> {
    let ending = prop::sample::select(Ending::ALL.to_vec());
    prop_oneof![
        6 => path().prop_map(Op::Select),
        1 => path().prop_map(Op::Pair),
        1 => any::<usize>().prop_map(Op::Retry),
        2 => (prop::collection::vec(path(), 1..5), any::<bool>()).prop_map(|(p, ok)| Op::Batch(p, ok)),
        2 => any::<usize>().prop_map(Op::FirstToken),
        3 => (any::<usize>(), ending).prop_map(|(at, ending)| Op::End(at, ending)),
        3 => any::<usize>().prop_map(|at| Op::End(at, Ending::Failed)),
        1 => (1_u64..TTL_MS / 2).prop_map(Op::Wait),
        1 => (0_usize..3).prop_map(Op::Leave),
    ]
}

/// A request that was placed and did not end.
#[derive(Debug, Clone)]
struct Open {
    id: u64,
    booking: BookingId,
    path: Vec<u64>,
    answered: bool,
    touched: u64,
}

struct World {
    selector: Selector,
    memory: Memory,
    ledger: Ledger<usize, u64>,
    open: Vec<Open>,
    now: u64,
    ids: u64,
}

/// A path in the form of the index: chained hashes, or units that are compared one by one.
fn hashes(memory: Memory, path: &[u64]) -> Vec<SequenceHash> {
    let mut chained = 0x1234_5678_u64;
    let link = |unit: &u64| {
        let mixed = (chained ^ unit).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        chained = mixed.rotate_left(29);
        let in_tree = memory == Memory::Tree;
        SequenceHash(if in_tree { *unit } else { chained })
    };
    path.iter().map(link).collect()
}

fn offers() -> Offers {
    Offers::new(WORKERS.map(Offer::new).into())
}

impl World {
    fn new((name, rule, memory): Case) -> Self {
        let settings = Settings {
            registered: true,
            booking_ttl_ms: TTL_MS,
            ..Settings::default()
        };
        let placements = Placements {
            max_blocks_per_worker: 10_000,
            scheme: match memory {
                Memory::Tree => Scheme::Units,
                Memory::Index | Memory::Prompts => Scheme::Chained,
            },
            ..Placements::default()
        };
        let pool = PoolSettings::new(rule(name), 16, placements);
        let mut selector = Selector::new(settings, pool);
        for name in WORKERS {
            let mut workers = selector.workers_mut();
            workers.add(name, Profile::default(), Millis(0));
        }
        Self {
            selector,
            memory,
            ledger: Ledger::new(),
            open: Vec::new(),
            now: 1,
            ids: 0,
        }
    }

    fn request<'a>(&self, blocks: &'a [SequenceHash], tokens: &'a [u32]) -> Request<'a> {
        Request {
            blocks: Some((blocks, Origin::Tokens)),
            content: Content::Tokens(tokens),
            prompt_tokens: 16 * blocks.len() as u64 + 1,
            now: Millis(self.now),
            ..Request::default()
        }
    }

    fn booked(&mut self, worker: usize, booking: BookingId, path: &[u64]) {
        self.ids += 1;
        self.ledger.place(self.ids, worker, path);
        self.open.push(Open {
            id: self.ids,
            booking,
            path: path.to_vec(),
            answered: false,
            touched: self.now,
        });
    }

    fn select(&mut self, path: &[u64], wanted: Wanted) {
        let (blocks, tokens) = (hashes(self.memory, path), units(path));
        let request = Request {
            wanted,
            ..self.request(&blocks, &tokens)
        };
        let pick = self.selector.select(&mut offers(), &request).unwrap();
        self.booked(pick.offer, pick.booking.unwrap(), path);
    }

    fn batch(&mut self, paths: &[Vec<u64>], fits: bool) {
        let known = |path: &Vec<u64>| (hashes(self.memory, path), units(path));
        let known: Vec<_> = paths.iter().map(known).collect();
        let requests = known
            .iter()
            .map(|(blocks, tokens)| self.request(blocks, tokens));
        let mut batch: Vec<_> = requests.map(|request| (offers(), request)).collect();
        if !fits {
            let last = batch.last_mut().unwrap();
            for at in 0..WORKERS.len() {
                last.0.set_eligibility(at, Eligibility::Excluded);
            }
        }
        let terms = BatchTerms::default();
        let picks = self.selector.select_batch(&mut batch, terms);
        assert_eq!(picks.is_ok(), fits);
        for (pick, path) in picks.unwrap_or_default().iter().zip(paths) {
            self.booked(pick.offer, pick.booking.unwrap(), path);
        }
    }

    fn end(&mut self, at: usize, ending: Ending) {
        let open = self.open.swap_remove(at);
        self.selector
            .end(open.booking, ending, Usage::default(), Millis(self.now));
        match ending.ended() {
            Ended::Served => self.ledger.answer(open.id),
            _ => self.ledger.fail(open.id),
        }
    }

    fn apply(&mut self, op: Op) {
        let at = |at: usize| (!self.open.is_empty()).then(|| at % self.open.len());
        match op {
            Op::Select(path) => self.select(&path, Wanted::Whole),
            Op::Pair(path) => {
                self.select(&path, Wanted::Prefill);
                self.select(&path, Wanted::Decode);
            }
            Op::Retry(of) => {
                if let Some(at) = at(of) {
                    let path = self.open[at].path.clone();
                    self.select(&path, Wanted::Whole);
                    self.end(at, Ending::Failed);
                }
            }
            Op::Batch(paths, fits) => self.batch(&paths, fits),
            Op::FirstToken(of) => {
                if let Some(at) = at(of) {
                    let now = self.now;
                    let open = &mut self.open[at];
                    (open.answered, open.touched) = (true, now);
                    self.selector.first_token(open.booking, Millis(now));
                    let id = open.id;
                    self.ledger.answer(id);
                }
            }
            Op::End(of, ending) => {
                if let Some(at) = at(of) {
                    self.end(at, ending);
                }
            }
            Op::Wait(ms) => {
                self.now += ms;
                let oldest = self.now.saturating_sub(TTL_MS);
                let silent = |open: &Open| open.touched <= oldest;
                // Bookings expire a few at a time; here all of them are found at once.
                while let Some(at) = self.open.iter().position(silent) {
                    self.end(at, Ending::Expired);
                }
            }
            Op::Leave(worker) => {
                let (name, now) = (WORKERS[worker], Millis(self.now));
                self.selector.workers_mut().remove(name);
                self.selector
                    .workers_mut()
                    .add(name, Profile::default(), now);
                self.ledger.forget(worker);
                let book = self.selector.book();
                self.open
                    .retain(|open| book.bookings.worker(open.booking).is_some());
            }
        }
    }

    /// Leading blocks of the path by worker, as the policy sees them.
    fn seen(&mut self, path: &[u64]) -> Vec<usize> {
        let (blocks, tokens) = (hashes(self.memory, path), units(path));
        let request = self.request(&blocks, &tokens);
        let (_, seen) = self.selector.preview(&mut offers(), &request).unwrap();
        let depth = |seen: &cachelb::selector::Seen| match self.memory {
            #[expect(clippy::cast_sign_loss, reason = "a share")]
            Memory::Prompts => (seen.score.get().unwrap() * path.len() as f64).round() as usize,
            Memory::Index | Memory::Tree => seen.overlap_blocks as usize,
        };
        seen.iter().map(depth).collect()
    }

    fn check(&mut self, paths: &[Vec<u64>]) {
        self.selector.validate().unwrap();
        for path in paths {
            let held = |block: &_| self.ledger.held.contains(block);
            let depth = |at| blocks(at, path).take_while(held).count();
            let expected: Vec<usize> = (0..3).map(depth).collect();
            assert_eq!(self.seen(path), expected, "{path:?}");
        }
        if self.memory != Memory::Prompts {
            for (at, name) in WORKERS.into_iter().enumerate() {
                let worker = self.selector.fleet().find(name);
                let count = self.selector.pools().block_count(worker) as usize;
                let placed = self.ledger.held.iter().filter(|(on, _)| *on == at);
                assert_eq!(count, placed.count(), "blocks of {name}");
            }
        }
    }
}

fn units(path: &[u64]) -> Vec<u32> {
    path.iter().map(|unit| *unit as u32).collect()
}

fn run(case: Case, ops: Vec<Op>) {
    let mut world = World::new(case);
    let mut paths: Vec<Vec<u64>> = Vec::new();
    for op in ops {
        match &op {
            Op::Select(path) | Op::Pair(path) => paths.push(path.clone()),
            Op::Batch(batch, _) => paths.extend(batch.clone()),
            _ => {}
        }
        world.apply(op);
        world.check(&paths);
    }
    // All waiting requests fail now: the others were answered by a worker.
    while !world.open.is_empty() {
        world.end(0, Ending::Cancelled);
    }
    world.check(&paths);
    assert!(world.ledger.speculative.is_empty());
}

proptest! {
    #[test]
    fn blocks_are_held_by_every_request_that_waits_for_them(
        case in prop::sample::select(CASES.to_vec()),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        run(case, ops);
    }
}

#[test]
fn requests_that_all_fail_leave_no_credit_behind() {
    for case in CASES {
        for ending in [
            Ending::Failed,
            Ending::Cancelled,
            Ending::Client,
            Ending::Backpressure,
        ] {
            let prompt = vec![1, 2, 1, 2];
            let mut world = World::new(case);
            for _ in 0..300 {
                world.select(&prompt, Wanted::Whole);
            }
            while !world.open.is_empty() {
                world.end(world.open.len() / 2, ending);
            }
            assert_eq!(world.seen(&prompt), [0, 0, 0], "{} {ending:?}", case.0);
        }
    }
}

#[test]
fn a_batch_that_cannot_be_placed_leaves_no_blocks_behind() {
    for case in CASES {
        let prompts = vec![vec![1, 2, 1], vec![1, 2, 1], vec![2, 2], vec![1]];
        let mut world = World::new(case);
        world.batch(&prompts, false);
        world.check(&prompts);
        assert_eq!(world.selector.pools().block_count(None), 0, "{}", case.0);
    }
}
