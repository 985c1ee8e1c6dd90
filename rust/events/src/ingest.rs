//! Applies what an engine announced to the holdings of its worker.
//!
//! Blocks are hashed again from their tokens; the engine's hashes are names that find parents and what a removal means.
//! Copies are counted per name, since engines keep equal blocks several times. A store from the root of which every
//! block is held already is taken for a report of what is there and adds no copy, unless the settings say otherwise:
//! the wrong guess gives a block up too early, never too late. Cost: one hash of the tokens and one or two table
//! look-ups per block.

mod ahead;
mod loss;
mod place;
mod store;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::BTreeSet;
use std::fmt;

use cachelb_core::hashing::{Hasher, MmObject, Scheme};
use cachelb_core::ids::{Medium, Millis, SequenceHash};

pub use self::place::sizes_fit;

use super::batch::{Batch, Event, Place, Remove};
use super::groups::Groups;
use super::holdings::Holdings;
use super::lane::Lane;
use super::namespaces::Namespaces;
use super::orphans::Orphans;
use super::pages::Change;
use super::space::{Removed, Space};
use super::stats::{DropReason, EventStats};
use super::table::MOST;

/// Adapter names remembered, and the longest of them in bytes.
const MAX_ADAPTERS: usize = 1024;
const MAX_ADAPTER_BYTES: usize = 512;
/// Removed blocks that are collected before the holdings hear of them.
const MAX_GONE: usize = 64;

/// What an ingester is told once.
#[derive(Debug, Clone, Copy)]
pub struct IngestSettings {
    /// Hashes own blocks.
    pub hasher: Hasher,
    /// Most blocks that wait for their parent.
    pub orphan_blocks: u32,
    /// For how long they wait, in milliseconds.
    pub orphan_ttl_ms: u64,
    /// Whether a store from the root that repeats held blocks adds copies. For engines that are never asked for a full
    /// report of their cache.
    pub exact_copies: bool,
    /// Most blocks remembered, the engine's or own ones, whichever are more; at most 16,777,216.
    pub max_blocks: u64,
}

impl IngestSettings {
    /// The settings that suit an engine that nothing is known about.
    #[must_use]
    pub fn new(hasher: Hasher) -> Self {
        Self {
            hasher,
            orphan_blocks: 4096,
            orphan_ttl_ms: 30_000,
            exact_copies: false,
            max_blocks: 4 << 20,
        }
    }
}

/// Why nothing of an engine can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Neither block size is a multiple of the other.
    BlockSize {
        /// Tokens per block of the engine.
        engine: u32,
        /// Tokens per block here.
        ours: u32,
    },
    /// A scheme whose hashes cannot be continued from a parent and a block's own tokens.
    Scheme(Scheme),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockSize { engine, ours } => write!(
                f,
                "the engine's blocks hold {engine} tokens and the router's {ours}: one must be a multiple of the other"
            ),
            Self::Scheme(scheme) => write!(
                f,
                "hashing={:?} cannot follow KV events; use hashing=\"chained\"",
                scheme.name()
            ),
        }
    }
}

/// Everything known of one stream: a worker, or one data-parallel rank of it.
#[derive(Debug)]
pub struct Ingest {
    settings: IngestSettings,
    stats: EventStats,
    spaces: Vec<Space>,
    lanes: [Lane; Medium::ALL.len()],
    namespaces: Namespaces,
    groups: Groups,
    orphans: Orphans,
    adapters: BTreeSet<String>,
    refused: Option<Refusal>,
    /// Whether stores said where their blocks are, all of them.
    places_said: bool,
    /// Whether a message is lost, and the engine did not drop everything since.
    lossy: bool,
    gone: Gone,
    scratch: Scratch,
    /// Of the event at work.
    foreseen: Option<ahead::Foreseen>,
}

/// Own blocks that nobody refers to any more and that the holdings do not know of yet.
#[derive(Debug)]
struct Gone {
    blocks: Vec<SequenceHash>,
    medium: Medium,
}

impl Gone {
    fn flush(&mut self, to: &mut dyn Holdings) {
        if !self.blocks.is_empty() {
            to.remove(&self.blocks, self.medium);
            self.blocks.clear();
        }
    }

    /// Where to note removals from `medium`.
    fn of(&mut self, medium: Medium, to: &mut dyn Holdings) -> &mut Vec<SequenceHash> {
        if self.medium != medium || self.blocks.len() >= MAX_GONE {
            self.flush(to);
            self.medium = medium;
        }
        &mut self.blocks
    }
}

