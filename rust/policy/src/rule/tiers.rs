//! Credited tokens by loading time: the credit of a block is the part of its computing that loading it saves.
//!
//! ```text
//! credit = gpu + max over orders of some media of  sum (blocks * c - startup)
//! c = max(0, 1 - load ms / recompute ms)      startup in blocks: startup ms / recompute ms
//! ```
//!
//! Recompute ms are those that one token less saves: without the time that a pass takes for other requests anyway, which
//! would make any load look free beside short prompts.
//!
//! Each medium continues the chain from where the one before ended, so the order matters, and to leave one out may be
//! better: a start-up must pay. A worker has at most three media beside its device, 15 chains. Taking the fastest medium
//! first, and whatever gains, is the same unless start-ups or gaps make another chain better: such a medium would make
//! a worker look worse than without it.

use crate::rule::credits::Credits;
use crate::rule::view::Media;

/// Blocks `[start, end)`.
pub type Segment = (u32, u32);

/// The time to load from one medium.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Loading {
    /// Milliseconds per prompt token; `None` if not measured: blocks then count by the credit of their medium.
    pub ms_per_token: Option<f64>,
    /// Milliseconds before the first token.
    pub startup_ms: f64,
}

/// The time to load on every worker, by medium.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Loads {
    /// From host memory.
    pub cpu: Loading,
    /// From disk.
    pub disk: Loading,
}

/// Blocks that shared caches hold of a prompt, and the time to load them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SharedBlocks<'a> {
    /// Where they lie in the prompt: rising, with gaps between.
    pub held: &'a [Segment],
    /// The time to load them.
    pub loading: Loading,
}

/// A prompt on one worker.
#[derive(Debug, Clone, Copy)]
pub struct Prompt {
    /// Blocks of it that can be reused: all but that of the last token.
    pub most: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Milliseconds that a token of it less to compute saves; `None` if not measured.
    pub token_ms: Option<f64>,
}

/// One medium of a chain.
#[derive(Debug, Clone, Copy)]
struct Tier<'a> {
    held: &'a [Segment],
    /// The credit of a block.
    credit: f64,
    /// The cost of the first one, in blocks.
    startup: f64,
}

impl Loading {
    /// Not measured.
    pub const UNKNOWN: Self = Self {
        ms_per_token: None,
        startup_ms: 0.0,
    };
}

impl SharedBlocks<'_> {
    /// Where the run from block `from` on ends; `from` without one.
    #[must_use]
    pub fn run_end(&self, from: u32) -> u32 {
        run_end(self.held, from)
    }

    /// Blocks from `from` on, those behind gaps too.
    #[must_use]
    pub fn count_from(&self, from: u32) -> u32 {
        let beyond = self
            .held
            .iter()
            .map(|(start, end)| end.saturating_sub(from.max(*start)));
        beyond.sum()
    }
}

impl Loads {
    /// Nothing is measured.
    pub const UNKNOWN: Self = Self {
        cpu: Loading::UNKNOWN,
        disk: Loading::UNKNOWN,
    };

    /// Tokens of a prompt that a worker need not compute, loads counted by the time they save: never fewer than by
    /// device memory alone.
    #[must_use]
    pub fn matched(&self, media: &Media, shared: SharedBlocks<'_>, prompt: Prompt) -> f64 {
        self.chained(media, shared, prompt, 0)
    }

    /// As `matched`, if the worker resumes nowhere but behind the last block of `prompt.most`: chains that end
    /// elsewhere cannot be used. `media` holds the blocks of its layers that attend to the whole prefix.
    #[must_use]
    pub fn matched_at(&self, media: &Media, shared: SharedBlocks<'_>, prompt: Prompt) -> f64 {
        self.chained(media, shared, prompt, prompt.most).max(0.0)
    }

    /// By the best chain that reaches `least`, minus infinity without one.
    fn chained(&self, media: &Media, shared: SharedBlocks<'_>, prompt: Prompt, least: u32) -> f64 {
        let (cpu, disk) = ([media.cpu], [media.disk]);
        let usual = Credits::DEFAULT;
        // Blocks that must be loaded may cost more than they save.
        let floor = if least > 0 { f64::NEG_INFINITY } else { 0.0 };
        let tiers = [
            prompt.tier(&cpu, self.cpu, (usual.cpu, floor)),
            prompt.tier(&disk, self.disk, (usual.disk, floor)),
            prompt.tier(shared.held, shared.loading, (usual.external, floor)),
        ];
        let wanted = (least, prompt.most);
        credited(media.gpu.min(prompt.most), wanted, &tiers) * f64::from(prompt.block_size)
    }
}

impl Prompt {
    fn tier(self, held: &[Segment], loading: Loading, (usual, floor): (f64, f64)) -> Tier<'_> {
        let measured = loading
            .ms_per_token
            .zip(self.token_ms.filter(|ms| *ms > 0.0));
        let (credit, startup) = measured.map_or((usual, 0.0), |(load, compute)| {
            let startup = loading.startup_ms / (compute * f64::from(self.block_size));
            ((1.0 - load / compute).max(floor), startup)
        });
        Tier {
            held,
            credit,
            startup,
        }
    }
}

/// Blocks that a worker with `gpu` on its device need not compute, of which it can use those of a chain from `wanted.0` to
/// `wanted.1` blocks long.
fn credited(gpu: u32, wanted: (u32, u32), tiers: &[Tier<'_>]) -> f64 {
    f64::from(gpu) + beyond(gpu, wanted, tiers, (1 << tiers.len()) - 1)
}

/// The gain of the best chain of the tiers in the set `left` behind `end`.
fn beyond(end: u32, wanted: (u32, u32), tiers: &[Tier<'_>], left: u32) -> f64 {
    let (least, most) = wanted;
    let mut best: f64 = if end < least { f64::NEG_INFINITY } else { 0.0 };
    for (at, tier) in tiers
        .iter()
        .enumerate()
        .filter(|(at, _)| left & (1 << at) > 0)
    {
        let next = run_end(tier.held, end).min(most);
        if next > end {
            let gain = f64::from(next - end).mul_add(tier.credit, -tier.startup);
            best = best.max(gain + beyond(next, wanted, tiers, left & !(1 << at)));
        }
    }
    best
}

fn run_end(held: &[Segment], from: u32) -> u32 {
    let behind = held.partition_point(|(_, end)| *end <= from);
    let run = held.get(behind).filter(|(start, _)| *start <= from);
    run.map_or(from, |(_, end)| *end)
}

#[cfg(test)]
#[path = "../tests/tiers.rs"]
mod tests;
