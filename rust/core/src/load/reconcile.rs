//! What engines say they run, against what is booked on them.
//!
//! A booking whose end was never told would count for ever. Two consecutive reports that both have fewer requests than are
//! booked name it: the bookings beyond are dropped, longest silent first, and only those that had shown no sign of life
//! for a grace period when the first of the two was made. So neither a request on its way to the engine nor one that is
//! streaming is ever dropped. What a report has beyond the bookings is load that others brought.

use crate::ids::Millis;

/// Bookings dropped by one report at most; the next one goes on.
pub const MOST_DROPPED: u64 = 64;

/// Requests that an engine had, by its latest report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reported {
    pub at: Millis,
    pub live: u64,
}

/// The latest reports, by worker slot.
#[derive(Debug, Default)]
pub(super) struct Reports(Vec<Option<Reported>>);

impl Reports {
    /// Begins without a report for the worker in `slot`.
    pub fn open(&mut self, slot: u32) {
        let slots = self.0.len().max(slot as usize + 1);
        self.0.resize(slots, None);
        self.0[slot as usize] = None;
    }

    /// Takes in a report of the engine at `slot`, on which `booked` requests are. Returns how many of them it has lost by
    /// this report and the one before, and since when these are silent.
    pub fn missing(
        &mut self,
        slot: u32,
        booked: u64,
        report: Reported,
        grace_ms: u64,
    ) -> Option<(u64, Millis)> {
        let before = match &mut self.0[slot as usize] {
            // Two reports of one time are one report, and a late report is no news.
            Some(latest) if report.at <= latest.at => {
                if report.at == latest.at {
                    latest.live = latest.live.max(report.live);
                }
                return None;
            }
            latest => latest.replace(report)?,
        };
        let silent = before.at.0.checked_sub(grace_ms)?;
        let beyond = booked.saturating_sub(before.live.max(report.live));
        Some((beyond.min(MOST_DROPPED), Millis(silent)))
    }

    pub fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Option<Reported>>()
    }
}
