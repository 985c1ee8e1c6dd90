//! Block tracker: workers by name over one block index behind one lock (see [`NamedIndex`]).

mod snapshot;
mod store;
#[cfg(test)]
mod tests;

use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use store::{Depths, Lookup, Origin, Store};

use crate::collections::slot_mut;
use crate::error::{Error, Result};
use crate::hashing::{DEFAULT_SEED, Hasher, Scheme};
use crate::ids::{Medium, Millis, SequenceHash, WorkerId};
use crate::index::{BlockIndex, Matcher};
use crate::named_index::{self, Expiring, NamedIndex};
use crate::positional::PositionalIndex;
use crate::registry::WorkerRegistry;

/// Settings of a [`BlockTracker`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackerConfig {
    /// Tokens per block, 1 to 1024.
    pub block_size: usize,
    /// Blocks a worker may hold per medium, at least 1.
    pub max_blocks_per_worker: u32,
    /// How tokens become hashes.
    pub scheme: Scheme,
    /// How the longest known prefix is searched.
    pub matcher: Matcher,
    /// Seed of hashes and of ties.
    pub seed: u64,
}

impl Default for TrackerConfig {
    fn default() -> Self {
        Self {
            block_size: 16,
            max_blocks_per_worker: 100_000,
            scheme: Scheme::default(),
            matcher: Matcher::default(),
            seed: DEFAULT_SEED,
        }
    }
}

/// Leading blocks of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The worker.
    pub worker: WorkerId,
    /// Their number, at least 1.
    pub blocks: u32,
}

/// Answer buffer of lookups, reused between calls so that a lookup allocates nothing.
#[derive(Debug, Default)]
pub struct Answer {
    depths: Depths,
    /// The workers that hold at least one leading block; in slot order, or in the order of `among` if that was given.
    pub found: Vec<Held>,
}

/// One model's blocks and their holders.
pub type BlockTracker = NamedIndex<Settings, State>;
/// Questions to a tracker that stands still.
pub type View<'a> = named_index::View<'a, Settings, State>;
/// Changes to a tracker that no other thread sees half-made.
pub type Edit<'a> = named_index::Edit<'a, Settings, State>;

/// Settings of a tracker.
#[derive(Debug)]
pub struct Settings {
    hasher: Hasher,
    config: TrackerConfig,
}

/// Blocks, and the workers that hold them.
#[derive(Debug)]
pub struct State {
    store: Store,
    /// By slot.
    members: Vec<Option<Member>>,
}

impl Expiring for State {
    fn next_expiry(&self) -> Option<Millis> {
        self.store.next_expiry()
    }
}

#[derive(Debug, Clone, Copy)]
struct Member {
    generation: u32,
    /// Hash of the name: the worker's part in a tie.
    tie: u64,
}

impl BlockTracker {
    /// An empty tracker.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a block size outside 1..=1024 or a capacity of 0.
    pub fn new(config: TrackerConfig) -> Result<Self> {
        let store = match config.scheme {
            Scheme::Chained | Scheme::Eagle => {
                Store::Exact(Box::new(BlockIndex::new(config.matcher)))
            }
            Scheme::Positional => Store::Positional(PositionalIndex::default()),
            Scheme::Units => {
                return Err(Error::setting(
                    "hashing",
                    "a scheme that hashes",
                    config.scheme.name(),
                ));
            }
        };
        Self::with_store(config, store, WorkerRegistry::new())
    }

    fn with_store(config: TrackerConfig, store: Store, registry: WorkerRegistry) -> Result<Self> {
        let hasher = Hasher::new(config.scheme, config.block_size, config.seed)?;
        if config.max_blocks_per_worker == 0 {
            return Err(Error::setting("max_blocks_per_worker", "at least 1", 0));
        }
        let mut state = State {
            store,
            members: Vec::new(),
        };
        for (name, id) in registry.ids() {
            state.join(id, &name, config.seed);
        }
        Ok(Self::of(Settings { hasher, config }, registry, state))
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &TrackerConfig {
        &self.settings.config
    }

    /// The hasher of this tracker's blocks.
    #[must_use]
    pub fn hasher(&self) -> &Hasher {
        &self.settings.hasher
    }
}

// === impl State ===

impl State {
    fn join(&mut self, id: WorkerId, name: &str, seed: u64) {
        let tie = xxh3_64_with_seed(name.as_bytes(), seed);
        *slot_mut(&mut self.members, id.slot) = Some(Member {
            generation: id.generation,
            tie,
        });
    }

    fn member(&self, slot: u32) -> Option<&Member> {
        self.members.get(slot as usize)?.as_ref()
    }
}

// === impl View ===

impl View<'_> {
    /// Finds every worker that holds leading blocks of `hashes`; with `among`, of those names only, unknown ones
    /// ignored.
    pub fn overlaps(
        &self,
        hashes: &[SequenceHash],
        origin: Origin,
        among: Option<&[&str]>,
        answer: &mut Answer,
    ) {
        let Answer { depths, found } = answer;
        let State { store, .. } = &*self.state;
        store.overlaps(hashes, origin, depths);
        let found_by = Lookup { store, depths };
        found.clear();
        let Some(names) = among else {
            found_by.for_each(|(slot, blocks)| {
                if let Some(member) = self.state.member(slot) {
                    let worker = WorkerId {
                        slot,
                        generation: member.generation,
                    };
                    found.push(Held { worker, blocks });
                }
            });
            return;
        };
        for name in names {
            if let Some(worker) = self.owner.registry.get(name) {
                let blocks = found_by.overlap(worker.slot);
                if blocks > 0 {
                    found.push(Held { worker, blocks });
                }
            }
        }
    }

