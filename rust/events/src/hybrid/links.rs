//! Where a prompt can resume on an engine with several cache groups.
//!
//! An engine resumes where all its groups can. Those that attend to the whole prefix are indexed; the others keep the
//! blocks of a window, or a state, near some ends of prefixes, and their blocks have the name of the prefix that ends
//! with them. So each named prefix is a link of a tree, a side group holds blocks at links, and the own block at a link
//! is marked while all side groups accept resuming behind it. A link stays while it has a name that is known, a block
//! of a side group, or links behind it.
//!
//! Each side group counts per link the blocks in a row that end there, no more than it ever needs. A block that comes or
//! goes changes these counts at the links behind it, as far as they do change, and each such link is judged anew. So an
//! event costs as many steps as there are links within a window behind its blocks, over all branches.
//!
//! With EAGLE or MTP the block above the point is needed too, which depends on how the prompt goes on: marks are on that.

mod parked;
mod side;
mod tree;

#[cfg(test)]
use cachelb_core::error::{Error, Result};
use cachelb_core::groups::common_multiple;
use cachelb_core::ids::{Medium, Millis, SequenceHash};

use self::parked::Parked;
use self::side::{LANES, Side, lane_of};
use self::tree::{NONE, Tree};
use crate::batch::Name;
use crate::holdings::Holdings;
use crate::hybrid::groups::Groups;
use crate::settings::IngestSettings;

/// Largest common multiple of the block sizes, in tokens.
const MAX_ALIGN: u64 = 1 << 32;
/// Mean heap bytes of a link and its name.
const LINK: usize = 160;
/// Those of what a side group holds and counts there.
const HELD: usize = 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct Links {
    own_size: u32,
    eagle: bool,
    most: u64,
    /// Tokens per link: those of a block that attends to the whole prefix; 0 until that is known.
    unit: u32,
    /// Prompts resume at multiples of so many links; `None` if they never do as far as is known.
    align: Option<u32>,
    /// Links from the point to its mark.
    above: u32,
    tree: Tree,
    sides: Vec<Side>,
    parked: Parked,
    /// Whether there may be links without use.
    pub(crate) stale: bool,
    scratch: Vec<u32>,
    changed: Vec<u32>,
}

impl Links {
    pub(crate) fn new(settings: &IngestSettings) -> Self {
        Self {
            own_size: settings.hasher.block_size() as u32,
            eagle: false,
            most: settings.max_blocks,
            unit: 0,
            align: None,
            above: 0,
            tree: Tree::default(),
            sides: Vec::new(),
            parked: Parked::new(settings.orphan_blocks, settings.orphan_ttl_ms),
            stale: false,
            scratch: Vec::new(),
            changed: Vec::new(),
        }
    }

    /// Takes over the known groups, whose blocks that are prefixes have `unit` tokens (0: not known yet), and
    /// whether the engine drafts with EAGLE or MTP. Returns the blocks that no longer wait.
    pub(crate) fn set_groups(
        &mut self,
        groups: &Groups,
        unit: u32,
        eagle: bool,
        to: &mut dyn Holdings,
    ) -> u64 {
        let mut dropped = 0;
        self.eagle = eagle;
        if unit != self.unit {
            if self.unit != 0 {
                dropped = self.start_over(to);
            }
            self.unit = unit;
        }
        for group in groups.sides() {
            let known = self.sides.iter().position(|side| side.group == group.id);
            let at = known.unwrap_or_else(|| {
                self.sides.push(Side::new(group.id));
                self.sides.len() - 1
            });
            self.sides[at].set(group, unit, self.eagle);
            self.sides[at].grow(self.tree.places());
        }
        self.align = self.alignment(groups);
        self.above = self.above().checked_div(unit).unwrap_or(0);
        self.sides
            .iter_mut()
            .for_each(|side| side.set_above(self.above));
        self.judge_all(to);
        dropped
    }

    fn start_over(&mut self, to: &mut dyn Holdings) -> u64 {
        for at in self.tree.all() {
            let link = self.tree.get(at);
            if let Some((_, block)) = link.accepted.zip(link.block) {
                to.unmark(block);
            }
        }
        self.clear()
    }

