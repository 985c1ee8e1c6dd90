//! Applies the events of an engine to the holdings of its worker.
//!
//! Blocks are hashed again from their tokens; the engine's hashes are names that identify parents and removed blocks.
//! Copies are counted per name, since engines keep equal blocks several times and announce each. Only vLLM repeats
//! present blocks without a new copy: where a client asks for a report of the blocks its request reuses. Such a report
//! starts at the root, names held blocks alone, and the computed blocks follow it in the same message. Once a stream
//! has shown one, no store from the root adds copies of known names: a wrong guess gives a block up too early, never
//! too late. Cost: one hash of the tokens and one or two table look-ups per block.

mod aside;
pub(crate) mod incoming;
pub(crate) mod mirror;
pub(crate) mod orphans;
mod sender;
mod store;
#[cfg(test)]
mod tests;

use cachelb_core::groups::Resuming;
use cachelb_core::ids::{Medium, Millis};

use self::sender::Sender;
use crate::batch::{Batch, Event, Place, Remove};
use crate::holdings::Holdings;
use crate::ingest::mirror::Mirror;
use crate::ingest::orphans::Orphans;
use crate::names::space::{Removed, Space};
use crate::repair::Heard;
use crate::settings::{IngestSettings, Refusal};
use crate::stats::{DropReason, EventStats};

/// Most blocks remembered of a stream.
const MOST: u64 = 1 << 24;

/// Everything known of one stream: a worker, or one data-parallel rank of it.
#[derive(Debug)]
pub struct Ingest {
    settings: IngestSettings,
    /// Counters of the events, and of drops outside this type.
    pub stats: EventStats,
    sender: Sender,
    mirror: Mirror,
    orphans: Orphans,
    /// The arguments of the last [`Holdings::set_resumes`].
    resumes: (bool, u32, Option<Resuming>),
}

impl Ingest {
    /// An ingester without blocks.
    #[must_use]
    pub fn new(mut settings: IngestSettings) -> Self {
        settings.max_blocks = settings.max_blocks.min(MOST);
        Self {
            settings,
            stats: EventStats::default(),
            sender: Sender::default(),
            mirror: Mirror::new(&settings),
            orphans: Orphans::new(settings.orphan_blocks, settings.orphan_ttl_ms),
            resumes: (false, 0, None),
        }
    }

    /// Applies a message, its events in the order given, and counts it. Returns how many events were applied; stores
    /// that wait for their parent count once they are applied.
    ///
    /// Events of a shared cache, by [`Holdings::is_shared`], are left to [`Self::apply_shared`] of that cache.
    pub fn apply(&mut self, batch: &Batch, now: Millis, to: &mut dyn Holdings) -> u32 {
        let stats = &mut self.stats;
        stats.messages += 1;
        stats.drop(DropReason::UnknownEvent, batch.unknown_events.into());
        stats.drop(DropReason::MalformedEvent, batch.malformed_events.into());
        stats.drop(DropReason::UnknownField, batch.unknown_fields.into());
        self.sender.count_fields(batch);
        let is_own = |event: &Event, to: &dyn Holdings| {
            let place = event.place();
            place.is_none_or(|place| !to.is_shared(place))
        };
        self.apply_where(batch, now, to, is_own)
    }

    /// Applies those events of a worker's message that concern a cache it shares: in the places for which `is_shared`.
    pub fn apply_shared(
        &mut self,
        batch: &Batch,
        is_shared: impl Fn(Place) -> bool,
        now: Millis,
        to: &mut dyn Holdings,
    ) -> u32 {
        let is_own = |event: &Event, _: &dyn Holdings| event.place().is_some_and(&is_shared);
        self.apply_where(batch, now, to, is_own)
    }

    fn apply_where(
        &mut self,
        batch: &Batch,
        now: Millis,
        to: &mut dyn Holdings,
        is_own: impl Fn(&Event, &dyn Holdings) -> bool,
    ) -> u32 {
        self.expire(now);
        self.learn(batch, to);
        let mut applied = 0;
        for (at, event) in batch.events.iter().enumerate() {
            if !is_own(event, to) {
                continue;
            }
            let outcome = match event {
                Event::Store(store) => {
                    self.learn_reports(batch, at, store);
                    self.store(batch, store, now, to)
                }
                Event::Remove(remove) => self.remove(batch, remove, to).map(|()| 1),
                Event::Clear => {
                    self.drop_blocks(to);
                    self.stats.clears += 1;
                    Ok(1)
                }
            };
            match outcome {
                Ok(events) => applied += events,
                Err(reason) => self.stats.drop(reason, 1),
            }
        }
        self.mirror.references.flush(to);
        self.settle(now, to);
        applied
    }

