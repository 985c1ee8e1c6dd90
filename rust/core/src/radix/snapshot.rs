//! A tree as bytes and back.
//!
//! Little-endian: settings, workers, nodes with every parent before its children, then the order of use of every lane as
//! node numbers. Ids, sets and counts are rebuilt. A restore checks every number before it is used and ends with
//! `validate`, so bytes that do not describe a sound tree are refused, whatever they are.

use super::unit::Unit;
use super::{EDGE, RadixTree, Trust};
use crate::error::Result;
use crate::ids::{Medium, Millis, WorkerId};
use crate::index::NONE;
use crate::index::lanes::{medium_of, slot_of};
use crate::index::recency::NEVER;
use crate::snapshot::{Reader, put32, put64, refuse};

/// No use is later: the time of the largest float.
const LATEST: u64 = 0xFFF0 << 48;

impl<U: Unit> RadixTree<U> {
    /// Appends the tree to `out`. `now` anchors times to live, which are kept as the time left; without any, equal states
    /// give equal bytes.
    pub fn snapshot(&self, now: Millis, out: &mut Vec<u8>) {
        put32(out, U::KIND);
        put32(out, self.page as u32);
        put64(out, self.max_units);
        put64(out, self.clock);
        put64(out, if self.expiry.used() { now.0 } else { NEVER });
        put32(out, self.lanes.workers.len() as u32);
        for worker in &self.lanes.workers {
            put32(out, u32::from(worker.is_some()));
            if let Some(worker) = worker {
                put32(out, worker.generation);
                put32(out, worker.capacity);
            }
        }
        let nodes = self.nodes.iter();
        let mut order: Vec<u64> = nodes
            .map(|(id, n)| u64::from(n.start) << 32 | u64::from(id))
            .collect();
        order.sort_unstable();
        let ids = order.iter().map(|place| *place as u32);
        let number: std::collections::HashMap<u32, u32> = ids.clone().zip(0..).collect();
        put32(out, order.len() as u32);
        for id in ids {
            let node = &self.nodes[id];
            put32(out, number.get(&node.parent).copied().unwrap_or(NONE));
            put32(out, node.space());
            put32(out, size_of_val(node.label.as_slice()) as u32);
            U::put(&node.label, out);
            let entries = node.holders.as_slice();
            put32(out, entries.len() as u32);
            for entry in entries {
                let record = &self.records[entry.record];
                put32(out, entry.lane);
                put32(out, entry.count);
                put64(out, record.epoch);
                put64(out, record.expires);
            }
        }
        for slot in self.lanes.slots() {
            for trust in Trust::BY_WORTH {
                let lane = self.lanes.get(trust.lane(slot));
                put64(out, lane.map_or(0, |lane| lane.clock));
                let mut listed = Vec::new();
                let mut record = lane.map_or(NONE, |lane| lane.oldest);
                while record != NONE {
                    let r = &self.records[record];
                    listed.push(number.get(&r.run).copied().unwrap_or(NONE));
                    record = r.next;
                }
                put32(out, listed.len() as u32);
                for node in listed {
                    put32(out, node);
                }
            }
        }
    }

    /// The tree that [`Self::snapshot`] wrote, with times to live moved to the clock that reads `now`.
    ///
    /// # Errors
    /// [`crate::Error::BadSnapshot`] for bytes that do not describe a sound tree.
    pub fn restore(bytes: &[u8], now: Millis) -> Result<Self> {
        let mut reader = Reader { bytes };
        let kind = reader.u32()?;
        if kind != U::KIND {
            return refuse(format!("its kind is {kind}, not {}", U::KIND));
        }
        let page = reader.u32()? as usize;
        let max_units = reader.u64()?;
        let tree = Self::new(page, (max_units < u64::MAX).then_some(max_units));
        let mut tree = tree.or_else(|why| refuse(why.to_string()))?;
        tree.clock = reader.u64()?;
        if tree.clock > LATEST {
            return refuse(format!("its clock reads {}", tree.clock));
        }
        let written = reader.u64()?;
        if written != NEVER {
            tree.expiry.mark_used();
        }
        for slot in 0..reader.count(4)? {
            if reader.u32()? == 0 {
                tree.lanes.reserve(slot as usize + 1);
                continue;
            }
            let generation = reader.u32()?;
            tree.add_worker(WorkerId { slot, generation }, reader.u32()?);
        }
        let moved = |expires: u64| match expires {
            0 | NEVER => expires,
            _ => now
                .0
                .saturating_add(expires.saturating_sub(written))
                .clamp(1, NEVER - 1),
        };
        let mut ids = Vec::new();
        for _ in 0..reader.count(16)? {
            let id = tree.restore_node(&mut reader, &ids, moved)?;
            ids.push(id);
        }
        let slots: Vec<u32> = tree.lanes.slots().collect();
        for slot in slots {
            for trust in Trust::BY_WORTH {
                tree.restore_list(&mut reader, slot, trust, &ids)?;
            }
        }
        reader.end()?;
        let records: Vec<u32> = tree.records.iter().map(|(id, _)| id).collect();
        for record in records {
            tree.expiry.arm(&mut tree.records, record);
        }
        tree.validate().or_else(|why| refuse(why.to_string()))?;
        while !tree.settle() {}
        Ok(tree)
    }

