//! A tracker as bytes and back.
//!
//! Magic, version, settings, worker slots, the index's own bytes, and an XXH3 checksum over all of it. Nothing depends
//! on the time unless an entry has a time to live: equal states give equal bytes.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::{BlockTracker, Store, TrackerConfig, View};
use crate::error::{Error, Result};
use crate::hashing::Scheme;
use crate::ids::Millis;
use crate::index::{BlockIndex, Matcher};
use crate::registry::{SlotState, WorkerRegistry};

pub(crate) const MAGIC: &[u8; 8] = b"cachelb\0";
const VERSION: u32 = 1;
/// Length of a vacant slot's name.
const VACANT: u32 = u32::MAX;

impl View<'_> {
    /// The tracker as bytes. Times to live are kept as the time left at `now`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with position hashes.
    pub fn snapshot(&self, now: Millis) -> Result<Vec<u8>> {
        let Store::Exact(index) = &self.state.store else {
            return Err(Error::Unsupported("a snapshot"));
        };
        let config = &self.tracker.config;
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(config.block_size as u32).to_le_bytes());
        out.extend_from_slice(&config.max_blocks_per_worker.to_le_bytes());
        out.push(
            Scheme::ALL
                .iter()
                .position(|scheme| *scheme == config.scheme)
                .unwrap_or(0) as u8,
        );
        out.push(
            Matcher::ALL
                .iter()
                .position(|matcher| *matcher == config.matcher)
                .unwrap_or(0) as u8,
        );
        out.extend_from_slice(&config.seed.to_le_bytes());
        put_slots(&self.tracker.registry.slots(), &mut out);
        index.snapshot(now, &mut out);
        let checksum = xxh3_64(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        Ok(out)
    }
}

impl BlockTracker {
    /// The tracker that [`View::snapshot`] wrote, with times to live moved to the clock that reads `now`.
    ///
    /// # Errors
    /// [`Error::BadSnapshot`] for anything but the unchanged bytes of a snapshot of this version.
    pub fn restore(bytes: &[u8], now: Millis) -> Result<Self> {
        let Some(body) = bytes.strip_prefix(MAGIC) else {
            return refuse("it does not start like a snapshot of cachelb");
        };
        let mut reader = Reader { bytes: body };
        let version = reader.u32()?;
        if version != VERSION {
            return refuse(format!("its version is {version}, this is {VERSION}"));
        }
        let Some((content, checksum)) = bytes.split_last_chunk() else {
            return refuse(ENDS);
        };
        if xxh3_64(content) != u64::from_le_bytes(*checksum) {
            return refuse("its checksum does not match: it is damaged or cut off");
        }
        let mut reader = Reader {
            bytes: &content[bytes.len() - reader.bytes.len()..],
        };
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

/// Appends what [`Reader::slots`] reads.
pub(crate) fn put_slots(slots: &[SlotState], out: &mut Vec<u8>) {
    out.extend_from_slice(&(slots.len() as u32).to_le_bytes());
    for slot in slots {
        out.extend_from_slice(&slot.generation.to_le_bytes());
        let name = slot.name.as_deref();
        out.extend_from_slice(&name.map_or(VACANT, |name| name.len() as u32).to_le_bytes());
        out.extend_from_slice(name.unwrap_or_default().as_bytes());
    }
}

pub(crate) const ENDS: &str = "it ends too early";

pub(crate) fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::BadSnapshot(why.into()))
}

/// What is left to read.
pub(crate) struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((head, rest)) = self.bytes.split_first_chunk() else {
            return refuse(ENDS);
        };
        self.bytes = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn slots(&mut self) -> Result<Vec<SlotState>> {
        let mut slots = Vec::new();
        for _ in 0..self.u32()? {
            let generation = self.u32()?;
            let name = match self.u32()? {
                VACANT => None,
                len => Some(self.name(len as usize)?),
            };
            slots.push(SlotState { generation, name });
        }
        Ok(slots)
    }

    fn name(&mut self, len: usize) -> Result<Arc<str>> {
        let Some((name, rest)) = self.bytes.split_at_checked(len) else {
            return refuse(ENDS);
        };
        self.bytes = rest;
        match std::str::from_utf8(name) {
            Ok(name) => Ok(Arc::from(name)),
            Err(_) => refuse("a worker's name is not UTF-8"),
        }
    }
}
