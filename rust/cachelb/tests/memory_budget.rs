//! The bytes of all block indexes stay within the budget after every call, whatever the traffic.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::collections::{HashMap, HashSet};

use cachelb::selector::{
    Ending, Facts, Offer, Offers, Placements, PoolId, PoolSettings, Profile, Request, Selector,
    Settings, Usage,
};
use cachelb_core::block_tracker::Origin;
use cachelb_core::ids::{Medium, Millis, SequenceHash};
use cachelb_core::load::BookingId;
use cachelb_policy::{PrefixCache, Threshold};
use proptest::prelude::*;

/// Chained hashes of a path whose first `shared` blocks belong to the `family` and whose others to the `member`.
fn path(family: u64, member: u64, shared: usize, length: usize) -> Vec<SequenceHash> {
    let mut hash = 0x9E37_79B9_7F4A_7C15_u64;
    (0..length)
        .map(|at| {
            let content = if at < shared { family } else { !member };
            let mixed = (hash ^ content).wrapping_mul(0xD1B5_4A32_D192_ED03);
            hash = mixed.rotate_left(31).wrapping_mul(0x94D0_49BB_1331_11EB);
            SequenceHash(hash)
        })
        .collect()
}

fn pool(ttl_ms: Option<u64>) -> PoolSettings {
    let placements = Placements {
        max_blocks_per_worker: 20_000,
        ttl_ms,
        ..Placements::default()
    };
    let rule = PrefixCache {
        tau: Threshold::new(0.5),
        gate: None,
    };
    PoolSettings::new(Box::new(rule), 16, placements)
}

fn selector(budget: usize, first: PoolSettings) -> Selector {
    let settings = Settings {
        registered: true,
        max_memory_bytes: Some(budget),
        ..Settings::default()
    };
    Selector::new(settings, first)
}

/// A selector under a budget, and all that was ever placed.
struct Fleet {
    selector: Selector,
    budget: usize,
    names: Vec<String>,
    /// By pool and worker.
    placed: HashMap<(u32, String), HashSet<SequenceHash>>,
    open: Vec<BookingId>,
    number: u64,
    now: Millis,
}

impl Fleet {
    fn new(budget: usize, workers: usize, first: PoolSettings) -> Self {
        let mut fleet = Self {
            selector: selector(budget, first),
            budget,
            names: Vec::new(),
            placed: HashMap::new(),
            open: Vec::new(),
            number: 0,
            now: Millis(1),
        };
        for _ in 0..workers {
            fleet.add_worker();
        }
        fleet
    }

    fn add_worker(&mut self) {
        self.number += 1;
        let name = format!("w{}", self.number);
        let mut workers = self.selector.workers_mut();
        workers.add(&name, Profile::default(), self.now);
        self.names.push(name);
    }

    fn remove_worker(&mut self, at: usize) {
        let name = self.names.swap_remove(at);
        assert!(self.selector.workers_mut().remove(&name));
        self.placed.retain(|(_, worker), _| *worker != name);
    }

    fn offers(&self) -> Offers {
        let names = self.names.iter();
        Offers::new(names.map(|name| Offer::new(name.as_str())).collect())
    }

