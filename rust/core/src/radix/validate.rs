//! Recounting the whole tree, for tests and for what was read from outside.

use std::collections::{HashMap, HashSet};

use super::unit::Unit;
use super::{EDGE, RadixTree, Trust};
use crate::error::{Error, Result};
use crate::index::NONE;
use crate::index::lanes::slot_of;
use crate::index::recency::NEVER;

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(Error::Invariant(format!($($message)+)));
        }
    };
}

#[derive(Default)]
struct Tally {
    lanes: HashMap<u32, u64>,
    workers: HashMap<u32, u64>,
    sets: HashMap<u32, u32>,
    kids: HashMap<u32, u32>,
    records: HashSet<u32>,
    children: HashMap<u32, u32>,
    units: u64,
    nodes: u32,
}

impl<U: Unit> RadixTree<U> {
    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first broken invariant.
    pub fn validate(&self) -> Result<()> {
        let mut tally = Tally::default();
        for (id, _) in self.nodes.iter() {
            self.validate_node(id, &mut tally)?;
            self.validate_holders(id, &mut tally)?;
        }
        ensure!(
            tally.nodes == self.nodes.len() && tally.units == self.nodes.units,
            "{} nodes of {} units, {} of {} are counted",
            tally.nodes,
            tally.units,
            self.nodes.len(),
            self.nodes.units
        );
        for (id, node) in self.nodes.iter() {
            let children = tally.children.get(&id).copied().unwrap_or(0);
            ensure!(
                children == node.children,
                "node {id} counts {} children, has {children}",
                node.children
            );
        }
        let (counted, heap) = self.nodes.heap_bytes();
        ensure!(counted == heap, "{heap} heap bytes, {counted} are counted");
        self.validate_counts(&tally)?;
        self.validate_records(&tally)?;
        self.validate_lists()
    }

    fn validate_node(&self, id: u32, tally: &mut Tally) -> Result<()> {
        let node = &self.nodes[id];
        ensure!(
            !node.label.is_empty() && node.label.len() <= EDGE,
            "node {id} has {} stored units",
            node.label.len()
        );
        ensure!(
            U::count(&node.label) == node.len as usize,
            "node {id} counts {} units, has {}",
            node.len,
            U::count(&node.label)
        );
        ensure!(
            U::whole(&node.label, self.page) == node.label.len()
                && U::floor(&node.label, 0, self.page) == 0
                && (node.len as usize).is_multiple_of(self.page),
            "node {id} ends inside a step"
        );
        let start = if node.parent == NONE {
            0
        } else {
            ensure!(
                self.nodes.is_live(node.parent),
                "node {id} hangs on a free one"
            );
            *tally.children.entry(node.parent).or_default() += 1;
            self.nodes[node.parent].end()
        };
        ensure!(
            start == node.start,
            "node {id} starts at {}, not at {start}",
            node.start
        );
        ensure!(
            self.nodes.finds(id, self.page),
            "node {id} is not the one found by its first step"
        );
        if let Some(child) = node.only_child() {
            ensure!(
                self.nodes.is_live(child) && self.nodes[child].parent == id,
                "node {id} has another only child"
            );
        }
        tally.nodes += 1;
        tally.units += u64::from(node.len);
        Ok(())
    }

    fn validate_holders(&self, id: u32, tally: &mut Tally) -> Result<()> {
        let node = &self.nodes[id];
        let entries = node.holders.as_slice();
        ensure!(
            entries.windows(2).all(|pair| pair[0].lane < pair[1].lane),
            "the entries of node {id} are out of order"
        );
        let longest = entries.iter().map(|e| e.count).max().unwrap_or(0);
        ensure!(
            longest == node.len,
            "node {id} has {} units, {longest} are held",
            node.len
        );
        let (mut full, mut workers) = (Vec::new(), HashMap::new());
        for entry in entries {
            let record = &self.records[entry.record];
            let unique = tally.records.insert(entry.record);
            ensure!(
                unique && record.run == id && record.lane == entry.lane,
                "node {id} has a wrong record"
            );
            ensure!(
                entry.count > 0
                    && entry.count <= node.len
                    && (entry.count as usize).is_multiple_of(self.page),
                "lane {} holds {} units of node {id}",
                entry.lane,
                entry.count
            );
            ensure!(
                record.kids == 0 || entry.count == node.len,
                "lane {} holds something below a part of node {id}",
                entry.lane
            );
            ensure!(
                !self.is_redundant(entry.record),
                "lane {} repeats node {id}",
                entry.lane
            );
            if node.parent == NONE {
                ensure!(record.parent == NONE, "a first node has a record above");
            } else {
                let above = self.entry(node.parent, entry.lane).map(|e| e.record);
                ensure!(
                    above == Some(record.parent),
                    "lane {} holds node {id} without its parent",
                    entry.lane
                );
                *tally.kids.entry(record.parent).or_default() += 1;
            }
            if entry.count == node.len {
                full.push(entry.lane);
            }
            *tally.lanes.entry(entry.lane).or_default() += u64::from(entry.count);
            let held = workers.entry(slot_of(entry.lane)).or_insert(0);
            *held = entry.count.max(*held);
        }
        for (slot, held) in workers {
            *tally.workers.entry(slot).or_default() += u64::from(held);
        }
        let mut members: Vec<u32> = self.sets.iter(node.full).collect();
        members.sort_unstable();
        ensure!(members == full, "node {id} names {members:?}, not {full:?}");
        ensure!(
            node.partial as usize == entries.len() - full.len(),
            "node {id} counts {} partial entries",
            node.partial
        );
        *tally.sets.entry(node.full).or_default() += 1;
        Ok(())
    }

