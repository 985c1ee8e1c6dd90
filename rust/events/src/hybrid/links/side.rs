//! One cache group beside those that attend to the whole prefix: where it holds blocks, and where it accepts resuming.

use std::collections::HashMap;

#[cfg(test)]
use cachelb_core::error::{Error, Result};
use cachelb_core::groups::{CacheGroup, GroupKind};
use cachelb_core::ids::Medium;

#[cfg(test)]
use super::tree::NONE;
use super::tree::Tree;
use crate::hybrid::groups::Group;

/// Media from the fastest to what is doubtful: the order in which marks get worse.
pub(super) const LANES: [Medium; 4] = [Medium::Gpu, Medium::Cpu, Medium::Disk, Medium::Speculative];
const GPU: u8 = 0;
const DOUBTFUL: u8 = 3;

/// Blocks in a row that end at a link, all of them in media up to that of each lane; no more than are ever needed.
type Run = [u16; LANES.len()];

/// Lane of a medium that engines name.
pub(super) fn lane_of(medium: Medium) -> u8 {
    let lane = LANES.iter().position(|other| *other == medium);
    lane.unwrap_or(0) as u8
}

/// The blocks in a row that a group ever needs.
fn most_blocks(cache: CacheGroup) -> u64 {
    let size = u64::from(cache.block_size);
    match cache.kind {
        GroupKind::Chunked { chunk } => u64::from(chunk).div_ceil(size) + 1,
        _ => cache.extent().unwrap_or(0) / size,
    }
}

/// See the module. The columns have an entry per place of the tree.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) group: Option<u32>,
    /// Its attention, if that is known and can be counted.
    rule: Option<CacheGroup>,
    /// With EAGLE or MTP, links of the block above the point that is needed too.
    above: u32,
    /// Links from the last block it needs to the mark.
    pub(super) offset: u32,
    /// Links per block; 0 if blocks do not end where links do.
    pub(super) step: u32,
    /// Blocks in a row that are ever needed.
    cap: u16,
    /// Lanes in which the block that ends at a link is held, as bits.
    held: Vec<u8>,
    runs: Vec<Run>,
    /// Copies beyond one.
    more: HashMap<(u32, u8), u32>,
    /// Links at which it holds a block.
    pub(super) blocks: u64,
}

impl Side {
    pub(super) fn new(group: Option<u32>) -> Self {
        Self {
            group,
            rule: None,
            above: 0,
            offset: 0,
            step: 0,
            cap: 0,
            held: Vec::new(),
            runs: Vec::new(),
            more: HashMap::new(),
            blocks: 0,
        }
    }

    /// Takes over the known properties of the group, with links of `unit` tokens.
    pub(super) fn set(&mut self, group: &Group, unit: u32, eagle: bool) {
        let fits = unit > 0 && group.size.is_multiple_of(unit);
        self.step = if fits { group.size / unit } else { 0 };
        let rule = group.cache().filter(|cache| cache.block_size > 0);
        // A state is one block lower then, and needs nothing above.
        let window = |cache: CacheGroup| matches!(cache.kind, GroupKind::SlidingWindow { .. });
        self.above = if eagle && rule.is_some_and(window) {
            self.step
        } else {
            0
        };
        let cap = rule.map(|cache| most_blocks(cache) + u64::from(self.above > 0));
        let cap = cap.and_then(|cap| u16::try_from(cap).ok());
        (self.cap, self.rule) = (cap.unwrap_or(0), rule.filter(|_| cap.is_some()));
    }

    /// Marks are so many links beyond the point.
    pub(super) fn set_above(&mut self, links: u32) {
        self.offset = links.saturating_sub(self.above);
    }

    /// Whether its acceptance can be computed, with links of `unit` tokens (0: not known yet).
    pub(super) fn may_accept(&self, unit: u32) -> bool {
        self.rule.is_some() && (unit == 0 || self.step > 0)
    }

    /// Tokens of the block it needs above the point, if any.
    pub(super) fn above(&self) -> u32 {
        let rule = self.rule.filter(|_| self.above > 0);
        rule.map_or(0, |rule| rule.block_size)
    }

    pub(super) fn grow(&mut self, places: usize) {
        self.held.resize(places, 0);
        self.runs.resize(places, [0; LANES.len()]);
    }

    pub(super) fn holds(&self, at: u32) -> bool {
        self.held[at as usize] != 0
    }

    /// Whether copies of the block that ends at a link are held for sure in a lane.
    pub(super) fn holds_in(&self, at: u32, lane: u8) -> bool {
        self.held[at as usize] >> lane & 1 != 0
    }

