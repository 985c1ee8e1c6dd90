//! What the latest decision computed, kept for whoever asks about it: explanations, and the booking that follows.

use crate::ids::{Millis, SequenceHash};
use crate::learned::{Row, Scratch};

use super::super::view::View;

/// Tells one request from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Stamp {
    now: Millis,
    prompt_tokens: u64,
    last: Option<SequenceHash>,
    rows: usize,
    version: u64,
}

/// Buffers, reused.
#[derive(Debug, Default)]
pub(super) struct Work {
    stamp: Stamp,
    /// Positions in the view's rows, rising, what was known of them, and what they are expected to cost.
    pub at: Vec<u32>,
    pub rows: Vec<Row>,
    pub costs: Vec<f32>,
    /// What the request adds to the time of others there; empty where nobody waits.
    pub added: Vec<f32>,
    /// The different rows of idle workers, which of them each row is, and what it costs there.
    pub idle: Vec<Row>,
    pub same: Vec<usize>,
    pub idle_costs: Vec<f32>,
    pub scratch: Scratch,
    /// Whether the rows differed and the costs did not.
    pub flat: Option<bool>,
}

impl Work {
    /// Begins with the request of `view` and the model of that version.
    pub fn begin(&mut self, view: &View<'_>, version: u64) {
        self.stamp = stamp(view, version);
        self.at.clear();
        self.rows.clear();
        self.costs.clear();
        self.added.clear();
        self.flat = None;
    }

    /// Whether this was the request, and the model.
    pub fn is_of(&self, view: &View<'_>, version: u64) -> bool {
        self.stamp == stamp(view, version)
    }

    /// What row `at`, of which `row` is known, is expected to cost; `None` if it was not asked.
    pub fn cost(&self, at: usize, row: &Row) -> Option<f32> {
        let found = self.at.binary_search(&(at as u32)).ok()?;
        let cost = self.costs.get(found)?;
        (self.rows[found] == *row).then_some(*cost)
    }

    pub fn memory_bytes(&self) -> usize {
        self.at.capacity() * size_of::<u32>()
            + self.rows.capacity() * size_of::<Row>()
            + (self.costs.capacity() + self.added.capacity() + self.idle_costs.capacity())
                * size_of::<f32>()
            + self.idle.capacity() * size_of::<Row>()
            + self.same.capacity() * size_of::<usize>()
    }
}

fn stamp(view: &View<'_>, version: u64) -> Stamp {
    Stamp {
        now: view.now,
        prompt_tokens: view.prompt_tokens,
        last: view.blocks.and_then(|blocks| blocks.last().copied()),
        rows: view.rows.len(),
        version,
    }
}