/// Buffers that keep their memory from event to event.
#[derive(Debug, Default)]
struct Scratch {
    identities: Vec<SequenceHash>,
    objects: Vec<MmObject>,
    changes: Vec<Change>,
    run: Vec<SequenceHash>,
    ahead: Vec<SequenceHash>,
    foreseen: Vec<Option<ahead::Foreseen>>,
}

impl Ingest {
    /// An ingester that knows of no block.
    #[must_use]
    pub fn new(mut settings: IngestSettings) -> Self {
        settings.max_blocks = settings.max_blocks.min(MOST);
        let scheme = settings.hasher.scheme();
        Self {
            settings,
            stats: EventStats::default(),
            spaces: Vec::new(),
            lanes: Default::default(),
            namespaces: Namespaces::default(),
            groups: Groups::default(),
            orphans: Orphans::new(settings.orphan_blocks, settings.orphan_ttl_ms),
            adapters: BTreeSet::new(),
            refused: (scheme != Scheme::Chained).then_some(Refusal::Scheme(scheme)),
            places_said: true,
            lossy: false,
            gone: Gone {
                blocks: Vec::new(),
                medium: Medium::Gpu,
            },
            scratch: Scratch::default(),
            foreseen: None,
        }
    }

    /// Applies a message, its events in the order given, and counts it. Returns how many events were applied; stores
    /// that wait for their parent count when they are.
    pub fn apply(&mut self, batch: &Batch, now: Millis, to: &mut dyn Holdings) -> u32 {
        self.stats.messages += 1;
        let (unknown, malformed) = (batch.unknown_events, batch.malformed_events);
        self.stats
            .drop(DropReason::UnknownEvent, u64::from(unknown));
        self.stats
            .drop(DropReason::MalformedEvent, u64::from(malformed));
        self.expire(now);
        let mut applied = 0;
        for (at, event) in batch.events.iter().enumerate() {
            if at % ahead::WINDOW == 0 {
                self.look_ahead(batch, at, to);
            }
            let foreseen = self.scratch.foreseen.get(at % ahead::WINDOW);
            self.foreseen = foreseen.copied().flatten();
            applied += match event {
                Event::Store(store) => self.store(batch, store, now, to),
                Event::Remove(remove) => u32::from(self.remove(batch, remove, to)),
                Event::Clear => {
                    self.drop_blocks(to);
                    self.stats.clears += 1;
                    1
                }
            };
        }
        self.gone.flush(to);
        if self.lossy {
            let settled = self.spaces.iter_mut().map(Space::take_settled);
            self.stats.settled_blocks += settled.sum::<u64>();
        }
        applied
    }

    /// Drops the orphans that have waited too long. [`Self::apply`] does so too.
    pub fn expire(&mut self, now: Millis) {
        while let Some(orphan) = self.orphans.expired(now) {
            let store = orphan.incoming();
            self.stats
                .drop(DropReason::Orphan, store.names.len() as u64);
            self.doubt(&store);
        }
    }

    /// Forgets everything that was learned of the engine, for one that starts over. Counters and adapters stay.
    pub fn clear(&mut self, to: &mut dyn Holdings) {
        self.drop_blocks(to);
        self.spaces.clear();
        self.lanes = Default::default();
        self.groups.clear();
        self.places_said = true;
        if let Some(Refusal::BlockSize { .. }) = self.refused {
            self.refused = None;
        }
    }

    /// Forgets the blocks, not what was learned of their size and kind.
    fn drop_blocks(&mut self, to: &mut dyn Holdings) {
        self.gone.blocks.clear();
        let dropped = self.orphans.clear();
        self.stats.drop(DropReason::Orphan, u64::from(dropped));
        self.spaces.iter_mut().for_each(Space::reset);
        self.lanes.iter_mut().for_each(Lane::clear);
        self.namespaces = Namespaces::default();
        self.lossy = false;
        to.clear();
    }

