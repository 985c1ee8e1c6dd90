//! Marks as bytes and back: with every run its bitmaps, and at the end how the workers resume.

use std::ops::Range;

use super::{Entry, Key, Marks, Resumes, kin};
use crate::error::Result;
use crate::index::shape::Hashed;
use crate::index::table::blocks::CHUNK;
use crate::prefix_tree::Held;
use crate::snapshot::{Reader, put32, put64, refuse};

impl Marks {
    /// Appends the marks on the blocks of a run, with their distance from its first block in place of their ids.
    pub(in crate::index) fn put_run(&self, blocks: Range<u32>, out: &mut Vec<u8>) {
        let base = blocks.start % CHUNK as u32;
        let entries = self.of(blocks);
        put32(out, entries.len() as u32);
        for entry in entries {
            let (block, key) = (entry.key.block() - base, entry.key);
            put32(out, Key::new(block, key.slots(), key.rank()).0);
            put64(out, entry.bits());
        }
    }

    /// Appends how the workers resume that do so in another way than from any block held.
    pub(in crate::index) fn put_resumes(&self, out: &mut Vec<u8>) {
        let slots = 0..(self.marked.len() * 64).max(self.above.len()) as u32;
        let all = slots.map(|slot| (slot, self.resumes(slot)));
        let others = all.filter(|(_, resumes)| *resumes != Resumes::default());
        put32(out, others.clone().count() as u32);
        for (slot, resumes) in others {
            put32(out, slot);
            put32(out, u32::from(resumes.marked_only));
            put32(out, resumes.above);
        }
    }
}

impl Held<Hashed> {
    /// Reads the marks of a run, whose entries are there.
    pub(in crate::index) fn restore_marks(&mut self, reader: &mut Reader, run: u32) -> Result<()> {
        let (base, len) = (self.nodes[run].own.base, self.nodes[run].len);
        let mut before = None;
        for _ in 0..reader.count(12)? {
            let (key, bits) = (Key(reader.u32()?), reader.u64()?);
            if bits == 0 || before.is_some_and(|before| key <= before) {
                return refuse(format!("marks of run {run} are out of order"));
            }
            before = Some(key);
            let (offset, rank) = (key.block(), key.rank());
            for slot in Entry::new(key, bits).slots() {
                let block = base + offset;
                if offset >= len || !self.may_mark(slot, block, rank) {
                    return refuse(format!("run {run} has a mark of worker {slot} at {offset}"));
                }
                let marks = &mut self.shape.marks;
                if marks.rank(block, slot, kin(rank)).is_some() {
                    return refuse(format!(
                        "run {run} has two marks of worker {slot} at {offset}"
                    ));
                }
                marks.add(block, slot, rank);
            }
        }
        Ok(())
    }

    /// Reads how the workers resume.
    pub(in crate::index) fn restore_resumes(&mut self, reader: &mut Reader) -> Result<()> {
        let mut next = 0;
        for _ in 0..reader.count(12)? {
            let (slot, marked, above) = (reader.u32()?, reader.u32()?, reader.u32()?);
            let resumes = Resumes {
                marked_only: marked == 1,
                above,
            };
            let known = self.lanes.worker(slot).is_some();
            if slot < next || !known || marked > 1 || resumes == Resumes::default() {
                return refuse(format!("worker {slot} resumes in no way"));
            }
            next = slot + 1;
            self.shape.marks.set_resumes(slot, resumes);
        }
        Ok(())
    }
}
