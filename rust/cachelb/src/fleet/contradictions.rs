//! Stated facts of workers that load reports, KV events or first tokens contradict, and the values in use instead.
//!
//! A worker of another speed than most others of its device is taken for one of another kind of GPU.

use cachelb_core::ids::WorkerId;

use crate::Selector;
use crate::fleet::health::News;

/// First tokens contradict a device if they imply so many times its speed, or as little: prompts differ too.
const OTHER_SPEED: f64 = 2.0;
/// First tokens of a worker between two looks at its speed: as many as that is learned from.
const FIRST_TOKENS: u32 = 32;
/// Looks in a row, all one way, that contradict a device.
const LOOKS: f64 = 4.0;

/// Contradictions in a row, all one way, and the sum of the logarithms of by how much.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Run(f64, f64);

impl Run {
    /// Takes in how many times the value in use is implied, `least` times of which contradict it, or as little. Returns the
    /// geometric mean of `enough` in a row.
    pub fn add(&mut self, times: f64, least: f64, enough: f64) -> Option<f64> {
        let by = times.ln();
        let goes_on = by.abs() >= least.ln() && by * self.1 >= 0.0;
        let run = Self(self.0 + 1.0, self.1 + by);
        let is_enough = goes_on && run.0 >= enough;
        let next = Some(run).filter(|_| goes_on && !is_enough);
        *self = next.unwrap_or_default();
        is_enough.then(|| (run.1 / run.0).exp())
    }
}

impl Selector {
    /// Facts of a worker that are contradicted, with the values in use instead: its blocks, their size, and how many times
    /// as fast it is as most others of its device.
    pub fn contradictions(&self, id: WorkerId) -> impl Iterator<Item = (&'static str, f64)> {
        let member = self.fleet.member(id);
        let values = member.map_or([None; 3], |member| {
            let size = member.sizes().disagreement();
            let blocks = member.profile.engine.learned;
            let size = size.map(|size| size.announced.into());
            [blocks.map(f64::from), size, member.times_as_fast]
        });
        let facts = ["kv_blocks", "block_size", "gpu"].into_iter().zip(values);
        facts.filter_map(|(fact, value)| Some((fact, value?)))
    }

    /// Compares the speed of a worker that sends a first token with those of others of its device, now and then. `None` if
    /// nothing changes.
    pub(crate) fn check_speed(&mut self, id: WorkerId) -> Option<()> {
        let member = self.fleet.current_mut(id)?;
        member.first_tokens = (member.first_tokens + 1) % FIRST_TOKENS;
        let gpu = member.profile.gpu.clone();
        let gpu = gpu.filter(|_| member.first_tokens == 0)?;
        let speed = |id| self.bookings.book.loads.get(id)?.speed.get();
        let same = self
            .fleet
            .current()
            .filter(|(other, member)| *other != id && member.profile.gpu.as_ref() == Some(&gpu));
        let mut others: Vec<f64> = same.filter_map(|(other, _)| speed(other)).collect();
        others.sort_unstable_by(f64::total_cmp);
        // One of two may be the wrong one. Else the nearer one of those in the middle counts.
        let at = others.len().checked_sub(2)?.div_ceil(2);
        let own = speed(id)?;
        let times = own / own.clamp(others[at], others[others.len() / 2]);
        let member = self.fleet.current_mut(id)?;
        let learned = member.speed_run.add(times, OTHER_SPEED, LOOKS);
        let differs = times.ln().abs() >= OTHER_SPEED.ln() / 2.0;
        let before = member.times_as_fast;
        member.times_as_fast = learned.or(before.filter(|_| differs));
        if member.times_as_fast.is_some() != before.is_some() {
            // Rows show what kind it is.
            self.fleet.member_mut(id)?;
            let news = News::Contradiction("gpu", 1.0, learned?);
            self.fleet.publish(id, news);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
