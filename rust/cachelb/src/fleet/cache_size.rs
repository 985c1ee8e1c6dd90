//! The stated size of an engine's cache, compared with its load reports.
//!
//! A report states the share of the cache that running requests hold, and the book their blocks: one divided by the
//! other is the size. Several things make that wrong for a moment, so only a contradiction that lasts counts, and a
//! report is passed over where the book does not show the held blocks: requests of others, prompts of which it
//! is not known whether they wait, outputs that nothing counts. Engines whose layers hold different parts of a prompt
//! are not compared.

use cachelb_core::ids::WorkerId;
use cachelb_core::load::{Load, Report};

use crate::Selector;
use crate::fleet::health::News;

/// Contradictions in a row, all one way, after which the size that they imply takes the place of the one in use.
const REPORTS: f64 = 8.0;
/// A report contradicts a size if it implies so many times as much, or as little.
const CONTRADICTION: f64 = 1.6;
/// The blocks held are known if the most that they can be is at most so many times the least.
const WIDEST: f64 = 1.3;
/// A share below is too coarse: it may be rounded to a hundredth.
const LEAST_USAGE: f64 = 0.05;
/// By one in so many requests, report and book may differ.
const TOLERANCE: f64 = 32.0;

impl Selector {
    /// Compares the size in use of the cache of the engine behind `ranks` with its latest report. `None` if nothing changes.
    #[expect(clippy::cast_sign_loss, reason = "a geometric mean is positive")]
    pub(crate) fn check_size(&mut self, ranks: &[WorkerId], report: &Report) -> Option<()> {
        let usage = report.kv_usage.get().filter(|u| *u >= LEAST_USAGE)?;
        let member = self.fleet.member(*ranks.first()?)?;
        let (mut engine, home) = (member.profile.engine, member.profile.home());
        let (stated, size) = (engine.kv_blocks?, self.pools[home].block_size);
        let mixed = self.pools.iter().any(|(_, p)| p.block_size != size);
        let hybrid = member.resuming(home).is_some();
        let blocks = member.sizes().capacity(size);
        let in_use = f64::from(blocks.filter(|_| !mixed && !hybrid)?) * ranks.len() as f64;
        let times = self.held_blocks(ranks, report, size)? / usage / in_use;
        let run = &mut self.fleet.current_mut(ranks[0])?.size_run;
        let times = run.add(times, CONTRADICTION, REPORTS)?;
        let learned = (f64::from(engine.learned.unwrap_or(stated)) * times) as u32;
        let learned = learned.max(1);
        engine.learned = Some(learned);
        for &rank in ranks {
            self.feed(rank)?.learn(engine);
        }
        let news = News::Contradiction("kv_blocks", stated.into(), learned.into());
        self.fleet.publish(ranks[0], news);
        Some(())
    }

    /// Blocks of `size` tokens that requests hold in the cache of the engine behind `ranks` by a report. `None` if that does
    /// not follow from it.
    fn held_blocks(&self, ranks: &[WorkerId], report: &Report, size: u32) -> Option<f64> {
        let book = &self.bookings.book;
        let loads = || ranks.iter().filter_map(|rank| book.loads.get(*rank));
        let sum = |column: fn(&Load) -> u64| loads().map(column).sum::<u64>() as f64;
        let (own, pending) = (sum(|l| l.inflight.into()), sum(|l| l.pending.into()));
        let (output, active) = (sum(|l| l.output_blocks), sum(|l| l.active_blocks));
        let (waiting, live) = (report.waiting.get()?, report.live()? as f64);
        let prompts = sum(|l| l.decode_blocks) - output;
        let active = active.min(if waiting < pending { f64::MAX } else { prompts });
        let named = ranks.iter().map(|rank| book.named.blocks(rank.slot));
        // Each rounds up, and some outputs are not counted before their end.
        let per_block = self.fleet.member(ranks[0])?.sizes().per_block(size);
        let rounded = (own - pending) * f64::from(per_block);
        let expected = (own - pending) * book.pace.output_tokens() / f64::from(size);
        let least = named.sum::<u64>() as f64 - sum(|l| l.prompt_blocks) + output + rounded;
        let most = active + output.max(expected) + rounded + pending;
        let agree = (live - own).abs().max(waiting - pending) <= (own / TOLERANCE).floor();
        (agree && most <= WIDEST * least).then(|| (least * most).sqrt())
    }
}

#[cfg(test)]
mod tests;
