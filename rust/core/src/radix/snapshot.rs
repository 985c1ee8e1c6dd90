//! A tree as bytes and back.
//!
//! Little-endian: settings, workers, nodes with every parent before its children, then the order of use of every lane as
//! node numbers. Ids, sets and counts are rebuilt. A restore checks every number before it is used and ends with
//! `validate`, so bytes that do not describe a sound tree are refused, whatever they are.

use super::unit::Unit;
use super::{EDGE, RadixTree, Trust};
use crate::error::Result;
use crate::forest::NONE;
use crate::forest::lanes::{medium_of, slot_of};
use crate::ids::Millis;
use crate::snapshot::{Reader, put32, put64, refuse};

/// No use is later: the time of the largest float.
const LATEST: u64 = 0xFFF0 << 48;

impl<U: Unit> RadixTree<U> {
    /// Appends the tree to `out`. `now` anchors times to live, which are kept as the time left; without any, equal states
    /// give equal bytes.
    pub fn snapshot(&self, now: Millis, out: &mut Vec<u8>) {
        put32(out, U::KIND);
        put32(out, self.held.shape.children.page as u32);
        put64(out, self.held.shape.max_units);
        put64(out, self.held.shape.clock);
        self.held.put_workers(now, out);
        let nodes = self.held.nodes.iter();
        let mut order: Vec<u64> = nodes
            .map(|(id, n)| u64::from(n.start) << 32 | u64::from(id))
            .collect();
        order.sort_unstable();
        let ids = order.iter().map(|place| *place as u32);
        let number: std::collections::HashMap<u32, u32> = ids.clone().zip(0..).collect();
        put32(out, order.len() as u32);
        for id in ids {
            let node = &self.held.nodes[id];
            put32(out, number.get(&node.parent).copied().unwrap_or(NONE));
            put32(out, node.own.space);
            put32(out, size_of_val(node.own.units.as_slice()) as u32);
            U::put(&node.own.units, out);
            self.held.put_entries(id, out);
        }
        let number = |node: u32| number.get(&node).copied().unwrap_or(NONE);
        for slot in self.held.lanes.slots() {
            for trust in Trust::LEAST_FIRST {
                self.held.put_list(trust.lane(slot), number, out);
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
        tree.held.shape.clock = reader.u64()?;
        if tree.held.shape.clock > LATEST {
            return refuse(format!("its clock reads {}", tree.held.shape.clock));
        }
        let moved = tree.held.restore_workers(&mut reader, now)?;
        let mut ids = Vec::new();
        for _ in 0..reader.count(16)? {
            let id = tree.restore_node(&mut reader, &ids, &moved)?;
            ids.push(id);
        }
        let slots: Vec<u32> = tree.held.lanes.slots().collect();
        for slot in slots {
            for trust in Trust::LEAST_FIRST {
                let (lane, latest) = (trust.lane(slot), tree.held.shape.clock);
                tree.held
                    .restore_list(&mut reader, lane, latest, |_, node| {
                        ids.get(node as usize).copied()
                    })?;
                if tree
                    .held
                    .lanes
                    .get(lane)
                    .is_some_and(|lane| lane.oldest != NONE)
                {
                    tree.queue(lane);
                }
            }
        }
        reader.end()?;
        tree.restored()?;
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
            let whole = U::whole(label, self.held.shape.children.page) == label.len();
            !label.is_empty() && label.len() <= EDGE && whole
        });
        let Some(label) = label else {
            return refuse(format!("node {} has no sound label", ids.len()));
        };
        let depth = if parent == NONE {
            0
        } else {
            self.held.nodes[parent].end()
        };
        if depth > u32::MAX - EDGE as u32 || (parent != NONE && space != 0) {
            return refuse(format!("node {} is misplaced", ids.len()));
        }
        let node = self
            .held
            .shape
            .children
            .add(&mut self.held.nodes, parent, space, label);
        for _ in 0..reader.count(24)? {
            let (lane, held) = (reader.u32()?, reader.u32()?);
            let (epoch, expires) = (reader.u64()?, reader.u64()?);
            self.restore_entry(node, lane, held)?;
            if let Some(entry) = self.held.nodes.entry(node, lane) {
                let record = &mut self.held.records[entry.record];
                record.epoch = epoch;
                record.expires = moved(expires);
            }
        }
        Ok(node)
    }

    fn restore_entry(&mut self, node: u32, lane: u32, held: u32) -> Result<()> {
        let media = Trust::LEAST_FIRST.map(|trust| trust.medium() as usize);
        if !media.contains(&medium_of(lane)) {
            return refuse(format!("lane {lane} is of no trust"));
        }
        let n = &self.held.nodes[node];
        let known = self.held.lanes.worker(slot_of(lane)).is_some();
        let connected = n.parent == NONE
            || self.held.nodes.covered(n.parent, lane) == self.held.nodes[n.parent].len;
        let fits = (1..=n.len).contains(&held)
            && (held as usize).is_multiple_of(self.held.shape.children.page);
        if !known || !fits || !connected || self.held.nodes.entry(node, lane).is_some() {
            return refuse(format!("lane {lane} holds {held} units wrongly"));
        }
        self.held.open(lane);
        self.held.cover(node, lane, held);
        Ok(())
    }
}
