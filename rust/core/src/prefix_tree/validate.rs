//! Recount of derived state: counts by lane and worker, sets of holders, and the order of use.

use std::collections::{HashMap, HashSet};

use super::{Held, NONE, Shape};
use crate::epoch_lru::lanes::slot_of;
use crate::epoch_lru::records::NEVER;
use crate::error::Result;

macro_rules! ensure {
    ($cond:expr, $($why:tt)+) => {
        if !$cond {
            return Err($crate::error::Error::Invariant(format!($($why)+)));
        }
    };
}
pub(crate) use ensure;

/// Sums over the nodes.
#[derive(Default)]
pub(super) struct Recount {
    units: u64,
    records: HashSet<u32>,
    lanes: HashMap<u32, u64>,
    workers: HashMap<u32, u64>,
}

impl Recount {
    /// Compares all counts with the nodes.
    pub(super) fn compare<S: Shape>(mut self, held: &Held<S>) -> Result<()> {
        for (id, _) in held.nodes.iter() {
            self.add_node(held, id)?;
            S::validate_node(held, id)?;
        }
        self.compare_sums(held)?;
        self.compare_lists(held)?;
        S::validate_sums(held, self.units)
    }

    fn add_node<S: Shape>(&mut self, held: &Held<S>, id: u32) -> Result<()> {
        let node = &held.nodes[id];
        let (len, entries) = (node.len, node.holders.as_slice());
        self.units += u64::from(len);
        let live = node.parent == NONE || held.nodes.is_live(node.parent);
        ensure!(live, "node {id} hangs on a free one");
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
        for entry in entries {
            let (lane, record) = (entry.lane, entry.record);
            let r = &held.records[record];
            ensure!(
                self.records.insert(record) && r.node == id && r.lane == lane,
                "record {record} belongs to node {} lane {}",
                r.node,
                r.lane
            );
            ensure!(
                (r.kids > 0 || r.listed()) && !held.is_worthless(record),
                "record {record} is a leaf that would never go"
            );
            ensure!(
                r.kids == 0 || entry.count == 0 || entry.count == len,
                "record {record} has kids below part of a node"
            );
            let due = r.kids == 0 && r.expires != 0 && r.expires != NEVER;
            ensure!(!due || r.armed != 0, "record {record} would never expire");
            *self.lanes.entry(lane).or_default() += u64::from(entry.count);
            let most = workers.entry(slot_of(lane)).or_default();
            *most = entry.count.max(*most);
        }
        for (slot, most) in workers {
            *self.workers.entry(slot).or_default() += u64::from(most);
        }
        Ok(())
    }

    fn compare_sums<S: Shape>(&self, held: &Held<S>) -> Result<()> {
        for (lane, l) in held.lanes.iter() {
            let units = self.lanes.get(&lane).copied().unwrap_or(0);
            ensure!(
                l.count == units,
                "lane {lane} counts {} units, has {units}",
                l.count
            );
        }
        for slot in held.lanes.slots() {
            let counted = held.lanes.worker(slot).map_or(0, |worker| worker.distinct);
            let distinct = self.workers.get(&slot).copied().unwrap_or(0);
            ensure!(
                counted == distinct,
                "worker {slot} counts {counted} units, has {distinct}"
            );
        }
        let (total, counted) = (self.workers.values().sum::<u64>(), held.total);
        ensure!(total == counted, "{total} pairs, {counted} are counted");
        Ok(())
    }

    fn compare_lists<S: Shape>(&self, held: &Held<S>) -> Result<()> {
        let mut listed = 0;
        for (id, lane) in held.lanes.iter() {
            let (mut record, mut before, mut epoch) = (lane.oldest, NONE, 0);
            while record != NONE {
                let r = &held.records[record];
                ensure!(
                    self.records.contains(&record) && r.lane == id && r.prev == before,
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
            marked == listed && held.records.len() as usize == self.records.len(),
            "{marked} records are marked as listed, {listed} are"
        );
        Ok(())
    }
}