    fn request<'a>(&self, pool: u32, blocks: &'a [SequenceHash]) -> Request<'a> {
        Request {
            pool: PoolId(pool),
            blocks: Some((blocks, Origin::Tokens)),
            prompt_tokens: 16 * blocks.len() as u64,
            number: self.number,
            now: self.now,
            ..Request::default()
        }
    }

    fn place(&mut self, pool: u32, blocks: &[SequenceHash]) -> String {
        self.number += 1;
        let mut offers = self.offers();
        let request = self.request(pool, blocks);
        let pick = self.selector.select(&mut offers, &request).unwrap();
        self.open.extend(pick.booking);
        let name = self.names[pick.offer].clone();
        let placed = self.placed.entry((pool, name.clone())).or_default();
        placed.extend(blocks);
        name
    }

    fn end(&mut self, booking: BookingId, ending: Ending) {
        self.selector
            .end(booking, ending, Usage::default(), self.now);
    }

    /// Leading blocks by worker.
    fn overlaps(&mut self, pool: u32, blocks: &[SequenceHash]) -> HashMap<String, u32> {
        let mut offers = self.offers();
        let request = self.request(pool, blocks);
        let (_, seen) = self.selector.preview(&mut offers, &request).unwrap();
        let overlaps = seen.iter().map(|s| (s.name.to_string(), s.overlap_blocks));
        overlaps.collect()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let bytes = self.selector.pools().index_bytes();
        let sound = self.selector.validate();
        prop_assert!(sound.is_ok(), "{sound:?}");
        let empty = self.selector.pools().block_count(None) == 0;
        prop_assert!(bytes <= self.budget || empty, "{bytes} of {}", self.budget);
        Ok(())
    }

    /// No worker is credited with more than was placed there, and `whole` is held by `worker`.
    fn check_overlaps(
        &mut self,
        pool: u32,
        blocks: &[SequenceHash],
        whole: Option<&str>,
    ) -> Result<(), TestCaseError> {
        for (name, overlap) in self.overlaps(pool, blocks) {
            let placed = self.placed.get(&(pool, name.clone()));
            let held = |hash: &&SequenceHash| placed.is_some_and(|placed| placed.contains(hash));
            let most = blocks.iter().take_while(held).count();
            prop_assert!(overlap as usize <= most, "{name}: {overlap} of {most}");
            if whole == Some(name.as_str()) {
                prop_assert_eq!(overlap as usize, blocks.len());
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone)]
enum Op {
    Place(u32, Vec<SequenceHash>),
    /// So many prompts of a length.
    Flood(u32, u64, usize),
    Ask(u32, Vec<SequenceHash>),
    AddWorker,
    /// One with or without a time to live.
    AddPool(bool),
    RemoveWorker(usize),
    Reset(usize),
    Fail(usize),
    Finish(usize),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let blocks = || {
        let shape = (0_u64..5, 0_u64..40, 0_usize..60, 1_usize..400);
        shape.prop_map(|(family, member, shared, length)| path(family, member, shared, length))
    };
    prop_oneof![
        10 => (0_u32..4, blocks()).prop_map(|(pool, blocks)| Op::Place(pool, blocks)),
        4 => (0_u32..4, 1_u64..300, 1_usize..4).prop_map(|(pool, count, length)| Op::Flood(pool, count, length)),
        3 => (0_u32..4, blocks()).prop_map(|(pool, blocks)| Op::Ask(pool, blocks)),
        1 => Just(Op::AddWorker),
        1 => any::<bool>().prop_map(Op::AddPool),
        1 => any::<usize>().prop_map(Op::RemoveWorker),
        1 => any::<usize>().prop_map(Op::Reset),
        2 => any::<usize>().prop_map(Op::Fail),
        2 => any::<usize>().prop_map(Op::Finish),
        2 => (0_u64..1500).prop_map(Op::Wait),
    ]
}

fn apply(fleet: &mut Fleet, pools: &mut u32, op: &Op) -> Result<(), TestCaseError> {
    match *op {
        Op::Place(pool, ref blocks) => {
            let pool = pool % *pools;
            let lost = fleet.selector.pools().without_room();
            let worker = fleet.place(pool, blocks);
            fleet.check()?;
            let whole = (fleet.selector.pools().without_room() == lost).then_some(worker.as_str());
            fleet.check_overlaps(pool, blocks, whole)?;
        }
        Op::Flood(pool, count, length) => {
            for _ in 0..count {
                let member = fleet.number;
                fleet.place(pool % *pools, &path(0, member + 1000, 0, length));
                let pools = fleet.selector.pools();
                let within = pools.index_bytes() <= fleet.budget;
                prop_assert!(within || pools.block_count(None) == 0);
            }
        }
        Op::Ask(pool, ref blocks) => fleet.check_overlaps(pool % *pools, blocks, None)?,
        Op::AddWorker => fleet.add_worker(),
        Op::AddPool(ttl) if *pools < 4 => {
            let settings = pool(ttl.then_some(2000));
            fleet.selector.add_pool(settings);
            *pools += 1;
        }
        Op::RemoveWorker(at) if fleet.names.len() > 1 => {
            fleet.remove_worker(at % fleet.names.len());
        }
        Op::Reset(at) => {
            let name = fleet.names[at % fleet.names.len()].clone();
            fleet.selector.workers_mut().reset_cache(&name, fleet.now);
            fleet.placed.retain(|(_, worker), _| *worker != name);
        }
        Op::Fail(at) | Op::Finish(at) if !fleet.open.is_empty() => {
            let booking = fleet.open.swap_remove(at % fleet.open.len());
            let failed = matches!(op, Op::Fail(_));
            let ending = if failed {
                Ending::Failed
            } else {
                Ending::Completed
            };
            fleet.end(booking, ending);
        }
        Op::Wait(ms) => fleet.now = Millis(fleet.now.0 + ms),
        _ => {}
    }
    fleet.check()
}

proptest! {
    #[test]
    fn mixed_traffic_never_exceeds_the_budget(
        kibibytes in prop_oneof![Just(64_usize), Just(96), Just(200), Just(1024)],
        workers in prop_oneof![1_usize..6, Just(70)],
        ttl in any::<bool>(),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let first = pool(ttl.then_some(2000));
        let mut fleet = Fleet::new(kibibytes * 1024, workers, first);
        let mut pools = 1;
        for op in &ops {
            apply(&mut fleet, &mut pools, op)?;
        }
    }
}

/// Blocks known after `count` prompts of `length` blocks that share nothing.
fn flood(fleet: &mut Fleet, pool: u32, count: u64, length: usize) -> u64 {
    for _ in 0..count {
        let member = fleet.number;
        fleet.place(pool, &path(0, member + 1000, 0, length));
        assert!(fleet.selector.pools().index_bytes() <= fleet.budget);
        for booking in std::mem::take(&mut fleet.open) {
            fleet.end(booking, Ending::Completed);
        }
    }
    fleet.selector.validate().unwrap();
    fleet.selector.pools().block_count(None)
}

fn fleet(mebibytes: usize) -> Fleet {
    Fleet::new(mebibytes << 20, 8, pool(None))
}

#[test]
fn a_change_of_traffic_leaves_room_for_the_new_kind() {
    for [before, after] in [[(60_000, 1), (3000, 256)], [(1000, 256), (60_000, 1)]] {
        let alone = flood(&mut fleet(2), 0, after.0, after.1);
        let mut changed = fleet(2);
        flood(&mut changed, 0, before.0, before.1);
        let left = flood(&mut changed, 0, after.0, after.1);
        assert!(left * 10 > alone * 7, "{left} of {alone} {after:?}");
        assert_eq!(changed.selector.pools().without_room(), 0);
    }
}

#[test]
fn a_model_without_traffic_makes_room_for_another() {
    let mut fleet = fleet(2);
    fleet.selector.add_pool(pool(None));
    let first = flood(&mut fleet, 0, 2000, 64);
    let second = flood(&mut fleet, 1, 4000, 64);
    assert!(second * 10 > first * 7, "{second} of {first}");
}

#[test]
fn what_was_used_longest_ago_goes_first_whoever_holds_it() {
    let mut fleet = fleet(1);
    let kept = path(7, 7, 0, 32);
    for round in 0..200 {
        fleet.place(0, &kept);
        flood(&mut fleet, 0, 20, 64);
        let held = fleet.overlaps(0, &kept).into_values().max();
        assert_eq!(held, Some(32), "round {round}");
    }
    let lost = fleet.selector.pools().lost().index;
    assert!(lost.displaced > 1000 && lost.evicted == 0, "{lost:?}");
}

#[test]
fn a_prompt_over_the_budget_is_held_as_far_as_there_is_room() {
    let mut fleet = fleet(1);
    let blocks = path(3, 3, 0, 100_000);
    let worker = fleet.place(0, &blocks[..20_000]);
    assert_eq!(fleet.overlaps(0, &blocks)[&worker], 20_000);
    assert_eq!(fleet.selector.pools().without_room(), 0);
    for name in fleet.names.clone() {
        let facts = Facts {
            kv_blocks: Some(200_000),
            ..Facts::default()
        };
        let names = [name.as_str().into()];
        let mut workers = fleet.selector.workers_mut();
        workers.learn(&name, &names, facts).unwrap();
    }
    fleet.place(0, &blocks);
    assert_eq!(fleet.selector.pools().without_room(), 1);
    fleet.check().unwrap();
    let next = path(4, 4, 0, 500);
    let worker = fleet.place(0, &next);
    assert_eq!(fleet.overlaps(0, &next)[&worker], 500);
}

#[test]
fn what_engines_announce_stays_within_the_budget_too() {
    let (budget, now) = (1 << 20, Millis(1));
    let mut selector = selector(budget, pool(None));
    let add = |selector: &mut Selector, name: &str| {
        let mut workers = selector.workers_mut();
        workers.add(name, Profile::default(), now)
    };
    let workers = ["a", "b"].map(|name| add(&mut selector, name));
    let mut newest = Vec::new();
    for chain in 0..4_000 {
        newest = path(chain, 0, 8, 16);
        let worker = workers[chain as usize % 2];
        let (head, tail) = newest.split_at(8);
        let mut feed = selector.feed(worker).unwrap();
        assert_eq!(feed.announce(None, head, Medium::Gpu, now), 8);
        let parent = head.last().copied();
        assert_eq!(feed.announce(parent, tail, Medium::Cpu, now), 8);
        assert!(selector.pools().index_bytes() <= budget);
    }
    let last = *newest.last().unwrap();
    assert!(selector.pools()[PoolId(0)].holds(workers[1], last, Medium::Cpu));
    let mut feed = selector.feed(workers[1]).unwrap();
    assert!(feed.spread(last, Medium::Gpu));
    assert_eq!(feed.withdraw(&[last], Medium::Gpu), 1);
    let displaced = selector.pools().lost().index.displaced;
    assert!(displaced > 10_000, "{displaced}");
    selector.validate().unwrap();
    selector.workers_mut().remove("b");
    assert!(selector.feed(workers[1]).is_none());
    add(&mut selector, "b");
    assert!(selector.feed(workers[1]).is_none(), "the earlier life");
    selector.validate().unwrap();
}
