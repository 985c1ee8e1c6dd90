//! Everything that adds blocks: recording a routed prompt, storing what an engine announced.

use super::shape::{Hashed, Ids};
use super::{BlockIndex, NONE, Overlaps};
use crate::error::Result;
use crate::forest::lanes::{lane_of, medium_of, slot_of};
use crate::forest::nodes::Holders;
use crate::ids::{Medium, Millis, SequenceHash, WorkerId};

/// The end of the known part of a path: a run, and how many of its leading blocks belong to the path.
#[derive(Debug, Clone, Copy)]
struct End {
    run: u32,
    upto: u32,
}

impl BlockIndex {
    /// Records that `worker` holds the path `hashes` from the root (at most its capacity of them) on the GPU, makes it
    /// the worker's most recent use, and evicts what no longer fits. `expires`: end of the time to live, `None` for
    /// never. Returns the blocks newly held: fewer than there are if [`Self::set_limit`] leaves no room. `hint` is the
    /// answer of an [`Self::overlaps`] call for the same hashes; it saves the search if the index has not changed since.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn record(
        &mut self,
        worker: WorkerId,
        hashes: &[SequenceHash],
        hint: Option<&Overlaps>,
        expires: Option<Millis>,
    ) -> Result<u32> {
        self.place(worker, hashes, 0, Medium::Gpu, hint, expires)
    }

    /// Records that the path `hashes` is on its way into the worker's device memory: as [`Self::record`], but in
    /// [`Medium::Speculative`], and only its blocks from depth `from` on and those nobody knows yet. What is expected
    /// again stays until the later of its deadlines.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn expect(
        &mut self,
        worker: WorkerId,
        hashes: &[SequenceHash],
        from: u32,
        hint: Option<&Overlaps>,
        expires: Option<Millis>,
    ) -> Result<u32> {
        self.place(worker, hashes, from, Medium::Speculative, hint, expires)
    }

    fn place(
        &mut self,
        worker: WorkerId,
        hashes: &[SequenceHash],
        from: u32,
        medium: Medium,
        hint: Option<&Overlaps>,
        expires: Option<Millis>,
    ) -> Result<u32> {
        let capacity = self.worker(worker)?.capacity as usize;
        self.start_limited();
        let expires = self.held.expiry.deadline(expires);
        let (known, mut last) = match hint {
            Some(hint) if hint.fits(self.held.shape.version, hashes.len()) => hint.known(),
            _ => self.known_path(hashes, false),
        };
        let hashes = &hashes[..hashes.len().min(capacity)];
        let known = (known as usize).min(hashes.len());
        let from = from.min(known as u32);
        if from as usize == hashes.len() {
            return Ok(0);
        }
        if known > 0 {
            last = self.ancestor(last, known as u32 - 1);
        }
        let claimed = hint.is_some_and(Overlaps::unchained);
        let lane = lane_of(worker.slot, medium);
        let held = self.insert(lane, last, &hashes[known..], from, expires, claimed);
        self.evict_excess(lane);
        Ok(held)
    }

    /// Stores `hashes`, a chain behind `parent` (`None`: from the root), as given. Returns the blocks newly held. An
    /// unknown parent stores nothing and counts an orphan; a hash that is already stored behind another parent ends the
    /// chain there and counts a conflict.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn store(
        &mut self,
        worker: WorkerId,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
        expires: Option<Millis>,
    ) -> Result<u32> {
        self.store_chain(worker, parent, hashes, medium, expires, true)
    }

    /// Stores what an engine announced: as [`Self::store`], but `hashes` is a chain computed here, which never expires,
    /// and what was on its way has arrived: blocks held in `medium` are no longer held in [`Medium::Speculative`].
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn announce(
        &mut self,
        worker: WorkerId,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> Result<u32> {
        self.store_chain(worker, parent, hashes, medium, None, false)
    }

    /// Takes back what [`Self::store`] stored of a chain: of its leading blocks that are here, the last `held`, which
    /// were new to the worker.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn undo(
        &mut self,
        worker: WorkerId,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        held: u32,
        medium: Medium,
    ) -> Result<()> {
        self.worker(worker)?;
        let find = |hash| self.held.shape.table.find(hash, &self.held.shape.blocks);
        let mut last = parent.and_then(find).unwrap_or(NONE);
        let mut stored = Vec::new();
        for block in hashes.iter().map_while(|hash| find(*hash)) {
            if self.block_before(block) != last {
                break;
            }
            stored.push(block);
            last = block;
        }
        let new = stored.len().saturating_sub(held as usize);
        for block in stored.drain(new..).rev() {
            self.withdraw(lane_of(worker.slot, medium), block, 1);
        }
        self.held.finish();
        Ok(())
    }

    /// Stores `hash`, a block the worker holds in a medium that engines announce, in `medium` too, behind the block it is
    /// behind there. Returns whether it is newly held; false for a block that the worker holds nowhere.
    ///
    /// # Errors
    /// [`crate::Error::UnknownWorker`].
    pub fn spread(&mut self, worker: WorkerId, hash: SequenceHash, medium: Medium) -> Result<bool> {
        let mut media = Medium::ANNOUNCED.into_iter();
        let held = media.any(|medium| self.holds(worker, hash, medium));
        let known = self
            .held
            .shape
            .table
            .find(hash, &self.held.shape.blocks)
            .filter(|_| held);
        let Some(block) = known else {
            return self.worker(worker).map(|_| false);
        };
        let before = self.block_before(block);
        let parent = (before != NONE).then(|| self.held.shape.blocks.hash(before));
        let stored = self.store_chain(worker, parent, &[hash], medium, None, false);
        Ok(stored? > 0)
    }

    fn store_chain(
        &mut self,
        worker: WorkerId,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
        expires: Option<Millis>,
        claimed: bool,
    ) -> Result<u32> {
        let capacity = self.worker(worker)?.capacity;
        self.held.shape.table.prefetch_all(hashes);
        self.start_limited();
        let expires = self.held.expiry.deadline(expires);
        let mut last = NONE;
        let mut from = 0;
        if let Some(parent) = parent {
            let Some(block) = self.held.shape.table.find(parent, &self.held.shape.blocks) else {
                self.stats.orphans += 1;
                return Ok(0);
            };
            last = block;
            from = self.depth(block) + 1;
        }
        let mut hashes = &hashes[..hashes.len().min(capacity as usize)];
        let mut known = 0;
        for (i, &hash) in hashes.iter().enumerate() {
            match self.held.shape.table.find(hash, &self.held.shape.blocks) {
                Some(block) if self.block_before(block) == last => {
                    last = block;
                    known = i + 1;
                }
                Some(_) => {
                    self.stats.conflicts += 1;
                    hashes = &hashes[..i];
                    break;
                }
                None => break,
            }
        }
        if hashes.is_empty() {
            return Ok(0);
        }
        let lane = lane_of(worker.slot, medium);
        let held = self.insert(lane, last, &hashes[known..], from, expires, claimed);
        if !claimed && medium != Medium::Speculative {
            self.confirm(lane, last, known as u32);
        }
        // Ancestors may make the path longer than the capacity: then its own end is among what goes.
        self.evict_excess(lane);
        Ok(held)
    }

    /// Of the `blocks` that end with `last`, those held in the lane are no longer speculative.
    fn confirm(&mut self, lane: u32, last: u32, blocks: u32) {
        let slot = slot_of(lane);
        if self.held.lanes.count(slot, Medium::Speculative) == 0 {
            return;
        }
        let speculative = lane_of(slot, Medium::Speculative);
        let (mut last, mut left) = (last, blocks);
        while left > 0 {
            let run = self.held.shape.blocks.run(last);
            let base = self.held.nodes[run].own.base;
            let here = (last - base + 1).min(left);
            let first = last + 1 - here;
            let count = |lane| self.held.nodes.entry(run, lane).map_or(0, |e| e.count);
            let arrived = count(speculative).min(count(lane)).min(last - base + 1);
            let above = self.block_before(first);
            self.withdraw(speculative, first, arrived.saturating_sub(first - base));
            left -= here;
            last = above;
        }
    }

    /// Holds the path that ends at the block `last` from depth `from` on, adds `new` behind it and makes this the lane's
    /// most recent use.
    pub(super) fn insert(
        &mut self,
        lane: u32,
        last: u32,
        new: &[SequenceHash],
        from: u32,
        expires: u64,
        claimed: bool,
    ) -> u32 {
        if !self.limit.is_set() {
            self.held.open(lane);
        } else if !self.may_hold(lane, last, new.len(), from, expires) {
            return 0;
        }
        let (mut held, mut run) = (0, NONE);
        if last != NONE {
            let end = self.end_at(last, lane, !new.is_empty());
            (held, run) = self.hold_path(end, lane, from, expires);
        }
        let end = if run == NONE {
            None
        } else {
            self.held.nodes.entry(run, lane)
        };
        self.held.shape.claims |= claimed;
        if from == 0 && !self.held.shape.claims {
            // The path is made the most recent use and fits, so what goes lies outside it, and its ids are warm for reuse.
            if let Some(end) = end {
                self.touch_record(end.record, 0);
            }
            self.evict(lane, self.excess(lane, new.len()));
        }
        let added = self.attach(lane, run, new, expires, claimed);
        if let Some(end) = end
            && added == 0
        {
            self.touch_record(end.record, expires);
            if end.count == 0 && self.held.records[end.record].kids == 0 {
                // Only ancestors were known, and what should follow them cannot be stored.
                self.held.reap(end.record);
            }
        }
        held + added
    }

    /// Blocks over the capacity of a lane's worker once it holds `more`.
    fn excess(&self, lane: u32, more: usize) -> u64 {
        let slot = slot_of(lane);
        let capacity = self.held.lanes.worker(slot).map_or(0, |w| w.capacity);
        let count = self.held.lanes.count(slot, Medium::ALL[medium_of(lane)]);
        (count + more as u64).saturating_sub(u64::from(capacity))
    }

    fn evict_excess(&mut self, lane: u32) {
        self.evict(lane, self.excess(lane, 0));
        self.held.finish();
    }

    /// The block at `depth` on the path that ends at `block`.
    fn ancestor(&self, block: u32, depth: u32) -> u32 {
        let mut run = self.held.shape.blocks.run(block);
        while self.held.nodes[run].start > depth {
            run = self.held.nodes[run].parent;
        }
        self.held.nodes[run].own.base + depth - self.held.nodes[run].start
    }

    pub(super) fn depth(&self, block: u32) -> u32 {
        let run = &self.held.nodes[self.held.shape.blocks.run(block)];
        run.start + block - run.own.base
    }

    /// The block before `block` on its path, `NONE` for a first block.
    pub(super) fn block_before(&self, block: u32) -> u32 {
        let run = &self.held.nodes[self.held.shape.blocks.run(block)];
        if block > run.own.base {
            block - 1
        } else if run.parent == NONE {
            NONE
        } else {
            let above = &self.held.nodes[run.parent];
            above.own.base + above.len - 1
        }
    }

    /// The path ends at `block`. Its run is split there where something must hang or end at exactly this block: new
    /// blocks (`grows`), or an access of a lane that covers more of the run and remembers when it used which part.
    fn end_at(&mut self, block: u32, lane: u32, grows: bool) -> End {
        let run = self.held.shape.blocks.run(block);
        let upto = block - self.held.nodes[run].own.base + 1;
        if upto == self.held.nodes[run].len {
            return End { run, upto };
        }
        let deeper = self
            .held
            .nodes
            .entry(run, lane)
            .is_some_and(|e| e.count == 0 || e.count > upto);
        if grows || deeper {
            End {
                run: self.held.split(run, upto),
                upto,
            }
        } else {
            End { run, upto }
        }
    }

    /// Makes the lane hold the path's known blocks from depth `from` to its end, and connects them to the root with
    /// ghosts where it does not hold what is above. Returns the blocks newly held and the run of the end.
    fn hold_path(&mut self, end: End, lane: u32, from: u32, expires: u64) -> (u32, u32) {
        let mut steps = std::mem::take(&mut self.held.steps);
        let (mut run, mut want) = (end.run, end.upto);
        loop {
            let start = self.held.nodes[run].start;
            let entry = self.held.nodes.entry(run, lane);
            let count = entry.map_or(0, |e| e.count);
            let above = from.saturating_sub(start).min(want);
            if above > 0 && above < want && count < above {
                // Blocks of this run that are not stored lie before the ones that are.
                let upper = self.held.split(run, above);
                steps.push((run, want - above));
                (run, want) = (upper, above);
                continue;
            }
            if above == want {
                // Only ancestors here: an entry is enough, but a partial one cannot have kids.
                if let Some(entry) = entry {
                    if entry.count > 0 && entry.count < self.held.nodes[run].len {
                        self.held.split(run, entry.count);
                        steps.push((run, 0));
                    }
                    break;
                }
                steps.push((run, 0));
            } else {
                if count < want {
                    let longer = entry.is_some_and(|e| {
                        e.count > 0 && self.held.records[e.record].expires > expires
                    });
                    if longer {
                        // What is held lives longer than what is added: two records.
                        let upper = self.held.split(run, count);
                        steps.push((run, want - count));
                        (run, want) = (upper, count);
                        continue;
                    }
                    steps.push((run, want));
                }
                // Without holes, whatever is above a held block is held.
                if count > 0 && self.held.lanes[lane].holes == 0 {
                    break;
                }
            }
            let parent = self.held.nodes[run].parent;
            if parent == NONE {
                break;
            }
            run = parent;
            want = self.held.nodes[run].len;
        }
        let mut held = 0;
        while let Some((run, want)) = steps.pop() {
            held += self.held.cover(run, lane, want);
        }
        self.held.steps = steps;
        (held, end.run)
    }

    /// Adds new blocks behind the end of `run` (`NONE`: at the root), held by the lane, and touches the last of them.
    fn attach(
        &mut self,
        lane: u32,
        run: u32,
        new: &[SequenceHash],
        expires: u64,
        claimed: bool,
    ) -> u32 {
        let parent = run;
        let mut run = run;
        let mut left = new;
        let mut added = 0;
        if run != NONE && !left.is_empty() {
            added = self.lengthen(lane, run, left, expires);
            self.held.nodes[run].own.claimed |= claimed && added > 0;
            left = &left[added as usize..];
        }
        while !left.is_empty() {
            if self
                .held
                .shape
                .table
                .find(left[0], &self.held.shape.blocks)
                .is_some()
            {
                self.stats.conflicts += 1;
                break;
            }
            let (admitted, may_grow) = self.admit(left.len());
            let ids = match admitted {
                0 => None,
                _ => self.held.shape.blocks.alloc(admitted as u32, may_grow),
            };
            let Some((base, got)) = ids else {
                self.end_early(left.len());
                break;
            };
            let start = if run == NONE {
                0
            } else {
                self.held.nodes[run].end()
            };
            let next = self.held.nodes.add(got, start, run, Ids { base, claimed });
            if run != NONE {
                self.held.nodes[run].children += 1;
            }
            let filled = self.fill(base, &left[..got as usize], next);
            self.held.nodes[next].len = filled;
            self.held.cover(next, lane, filled);
            run = next;
            added += filled;
            left = &left[filled as usize..];
        }
        if added > 0
            && let Some(entry) = self.held.nodes.entry(run, lane)
        {
            self.touch_record(entry.record, expires);
            if parent != NONE
                && parent != run
                && let Some(above) = self.held.nodes.entry(parent, lane)
                && self.held.records[above.record].listed()
            {
                // The new tail is a newer use of the same path.
                self.held
                    .records
                    .unlink(&mut self.held.lanes[lane], above.record);
            }
        }
        added
    }

    /// Lengthens the run itself where it has no children, the lane is its only holder and the next ids are free.
    fn lengthen(&mut self, lane: u32, run: u32, new: &[SequenceHash], expires: u64) -> u32 {
        let r = &self.held.nodes[run];
        let (base, len) = (r.own.base, r.len);
        let Holders::One(entry) = r.holders else {
            return 0;
        };
        if r.children > 0 || entry.count != len || self.held.records[entry.record].expires > expires
        {
            return 0;
        }
        let (admitted, _) = self.admit(new.len());
        let got = self.held.shape.blocks.extend(base + len, admitted as u32);
        if got == 0 {
            // The next id may lie in a chunk that does not exist.
            return 0;
        }
        let filled = self.fill(base + len, &new[..got as usize], run);
        let r = &mut self.held.nodes[run];
        r.len = len + filled;
        if let Some(entry) = r.holders.get_mut(lane) {
            entry.count = len + filled;
        }
        self.held.count_change(run, lane, len, len + filled);
        filled
    }

    /// Fills the columns of the fresh ids from `base` on and adds them to the table, up to a hash that is already stored:
    /// only claims can be. Returns how many were added; the other ids are given back.
    fn fill(&mut self, base: u32, hashes: &[SequenceHash], run: u32) -> u32 {
        let Hashed {
            table,
            blocks,
            claims,
            ..
        } = &mut self.held.shape;
        blocks.set_hashes(base, hashes);
        blocks.set_run(base, hashes.len() as u32, run);
        if !*claims {
            table.insert_all(hashes, base, blocks);
            return hashes.len() as u32;
        }
        let added = table.insert_new(hashes, base, blocks);
        if (added as usize) < hashes.len() {
            blocks.free(base + added, hashes.len() as u32 - added);
        }
        added
    }

    /// Touches a record and, if its time to live is finite, sees that it will be looked at when that ends.
    fn touch_record(&mut self, record: u32, expires: u64) {
        let lane = &mut self.held.lanes[self.held.records[record].lane];
        self.held.records.touch(lane, record, expires);
        self.held.expiry.arm(&mut self.held.records, record);
    }
}
