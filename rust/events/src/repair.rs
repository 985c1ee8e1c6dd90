//! Whether the announcements of a stream can be true, and how often it may start over because they are not.
//!
//! Order and numbers of messages show losses on the way. They cannot show a mirror that is wrong although every message
//! came: a removal the engine never sent, a store that was miscounted. Two signs do: more blocks than the engine's
//! memory holds, and requests that found less cached than announced.

use cachelb_core::ids::Millis;

/// Wait between repairs: at first, and at most once repairs follow each other.
const WAIT_MS: u64 = 60_000;
const MAX_WAIT_MS: u64 = 3_600_000;
/// How fast two clocks may drift apart, in parts of the time that passes. Quartz stays below a tenth of this.
const DRIFT: f64 = 1e-3;

cachelb_core::named! {
    /// Why the announcements of a stream cannot be true.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    Fault {
        /// More blocks in device memory than there is room for.
        Capacity = "capacity",
        /// Requests found less cached than was announced.
        CachedTokens = "cached-tokens",
    }
}

/// The state of a feed after a message, for a host that can compare it with other observations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// All announcements up to this time are applied, by the clock of the index.
    pub until: Millis,
    /// Tokens in the copies of blocks in device memory; 0 if some stores do not state their place.
    pub device_tokens: u64,
    /// Whether a request resumes where the holdings allow it: at every leading block that was announced, or at the
    /// marks among them. In a cache with groups that are not followed, it may resume earlier.
    pub is_exact: bool,
}

/// The host's findings about the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Finding {
    /// Why the announcements cannot be true, if so.
    pub fault: Option<Fault>,
    /// Whether the engine drafts with EAGLE or MTP.
    pub eagle: bool,
}

/// How the clock of an engine and that of the index go together.
///
/// A message is under way for an unknown time, at least 0. So the least difference seen is the best guess of the
/// difference of the clocks; it is only raised as fast as clocks drift, so that no stall is taken for a difference.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    least: Option<(f64, Millis)>,
}

impl Pace {
    /// A live message made at `ts` seconds by the engine's clock came. Returns the latest time up to which everything the
    /// engine announced has come.
    pub fn heard(&mut self, ts: f64, now: Millis) -> Millis {
        let difference = now.0 as f64 - ts * 1e3;
        if !difference.is_finite() {
            return Millis(0);
        }
        let guess = self.least.map_or(difference, |(least, at)| {
            let passed = now.0.saturating_sub(at.0) as f64;
            difference.min(least + passed * DRIFT)
        });
        self.least = Some((guess, now));
        #[expect(clippy::cast_sign_loss, reason = "a negative time is cut to 0")]
        let until = (ts * 1e3 + guess).max(0.0) as u64;
        Millis(until)
    }

    /// Another engine may be at the other end.
    pub fn reset(&mut self) {
        self.least = None;
    }
}

/// The repairs of one stream.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    counts: [u64; Fault::ALL.len()],
    /// The latest one, and for how long there is no other.
    last: Option<(Millis, u64)>,
}

impl Repairs {
    /// Whether a fault may be repaired now; then it is counted. Each repair soon after the end of the wait for it doubles
    /// the next wait: a fault that starting over does not repair must not restart the stream all the time.
    pub fn begin(&mut self, fault: Fault, now: Millis) -> bool {
        let wait = match self.last {
            None => WAIT_MS,
            Some((at, wait)) => {
                let passed = now.0.saturating_sub(at.0);
                if passed < wait {
                    return false;
                }
                if passed < 4 * wait {
                    MAX_WAIT_MS.min(2 * wait)
                } else {
                    WAIT_MS
                }
            }
        };
        self.last = Some((now, wait));
        self.counts[fault as usize] += 1;
        true
    }

    /// Repairs so far, by [`Fault::ALL`].
    pub fn counts(&self) -> [u64; Fault::ALL.len()] {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_that_follow_each_other_become_rare() {
        let mut repairs = Repairs::default();
        let mut at = Vec::new();
        for minute in 0..600 {
            if repairs.begin(Fault::CachedTokens, Millis(minute * 60_000)) {
                at.push(minute);
            }
        }
        assert_eq!(at[..7], [0, 1, 3, 7, 15, 31, 63]);
        assert!(at[7..].windows(2).all(|pair| pair[1] - pair[0] == 60));
        assert_eq!(repairs.counts(), [0, at.len() as u64]);
        let later = at[at.len() - 1] + 4 * 60;
        for minute in [later, later + 1] {
            let now = Millis(minute * 60_000);
            assert!(repairs.begin(Fault::Capacity, now), "it held for long");
        }
    }

    #[test]
    fn a_stalled_stream_tells_of_the_time_before_the_stall() {
        // The engine's clock is 1,000 s ahead.
        let ts = |ms: u64| 1_000.0 + ms as f64 / 1e3;
        let mut pace = Pace::default();
        assert_eq!(pace.heard(ts(0), Millis(7)), Millis(7));
        assert_eq!(pace.heard(ts(100), Millis(102)), Millis(102));
        assert_eq!(pace.heard(ts(200), Millis(290)), Millis(202));
        let late = pace.heard(ts(300), Millis(60_000)).0;
        assert!((302..=362).contains(&late), "{late}");
        let next = pace.heard(ts(60_100), Millis(60_110)).0;
        assert!((60_100..=60_110).contains(&next), "{next}");
        assert_eq!(pace.heard(f64::NAN, Millis(60_200)), Millis(0));
    }

    #[test]
    fn clocks_that_drift_apart_are_followed() {
        let mut pace = Pace::default();
        for second in 0..100_000 {
            // 50 parts in a million slow: 5 s after a day.
            let (now, ts) = (second * 1_000, second as f64 * (1.0 - 5e-5));
            let until = pace.heard(ts, Millis(now)).0;
            assert!(now - until <= 1, "{until} at {now}");
        }
    }
}
