//! Reconciles the requests that engines report with the bookings on them.
//!
//! A booking whose end was never reported would count for ever. Two consecutive reports that both have fewer requests
//! than are booked reveal it: the bookings beyond are dropped, longest silent first, and only those that had shown no
//! sign of life for a grace period when the first of the two was made. So neither a request on its way to the engine
//! nor one that is streaming is ever dropped. Requests of a report beyond the bookings are load from other clients.

use crate::ids::Millis;

/// Bookings dropped by one report at most; the next one goes on.
pub const MOST_DROPPED: u64 = 64;

/// Requests that an engine had, by its latest report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reported {
    pub at: Millis,
    pub live: u64,
}

impl Reported {
    /// Becomes the `latest` report of an engine on which `booked` requests are. Returns how many of them it has lost by this
    /// report and the one before, and since when these are silent.
    pub fn missing(
        self,
        latest: &mut Option<Self>,
        booked: u64,
        grace_ms: u64,
    ) -> Option<(u64, Millis)> {
        let before = match latest {
            // Two reports of one time are one report, and a late report is no news.
            Some(latest) if self.at <= latest.at => {
                if self.at == latest.at {
                    latest.live = latest.live.max(self.live);
                }
                return None;
            }
            latest => latest.replace(self)?,
        };
        let silent = before.at.0.checked_sub(grace_ms)?;
        let beyond = booked.saturating_sub(before.live.max(self.live));
        Some((beyond.min(MOST_DROPPED), Millis(silent)))
    }
}