    /// Drops the orphans that have waited too long. [`Self::apply`] does so too.
    pub fn expire(&mut self, now: Millis) {
        while let Some(orphan) = self.orphans.expired(now) {
            let store = orphan.incoming();
            self.stats
                .drop(DropReason::Orphan, store.names.len() as u64);
        }
        if let Some(links) = &mut self.mirror.links {
            self.stats.side_unresolved += links.expire(now);
        }
    }

    /// A message is lost for good: what it may concern is doubtful, and dropped where doubt is not kept: in other media
    /// than device memory, and of stores whose parent is not known.
    pub fn lost(&mut self, to: &mut dyn Holdings) {
        let waiting = self.orphans.clear();
        self.stats.drop(DropReason::Orphan, u64::from(waiting));
        let (doubted, unresolved) = self.mirror.lost(to);
        self.stats.doubted_blocks += doubted;
        self.stats.side_unresolved += unresolved;
    }

    /// Forgets everything that was learned of the engine, for one that starts over. Counters and adapters stay.
    pub fn clear(&mut self, to: &mut dyn Holdings) {
        self.drop_blocks(to);
        self.mirror = Mirror::new(&self.settings);
        self.sender.clear();
        self.set_resumes(None, to);
    }

    /// Forgets the blocks, not their size and kind.
    fn drop_blocks(&mut self, to: &mut dyn Holdings) {
        let dropped = self.orphans.clear();
        self.stats.drop(DropReason::Orphan, u64::from(dropped));
        self.stats.side_unresolved += self.mirror.clear();
        to.clear();
    }

    fn remove(
        &mut self,
        batch: &Batch,
        remove: &Remove,
        to: &mut dyn Holdings,
    ) -> Result<(), DropReason> {
        let names = batch.names.get(remove.names.range());
        let names = names.ok_or(DropReason::MalformedEvent)?;
        let is_shared_cache = self.settings.is_shared_cache;
        if remove.place == Place::Shared && !is_shared_cache {
            return Err(DropReason::SharedPool);
        }
        // A place that is not stated means everywhere: better a block too few than one the engine lacks.
        let concerns = |medium: Medium, group: Option<u32>| {
            let place = match remove.place {
                Place::In(place) => is_shared_cache || place == medium,
                Place::Unsaid | Place::Unknown | Place::Shared => true,
            };
            place && (remove.group.is_none() || remove.group == group)
        };
        let mut spaces = self.mirror.spaces.all.iter();
        let is_missing = !spaces.any(|space| concerns(space.medium, space.group));
        if is_missing && self.is_dropped(remove.group) {
            return Err(DropReason::AttentionGroup);
        }
        for &name in names {
            let removed = self.mirror.remove(name, concerns, to);
            let is_aside = self.mirror.remove_aside(name, concerns, to);
            let is_known = removed == Removed::Copy
                || is_aside
                || self.orphans.cancel(name, concerns)
                || removed == Removed::Doubtful;
            self.stats.unknown_removals += u64::from(!is_known);
        }
        self.stats.removals += 1;
        self.stats.removed_blocks += names.len() as u64;
        Ok(())
    }

    /// Tokens per block of the engine: in device memory if that is known, else anywhere.
    #[must_use]
    pub fn engine_block_size(&self) -> Option<u32> {
        self.mirror.spaces.block_size()
    }

    /// The state once all announcements of the engine up to `until` are applied.
    #[must_use]
    pub fn announced(&self, until: Millis) -> Heard {
        let device = || self.mirror.spaces.of_medium(Medium::Gpu);
        let tokens = device().map(Space::tokens).max().unwrap_or(0);
        Heard {
            until,
            // An engine that never states the place of its blocks may mean host memory too.
            device_tokens: if self.sender.leaves_places_out {
                0
            } else {
                tokens
            },
            is_exact: self.is_exact() && device().count() <= 1,
        }
    }

    /// Why the events of this engine cannot be used, if so.
    #[must_use]
    pub fn refused(&self) -> Option<Refusal> {
        self.mirror.refused
    }

    /// Names of the adapters that blocks were announced for.
    pub fn adapters(&self) -> impl Iterator<Item = &str> {
        self.sender.adapters.iter().map(String::as_str)
    }

    /// Fields of events that were passed over, by name; only for the first names that came.
    pub fn unknown_fields(&self) -> impl Iterator<Item = (&str, u64)> {
        self.sender
            .fields
            .iter()
            .map(|(name, n)| (name.as_str(), *n))
    }

    /// Heap bytes of what grows with the blocks announced, without the holdings.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.mirror.memory_bytes()
    }

    /// Checks the structure, and that `to` holds every block that a name refers to. The latter is only so for holdings
    /// that take everything and forget nothing by themselves.
    ///
    /// # Errors
    /// [`cachelb_core::Error::Invariant`] names the first thing that is wrong.
    #[cfg(test)]
    pub(crate) fn validate(&self, to: &dyn Holdings) -> cachelb_core::Result<()> {
        self.mirror.validate(to)?;
        self.orphans.validate()
    }
}
