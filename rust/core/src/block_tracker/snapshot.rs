//! A tracker as bytes and back.
//!
//! Magic, version, settings, worker slots, the index's own bytes, and an XXH3 checksum over all of it. Nothing depends
//! on the time unless an entry has a time to live: equal states give equal bytes.

use super::{BlockTracker, Store, TrackerConfig, View};
use crate::error::{Error, Result};
use crate::hashing::Scheme;
use crate::ids::Millis;
use crate::index::{BlockIndex, Matcher};
use crate::registry::WorkerRegistry;
use crate::snapshot::{Format, Reader, begin, put_slots, put32, put64, refuse, seal};

const FORMAT: Format = Format {
    magic: b"cachelb\0",
    name: "snapshot",
    version: 1,
};

impl View<'_> {
    /// The tracker as bytes. Times to live are kept as the time left at `now`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with position hashes.
    pub fn snapshot(&self, now: Millis) -> Result<Vec<u8>> {
        let Some(index) = self.state.store.exact() else {
            return Err(Error::Unsupported("a snapshot"));
        };
        let config = &self.owner.settings.config;
        let mut out = begin(&FORMAT);
        put32(&mut out, config.block_size as u32);
        put32(&mut out, config.max_blocks_per_worker);
        out.push(config.scheme as u8);
        out.push(config.matcher as u8);
        put64(&mut out, config.seed);
        put_slots(&self.owner.registry.slots(), &mut out);
        index.snapshot(now, &mut out);
        Ok(seal(out))
    }
}

impl BlockTracker {
    /// The tracker that [`View::snapshot`] wrote, with times to live moved to the clock that reads `now`.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] for anything but the unchanged bytes of a snapshot of this version.
    pub fn restore(bytes: &[u8], now: Millis) -> Result<Self> {
        let mut reader = Reader::open(bytes, &FORMAT)?;
        let block_size = reader.u32()? as usize;
        let max_blocks_per_worker = reader.u32()?;
        let scheme = match Scheme::ALL.get(usize::from(reader.u8()?)) {
            Some(Scheme::Positional) | None => return refuse("unknown hashing scheme"),
            Some(scheme) => *scheme,
        };
        let Some(&matcher) = Matcher::ALL.get(usize::from(reader.u8()?)) else {
            return refuse("unknown matcher");
        };
        let seed = reader.u64()?;
        let config = TrackerConfig {
            block_size,
            max_blocks_per_worker,
            scheme,
            matcher,
            seed,
        };
        let registry = WorkerRegistry::from_slots(reader.slots()?)?;
        let index = BlockIndex::restore(reader.bytes, now)?;
        let store = Store::Exact(Box::new(index));
        let tracker =
            Self::with_store(config, store, registry).or_else(|why| refuse(why.to_string()))?;
        tracker
            .view()
            .validate()
            .or_else(|why| refuse(why.to_string()))?;
        Ok(tracker)
    }
}