    /// One copy more, or the first if there is only one at most.
    pub(super) fn add(&mut self, at: u32, lane: u8, once: bool) {
        if self.holds_in(at, lane) {
            if !once {
                *self.more.entry((at, lane)).or_default() += 1;
            }
            return;
        }
        let held = &mut self.held[at as usize];
        self.blocks += u64::from(*held == 0);
        *held |= 1 << lane;
        if lane == GPU {
            *held &= !(1 << DOUBTFUL);
        }
    }

    /// One copy less; false if there was none.
    pub(super) fn remove(&mut self, at: u32, lane: u8) -> bool {
        let lane = match lane {
            GPU if !self.holds_in(at, GPU) => DOUBTFUL,
            lane => lane,
        };
        if !self.holds_in(at, lane) {
            return false;
        }
        match self.more.get_mut(&(at, lane)) {
            Some(more) if *more > 1 => *more -= 1,
            Some(_) => {
                self.more.remove(&(at, lane));
            }
            None => {
                let held = &mut self.held[at as usize];
                *held &= !(1 << lane);
                self.blocks -= u64::from(*held == 0);
            }
        }
        true
    }

    /// Nothing ends at a link any more.
    pub(super) fn vacate(&mut self, at: u32) {
        self.blocks -= u64::from(self.holds(at));
        self.held[at as usize] = 0;
        self.runs[at as usize] = Run::default();
        if !self.more.is_empty() {
            for lane in 0..LANES.len() as u8 {
                self.more.remove(&(at, lane));
            }
        }
    }

    /// A message is lost: what is in device memory may be gone, and what is elsewhere is given up.
    pub(super) fn doubt(&mut self) {
        self.more.clear();
        self.blocks = 0;
        for held in &mut self.held {
            let device = *held & (1 << GPU | 1 << DOUBTFUL) != 0;
            *held = u8::from(device) << DOUBTFUL;
            self.blocks += u64::from(device);
        }
    }

    pub(super) fn clear(&mut self) {
        (self.held, self.runs, self.blocks) = (Vec::new(), Vec::new(), 0);
        self.more = HashMap::new();
    }

    /// Counts the blocks in a row that end at a link anew. Returns whether they are more or fewer than before.
    pub(super) fn count(&mut self, tree: &Tree, at: u32) -> bool {
        let run = self.counted(tree, at);
        std::mem::replace(&mut self.runs[at as usize], run) != run
    }

    fn counted(&self, tree: &Tree, at: u32) -> Run {
        let mut run = Run::default();
        let held = self.held[at as usize];
        if held == 0 || self.step == 0 {
            return run;
        }
        let before = tree.back(at, self.step);
        let before = before.map_or(Run::default(), |before| self.runs[before as usize]);
        for (lane, run) in run.iter_mut().enumerate() {
            if held & ((2 << lane) - 1) != 0 {
                *run = self.cap.min(before[lane].saturating_add(1));
            }
        }
        run
    }

    /// The lane up to which its blocks are needed for a mark at a link, whose point is at a depth that its blocks
    /// divide.
    pub(super) fn accepts(&self, tree: &Tree, at: u32) -> Option<usize> {
        let last = tree.back(at, self.offset)?;
        let blocks = (tree.get(last).depth - self.above) / self.step;
        let rule = self.rule?;
        let need = match rule.kind {
            GroupKind::Chunked { chunk } => {
                let (size, chunk) = (u64::from(rule.block_size), u64::from(chunk));
                let tokens = u64::from(blocks) * size;
                (u64::from(blocks) - (tokens - tokens % chunk) / size) as u32
            }
            _ => u32::from(self.cap).min(blocks + u32::from(self.above > 0)),
        };
        let run = &self.runs[last as usize];
        run.iter().position(|blocks| u32::from(*blocks) >= need)
    }

    /// Recounts everything.
    #[cfg(test)]
    pub(super) fn validate(&self, tree: &Tree) -> Result<()> {
        let blocks = self.held.iter().filter(|held| **held != 0).count() as u64;
        let misplaced = (0..self.held.len() as u32).find(|at| {
            tree.get(*at).depth == 0
                && (self.holds(*at) || self.runs[*at as usize] != Run::default())
        });
        let wrong = tree
            .all()
            .find(|at| self.runs[*at as usize] != self.counted(tree, *at));
        let stray = self
            .more
            .keys()
            .find(|(at, lane)| !self.holds_in(*at, *lane));
        if blocks == self.blocks && misplaced.or(wrong).is_none() && stray.is_none() {
            return Ok(());
        }
        Err(Error::Invariant(format!(
            "group {:?}: {blocks} blocks counted as {}, link {:?} held wrongly, copies of {stray:?}",
            self.group,
            self.blocks,
            misplaced.or(wrong).unwrap_or(NONE)
        )))
    }
}
