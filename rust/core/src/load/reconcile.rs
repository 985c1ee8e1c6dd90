//! What engines say they run, against what is booked on them.
//!
//! A booking whose end was never told would count for ever. Two consecutive reports that both have fewer requests than are
//! booked name it: the bookings beyond are dropped, longest silent first, and only those that had shown no sign of life
//! for a grace period when the first of the two was made. So neither a request on its way to the engine nor one that is
//! streaming is ever dropped. What a report has beyond the bookings is load that others brought.

use crate::ids::{BookingId, Millis, WorkerId};

use super::book::{LoadBook, Reported};

/// Bookings dropped by one report at most; the next one goes on.
pub const MOST_DROPPED: u64 = 64;

/// Bookings that one call of [`LoadBook::silent_since`] looks at.
const SWEPT_PER_CALL: usize = 2;

impl LoadBook {
    /// Takes in that the engine behind `ranks` had `live` requests at `at`: the rest of its load is what others brought.
    /// Requests that ended since the report before may still be in it, so they are no load of others.
    pub fn credit_others(&mut self, ranks: &[WorkerId], live: u64) {
        let (mut own, mut closed) = (0, 0);
        for load in ranks.iter().filter_map(|&rank| self.load(rank)) {
            own += u64::from(load.inflight);
            closed += u64::from(load.closed);
        }
        let others = live.saturating_sub(own + closed);
        let n = ranks.len() as u64;
        for (rank, i) in ranks.iter().zip(0..) {
            if let Some(load) = self.load_mut(*rank) {
                // Shares that sum up to the whole.
                load.others = u32::try_from((others + n - 1 - i) / n).unwrap_or(u32::MAX);
                load.closed = 0;
            }
        }
    }

    /// Takes in the same, and names the bookings that the engine has lost: by this report and by the one before.
    pub fn lost(
        &mut self,
        ranks: &[WorkerId],
        live: u64,
        at: Millis,
        grace_ms: u64,
    ) -> Vec<BookingId> {
        let Some(first) = ranks.first().filter(|&&rank| self.load(rank).is_some()) else {
            return Vec::new();
        };
        let before = match &mut self.reported[first.slot as usize] {
            // Two reports of one time are one report, and a late report is no news.
            Some(latest) if at <= latest.at => {
                if at == latest.at {
                    latest.live = latest.live.max(live);
                }
                return Vec::new();
            }
            latest => latest.replace(Reported { at, live }),
        };
        let Some((before, silent)) =
            before.and_then(|before| Some((before, before.at.0.checked_sub(grace_ms)?)))
        else {
            return Vec::new();
        };
        let booked: u64 = ranks
            .iter()
            .map(|&rank| u64::from(self.inflight(rank)))
            .sum();
        let beyond = booked.saturating_sub(before.live.max(live));
        self.longest_silent(ranks, Millis(silent), beyond.min(MOST_DROPPED))
    }

    /// At most `limit` bookings without a sign of life after `since`, longest silent first.
    fn longest_silent(&self, ranks: &[WorkerId], since: Millis, limit: u64) -> Vec<BookingId> {
        let mut next: Vec<u32> = ranks
            .iter()
            .map(|rank| self.queues.oldest(rank.slot))
            .collect();
        let mut found = Vec::new();
        while (found.len() as u64) < limit {
            let heads = next.iter_mut().filter_map(|entry| {
                let booking = self.bookings.get(*entry as usize)?;
                (booking.touched <= since).then_some((booking, entry))
            });
            let Some((booking, entry)) = heads.min_by_key(|(booking, _)| booking.touched) else {
                break;
            };
            found.push(BookingId {
                entry: *entry,
                generation: booking.generation,
            });
            *entry = booking.neighbours.newer;
        }
        found
    }

    /// Looks at the next two bookings and names those without a sign of life since `oldest`.
    pub fn silent_since(&mut self, oldest: Millis) -> Vec<BookingId> {
        let mut silent = Vec::new();
        for _ in 0..SWEPT_PER_CALL.min(self.bookings.len()) {
            self.sweep_at = (self.sweep_at + 1) % self.bookings.len();
            let booking = &self.bookings[self.sweep_at];
            if booking.phase.is_some() && booking.touched < oldest {
                silent.push(BookingId {
                    entry: self.sweep_at as u32,
                    generation: booking.generation,
                });
            }
        }
        silent
    }
}
