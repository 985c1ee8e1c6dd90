//! A fleet of workers: its index, and beside it a plain model that gives the right answers.
//!
//! The model knows disjoint chains only, each recorded in full or deeper than before, which makes leaf LRU a queue of
//! chains trimmed from their ends. It shares no code with the index: a wrong answer or count aborts the run.

use std::collections::{BTreeSet, HashMap, VecDeque};

use cachelb_core::ids::{Medium, SequenceHash, WorkerId};
use cachelb_core::index::{BlockIndex, Matcher, Overlaps};

use crate::random::Random;

/// Size and state of a fleet.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Workers registered.
    pub workers: u32,
    /// Blocks of each chain.
    pub chain: u32,
    /// Workers per chain: one to the end, the others to random depths.
    pub holders: u32,
    /// Distinct blocks in the index.
    pub resident: u32,
    /// Workers are full, so that every store evicts, and one in ten holds holes.
    pub churned: bool,
    /// Per cent of every path that engines have not confirmed yet, in a fleet with room whose engines announce the rest
    /// and whose workers each expect a chain that is never looked up. `None`: recorded by the router.
    pub speculative: Option<u32>,
}

/// A chain that at least one worker holds.
#[derive(Debug)]
struct Chain {
    hashes: Vec<SequenceHash>,
    holders: u32,
}

/// Blocks `0..top` of a chain less `holes`; the last one is never a hole.
#[derive(Debug, Default)]
struct Held {
    top: u32,
    holes: BTreeSet<u32>,
}

impl Held {
    fn depth(&self) -> u32 {
        self.holes.first().copied().unwrap_or(self.top)
    }
}

#[derive(Debug)]
struct Worker {
    id: WorkerId,
    capacity: u32,
    count: u32,
    /// Chains, least recently used first.
    order: VecDeque<u32>,
    held: HashMap<u32, Held>,
}

/// The index under test and the model of its contents.
#[derive(Debug)]
pub struct Fleet {
    /// The index under test.
    pub index: BlockIndex,
    setup: Setup,
    workers: Vec<Worker>,
    chains: HashMap<u32, Chain>,
    next_chain: u32,
    random: Random,
}

/// A prompt: its blocks, the chain it follows and how far.
#[derive(Debug, Default)]
pub struct Query {
    /// Sequence hashes of the prompt.
    pub hashes: Vec<SequenceHash>,
    chain: u32,
    depth: u32,
}

impl Fleet {
    /// Fills a fleet; a churned one is then turned over once and gets its holes.
    pub fn new(setup: Setup, seed: u64) -> Self {
        let Setup {
            workers,
            chain,
            holders,
            resident,
            churned,
            speculative,
        } = setup;
        // Half of the partial holders' blocks are missing on average.
        let pairs = u64::from(resident) * (1 + u64::from(holders)) / 2;
        let capacity = if churned {
            (pairs / u64::from(workers)).max(u64::from(chain)) as u32
        } else {
            u32::MAX
        };
        let mut fleet = Self {
            index: BlockIndex::new(Matcher::Kary),
            setup,
            workers: Vec::new(),
            chains: HashMap::new(),
            next_chain: 0,
            random: Random(seed),
        };
        for slot in 0..workers {
            let id = WorkerId {
                slot,
                generation: 0,
            };
            fleet.index.add_worker(id, capacity);
            fleet.workers.push(Worker {
                id,
                capacity,
                count: 0,
                order: VecDeque::new(),
                held: HashMap::new(),
            });
        }
        let turns = if churned { 2 } else { 1 };
        for _ in 0..turns * resident / chain {
            fleet.spread_new_chain();
        }
        if speculative.is_some() {
            for slot in 0..workers {
                let chain = fleet.new_chain(chain);
                let hashes = &fleet.chains[&chain].hashes;
                let id = fleet.workers[slot as usize].id;
                let held = fleet.index.expect(id, hashes, 0, None, None);
                assert_eq!(held.ok(), Some(hashes.len() as u32), "not held yet");
            }
        }
        if churned {
            (0..workers)
                .step_by(10)
                .for_each(|slot| fleet.punch_holes(slot));
        }
        fleet
    }

    /// Records a new chain on its holders, by the setup.
    pub fn spread_new_chain(&mut self) {
        let chain = self.new_chain(self.setup.chain);
        let first = self.random.below(self.setup.workers);
        for nth in 0..self.setup.holders {
            let depth = if nth == 0 {
                self.setup.chain
            } else {
                1 + self.random.below(self.setup.chain)
            };
            // Holders are spread evenly and without repetition.
            let slot =
                (first + nth * (self.setup.workers / self.setup.holders)) % self.setup.workers;
            self.record(slot, chain, depth);
        }
    }

    /// Creates a chain of fresh hashes that no worker holds yet.
    pub fn new_chain(&mut self, blocks: u32) -> u32 {
        let hashes = (0..blocks)
            .map(|_| SequenceHash(self.random.bits()))
            .collect();
        self.next_chain += 1;
        self.chains
            .insert(self.next_chain, Chain { hashes, holders: 0 });
        self.next_chain
    }