    fn validate_counts(&self, tally: &Tally) -> Result<()> {
        for (set, references) in self.sets.references() {
            let counted = tally.sets.get(&set).copied().unwrap_or(0);
            ensure!(
                counted == references,
                "set {set} counts {references} references, has {counted}"
            );
        }
        for (lane, l) in self.lanes.iter() {
            let count = tally.lanes.get(&lane).copied().unwrap_or(0);
            ensure!(
                l.count == count,
                "lane {lane} counts {} units, has {count}",
                l.count
            );
        }
        let mut total = 0;
        for slot in self.lanes.slots() {
            let Some(worker) = self.lanes.worker(slot) else {
                continue;
            };
            let distinct = tally.workers.get(&slot).copied().unwrap_or(0);
            ensure!(
                worker.distinct == distinct,
                "worker {slot} counts {} units, has {distinct}",
                worker.distinct
            );
            ensure!(
                distinct <= u64::from(worker.capacity) || self.owing.contains(&slot),
                "worker {slot} is over its capacity"
            );
            total += distinct;
        }
        ensure!(
            total == self.total && total == tally.workers.values().sum::<u64>(),
            "{total} pairs, {} are counted",
            self.total
        );
        Ok(())
    }

    fn validate_records(&self, tally: &Tally) -> Result<()> {
        let (mut live, mut armed) = (0, 0);
        for (id, record) in self.records.iter() {
            ensure!(tally.records.contains(&id), "record {id} has no entry");
            let kids = tally.kids.get(&id).copied().unwrap_or(0);
            ensure!(
                kids == record.kids,
                "record {id} counts {} kids, has {kids}",
                record.kids
            );
            ensure!(kids > 0 || record.listed(), "leaf {id} is not listed");
            let due = kids == 0 && record.expires != 0 && record.expires != NEVER;
            ensure!(!due || record.armed != 0, "record {id} would never expire");
            armed += usize::from(record.armed != 0);
            live += 1;
        }
        ensure!(
            live == tally.records.len(),
            "{live} records, {} entries",
            tally.records.len()
        );
        ensure!(
            armed == self.expiry.len(),
            "{} deadlines for {armed} records",
            self.expiry.len()
        );
        Ok(())
    }

    fn validate_lists(&self) -> Result<()> {
        let mut listed = 0;
        for (id, lane) in self.lanes.iter() {
            let (mut record, mut before, mut epoch) = (lane.oldest, NONE, 0);
            while record != NONE {
                let r = &self.records[record];
                ensure!(
                    r.lane == id && r.prev == before,
                    "record {record} is linked wrongly"
                );
                ensure!(
                    r.epoch >= epoch && r.epoch <= lane.clock && lane.clock <= self.clock,
                    "record {record} is out of order"
                );
                (before, epoch, record) = (record, r.epoch, r.next);
                listed += 1;
            }
            ensure!(lane.newest == before, "the list of lane {id} ends wrongly");
            ensure!(
                lane.oldest == NONE || lane.queued,
                "lane {id} would never be evicted"
            );
        }
        let marked = self.records.iter().filter(|(_, r)| r.listed()).count();
        ensure!(
            marked == listed,
            "{marked} records say they are listed, {listed} are"
        );
        let known = self.lanes.slots().map(|slot| Trust::Local.lane(slot));
        ensure!(
            known.into_iter().all(|lane| self.lanes.get(lane).is_some()),
            "a worker has no lane"
        );
        Ok(())
    }
}
