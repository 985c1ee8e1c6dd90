//! The index as bytes and back.
//!
//! Little-endian: workers, runs after their parents, with their hashes, entries by lane number and marks, then the
//! order of use of every worker's lanes as run numbers, and how workers resume. Block ids, sets and counters are rebuilt.
//! A restore checks every number before it is used as an index and ends with `validate`, so any bytes that do not
//! describe a sound index are refused. Counters of `IndexStats` start anew.

use super::shape::{Hashed, Ids};
use super::table::blocks::CHUNK;
use super::{BlockIndex, Matcher, NONE};
use crate::epoch_lru::lanes::lane_of;
use crate::error::Result;
use crate::ids::{Medium, Millis, SequenceHash};
use crate::prefix_tree::Held;
use crate::prefix_tree::nodes::Node;
use crate::snapshot::{Reader, put32, put64, refuse};

const VERSION: u32 = 4;

impl BlockIndex {
    /// Appends the index to `out`. `now` anchors times to live, which are kept as the time left; without any, equal
    /// states give equal bytes.
    pub fn snapshot(&self, now: Millis, out: &mut Vec<u8>) {
        put32(out, VERSION);
        let held = &self.held;
        put32(out, held.shape.matcher as u32);
        held.put_workers(now, out);
        let (order, number) = held.in_order();
        put32(out, order.len() as u32);
        for id in order {
            let run = &held.nodes[id];
            put32(
                out,
                number.get(run.parent as usize).copied().unwrap_or(NONE),
            );
            put32(out, run.len << 1 | u32::from(run.own.claimed));
            for &hash in held.shape.blocks.hashes(run.own.base, run.len) {
                put64(out, hash);
            }
            held.records.put_entries(&run.holders, out);
            let blocks = run.own.base..run.own.base + run.len;
            held.shape.marks.put_run(blocks, out);
        }
        for slot in held.lanes.slots() {
            for medium in Medium::ALL {
                let lane = held.lanes.get(lane_of(slot, medium));
                held.records.put_list(lane, |run| number[run as usize], out);
            }
        }
        held.shape.marks.put_resumes(out);
    }

    /// The index that [`Self::snapshot`] wrote, with times to live moved to the clock that reads `now`.
    ///
    /// # Errors
    /// [`crate::Error::BadSnapshot`] for bytes that do not describe a sound index.
    pub fn restore(bytes: &[u8], now: Millis) -> Result<Self> {
        let mut reader = Reader { bytes };
        let version = reader.u32()?;
        if version != VERSION {
            return refuse(format!("its index version is {version}, this is {VERSION}"));
        }
        let matcher = match reader.u32()? {
            0 => Matcher::Kary,
            1 => Matcher::Binary,
            2 => Matcher::Linear,
            other => return refuse(format!("unknown matcher {other}")),
        };
        let mut index = Self::new(matcher);
        let moved = index.held.restore_workers(&mut reader, now)?;
        let (held, reader) = (&mut index.held, &mut reader);
        let mut restore = Restore { held, reader };
        restore.runs(moved)?;
        restore.lists()?;
        restore.held.restore_resumes(restore.reader)?;
        restore.reader.end()?;
        index.restored()?;
        Ok(index)
    }
}

/// An index that is read.
struct Restore<'a, 'b> {
    held: &'a mut Held<Hashed>,
    reader: &'a mut Reader<'b>,
}

impl Restore<'_, '_> {
    /// Reads the runs; in the fresh slab their numbers are their ids.
    fn runs(&mut self, moved: impl Fn(u64) -> u64) -> Result<()> {
        let count = self.reader.count(12)? as usize;
        // The author of a snapshot may have chosen its hashes.
        self.held.shape.claims = count > 0;
        for number in 0..count as u32 {
            let (parent, word) = (self.reader.u32()?, self.reader.u32()?);
            let len = word >> 1;
            if len == 0 || len as usize > CHUNK {
                return refuse(format!("run {number} has {len} blocks"));
            }
            if parent != NONE && parent >= number {
                return refuse(format!("run {number} hangs on run {parent}"));
            }
            let start = match parent {
                NONE => 0,
                _ => self.held.nodes[parent].end(),
            };
            if start.checked_add(len).is_none() {
                return refuse(format!("run {number} is too deep"));
            }
            let base = self.held.shape.blocks.alloc_whole(len);
            let claimed = word & 1 == 1;
            let run = Node::new(len, start, parent, Ids { base, claimed });
            let run = self.held.nodes.add(run);
            if parent != NONE {
                self.held.nodes[parent].children += 1;
            }
            let Hashed { table, blocks, .. } = &mut self.held.shape;
            blocks.set_run(base, len, run);
            let hashes = (0..len).map(|_| self.reader.u64().map(SequenceHash));
            let hashes: Vec<SequenceHash> = hashes.collect::<Result<_>>()?;
            blocks.set_hashes(base, &hashes);
            let added = table.insert_new(&hashes, base, blocks);
            if added < len {
                let twice = hashes[added as usize].0;
                return refuse(format!("hash {twice:#x} stands twice"));
            }
            self.held
                .restore_entries(self.reader, run, &moved, |_, _| true)?;
            self.held.restore_marks(self.reader, run)?;
        }
        Ok(())
    }

    fn lists(&mut self) -> Result<()> {
        let slots: Vec<u32> = self.held.lanes.slots().collect();
        for slot in slots {
            for medium in Medium::ALL {
                let (lane, latest) = (lane_of(slot, medium), u64::MAX / 2);
                let find = |held: &Held<_>, run| held.nodes.is_live(run).then_some(run);
                self.held.restore_list(self.reader, lane, latest, find)?;
            }
        }
        Ok(())
    }
}