    fn restore_node(
        &mut self,
        reader: &mut Reader,
        ids: &[u32],
        moved: impl Fn(u64) -> u64,
    ) -> Result<u32> {
        let (above, space) = (reader.u32()?, reader.u32()?);
        let parent = match ids.get(above as usize) {
            Some(id) => *id,
            None if above == NONE => NONE,
            None => return refuse(format!("node {} hangs on node {above}", ids.len())),
        };
        let size = reader.count(1)? as usize;
        let label = U::read(reader.take(size)?).filter(|label| {
            let whole = U::whole(label, self.page) == label.len();
            !label.is_empty() && label.len() <= EDGE && whole
        });
        let Some(label) = label else {
            return refuse(format!("node {} has no sound label", ids.len()));
        };
        let depth = if parent == NONE {
            0
        } else {
            self.nodes[parent].end()
        };
        if depth > u32::MAX - EDGE as u32 || (parent != NONE && space != 0) {
            return refuse(format!("node {} is misplaced", ids.len()));
        }
        let node = self.nodes.add(parent, space, label, self.page);
        for _ in 0..reader.count(24)? {
            let (lane, held) = (reader.u32()?, reader.u32()?);
            let (epoch, expires) = (reader.u64()?, reader.u64()?);
            self.restore_entry(node, lane, held)?;
            if let Some(entry) = self.entry(node, lane) {
                let record = &mut self.records[entry.record];
                record.epoch = epoch;
                record.expires = moved(expires);
            }
        }
        Ok(node)
    }

    fn restore_entry(&mut self, node: u32, lane: u32, held: u32) -> Result<()> {
        let trust = match Medium::ALL[medium_of(lane)] {
            Medium::Gpu => Trust::Local,
            Medium::Speculative => Trust::Remote,
            _ => return refuse(format!("lane {lane} is of no trust")),
        };
        let n = &self.nodes[node];
        let known = self.lanes.worker(slot_of(lane)).is_some();
        let connected =
            n.parent == NONE || self.covered(n.parent, lane) == self.nodes[n.parent].len;
        let fits = (1..=n.len).contains(&held) && (held as usize).is_multiple_of(self.page);
        if !known || !fits || !connected || self.entry(node, lane).is_some() {
            return refuse(format!("lane {lane} holds {held} units wrongly"));
        }
        self.open(trust);
        self.cover(node, lane, held);
        Ok(())
    }

    fn restore_list(
        &mut self,
        reader: &mut Reader,
        slot: u32,
        trust: Trust,
        ids: &[u32],
    ) -> Result<()> {
        let (lane, clock) = (trust.lane(slot), reader.u64()?);
        if clock > self.clock {
            return refuse(format!("lane {lane} was used in the future"));
        }
        let listed = reader.count(4)?;
        if clock > 0 {
            self.open(trust);
            self.lanes[lane].clock = clock;
        }
        for _ in 0..listed {
            let node = reader.u32()? as usize;
            let entry = ids.get(node).and_then(|id| self.entry(*id, lane));
            let Some(entry) = entry.filter(|e| !self.records[e.record].listed()) else {
                return refuse(format!("lane {lane} lists node {node}"));
            };
            let l = &mut self.lanes[lane];
            self.ages[usize::from(trust == Trust::Local)].queue(l, lane);
            let newest = l.newest;
            self.records.link_after(l, entry.record, newest);
        }
        Ok(())
    }
}
