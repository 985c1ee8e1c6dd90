//! Recount of everything.

use std::collections::{HashMap, HashSet};

use super::lanes::{lane_of, slot_of};
use super::runs::Entry;
use super::{BlockIndex, NONE};
use crate::error::{Error, Result};
use crate::ids::Medium;

macro_rules! ensure {
    ($cond:expr, $($why:tt)+) => {
        if !$cond {
            return Err(Error::Invariant(format!($($why)+)));
        }
    };
}

/// What the runs add up to.
#[derive(Default)]
struct Tally {
    blocks: u64,
    children: HashMap<u32, u32>,
    set_references: HashMap<u32, u32>,
    records: HashSet<u32>,
    lane_counts: HashMap<u32, u64>,
    lane_holes: HashMap<u32, u64>,
    kids: HashMap<u32, (u32, u32)>,
    distinct: HashMap<u32, u64>,
}

impl BlockIndex {
    /// Recounts everything. For tests, fuzzing and diagnosis: O(blocks).
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first broken invariant.
    pub fn validate(&self) -> Result<()> {
        let mut tally = Tally::default();
        for (id, _) in self.runs.iter() {
            self.validate_run(id, &mut tally)?;
        }
        self.validate_sums(&tally)?;
        self.validate_lists(&tally)
    }

    fn validate_run(&self, id: u32, tally: &mut Tally) -> Result<()> {
        let run = &self.runs[id];
        ensure!(
            run.start.checked_add(run.len).is_some(),
            "run {id} is too deep"
        );
        let at = run.base as usize % super::blocks::CHUNK;
        ensure!(
            at + run.len as usize <= super::blocks::CHUNK,
            "run {id} crosses a chunk"
        );
        for block in run.base..run.base + run.len {
            ensure!(
                self.blocks.is_live(block),
                "block {block} of run {id} is free"
            );
            ensure!(
                self.blocks.run(block) == id,
                "block {block} names run {}, not {id}",
                self.blocks.run(block)
            );
            let hash = self.blocks.hash(block);
            let found = self.table.find(hash, &self.blocks);
            ensure!(
                found == Some(block),
                "hash {hash:?} of block {block} finds {found:?}"
            );
        }
        tally.blocks += u64::from(run.len);
        if run.parent == NONE {
            ensure!(run.start == 0, "root run {id} starts at {}", run.start);
        } else {
            ensure!(
                self.runs.is_live(run.parent),
                "run {id} hangs on a free run"
            );
            let end = self.runs[run.parent].end();
            ensure!(
                run.start == end,
                "run {id} starts at {}, its parent ends at {end}",
                run.start
            );
            *tally.children.entry(run.parent).or_default() += 1;
        }
        *tally.set_references.entry(run.full).or_default() += 1;
        let entries = run.holders.as_slice();
        ensure!(
            entries.windows(2).all(|pair| pair[0].lane < pair[1].lane),
            "entries of run {id} are out of order"
        );
        let partial = entries
            .iter()
            .filter(|e| e.count > 0 && e.count < run.len)
            .count();
        ensure!(
            partial == run.partial as usize,
            "run {id} counts {} partial entries, has {partial}",
            run.partial
        );
        let whole = entries.iter().filter(|e| e.count == run.len);
        let full: HashSet<u32> = whole.map(|e| e.lane).collect();
        ensure!(
            full == self.sets.iter(run.full).collect(),
            "the set of run {id} differs from its entries"
        );
        let longest = entries.iter().map(|e| e.count).max().unwrap_or(0);
        ensure!(
            run.children > 0 || longest == run.len,
            "run {id} is longer than what anybody holds of it"
        );
        for &entry in entries {
            self.validate_entry(id, entry, tally)?;
        }
        self.tally_workers(id, tally);
        Ok(())
    }

    fn validate_entry(&self, id: u32, entry: Entry, tally: &mut Tally) -> Result<()> {
        let Entry {
            lane,
            record,
            count,
        } = entry;
        let run = &self.runs[id];
        ensure!(
            tally.records.insert(record),
            "record {record} has two entries"
        );
        let r = &self.records[record];
        ensure!(
            r.run == id && r.lane == lane,
            "record {record} belongs to run {} lane {}",
            r.run,
            r.lane
        );
        ensure!(
            count <= run.len,
            "lane {lane} holds {count} of {} blocks of run {id}",
            run.len
        );
        ensure!(
            r.kids == 0 || count == 0 || count == run.len,
            "record {record} has kids below part of a run"
        );
        ensure!(
            r.kids > 0 || count > 0,
            "record {record} covers nothing and connects nothing"
        );
        ensure!(
            r.kids > 0 || r.listed(),
            "leaf record {record} is not listed"
        );
        *tally.lane_counts.entry(lane).or_default() += u64::from(count);
        if run.parent == NONE {
            ensure!(
                r.parent == NONE,
                "record {record} of a root run has a parent"
            );
            return Ok(());
        }
        let above = self.entry(run.parent, lane);
        ensure!(
            above.is_some_and(|a| a.record == r.parent),
            "record {record} is not connected to its parent run"
        );
        let kids = tally.kids.entry(r.parent).or_default();
        kids.0 += 1;
        kids.1 += u32::from(count > 0);
        let whole = above.is_some_and(|a| a.count == self.runs[run.parent].len);
        *tally.lane_holes.entry(lane).or_default() += u64::from(count > 0 && !whole);
        Ok(())
    }

