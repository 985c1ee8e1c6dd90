//! The index as bytes and back.
//!
//! Little-endian: workers, runs in id order with their hashes, entries by lane number and marks, then the order of use of
//! every worker's lanes as run numbers, and how workers resume. Block ids, sets and counters are rebuilt. A restore checks every number before it is used as an index and ends with
//! `validate`, so bytes that do not describe a sound index are refused, whatever they are. Counters of `IndexStats`
//! start anew.

use super::blocks::CHUNK;
use super::shape::{Hashed, Ids};
use super::{BlockIndex, Matcher, NONE};
use crate::error::Result;
use crate::forest::Held;
use crate::forest::lanes::{lane_of, slot_of};
use crate::forest::sets::EMPTY;
use crate::ids::{Medium, Millis, SequenceHash};
use crate::snapshot::{Reader, put32, put64, refuse};

const VERSION: u32 = 3;

impl BlockIndex {
    /// Appends the index to `out`. `now` anchors times to live, which are kept as the time left; without any, equal
    /// states give equal bytes.
    pub fn snapshot(&self, now: Millis, out: &mut Vec<u8>) {
        put32(out, VERSION);
        let held = &self.held;
        put32(out, held.shape.matcher as u32);
        held.put_workers(now, out);
        let mut number = vec![NONE; held.nodes.slots()];
        for (at, (id, _)) in held.nodes.iter().enumerate() {
            number[id as usize] = at as u32;
        }
        put32(out, held.nodes.iter().count() as u32);
        for (_, run) in held.nodes.iter() {
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
        restore.records()?;
        restore.lists()?;
        restore.held.restore_resumes(restore.reader)?;
        restore.reader.end()?;
        restore.counts();
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
        // Whoever seals a snapshot may have chosen its hashes.
        self.held.shape.claims = count > 0;
        for number in 0..count as u32 {
            let (parent, word) = (self.reader.u32()?, self.reader.u32()?);
            let len = word >> 1;
            if len == 0 || len as usize > CHUNK {
                return refuse(format!("run {number} has {len} blocks"));
            }
            if parent != NONE && parent as usize >= count {
                return refuse(format!("run {number} hangs on run {parent} of {count}"));
            }
            let base = self.held.shape.blocks.alloc_whole(len);
            // Children are counted once all runs are there.
            let claimed = word & 1 == 1;
            let run = self.held.nodes.add(len, 0, parent, Ids { base, claimed });
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
            self.entries(run, &moved)?;
            self.held.restore_marks(self.reader, run)?;
        }
        for run in 0..count as u32 {
            let parent = self.held.nodes[run].parent;
            if parent != NONE {
                self.held.nodes[parent].children += 1;
            }
        }
        self.place(count)
    }

    fn entries(&mut self, run: u32, moved: impl Fn(u64) -> u64) -> Result<()> {
        let len = self.held.nodes[run].len;
        let mut full = EMPTY;
        for _ in 0..self.reader.count(24)? {
            let (lane, count) = (self.reader.u32()?, self.reader.u32()?);
            let (epoch, expires) = (self.reader.u64()?, self.reader.u64()?);
            let known = self.held.lanes.worker(slot_of(lane)).is_some();
            if !known || count > len || self.held.nodes.entry(run, lane).is_some() {
                return refuse(format!("run {run} has a bad entry for lane {lane}"));
            }
            self.held.open(lane);
            let record = self.held.records.add(run, lane, NONE);
            self.held.records[record].epoch = epoch;
            self.held.records[record].expires = moved(expires);
            self.held.nodes.hold(run, lane, record, count);
            if count == len {
                full = self.held.sets.toggle(full, lane);
            } else if count > 0 {
                self.held.nodes[run].partial += 1;
            }
        }
        self.held.nodes[run].full = full;
        Ok(())
    }

    /// Start depths, from the roots down; a run that no root leads to is part of a circle.
    fn place(&mut self, count: usize) -> Result<()> {
        let nodes = &mut self.held.nodes;
        let mut placed = vec![false; count];
        let mut path = Vec::new();
        for run in 0..count as u32 {
            let mut at = run;
            while !placed[at as usize] {
                path.push(at);
                at = nodes[at].parent;
                if at == NONE {
                    break;
                }
                if path.len() > count {
                    return refuse(format!("run {run} is its own ancestor"));
                }
            }
            while let Some(below) = path.pop() {
                let (parent, len) = (nodes[below].parent, nodes[below].len);
                let start = if parent == NONE {
                    Some(0)
                } else {
                    nodes[parent].start.checked_add(nodes[parent].len)
                };
                match start {
                    Some(start) if start.checked_add(len).is_some() => nodes[below].start = start,
                    _ => return refuse(format!("run {below} is too deep")),
                }
                placed[below as usize] = true;
            }
        }
        Ok(())
    }

    fn records(&mut self) -> Result<()> {
        let Held { nodes, records, .. } = &mut *self.held;
        let all = records.iter().map(|(id, r)| (id, r.node, r.lane));
        let all: Vec<(u32, u32, u32)> = all.collect();
        for (record, run, lane) in all {
            let above = nodes[run].parent;
            if above == NONE {
                continue;
            }
            let Some(parent) = nodes.entry(above, lane) else {
                return refuse(format!("lane {lane} holds run {run} without its parent"));
            };
            records[record].parent = parent.record;
            let kept = &mut records[parent.record];
            kept.kids += 1;
            kept.held_kids += u32::from(nodes.covered(run, lane) > 0);
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

    /// Counts of lanes and workers from the entries.
    fn counts(&mut self) {
        for (_, run) in self.held.nodes.iter() {
            for &entry in run.holders.as_slice() {
                let whole = run.parent == NONE
                    || self
                        .held
                        .sets
                        .contains(self.held.nodes[run.parent].full, entry.lane);
                let lane = &mut self.held.lanes[entry.lane];
                lane.count += u64::from(entry.count);
                lane.holes += u64::from(entry.count > 0 && !whole);
                // Of a worker's lanes the one that holds most of the run, the first on a tie, counts for it.
                let slot = slot_of(entry.lane);
                let rank = (entry.count, std::cmp::Reverse(entry.lane));
                let first = Medium::ALL
                    .into_iter()
                    .filter_map(|m| run.holders.get(lane_of(slot, m)))
                    .all(|e| (e.count, std::cmp::Reverse(e.lane)) <= rank);
                let counted = if first { u64::from(entry.count) } else { 0 };
                self.held.total += counted;
                if let Some(Some(worker)) = self.held.lanes.workers.get_mut(slot as usize) {
                    worker.distinct += counted;
                }
            }
        }
    }
}