    /// The worker that holds the most leading blocks of `hashes`, which come from tokens. The smallest hash of seed,
    /// last sequence hash and name breaks ties: different prompts spread over the tied workers, the same prompt stays.
    pub fn best(
        &self,
        hashes: &[SequenceHash],
        among: Option<&[&str]>,
        answer: &mut Answer,
    ) -> Option<Held> {
        self.overlaps(hashes, Origin::Tokens, among, answer);
        let deepest = answer.found.iter().map(|held| held.blocks).max()?;
        let mut tied = answer.found.iter().filter(|held| held.blocks == deepest);
        let first = tied.next()?;
        let Some(second) = tied.next() else {
            return Some(*first);
        };
        let last = hashes.last()?.0.to_le_bytes();
        let key = |held: &&Held| {
            let member = self.state.member(held.worker.slot);
            let tie = member.map_or(0, |member| member.tie);
            let mut pair = [0; 16];
            pair[..8].copy_from_slice(&last);
            pair[8..].copy_from_slice(&tie.to_le_bytes());
            xxh3_64_with_seed(&pair, self.owner.settings.config.seed)
        };
        [first, second]
            .into_iter()
            .chain(tied)
            .min_by_key(key)
            .copied()
    }

    /// Distinct blocks held by the worker called `name`, 0 for an unknown one; without a name, the sum over workers.
    #[must_use]
    pub fn block_count(&self, name: Option<&str>) -> u64 {
        let count = |id| self.state.store.block_count(id).unwrap_or(0);
        if let Some(name) = name {
            return self.owner.registry.get(name).map_or(0, count);
        }
        let ids = self.owner.registry.ids().into_iter();
        ids.map(|(_, id)| count(id)).sum()
    }

    /// Heap bytes of the index, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.state.store.memory_bytes()
            + self.state.members.capacity() * size_of::<Option<Member>>()
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first broken invariant.
    pub fn validate(&self) -> Result<()> {
        self.state.store.validate()?;
        let ids = self.owner.registry.ids();
        let members = self.state.members.iter().flatten().count();
        if ids.len() != members {
            return Err(Error::Invariant(format!(
                "{} workers are registered, {members} are members",
                ids.len()
            )));
        }
        for (name, id) in ids {
            let generation = self.state.member(id.slot).map(|member| member.generation);
            if generation != Some(id.generation) || self.state.store.block_count(id).is_err() {
                return Err(Error::Invariant(format!(
                    "worker {name:?} is registered and unknown to the index"
                )));
            }
        }
        Ok(())
    }
}

// === impl Edit ===

impl Edit<'_> {
    /// Records that `name`, registered if new, now holds the prompt of `hashes`; returns the blocks newly held.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a time to live with position hashes.
    pub fn record(
        &mut self,
        name: &str,
        hashes: &[SequenceHash],
        expires: Option<Millis>,
    ) -> Result<u32> {
        let worker = self.join(name);
        self.state.store.record(worker, hashes, None, expires)
    }

    /// Stores a chain behind `parent` for `name`, registered if new; returns the blocks newly held in `medium`.
    ///
    /// # Errors
    /// None today; the index refuses only workers that are not registered.
    pub fn store(
        &mut self,
        name: &str,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> Result<u32> {
        let worker = self.join(name);
        self.state.store.store(worker, parent, hashes, medium)
    }

    /// Removes single blocks from one medium of `name` or from all; returns how many left.
    ///
    /// # Errors
    /// None today; an unknown name removes nothing.
    pub fn remove(
        &mut self,
        name: &str,
        hashes: &[SequenceHash],
        medium: Option<Medium>,
    ) -> Result<u32> {
        let known = self.owner.registry.get(name);
        known.map_or(Ok(0), |worker| {
            self.state.store.remove(worker, hashes, medium)
        })
    }

    /// Drops every block of `name`, which stays registered; returns how many.
    ///
    /// # Errors
    /// None today; an unknown name has no blocks.
    pub fn clear(&mut self, name: &str) -> Result<u64> {
        let known = self.owner.registry.get(name);
        known.map_or(Ok(0), |worker| self.state.store.clear(worker))
    }

    /// Evicts least recently used leaves of `name` down to `max_blocks` per medium; returns how many went.
    ///
    /// # Errors
    /// None today; an unknown name has no blocks.
    pub fn evict_worker(&mut self, name: &str, max_blocks: u64) -> Result<u64> {
        let known = self.owner.registry.get(name);
        known.map_or(Ok(0), |worker| {
            self.state.store.evict_worker(worker, max_blocks)
        })
    }

    /// Forgets `name` and all it holds; returns the blocks dropped.
    ///
    /// # Errors
    /// None today; an unknown name has no blocks.
    pub fn remove_worker(&mut self, name: &str) -> Result<u64> {
        match self.owner.registry.remove(name) {
            Some(worker) => {
                self.state.members[worker.slot as usize] = None;
                self.state.store.remove_worker(worker)
            }
            None => Ok(0),
        }
    }

    /// Drops entries whose time to live ended at or before `now`; returns how many.
    pub fn expire(&mut self, now: Millis) -> u64 {
        self.state.store.expire(now)
    }

    fn join(&mut self, name: &str) -> WorkerId {
        let (worker, added) = self.owner.registry.get_or_add(name);
        if added {
            let State { store, .. } = &mut *self.state;
            store.add_worker(worker, self.owner.settings.config.max_blocks_per_worker);
            self.state
                .join(worker, name, self.owner.settings.config.seed);
        }
        worker
    }
}
