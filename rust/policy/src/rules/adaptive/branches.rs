//! How often requests leave a path at a block.
//!
//! A request leaves the paths of those before it at the deepest block that a worker holds. Where many do, they share a system
//! prompt or a document, and a further copy serves as many more. The history of a conversation is left at another block
//! every turn. Counts halve every minute.

use cachelb_core::ids::Millis;

use crate::rule::view::View;

/// A count is halved in so long: about as long as a copy must be asked for again to stay in a full cache.
const HALF_LIFE_MS: f64 = 60_000.0;
/// Blocks that are counted separately: those of the models' few common prompts.
const SLOTS: usize = 1_024;

#[derive(Debug, Clone, Copy, Default)]
struct Branch {
    hash: u64,
    count: f64,
    at: Millis,
}

impl Branch {
    fn count(&self, now: Millis) -> f64 {
        let passed_ms = now.0.saturating_sub(self.at.0) as f64;
        self.count * (-passed_ms / HALF_LIFE_MS).exp2()
    }
}

/// Blocks at which requests left, by their hashes: one in each slot, until it is rarer than one that was left once.
#[derive(Debug, Clone, Default)]
pub(super) struct Branches(Vec<Branch>);

impl Branches {
    /// No request came.
    pub const NONE: Self = Self(Vec::new());

    /// The leading blocks after which a request leaves the paths of others, and how many did there of late.
    pub fn at(&self, view: &View<'_>) -> (u32, f64) {
        let Some((blocks, hash)) = leaves(view) else {
            return (0, 0.0);
        };
        let branch = self.0.get(slot(hash)).filter(|at| at.hash == hash);
        (blocks, branch.map_or(0.0, |branch| branch.count(view.now)))
    }

    /// A request was sent.
    pub fn add(&mut self, view: &View<'_>) {
        let Some((_, hash)) = leaves(view) else {
            return;
        };
        self.0.resize(SLOTS, Branch::default());
        let branch = &mut self.0[slot(hash)];
        let count = branch.count(view.now);
        let is_known = branch.hash == hash;
        if is_known || count < 1.0 {
            (branch.hash, branch.at) = (hash, view.now);
            branch.count = 1.0 + if is_known { count } else { 0.0 };
        }
    }
}

fn slot(hash: u64) -> usize {
    usize::try_from(hash % SLOTS as u64).unwrap_or(0)
}

/// How many leading blocks some row holds, and the name of the last one. Not of a sub-agent: those that begin at once are
/// as many as their parent begins, and no more follow.
fn leaves(view: &View<'_>) -> Option<(u32, u64)> {
    if view.is_child {
        return None;
    }
    let held = view.best_overlap;
    let last = view.blocks?.get((held as usize).checked_sub(1)?)?;
    Some((held, last.0 ^ u64::from(view.identity).rotate_left(32)))
}

#[cfg(test)]
#[path = "../../tests/adaptive_branches.rs"]
mod tests;
