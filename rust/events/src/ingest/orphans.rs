//! Stores whose parent is not known yet, bounded in number and time.

use std::collections::{HashMap, VecDeque};

use cachelb_core::ids::{Medium, Millis};

use crate::batch::{Extra, Name};
use crate::ingest::incoming::Incoming;

/// A store that waits for the block before its first.
#[derive(Debug)]
pub(crate) struct Orphan {
    names: Vec<Name>,
    parent: Name,
    tokens: Vec<u32>,
    extras: Vec<Extra>,
    size: u32,
    medium: Medium,
    group: Option<u32>,
    deadline: Millis,
    /// Names removed meanwhile, once per removal.
    pub(crate) removed: Vec<Name>,
}

impl Orphan {
    pub(crate) fn incoming(&self) -> Incoming<'_> {
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

/// The orphans of one stream, in the order they came.
#[derive(Debug)]
pub(crate) struct Orphans {
    /// Most blocks, and for how long.
    limit: u32,
    ttl_ms: u64,
    /// Those that left keep their place until everything before them has left.
    queue: VecDeque<Option<Orphan>>,
    /// Number of the first in the queue.
    first: u64,
    pub(crate) blocks: u32,
    by_parent: HashMap<Name, Vec<u64>>,
    by_name: HashMap<Name, Vec<u64>>,
}

impl Orphans {
    pub(crate) fn new(limit: u32, ttl_ms: u64) -> Self {
        Self {
            limit,
            ttl_ms,
            queue: VecDeque::new(),
            first: 0,
            blocks: 0,
            by_parent: HashMap::new(),
            by_name: HashMap::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Parks a store with at least one name; `weight` is its size in blocks. False if there is no room.
    pub(crate) fn park(&mut self, store: &Incoming<'_>, parent: Name, now: Millis) -> bool {
        let blocks = store.names.len() as u64;
        if blocks == 0 || blocks + u64::from(self.blocks) > u64::from(self.limit) {
            return false;
        }
        let number = self.first + self.queue.len() as u64;
        self.by_parent.entry(parent).or_default().push(number);
        for &name in store.names {
            self.by_name.entry(name).or_default().push(number);
        }
        self.blocks += blocks as u32;
        self.queue.push_back(Some(Orphan {
            names: store.names.to_vec(),
            parent,
            tokens: store.tokens.to_vec(),
            extras: store.extras.to_vec(),
            size: store.size,
            medium: store.medium,
            group: store.group,
            deadline: Millis(now.0.saturating_add(self.ttl_ms)),
            removed: Vec::new(),
        }));
        true
    }

    /// Takes out the stores that wait for `parent`, oldest first.
    pub(crate) fn take(&mut self, parent: Name) -> Vec<Orphan> {
        let numbers = self.by_parent.remove(&parent).unwrap_or_default();
        let taken = numbers.iter().filter_map(|n| self.take_out(*n)).collect();
        self.trim();
        taken
    }

    /// Notes that a waiting block was removed; false if none of that name waits in those places.
    pub(crate) fn cancel(
        &mut self,
        name: Name,
        matches: impl Fn(Medium, Option<u32>) -> bool,
    ) -> bool {
        let Some(numbers) = self.by_name.get(&name) else {
            return false;
        };
        for number in numbers {
            let Some(Some(orphan)) = self.queue.get_mut((number - self.first) as usize) else {
                continue;
            };
            if matches(orphan.medium, orphan.group)
                && Orphan::count(&orphan.removed, name) < Orphan::count(&orphan.names, name)
            {
                orphan.removed.push(name);
                return true;
            }
        }
        false
    }

    /// Takes out the next that waited too long.
    pub(crate) fn expired(&mut self, now: Millis) -> Option<Orphan> {
        let oldest = self.queue.front()?.as_ref()?;
        if oldest.deadline > now {
            return None;
        }
        let (parent, number) = (oldest.parent, self.first);
        if let Some(numbers) = self.by_parent.get_mut(&parent) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.by_parent.remove(&parent);
            }
        }
        let orphan = self.take_out(number);
        self.trim();
        orphan
    }

    /// Drops everything; returns the blocks.
    pub(crate) fn clear(&mut self) -> u32 {
        let blocks = self.blocks;
        *self = Self::new(self.limit, self.ttl_ms);
        blocks
    }

    /// Takes one out of the queue and the names, not of the parents.
    fn take_out(&mut self, number: u64) -> Option<Orphan> {
        let orphan = self.queue.get_mut((number - self.first) as usize)?.take()?;
        self.blocks -= orphan.names.len() as u32;
        for name in &orphan.names {
            if let Some(numbers) = self.by_name.get_mut(name) {
                numbers.retain(|other| *other != number);
                if numbers.is_empty() {
                    self.by_name.remove(name);
                }
            }
        }
        Some(orphan)
    }

    fn trim(&mut self) {
        while let Some(None) = self.queue.front() {
            self.queue.pop_front();
            self.first += 1;
        }
    }

    /// Recounts everything.
    #[cfg(test)]
    pub(crate) fn validate(&self) -> cachelb_core::Result<()> {
        let waiting = || self.queue.iter().zip(self.first..);
        let blocks: usize = waiting()
            .filter_map(|(o, _)| o.as_ref())
            .map(|o| o.names.len())
            .sum();
        let known = |lists: &HashMap<Name, Vec<u64>>, name: &Name, number: u64| {
            lists.get(name).is_some_and(|l| l.contains(&number))
        };
        let found = waiting().all(|(orphan, number)| {
            orphan.as_ref().is_none_or(|orphan| {
                known(&self.by_parent, &orphan.parent, number)
                    && orphan.names.iter().all(|n| known(&self.by_name, n, number))
            })
        });
        let listed: usize = self.by_parent.values().map(Vec::len).sum();
        let entries = self.queue.iter().flatten().count();
        if blocks != self.blocks as usize || self.blocks > self.limit || !found || listed != entries
        {
            return Err(cachelb_core::Error::Invariant(format!(
                "{blocks} orphaned blocks counted as {} of {}, all found: {found}, {listed} of {entries} listed",
                self.blocks, self.limit
            )));
        }
        Ok(())
    }
}
