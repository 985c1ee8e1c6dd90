//! A tree as bytes and back.
//!
//! Little-endian: settings, workers, nodes with every parent before its children, then the order of use of every lane as
//! node numbers. Ids, sets and counts are rebuilt. A restore checks every number before it is used and ends with
//! `validate`, so any bytes that do not describe a sound tree are refused.

use super::shape::Labelled;
use super::unit::Unit;
use super::{EDGE, RadixTree, Trust};
use crate::collections::shared_slice::SharedSlice;
use crate::epoch_lru::lanes::medium_of;
use crate::error::Result;
use crate::ids::Millis;
use crate::prefix_tree::{Held, NONE};
use crate::snapshot::{Reader, put32, put64, refuse};

/// The latest time of a use: that of the largest float.
const LATEST: u64 = 0xFFF0 << 48;

impl<U: Unit> RadixTree<U> {
    /// Appends the tree to `out`. `now` anchors times to live, which are kept as the time left; without any, equal states
    /// give equal bytes.
    pub fn snapshot(&self, now: Millis, out: &mut Vec<u8>) {
        let (held, nodes) = (&self.held, &self.held.nodes);
        put32(out, U::KIND);
        put32(out, held.shape.children.page as u32);
        put64(out, held.shape.max_units);
        put64(out, held.shape.clock);
        held.put_workers(now, out);
        let (order, number) = held.in_order();
        put32(out, order.len() as u32);
        for id in order {
            let node = &nodes[id];
            put32(
                out,
                number.get(node.parent as usize).copied().unwrap_or(NONE),
            );
            put32(out, node.own.space);
            put32(out, size_of_val(&*node.own.units) as u32);
            U::put(&node.own.units, out);
            held.records.put_entries(&node.holders, out);
        }
        for slot in held.lanes.slots() {
            for trust in Trust::LEAST_FIRST {
                held.records.put_list(
                    held.lanes.get(trust.lane(slot)),
                    |node| number[node as usize],
                    out,
                );
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
        let mut restore = Restore {
            held: &mut tree.held,
            reader: &mut reader,
            ids: Vec::new(),
        };
        for _ in 0..restore.reader.count(16)? {
            restore.node(&moved)?;
        }
        restore.lists()?;
        restore.reader.end()?;
        tree.restored()?;
        Ok(tree)
    }
}

/// A tree that is read.
struct Restore<'a, 'b, U: Unit> {
    held: &'a mut Held<Labelled<U>>,
    reader: &'a mut Reader<'b>,
    /// Ids of the nodes read so far.
    ids: Vec<u32>,
}

impl<U: Unit> Restore<'_, '_, U> {
    fn lists(&mut self) -> Result<()> {
        let slots: Vec<u32> = self.held.lanes.slots().collect();
        let latest = self.held.shape.clock;
        for slot in slots {
            for lane in Trust::LEAST_FIRST.map(|trust| trust.lane(slot)) {
                let find = |_: &_, node: u32| self.ids.get(node as usize).copied();
                self.held.restore_list(self.reader, lane, latest, find)?;
            }
        }
        Ok(())
    }

    fn node(&mut self, moved: impl Fn(u64) -> u64) -> Result<()> {
        let (above, space) = (self.reader.u32()?, self.reader.u32()?);
        let parent = match self.ids.get(above as usize) {
            Some(id) => *id,
            None if above == NONE => NONE,
            None => return refuse(format!("node {} hangs on node {above}", self.ids.len())),
        };
        let size = self.reader.count(1)? as usize;
        let label = U::read(self.reader.take(size)?).filter(|label| {
            let whole = U::whole(label, self.held.shape.children.page) == label.len();
            !label.is_empty() && label.len() <= EDGE && whole
        });
        let Some(label) = label else {
            return refuse(format!("node {} has no sound label", self.ids.len()));
        };
        let depth = if parent == NONE {
            0
        } else {
            self.held.nodes[parent].end()
        };
        if depth > u32::MAX - EDGE as u32 || (parent != NONE && space != 0) {
            return refuse(format!("node {} is misplaced", self.ids.len()));
        }
        let Held { shape, nodes, .. } = &mut *self.held;
        let node = shape
            .children
            .add(nodes, parent, space, SharedSlice::new(label));
        let page = shape.children.page;
        let media = Trust::LEAST_FIRST.map(|trust| trust.medium() as usize);
        let fits = |lane: u32, count: u32| {
            count > 0 && (count as usize).is_multiple_of(page) && media.contains(&medium_of(lane))
        };
        self.held.restore_entries(self.reader, node, moved, fits)?;
        self.ids.push(node);
        Ok(())
    }
}
