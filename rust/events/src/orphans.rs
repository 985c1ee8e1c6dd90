//! Stores whose parent is not known yet, bounded in number and time.

use std::collections::VecDeque;

use cachelb_core::ids::{Medium, Millis};

use super::batch::{Extra, Name};
use super::incoming::Incoming;

/// A store that waits for the block before its first.
#[derive(Debug)]
pub(super) struct Orphan {
    names: Vec<Name>,
    parent: Name,
    tokens: Vec<u32>,
    extras: Vec<Extra>,
    size: u32,
    medium: Medium,
    group: Option<u32>,
    deadline: Millis,
    /// Names removed meanwhile, once per removal.
    pub(super) removed: Vec<Name>,
}

impl Orphan {
    pub(super) fn incoming(&self) -> Incoming<'_> {
        Incoming {
            names: &self.names,
            parent: Some(self.parent),
            tokens: &self.tokens,
            extras: &self.extras,
            size: self.size,
            medium: self.medium,
            group: self.group,
            lora: None,
            salt: None,
        }
    }

    fn count(list: &[Name], name: Name) -> usize {
        list.iter().filter(|other| **other == name).count()
    }
}

/// The orphans of one stream, in the order they came. Bounded, so they are searched one by one.
#[derive(Debug)]
pub(super) struct Orphans {
    /// Most blocks, and for how long.
    limit: u32,
    ttl_ms: u64,
    queue: VecDeque<Orphan>,
    pub(super) blocks: u32,
}

impl Orphans {
    pub(super) fn new(limit: u32, ttl_ms: u64) -> Self {
        Self {
            limit,
            ttl_ms,
            queue: VecDeque::new(),
            blocks: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Parks a store with at least one name. False if there is no room.
    pub(super) fn park(&mut self, store: &Incoming<'_>, parent: Name, now: Millis) -> bool {
        let blocks = store.names.len() as u64;
        if blocks == 0 || blocks + u64::from(self.blocks) > u64::from(self.limit) {
            return false;
        }
        self.blocks += blocks as u32;
        self.queue.push_back(Orphan {
            names: store.names.to_vec(),
            parent,
            tokens: store.tokens.to_vec(),
            extras: store.extras.to_vec(),
            size: store.size,
            medium: store.medium,
            group: store.group,
            deadline: Millis(now.0.saturating_add(self.ttl_ms)),
            removed: Vec::new(),
        });
        true
    }

    /// Takes out what waits for one of `parents`, oldest first.
    pub(super) fn take(&mut self, parents: &[Name]) -> VecDeque<Orphan> {
        let waits = |orphan: &Orphan| parents.contains(&orphan.parent);
        if !self.queue.iter().any(waits) {
            return VecDeque::new();
        }
        let all = std::mem::take(&mut self.queue);
        let (taken, left) = all.into_iter().partition(waits);
        self.queue = left;
        self.blocks = self.queue.iter().map(|o| o.names.len() as u32).sum();
        taken
    }

    /// Notes that a waiting block was removed; false if none of that name waits in those places.
    pub(super) fn cancel(
        &mut self,
        name: Name,
        matches: impl Fn(Medium, Option<u32>) -> bool,
    ) -> bool {
        let found = self.queue.iter_mut().find(|orphan| {
            matches(orphan.medium, orphan.group)
                && Orphan::count(&orphan.removed, name) < Orphan::count(&orphan.names, name)
        });
        found.is_some_and(|orphan| {
            orphan.removed.push(name);
            true
        })
    }

    /// Takes out the next that waited too long.
    pub(super) fn expired(&mut self, now: Millis) -> Option<Orphan> {
        self.queue.front().filter(|oldest| oldest.deadline <= now)?;
        let orphan = self.queue.pop_front()?;
        self.blocks -= orphan.names.len() as u32;
        Some(orphan)
    }

    /// Drops everything; returns the blocks.
    pub(super) fn clear(&mut self) -> u32 {
        let blocks = self.blocks;
        *self = Self::new(self.limit, self.ttl_ms);
        blocks
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let own: usize = self.queue.iter().map(Orphan::memory_bytes).sum();
        own + self.queue.capacity() * size_of::<Orphan>()
    }

    /// Recounts the blocks.
    pub(super) fn validate(&self) -> cachelb_core::Result<()> {
        let blocks: usize = self.queue.iter().map(|o| o.names.len()).sum();
        if blocks == self.blocks as usize && self.blocks <= self.limit {
            return Ok(());
        }
        Err(cachelb_core::Error::Invariant(format!(
            "{blocks} orphaned blocks counted as {} of {}",
            self.blocks, self.limit
        )))
    }
}

impl Orphan {
    fn memory_bytes(&self) -> usize {
        (self.names.capacity() + self.removed.capacity()) * size_of::<Name>()
            + self.tokens.capacity() * size_of::<u32>()
            + self.extras.capacity() * size_of::<Extra>()
    }
}
