//! Common parts of snapshots of prefix trees: workers, entries, and the order of use of every lane as node numbers.

use super::nodes::Holders;
use super::{Held, NONE, PrefixTree, Shape};
use crate::epoch_lru::lanes::{Lane, Worker, slot_of};
use crate::epoch_lru::records::{NEVER, Records};
use crate::error::Result;
use crate::ids::{Medium, Millis};
use crate::snapshot::{Reader, put32, put64, refuse};

impl Records {
    /// Appends the entries of a node.
    pub(crate) fn put_entries(&self, holders: &Holders, out: &mut Vec<u8>) {
        let entries = holders.as_slice();
        put32(out, entries.len() as u32);
        for entry in entries {
            let record = &self[entry.record];
            put32(out, entry.lane);
            put32(out, entry.count);
            put64(out, record.epoch);
            put64(out, record.expires);
        }
    }

    /// Appends the order of use of a lane.
    pub(crate) fn put_list(
        &self,
        lane: Option<&Lane>,
        number: impl Fn(u32) -> u32,
        out: &mut Vec<u8>,
    ) {
        put64(out, lane.map_or(0, |lane| lane.clock));
        let oldest = lane.map_or(NONE, |lane| lane.oldest);
        let listed = |record: u32| (record != NONE).then(|| &self[record]);
        let records = || std::iter::successors(listed(oldest), |record| listed(record.next));
        put32(out, records().count() as u32);
        for record in records() {
            put32(out, number(record.node));
        }
    }
}

impl<S: Shape> Held<S> {
    /// Nodes, parents before children, and the place of each by its id.
    pub(crate) fn in_order(&self) -> (Vec<u32>, Vec<u32>) {
        let mut order: Vec<u32> = self.nodes.iter().map(|(id, _)| id).collect();
        order.sort_by_key(|id| self.nodes[*id].start);
        let mut number = vec![NONE; self.nodes.slots()];
        for (at, id) in (0..).zip(&order) {
            number[*id as usize] = at;
        }
        (order, number)
    }

    /// Reads the entries that [`Records::put_entries`] wrote for a node; `fits` decides whether a lane may hold so much
    /// of it.
    pub(crate) fn restore_entries(
        &mut self,
        reader: &mut Reader,
        node: u32,
        moved: impl Fn(u64) -> u64,
        fits: impl Fn(u32, u32) -> bool,
    ) -> Result<()> {
        let (parent, len) = (self.nodes[node].parent, self.nodes[node].len);
        for _ in 0..reader.count(24)? {
            let (lane, count) = (reader.u32()?, reader.u32()?);
            let (epoch, expires) = (reader.u64()?, reader.u64()?);
            let leads = |held: u32| held == self.nodes[parent].len || (S::HOLES && held == 0);
            let connected = parent == NONE
                || (self.nodes.entry(parent, lane)).is_some_and(|above| leads(above.count));
            let known = self.lanes.worker(slot_of(lane)).is_some();
            let second = self.nodes.entry(node, lane).is_some();
            if !known || count > len || second || !connected || !fits(lane, count) {
                return refuse(format!("lane {lane} holds {count} units wrongly"));
            }
            self.open(lane);
            self.cover(node, lane, count);
            if let Some(entry) = self.nodes.entry(node, lane) {
                let record = &mut self.records[entry.record];
                (record.epoch, record.expires) = (epoch, moved(expires));
            }
        }
        Ok(())
    }

    /// Appends the time that deadlines are kept from, and the workers.
    pub(crate) fn put_workers(&self, now: Millis, out: &mut Vec<u8>) {
        put64(out, if self.expiry.used { now.0 } else { NEVER });
        put32(out, self.lanes.workers.len() as u32);
        for worker in &self.lanes.workers {
            put32(out, u32::from(worker.is_some()));
            if let Some(worker) = worker {
                put32(out, worker.generation);
                put32(out, worker.capacity);
            }
        }
    }

    /// Reads the workers that [`Self::put_workers`] wrote; returns how a deadline is moved to the clock that reads
    /// `now`.
    pub(crate) fn restore_workers(
        &mut self,
        reader: &mut Reader,
        now: Millis,
    ) -> Result<impl Fn(u64) -> u64 + use<S>> {
        let written = reader.u64()?;
        if written != NEVER {
            self.expiry.used = true;
        }
        for _ in 0..reader.count(4)? {
            let worker = match reader.u32()? {
                0 => None,
                _ => Some(Worker {
                    generation: reader.u32()?,
                    capacity: reader.u32()?,
                    distinct: 0,
                }),
            };
            self.lanes.workers.push(worker);
        }
        self.lanes.open(Medium::Gpu);
        self.sets.reserve(&self.lanes);
        Ok(move |expires: u64| match expires {
            0 | NEVER => expires,
            _ => now
                .0
                .saturating_add(expires.saturating_sub(written))
                .clamp(1, NEVER - 1),
        })
    }

    /// Reads the list that [`Records::put_list`] wrote; `find` gives the node of a number.
    pub(crate) fn restore_list(
        &mut self,
        reader: &mut Reader,
        lane: u32,
        latest: u64,
        find: impl Fn(&Self, u32) -> Option<u32>,
    ) -> Result<()> {
        let clock = reader.u64()?;
        if clock > latest {
            return refuse(format!("lane {lane} was used in the future"));
        }
        let listed = reader.count(4)?;
        if clock > 0 {
            self.open(lane);
            self.lanes[lane].clock = clock;
        }
        for _ in 0..listed {
            let number = reader.u32()?;
            let entry = find(self, number).and_then(|node| self.nodes.entry(node, lane));
            let Some(entry) = entry.filter(|e| !self.records[e.record].listed()) else {
                return refuse(format!("lane {lane} lists node {number}"));
            };
            let l = &mut self.lanes[lane];
            let newest = l.newest;
            self.records.link_after(l, entry.record, newest);
        }
        Ok(())
    }
}

impl<S: Shape> PrefixTree<S> {
    /// Looks at all deadlines and lanes, and recounts everything.
    pub(crate) fn restored(&mut self) -> Result<()> {
        let used = |(id, lane): (u32, &Lane)| (lane.oldest != NONE).then_some(id);
        let used: Vec<u32> = self.held.lanes.iter().filter_map(used).collect();
        for lane in used {
            self.queue(lane);
        }
        let records: Vec<u32> = self.held.records.iter().map(|(id, _)| id).collect();
        for record in records {
            self.held.expiry.arm(&mut self.held.records, record);
        }
        self.validate().or_else(|why| refuse(why.to_string()))
    }
}
