//! Counts of the references of names: to namespaces, and to own blocks by medium.
//!
//! Blocks without references are collected, and removed from the holdings in batches.

#[cfg(test)]
use std::collections::HashMap;

#[cfg(test)]
use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{Medium, SequenceHash};

use crate::holdings::Holdings;
use crate::names::lane::Lane;
use crate::names::namespaces::Namespaces;
use crate::names::pages::Change;

/// Removed blocks that are passed on at once.
const MAX_GONE: usize = 64;
/// Room for removed blocks that is kept.
const KEPT: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct References {
    pub(crate) namespaces: Namespaces,
    lanes: [Lane; Medium::ALL.len()],
    /// Not passed on, all of them from `medium`.
    gone: Vec<SequenceHash>,
    medium: Medium,
    /// Blocks that became complete, to be stored together.
    run: Vec<SequenceHash>,
}

/// References of the names in one medium.
#[derive(Debug)]
pub(crate) struct Uses<'a> {
    pub(crate) namespaces: &'a mut Namespaces,
    pub(crate) lane: &'a mut Lane,
    pub(crate) gone: &'a mut Vec<SequenceHash>,
}

impl Uses<'_> {
    /// A name of an own block is forgotten. One that was doubtful was not counted.
    #[inline]
    pub(crate) fn release(&mut self, block: u64, was_sure: bool) {
        let is_gone = if was_sure {
            self.lane.release(block)
        } else {
            !self.lane.refers_to(block)
        };
        if is_gone {
            self.gone.push(SequenceHash(block));
        }
    }
}

impl References {
    pub(crate) fn new() -> Self {
        Self {
            namespaces: Namespaces::default(),
            lanes: Default::default(),
            gone: Vec::new(),
            medium: Medium::Gpu,
            run: Vec::new(),
        }
    }

    /// Those of names in a medium.
    #[inline]
    pub(crate) fn of(&mut self, medium: Medium, to: &mut dyn Holdings) -> Uses<'_> {
        if self.medium != medium || self.gone.len() >= MAX_GONE {
            self.flush(to);
            self.medium = medium;
        }
        Uses {
            namespaces: &mut self.namespaces,
            lane: &mut self.lanes[medium as usize],
            gone: &mut self.gone,
        }
    }

    /// Passes removals on.
    pub(crate) fn flush(&mut self, to: &mut dyn Holdings) {
        for part in self.gone.chunks(MAX_GONE) {
            to.remove(part, self.medium);
        }
        self.gone.clear();
        self.gone.shrink_to(KEPT);
    }

    /// Drops pending removals of blocks that are referred to again.
    pub(crate) fn keep_referred(&mut self) {
        if !self.gone.is_empty() {
            let lane = &self.lanes[self.medium as usize];
            self.gone.retain(|block| !lane.refers_to(block.0));
        }
    }

    pub(crate) fn is_counting(&self, medium: Medium) -> bool {
        self.lanes[medium as usize].is_counting()
    }

    /// From now on several names may refer to one own block: `blocks` are those referred to, each as often as it is.
    pub(crate) fn count(&mut self, medium: Medium, blocks: impl Iterator<Item = u64>) {
        if !self.is_counting(medium) {
            self.lanes[medium as usize].count(blocks);
        }
    }

    /// No name is there for sure any more.
    pub(crate) fn doubt(&mut self, to: &mut dyn Holdings) -> u64 {
        self.flush(to);
        for lane in &mut self.lanes {
            lane.count(std::iter::empty());
        }
        to.doubt()
    }

    /// Nothing is referred to, and the holdings were cleared.
    pub(crate) fn clear(&mut self) {
        self.gone.clear();
        self.lanes.iter_mut().for_each(Lane::clear);
        self.namespaces = Namespaces::default();
    }

    /// Passes on which blocks of pages became complete or incomplete.
    pub(crate) fn pass_on(&mut self, changes: &[Change], medium: Medium, to: &mut dyn Holdings) {
        let mut behind = None;
        for change in changes {
            match *change {
                Change::Gained { before, block } => {
                    if !self.lanes[medium as usize].acquire(block.0) {
                        continue;
                    }
                    self.flush(to);
                    if self.run.last().copied() != before {
                        self.store_run(behind, medium, to);
                    }
                    if self.run.is_empty() {
                        behind = before;
                    }
                    self.run.push(block);
                }
                Change::Lost { block, was_sure } => {
                    self.store_run(behind, medium, to);
                    self.of(medium, to).release(block.0, was_sure);
                }
            }
        }
        self.store_run(behind, medium, to);
    }

    fn store_run(&mut self, behind: Option<SequenceHash>, medium: Medium, to: &mut dyn Holdings) {
        if !self.run.is_empty() {
            to.store(behind, &self.run, medium);
            self.run.clear();
        }
    }

    /// Checks the uses of namespaces, by number, and that everything was passed on.
    #[cfg(test)]
    pub(crate) fn validate(&self, namespaces: &HashMap<u32, u32>) -> Result<()> {
        self.namespaces.validate(namespaces)?;
        if !self.gone.is_empty() {
            return Err(Error::Invariant("removals were not passed on".to_owned()));
        }
        Ok(())
    }

    /// Checks the counts in a medium against `blocks`, which are referred to there, and that `to` holds each.
    #[cfg(test)]
    pub(crate) fn validate_lane(
        &self,
        medium: Medium,
        blocks: impl Iterator<Item = u64>,
        to: &dyn Holdings,
    ) -> Result<()> {
        let mut found: HashMap<u64, u32> = HashMap::new();
        for block in blocks {
            *found.entry(block).or_default() += 1;
        }
        let name = medium.name();
        if let Some(counted) = self.lanes[medium as usize].references() {
            let counted: HashMap<u64, u32> = counted.iter().collect();
            if counted != found {
                return Err(Error::Invariant(format!(
                    "references to blocks in {name} are miscounted"
                )));
            }
        } else if let Some((block, n)) = found.iter().find(|(_, n)| **n > 1) {
            return Err(Error::Invariant(format!(
                "block {block:#x} in {name} has {n} references, which are not counted"
            )));
        }
        match found
            .keys()
            .find(|block| !to.holds(SequenceHash(**block), medium))
        {
            Some(block) => Err(Error::Invariant(format!(
                "block {block:#x} is referred to in {name} and not held"
            ))),
            None => Ok(()),
        }
    }
}