    fn alignment(&self, groups: &Groups) -> Option<u32> {
        if self.unit == 0
            || groups.has_riddles()
            || !self.sides.iter().all(|side| side.may_accept(self.unit))
        {
            return None;
        }
        let mut align = u64::from(self.unit);
        for size in groups.sizes().filter(|size| *size > 0).map(u64::from) {
            align = common_multiple(align, size).filter(|align| *align <= MAX_ALIGN)?;
        }
        u32::try_from(align / u64::from(self.unit)).ok()
    }

    /// Whether marks are where prompts resume.
    pub(crate) fn are_sound(&self) -> bool {
        self.align.is_some()
    }

    /// Tokens per link, 0 until they are known.
    pub(crate) fn unit(&self) -> u32 {
        self.unit
    }

    /// Tokens from the point to its mark: the largest block needed above it, in whole own blocks.
    pub(crate) fn above(&self) -> u32 {
        if !self.eagle {
            return 0;
        }
        let largest = self.sides.iter().map(Side::above).max().unwrap_or(0);
        largest.max(self.unit).next_multiple_of(self.own_size)
    }

    /// The side group of that id, if its blocks can be followed.
    pub(crate) fn side(&self, group: Option<u32>) -> Option<usize> {
        let side = self.sides.iter().position(|side| side.group == group)?;
        self.sides[side].may_accept(self.unit).then_some(side)
    }

    /// Whether a name has a link.
    pub(crate) fn knows(&self, name: Name) -> bool {
        self.tree.find(name).is_some()
    }

    /// Blocks that a side group holds.
    pub(crate) fn blocks_of(&self, group: Option<u32>) -> u64 {
        let side = self.sides.iter().find(|side| side.group == group);
        side.map_or(0, |side| side.blocks)
    }

    /// Appends a chain of names behind `parent`, each with the own block that ends with it.
    pub(crate) fn append(
        &mut self,
        parent: Option<Name>,
        names: impl Iterator<Item = (Name, Option<SequenceHash>)>,
        to: &mut dyn Holdings,
    ) {
        let Some(mut before) = parent.map_or(Some(NONE), |name| self.tree.find(name)) else {
            return;
        };
        for (name, block) in names {
            let Some(at) = self.put(name, block, before, to) else {
                return;
            };
            if self.unit < self.own_size {
                self.mark_within(at, to);
            } else {
                self.mark(at, to);
            }
            before = at;
        }
    }

    /// The link of a name behind `before`; one elsewhere is removed, and all behind it.
    fn put(
        &mut self,
        name: Name,
        block: Option<SequenceHash>,
        before: u32,
        to: &mut dyn Holdings,
    ) -> Option<u32> {
        if let Some(at) = self.tree.find(name) {
            let link = self.tree.get(at);
            if (link.parent, link.block) == (before, block) {
                return Some(at);
            }
            let is_circle = before != NONE && self.tree.is_before(at, before);
            self.cut(at, to);
            if is_circle {
                return None;
            }
        }
        if self.tree.len() as u64 >= self.most {
            return None;
        }
        let at = self.tree.add(name, block, before);
        let places = self.tree.places();
        self.sides.iter_mut().for_each(|side| side.grow(places));
        for wait in self.parked.take(name) {
            self.sides[wait.side].add(at, wait.lane, false);
        }
        for side in 0..self.sides.len() {
            if self.sides[side].holds(at) {
                self.spread(side, at, to);
            }
        }
        // A link that needs no block is accepted at once.
        self.judge(at, to);
        Some(at)
    }

    /// Forgets a link and all behind it.
    fn cut(&mut self, at: u32, to: &mut dyn Holdings) {
        let before = self.tree.get(at).parent;
        let mut links = vec![at];
        let mut done = 0;
        while let Some(at) = links.get(done).copied() {
            links.extend(self.tree.children(at));
            done += 1;
        }
        for at in links.into_iter().rev() {
            self.forget(at, to);
        }
        self.stale |= before != NONE;
    }

