//! Recount of everything.

use std::collections::{HashMap, HashSet};

use super::lanes::{lane_of, slot_of};
use super::nodes::Entry;
use super::recency::NEVER;
use super::{Held, NONE, Shape};
use crate::error::Result;
use crate::ids::Medium;

macro_rules! ensure {
    ($cond:expr, $($why:tt)+) => {
        if !$cond {
            return Err($crate::error::Error::Invariant(format!($($why)+)));
        }
    };
}
pub(crate) use ensure;

/// What the nodes add up to.
#[derive(Default)]
pub(super) struct Recount {
    units: u64,
    children: HashMap<u32, u32>,
    sets: HashMap<u32, u32>,
    records: HashSet<u32>,
    /// Units and holes by lane.
    lanes: HashMap<u32, (u64, u64)>,
    /// Kids by record, and those that hold their first unit.
    kids: HashMap<u32, (u32, u32)>,
    workers: HashMap<u32, u64>,
}

impl Recount {
    /// Compares all that is counted with what there is.
    pub(super) fn compare<S: Shape>(mut self, held: &Held<S>) -> Result<()> {
        for (id, _) in held.nodes.iter() {
            self.add_node(held, id)?;
            S::validate_node(held, id)?;
        }
        self.compare_sums(held)?;
        self.compare_records(held)?;
        self.compare_lists(held)?;
        S::validate_sums(held, self.units)
    }

    fn add_node<S: Shape>(&mut self, held: &Held<S>, id: u32) -> Result<()> {
        let node = &held.nodes[id];
        let len = node.len;
        ensure!(
            node.start.checked_add(len).is_some(),
            "node {id} is too deep"
        );
        self.units += u64::from(len);
        let mut start = 0;
        if node.parent != NONE {
            let live = held.nodes.is_live(node.parent);
            ensure!(live, "node {id} hangs on a free one");
            start = held.nodes[node.parent].end();
            *self.children.entry(node.parent).or_default() += 1;
        }
        ensure!(
            node.start == start,
            "node {id} starts at {}, not at {start}",
            node.start
        );
        *self.sets.entry(node.full).or_default() += 1;
        let entries = node.holders.as_slice();
        ensure!(
            entries.windows(2).all(|pair| pair[0].lane < pair[1].lane),
            "entries of node {id} are out of order"
        );
        let partial = node.partials().count();
        ensure!(
            partial == node.partial as usize,
            "node {id} counts {} partial entries, has {partial}",
            node.partial
        );
        let whole = entries.iter().filter(|e| e.count == len);
        let full: HashSet<u32> = whole.map(|e| e.lane).collect();
        ensure!(
            full == held.sets.iter(node.full).collect(),
            "the set of node {id} differs from its entries"
        );
        let longest = entries.iter().map(|e| e.count).max().unwrap_or(0);
        ensure!(
            longest == len || (S::HOLES && node.children > 0),
            "node {id} has {len} units, {longest} are held"
        );
        let mut workers: HashMap<u32, u32> = HashMap::new();
        for &entry in entries {
            self.add_entry(held, id, entry)?;
            let most = workers.entry(slot_of(entry.lane)).or_default();
            *most = entry.count.max(*most);
        }
        for (slot, most) in workers {
            *self.workers.entry(slot).or_default() += u64::from(most);
        }
        Ok(())
    }

    fn add_entry<S: Shape>(&mut self, held: &Held<S>, id: u32, entry: Entry) -> Result<()> {
        let (lane, record, count) = (entry.lane, entry.record, entry.count);
        let node = &held.nodes[id];
        let unique = self.records.insert(record);
        ensure!(unique, "record {record} has two entries");
        let r = &held.records[record];
        ensure!(
            r.node == id && r.lane == lane,
            "record {record} belongs to node {} lane {}",
            r.node,
            r.lane
        );
        ensure!(
            count <= node.len && (S::HOLES || count > 0),
            "lane {lane} holds {count} of {} units of node {id}",
            node.len
        );
        ensure!(
            r.kids == 0 || count == 0 || count == node.len,
            "record {record} has kids below part of a node"
        );
        ensure!(
            !held.is_worthless(record),
            "record {record} covers nothing of its own and connects nothing"
        );
        ensure!(
            r.kids > 0 || r.listed(),
            "leaf record {record} is not listed"
        );
        let (units, holes) = self.lanes.entry(lane).or_default();
        *units += u64::from(count);
        if node.parent == NONE {
            ensure!(
                r.parent == NONE,
                "record {record} of a first node has a parent"
            );
            return Ok(());
        }
        let above = held.nodes.entry(node.parent, lane);
        ensure!(
            above.is_some_and(|a| a.record == r.parent),
            "record {record} is not connected to its parent node"
        );
        let (kids, holding) = self.kids.entry(r.parent).or_default();
        *kids += 1;
        *holding += u32::from(count > 0);
        let whole = above.is_some_and(|a| a.count == held.nodes[node.parent].len);
        ensure!(
            whole || S::HOLES,
            "lane {lane} holds node {id} without its parent"
        );
        *holes += u64::from(count > 0 && !whole);
        Ok(())
    }

