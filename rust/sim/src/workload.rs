//! Requests of one run, as columns.

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::SequenceHash;

use crate::engine::{Content, Job};

/// The requests of a run.
#[derive(Debug, Clone, Default)]
pub struct Workload {
    /// Tokens per block of `hashes`.
    pub block_size: u32,
    /// Seconds at which each arrives; of one that follows another, NaN.
    pub arrival: Vec<f64>,
    /// The request each one follows, -1 for none: it arrives when that one has finished and `think` has passed.
    pub parent: Vec<i64>,
    /// Seconds between the end of the parent and the arrival.
    pub think: Vec<f64>,
    /// Seconds after its arrival at which each client goes away, NaN for one that waits; empty if all do.
    pub abort: Vec<f64>,
    /// Tokens of the prompts.
    pub prompt_tokens: Vec<u32>,
    /// Tokens to generate.
    pub output_tokens: Vec<u32>,
    /// Chained hashes of full blocks: of the prompt, and behind them as far as known those that the output fills.
    pub hashes: Vec<SequenceHash>,
    /// Where each request's hashes begin, and where the last one's end.
    pub offsets: Vec<u64>,
    /// Where the messages of the prompts end, in full blocks, rising; empty if unknown.
    pub boundaries: Vec<u32>,
    /// Where each request's boundaries begin, and where the last one's end; empty if there are none.
    pub boundary_offsets: Vec<u64>,
}

impl Workload {
    /// How many requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arrival.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arrival.is_empty()
    }

    /// Hashes of the prompt's full blocks.
    #[must_use]
    pub fn prompt(&self, id: u32) -> &[SequenceHash] {
        let all = self.all(id);
        let full = (self.prompt_tokens[id as usize] / self.block_size) as usize;
        &all[..full.min(all.len())]
    }

    /// Where the prompt's messages end, in full blocks.
    #[must_use]
    pub fn boundaries(&self, id: u32) -> &[u32] {
        match self.boundary_offsets.get(id as usize..id as usize + 2) {
            Some(&[from, to]) => &self.boundaries[from as usize..to as usize],
            _ => &[],
        }
    }

    fn all(&self, id: u32) -> &[SequenceHash] {
        let (from, to) = (self.offsets[id as usize], self.offsets[id as usize + 1]);
        &self.hashes[from as usize..to as usize]
    }

    pub(super) fn job(&self, id: u32) -> Job {
        Job {
            id,
            prompt_tokens: self.prompt_tokens[id as usize],
            output_tokens: self.output_tokens[id as usize],
            ..Job::default()
        }
    }

    /// Seconds after its arrival at which its client goes away.
    pub(super) fn patience(&self, id: u32) -> Option<f64> {
        let patience = self.abort.get(id as usize).copied();
        patience.filter(|seconds| seconds.is_finite())
    }

    /// Checks that the columns agree.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] naming the first request that is not in order.
    pub fn check(&self) -> Result<()> {
        let bad = |expected, got: String| Err(Error::setting("workload", expected, got));
        let n = self.len();
        let columns = [
            self.parent.len(),
            self.think.len(),
            self.prompt_tokens.len(),
            self.output_tokens.len(),
        ];
        let abort = self.abort.len();
        if columns.iter().any(|len| *len != n)
            || self.offsets.len() != n + 1
            || abort != 0 && abort != n
        {
            return bad(
                "columns of one length, and one offset more",
                format!("{n} arrivals, {columns:?}, {abort} aborts"),
            );
        }
        if self.block_size == 0 || u32::try_from(n).is_err() {
            return bad(
                "blocks of at least 1 token and fewer than 2^32 requests",
                format!("{} and {n}", self.block_size),
            );
        }
        if self.offsets.windows(2).any(|pair| pair[0] > pair[1])
            || self.offsets.first() != Some(&0)
            || self.offsets.last() != Some(&(self.hashes.len() as u64))
        {
            return bad(
                "ascending offsets from 0 to the number of hashes",
                "others".into(),
            );
        }
        let ends = &self.boundary_offsets;
        if !ends.is_empty()
            && (ends.len() != n + 1 || !ends.is_sorted() || ends[n] != self.boundaries.len() as u64)
        {
            return bad(
                "ascending offsets from 0 to the number of boundaries",
                "others".into(),
            );
        }
        for i in 0..n {
            let root = self.parent[i] < 0;
            let timed = self.arrival[i].is_finite() && self.arrival[i] >= 0.0;
            let follows = usize::try_from(self.parent[i]).is_ok_and(|parent| parent < i);
            if !(root && timed || follows && self.think[i].is_finite() && self.think[i] >= 0.0) {
                return bad(
                    "an arrival of 0 or more, or an earlier parent and 0 or more seconds of thought",
                    format!(
                        "request {i}: arrival {}, parent {}, thought {}",
                        self.arrival[i], self.parent[i], self.think[i]
                    ),
                );
            }
            if self.prompt_tokens[i] == 0 || self.output_tokens[i] == 0 {
                return bad(
                    "prompts and outputs of at least 1 token",
                    format!("request {i}"),
                );
            }
        }
        match self.abort.iter().position(|seconds| *seconds < 0.0) {
            Some(i) => bad(
                "aborts 0 or more seconds after the arrival",
                format!("request {i}: {}", self.abort[i]),
            ),
            None => Ok(()),
        }
    }
}

impl Content for Workload {
    fn blocks(&self, id: u32) -> &[SequenceHash] {
        self.all(id)
    }
}