    fn forget(&mut self, at: u32, to: &mut dyn Holdings) {
        let link = self.tree.get(at);
        if let Some((_, block)) = link.accepted.zip(link.block) {
            to.unmark(block);
        }
        self.sides.iter_mut().for_each(|side| side.vacate(at));
        self.tree.remove(at);
    }

    /// Adds a block of a side group; it waits if its name stands for nothing yet.
    pub(crate) fn store(
        &mut self,
        name: Name,
        side: usize,
        medium: Medium,
        once: bool,
        to: &mut dyn Holdings,
    ) {
        let lane = lane_of(medium);
        let Some(at) = self.tree.find(name) else {
            return self.parked.park(name, side, lane, once);
        };
        self.sides[side].add(at, lane, once);
        self.spread(side, at, to);
    }

    /// Removes a copy of a side group's block, in the places that it concerns. Returns whether there was one.
    pub(crate) fn remove(
        &mut self,
        name: Name,
        concerns: impl Fn(Medium, Option<u32>) -> bool,
        is_known: impl Fn(Name) -> bool,
        to: &mut dyn Holdings,
    ) -> bool {
        let Some(at) = self.tree.find(name) else {
            let sides = &self.sides;
            return self.parked.cancel(name, |wait| {
                concerns(LANES[usize::from(wait.lane)], sides[wait.side].group)
            });
        };
        let mut found = false;
        for side in 0..self.sides.len() {
            let group = self.sides[side].group;
            let mut changed = false;
            for medium in Medium::ANNOUNCED {
                changed |= concerns(medium, group) && self.sides[side].remove(at, lane_of(medium));
            }
            if changed {
                self.spread(side, at, to);
            }
            found |= changed;
        }
        self.prune(at, is_known, to);
        found
    }

    /// A name is known no longer.
    pub(crate) fn forget_name(
        &mut self,
        name: Name,
        is_known: impl Fn(Name) -> bool,
        to: &mut dyn Holdings,
    ) {
        if let Some(at) = self.tree.find(name) {
            self.prune(at, is_known, to);
        }
    }

    /// The blocks of a name are back in the holdings.
    pub(crate) fn restored(&self, name: Name, to: &mut dyn Holdings) {
        if let Some(at) = self.tree.find(name) {
            self.mark(at, to);
        }
    }

    /// Removes a link without use, and those before it that were there for it alone.
    fn prune(&mut self, mut at: u32, is_known: impl Fn(Name) -> bool, to: &mut dyn Holdings) {
        while at != NONE {
            let (name, before) = (self.tree.get(at).name, self.tree.get(at).parent);
            let is_held = self.sides.iter().any(|side| side.holds(at));
            if is_held || self.tree.has_children(at) || is_known(name) {
                return;
            }
            self.forget(at, to);
            at = before;
        }
    }

    /// Removes all links without use.
    pub(crate) fn sweep(&mut self, is_known: impl Fn(Name) -> bool, to: &mut dyn Holdings) {
        for at in self.tree.by_depth().into_iter().rev() {
            if self.tree.get(at).depth > 0 {
                self.prune(at, &is_known, to);
            }
        }
        self.stale = false;
    }

    /// Whether there is no room for more links.
    pub(crate) fn is_full(&self) -> bool {
        self.tree.len() as u64 >= self.most
    }

    /// Counts the blocks in a row anew, at a link and behind it as far as they change, and judges.
    fn spread(&mut self, side: usize, at: u32, to: &mut dyn Holdings) {
        let (mut stack, mut changed) = (
            std::mem::take(&mut self.scratch),
            std::mem::take(&mut self.changed),
        );
        stack.clear();
        changed.clear();
        stack.push(at);
        let it = &mut self.sides[side];
        while let Some(at) = stack.pop() {
            if !it.count(&self.tree, at) {
                continue;
            }
            changed.push(at);
            let from = stack.len();
            self.tree.behind(at, it.step, &mut stack);
            let mut next = from;
            while let Some(at) = stack.get(next).copied() {
                if it.holds(at) {
                    next += 1;
                } else {
                    stack.swap_remove(next);
                }
            }
        }
        let offset = it.offset;
        for at in changed.drain(..) {
            stack.clear();
            self.tree.behind(at, offset, &mut stack);
            for mark in stack.drain(..) {
                self.judge(mark, to);
            }
        }
        (self.scratch, self.changed) = (stack, changed);
    }