    fn remove(&mut self, batch: &Batch, remove: &Remove, to: &mut dyn Holdings) -> bool {
        let Some(names) = batch.names.get(remove.names.range()) else {
            self.stats.drop(DropReason::MalformedEvent, 1);
            return false;
        };
        if remove.place == Place::Shared {
            self.stats.drop(DropReason::SharedPool, 1);
            return false;
        }
        // What is not said means everywhere: better a block too few than one the engine lacks.
        let concerns = |medium: Medium, group: Option<u32>| {
            let place = match remove.place {
                Place::In(place) => place == medium,
                Place::Unsaid | Place::Unknown | Place::Shared => true,
            };
            place && (remove.group.is_none() || remove.group == group)
        };
        let known = self.spaces.iter().any(|s| concerns(s.medium, s.group));
        if !known && self.groups.known(remove.group) == Some(false) {
            self.stats.drop(DropReason::AttentionGroup, 1);
            return false;
        }
        for space in self.spaces.iter().filter(|s| concerns(s.medium, s.group)) {
            space.prefetch(names);
        }
        for &name in names {
            let (mut known, mut counted) = (false, false);
            for space in &mut self.spaces {
                if concerns(space.medium, space.group) {
                    let lane = &mut self.lanes[space.medium as usize];
                    let gone = self.gone.of(space.medium, to);
                    let removed = space.remove(name, &mut self.namespaces, lane, gone);
                    known |= removed != Removed::Nothing;
                    counted |= removed == Removed::Copy;
                    if space.take_changes(&mut self.scratch.changes) {
                        // A name went, so nothing was gained.
                        for change in &self.scratch.changes {
                            if let Change::Lost(block) = *change
                                && lane.release(block.0)
                            {
                                gone.push(block);
                            }
                        }
                    }
                }
            }
            if !counted && !self.orphans.cancel(name, concerns) && !known {
                self.stats.unknown_removals += 1;
            }
        }
        self.stats.removals += 1;
        self.stats.removed_blocks += names.len() as u64;
        true
    }

    /// What became of the events.
    #[must_use]
    pub fn stats(&self) -> &EventStats {
        &self.stats
    }

    /// The same, for what is counted outside.
    pub fn stats_mut(&mut self) -> &mut EventStats {
        &mut self.stats
    }

    /// Tokens per block of the engine: in device memory if that is known, else anywhere.
    #[must_use]
    pub fn engine_block_size(&self) -> Option<u32> {
        let size = |medium: Option<Medium>| {
            let here = |space: &&Space| medium.is_none_or(|m| space.medium == m);
            self.spaces.iter().filter(here).find_map(Space::block_size)
        };
        size(Some(Medium::Gpu)).or_else(|| size(None))
    }

    /// Tokens in the copies of blocks in device memory, in the cache group that has most; 0 if not every store said where
    /// its blocks are: an engine that never says so may mean host memory too.
    #[must_use]
    pub fn device_tokens(&self) -> u64 {
        let device = self.spaces.iter().filter(|s| s.medium == Medium::Gpu);
        let most = device.map(Space::tokens).max().unwrap_or(0);
        if self.places_said { most } else { 0 }
    }

    /// Whether a request reuses every leading block it finds in device memory: not if there are cache groups beside the
    /// one that is indexed, which must hold it too.
    #[must_use]
    pub fn reuses_all(&self) -> bool {
        let device = self.spaces.iter().filter(|s| s.medium == Medium::Gpu);
        self.stats.dropped(DropReason::AttentionGroup) == 0 && device.count() <= 1
    }

    /// Why nothing of this engine can be used, if so.
    #[must_use]
    pub fn refused(&self) -> Option<Refusal> {
        self.refused
    }

    /// Names of the adapters that blocks were announced for.
    pub fn adapters(&self) -> impl Iterator<Item = &str> {
        self.adapters.iter().map(String::as_str)
    }

    /// Blocks that wait for their parent.
    #[must_use]
    pub fn orphans(&self) -> u32 {
        self.orphans.blocks()
    }

    /// Bytes allocated, without the holdings.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let spaces: usize = self.spaces.iter().map(Space::memory_bytes).sum();
        let lanes: usize = self.lanes.iter().map(Lane::memory_bytes).sum();
        let adapters: usize = self.adapters.iter().map(|name| 48 + name.len()).sum();
        let scratch = self.scratch.identities.capacity() * size_of::<SequenceHash>()
            + self.scratch.objects.capacity() * size_of::<MmObject>()
            + self.scratch.changes.capacity() * size_of::<Change>()
            + self.scratch.foreseen.capacity() * size_of::<Option<ahead::Foreseen>>()
            + (self.scratch.run.capacity()
                + self.scratch.ahead.capacity()
                + self.gone.blocks.capacity())
                * size_of::<SequenceHash>();
        spaces
            + lanes
            + adapters
            + scratch
            + self.spaces.capacity() * size_of::<Space>()
            + self.namespaces.memory_bytes()
            + self.orphans.memory_bytes()
    }
}