    fn compare_sums<S: Shape>(&self, held: &Held<S>) -> Result<()> {
        for (id, node) in held.nodes.iter() {
            let children = self.children.get(&id).copied().unwrap_or(0);
            ensure!(
                children == node.children,
                "node {id} counts {} children, has {children}",
                node.children
            );
        }
        for (set, references) in held.sets.references() {
            let counted = self.sets.get(&set).copied().unwrap_or(0);
            ensure!(
                counted == references,
                "set {set} counts {references} references, has {counted}"
            );
        }
        for (lane, l) in held.lanes.iter() {
            let (units, holes) = self.lanes.get(&lane).copied().unwrap_or_default();
            ensure!(
                l.count == units && l.holes == holes,
                "lane {lane} counts {} units and {} holes, has {units} and {holes}",
                l.count,
                l.holes
            );
        }
        for lane in self.lanes.keys() {
            ensure!(held.lanes.get(*lane).is_some(), "lane {lane} is not there");
        }
        let mut total = 0;
        for slot in held.lanes.slots() {
            let first = held.lanes.get(lane_of(slot, Medium::Gpu));
            ensure!(first.is_some(), "worker {slot} has no lane");
            let counted = held.lanes.worker(slot).map_or(0, |worker| worker.distinct);
            let distinct = self.workers.get(&slot).copied().unwrap_or(0);
            ensure!(
                counted == distinct,
                "worker {slot} counts {counted} units, has {distinct}"
            );
            total += distinct;
        }
        ensure!(
            total == held.total && total == self.workers.values().sum::<u64>(),
            "{total} pairs, {} are counted",
            held.total
        );
        Ok(())
    }

    fn compare_records<S: Shape>(&self, held: &Held<S>) -> Result<()> {
        let (mut live, mut armed) = (0, 0);
        for (id, record) in held.records.iter() {
            ensure!(self.records.contains(&id), "record {id} has no entry");
            let (kids, holding) = self.kids.get(&id).copied().unwrap_or_default();
            ensure!(
                kids == record.kids && (holding == record.held_kids || !S::HOLES),
                "record {id} counts {} kids, has {kids}",
                record.kids
            );
            let due = kids == 0 && record.expires != 0 && record.expires != NEVER;
            ensure!(!due || record.armed != 0, "record {id} would never expire");
            armed += usize::from(record.armed != 0);
            live += 1;
        }
        let entries = self.records.len();
        ensure!(live == entries, "{live} records, {entries} entries");
        let deadlines = held.expiry.len();
        ensure!(
            armed == deadlines,
            "{deadlines} deadlines for {armed} records"
        );
        Ok(())
    }

    fn compare_lists<S: Shape>(&self, held: &Held<S>) -> Result<()> {
        let mut listed = 0;
        for (id, lane) in held.lanes.iter() {
            let (mut record, mut before, mut epoch) = (lane.oldest, NONE, 0);
            while record != NONE {
                ensure!(
                    self.records.contains(&record),
                    "lane {id} lists a free record"
                );
                let r = &held.records[record];
                ensure!(
                    r.lane == id && r.prev == before,
                    "record {record} is linked wrongly"
                );
                ensure!(
                    (epoch..=lane.clock).contains(&r.epoch),
                    "record {record} is out of order"
                );
                (before, epoch, record) = (record, r.epoch, r.next);
                listed += 1;
            }
            ensure!(lane.newest == before, "the list of lane {id} ends wrongly");
        }
        let marked = held.records.iter().filter(|(_, r)| r.listed()).count();
        ensure!(
            marked == listed,
            "{marked} records are marked as listed, {listed} are"
        );
        Ok(())
    }
}