    /// Updates whether a link is accepted, and its mark in the holdings.
    fn judge(&mut self, at: u32, to: &mut dyn Holdings) {
        let accepted = self.accepted(at);
        let link = self.tree.get_mut(at);
        let before = std::mem::replace(&mut link.accepted, accepted);
        if before == accepted {
            return;
        }
        if let Some((_, block)) = before.zip(link.block) {
            to.unmark(block);
        }
        self.mark(at, to);
    }

    fn accepted(&self, at: u32) -> Option<Medium> {
        let align = self.align?;
        let point = self.tree.get(at).depth.checked_sub(self.above)?;
        if !point.is_multiple_of(align) || point == 0 && self.above > 0 {
            return None;
        }
        let mut worst = 0;
        for side in &self.sides {
            worst = worst.max(side.accepts(&self.tree, at)?);
        }
        Some(LANES[worst])
    }

    /// Marks the own block of a link that is accepted. A doubtful block has doubtful marks only.
    fn mark(&self, at: u32, to: &mut dyn Holdings) {
        let link = self.tree.get(at);
        if let Some((medium, block)) = link.accepted.zip(link.block)
            && !to.mark(block, medium)
            && medium != Medium::Speculative
        {
            to.mark(block, Medium::Speculative);
        }
    }

    /// Marks the links that end the own block of a link, which may be complete only now.
    fn mark_within(&mut self, at: u32, to: &mut dyn Holdings) {
        let per_block = self.own_size / self.unit.max(1);
        let steps = (per_block - self.tree.get(at).depth % per_block) % per_block;
        let mut ends = std::mem::take(&mut self.scratch);
        ends.clear();
        self.tree.behind(at, steps, &mut ends);
        for end in ends.drain(..) {
            self.mark(end, to);
        }
        self.scratch = ends;
    }

    /// Counts and judges everything anew.
    fn judge_all(&mut self, to: &mut dyn Holdings) {
        let links = self.tree.by_depth();
        for side in &mut self.sides {
            for at in &links {
                side.count(&self.tree, *at);
            }
        }
        for at in links {
            self.judge(at, to);
        }
    }

    /// A message is lost: what side groups hold in device memory is doubtful, and the holdings doubt the marks.
    pub(crate) fn lost(&mut self, to: &mut dyn Holdings) -> u64 {
        self.sides.iter_mut().for_each(Side::doubt);
        self.judge_all(to);
        self.parked.clear()
    }

    /// Forgets the blocks, not the groups; the holdings were cleared. Returns how many waited.
    pub(crate) fn clear(&mut self) -> u64 {
        self.tree = Tree::default();
        self.sides.iter_mut().for_each(Side::clear);
        self.stale = false;
        self.parked.clear()
    }

    /// Gives up blocks that waited too long. Returns their number.
    pub(crate) fn expire(&mut self, now: Millis) -> u64 {
        self.parked.expire(now)
    }

    /// A message is over. Returns the blocks that wait, and those that were given up.
    pub(crate) fn settle(&mut self, now: Millis) -> (u64, u64) {
        self.parked.settle(now)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.tree.len() * (LINK + self.sides.len() * HELD)
    }

    /// Recounts everything, between messages.
    #[cfg(test)]
    pub(crate) fn validate(&self, is_known: impl Fn(Name) -> bool) -> Result<()> {
        self.tree.validate()?;
        self.parked.validate()?;
        for side in &self.sides {
            side.validate(&self.tree)?;
        }
        for at in self.tree.all() {
            let link = self.tree.get(at);
            let is_held = self.sides.iter().any(|side| side.holds(at));
            let is_needed = is_held || self.tree.has_children(at) || is_known(link.name);
            let accepted = self.accepted(at);
            if accepted != link.accepted || !is_needed && !self.stale {
                return Err(Error::Invariant(format!(
                    "link {at} is needed: {is_needed}, accepted: {accepted:?}: {link:?}"
                )));
            }
        }
        Ok(())
    }
}