    fn tally_workers(&self, id: u32, tally: &mut Tally) {
        let mut longest: HashMap<u32, u32> = HashMap::new();
        for entry in self.runs[id].holders.as_slice() {
            let count = longest.entry(slot_of(entry.lane)).or_default();
            *count = (*count).max(entry.count);
        }
        for (slot, count) in longest {
            *tally.distinct.entry(slot).or_default() += u64::from(count);
        }
    }

    fn validate_sums(&self, tally: &Tally) -> Result<()> {
        ensure!(
            tally.blocks == self.len(),
            "the table counts {} blocks, runs {}",
            self.len(),
            tally.blocks
        );
        ensure!(
            tally.blocks == self.table.iter().count() as u64,
            "the table holds slots no run covers"
        );
        ensure!(
            tally.blocks == self.blocks.live(),
            "{} ids are in use",
            self.blocks.live()
        );
        for (id, run) in self.runs.iter() {
            let children = tally.children.get(&id).copied().unwrap_or(0);
            ensure!(
                children == run.children,
                "run {id} counts {} children, has {children}",
                run.children
            );
        }
        for (set, references) in self.sets.references() {
            let counted = tally.set_references.get(&set).copied().unwrap_or(0);
            ensure!(
                counted == references,
                "set {set} counts {references} references, has {counted}"
            );
        }
        let mut live = 0;
        for (id, record) in self.records.iter() {
            ensure!(tally.records.contains(&id), "record {id} has no entry");
            let kids = tally.kids.get(&id).copied().unwrap_or((0, 0));
            ensure!(
                kids == (record.kids, record.held_kids),
                "record {id} counts wrong kids: has {kids:?}"
            );
            live += 1;
        }
        ensure!(
            live == tally.records.len(),
            "{live} records, {} entries",
            tally.records.len()
        );
        for slot in self.lanes.slots() {
            let Some(worker) = self.lanes.worker(slot) else {
                continue;
            };
            let distinct = tally.distinct.get(&slot).copied().unwrap_or(0);
            ensure!(
                worker.distinct == distinct,
                "worker {slot} counts {} blocks, has {distinct}",
                worker.distinct
            );
            for medium in Medium::ALL {
                let lane = lane_of(slot, medium);
                let Some(l) = self.lanes.get(lane) else {
                    ensure!(
                        !tally.lane_counts.contains_key(&lane),
                        "lane {lane} is not there"
                    );
                    continue;
                };
                let count = tally.lane_counts.get(&lane).copied().unwrap_or(0);
                let holes = tally.lane_holes.get(&lane).copied().unwrap_or(0);
                ensure!(
                    l.count == count,
                    "lane {lane} counts {} blocks, has {count}",
                    l.count
                );
                ensure!(
                    l.holes == holes,
                    "lane {lane} counts {} holes, has {holes}",
                    l.holes
                );
                ensure!(
                    l.count <= u64::from(worker.capacity),
                    "worker {slot} is over its capacity"
                );
            }
        }
        Ok(())
    }

    fn validate_lists(&self, tally: &Tally) -> Result<()> {
        let mut listed = 0;
        for (id, lane) in self.lanes.iter() {
            let (mut record, mut before, mut epoch) = (lane.oldest, NONE, 0);
            while record != NONE {
                ensure!(
                    tally.records.contains(&record),
                    "lane {id} lists a free record"
                );
                let r = &self.records[record];
                ensure!(r.prev == before, "record {record} is linked wrongly");
                ensure!(r.lane == id, "record {record} is in the list of lane {id}");
                ensure!(
                    r.epoch >= epoch,
                    "record {record} is older than the one before it"
                );
                ensure!(
                    r.epoch <= lane.clock,
                    "record {record} was used in the future"
                );
                (before, epoch, record) = (record, r.epoch, r.next);
                listed += 1;
            }
            ensure!(lane.newest == before, "the list of lane {id} ends wrongly");
        }
        let marked = self.records.iter().filter(|(_, r)| r.listed()).count();
        ensure!(
            marked == listed,
            "{marked} records say they are listed, {listed} are"
        );
        let mut armed = 0;
        for (id, r) in self.records.iter() {
            let due = r.kids == 0 && r.expires != 0 && r.expires != super::recency::NEVER;
            ensure!(!due || r.armed != 0, "record {id} would never expire");
            armed += usize::from(r.armed != 0);
        }
        ensure!(
            armed == self.expiry.len(),
            "{} deadlines for {armed} records",
            self.expiry.len()
        );
        Ok(())
    }
}