    /// Hashes of a live chain.
    pub fn hashes(&self, chain: u32) -> &[SequenceHash] {
        &self.chains[&chain].hashes
    }

    /// A worker at random.
    pub fn any_worker(&mut self) -> u32 {
        self.random.below(self.setup.workers)
    }

    /// Id of the worker in `slot`.
    pub fn id(&self, slot: u32) -> WorkerId {
        self.workers[slot as usize].id
    }

    /// A worker at random and a chain of which it holds the first block.
    pub fn any_held(&mut self) -> (u32, u32) {
        loop {
            let slot = self.any_worker();
            let worker = &self.workers[slot as usize];
            let among = worker.order.len() as u32;
            if among > 0 {
                return (slot, worker.order[self.random.below(among) as usize]);
            }
        }
    }

    /// Fills `query` with a prompt that follows a held chain to a random depth and then leaves it.
    pub fn ask(&mut self, query: &mut Query) {
        let (_, chain) = self.any_held();
        query.chain = chain;
        query.hashes.clone_from(&self.chains[&chain].hashes);
        query.depth = self.random.below(query.hashes.len() as u32 + 1);
        for hash in &mut query.hashes[query.depth as usize..] {
            *hash = SequenceHash(self.random.bits());
        }
    }

    /// Aborts unless `answer` equals that of a block-by-block look at the model.
    pub fn check(&self, query: &Query, answer: &Overlaps) {
        let expected: Vec<(u32, u32)> = self
            .workers
            .iter()
            .filter_map(|worker| {
                let depth = worker.held.get(&query.chain)?.depth().min(query.depth);
                (depth > 0).then_some((worker.id.slot, depth))
            })
            .collect();
        let found: Vec<(u32, u32)> = answer.iter().collect();
        assert_eq!(found, expected, "overlaps differ from the linear oracle");
    }

    /// Records the first `depth` blocks of `chain` on the worker in `slot`.
    pub fn record(&mut self, slot: u32, chain: u32, depth: u32) {
        let hashes = &self.chains[&chain].hashes[..depth as usize];
        let (index, id) = (&mut self.index, self.workers[slot as usize].id);
        let stored = match self.setup.speculative {
            None => index.record(id, hashes, None, None),
            Some(per_cent) => {
                let confirmed = depth - depth * per_cent / 100;
                let (some, medium) = (&hashes[..confirmed as usize], Medium::Gpu);
                let announced = index.announce(id, None, some, medium, None);
                let expected = index.expect(id, hashes, confirmed, None, None);
                announced.and_then(|announced| Ok(announced + expected?))
            }
        };
        self.recorded(slot, chain, depth, stored.ok());
    }

    /// Repeats in the model the last change of the index, and aborts unless it stored as many blocks.
    pub fn recorded(&mut self, slot: u32, chain: u32, depth: u32, stored: Option<u32>) {
        let worker = &mut self.workers[slot as usize];
        let depth = depth.min(worker.capacity);
        if !worker.held.contains_key(&chain) {
            self.chains
                .get_mut(&chain)
                .expect("a chain that is recorded is live")
                .holders += 1;
        }
        let held = worker.held.entry(chain).or_default();
        assert!(
            held.top <= depth,
            "the model records no shorter path than before"
        );
        let missing = depth - held.top + held.holes.len() as u32;
        held.holes.clear();
        held.top = depth;
        worker.order.retain(|&other| other != chain);
        worker.order.push_back(chain);
        worker.count += missing;
        assert_eq!(
            stored,
            Some(missing),
            "blocks stored differ from the model's"
        );
        self.trim(slot);
    }

    /// Evicts from the ends of the chains used least recently.
    fn trim(&mut self, slot: u32) {
        let worker = &mut self.workers[slot as usize];
        while worker.count > worker.capacity {
            let oldest = worker.order[0];
            let held = worker
                .held
                .get_mut(&oldest)
                .expect("listed chains are held");
            worker.count -= 1;
            held.top -= 1;
            while held.top > 0 && held.holes.remove(&(held.top - 1)) {
                held.top -= 1;
            }
            if held.top == 0 {
                worker.order.pop_front();
                worker.held.remove(&oldest);
                let chain = self.chains.get_mut(&oldest).expect("held chains are live");
                chain.holders -= 1;
                if chain.holders == 0 {
                    self.chains.remove(&oldest);
                }
            }
        }
    }

    /// Removes one inner block from every second chain of the worker, as engine events may.
    fn punch_holes(&mut self, slot: u32) {
        let worker = &mut self.workers[slot as usize];
        for chain in worker.order.iter().step_by(2) {
            let held = worker.held.get_mut(chain).expect("listed chains are held");
            if held.top < 3 {
                continue;
            }
            let hole = 1 + self.random.below(held.top - 2);
            let block = self.chains[chain].hashes[hole as usize];
            let removed = self.index.remove(worker.id, &[block], None);
            assert_eq!(
                removed.ok(),
                Some(1),
                "the index holds what the model holds"
            );
            held.holes.insert(hole);
            worker.count -= 1;
        }
    }
}
