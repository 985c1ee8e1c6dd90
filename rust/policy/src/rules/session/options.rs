//! Options of `session`.

use cachelb_core::error::Result;

use super::{Assignment, Session, SessionMode, Sessions};
use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::gate::Margin;
use crate::rule::options::{
    AT_LEAST_ONE, Configure, Configured, Policy, Seconds, conflict, options,
};
use crate::rule::values::{Within, words};

/// How a session is bound to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The worker that served it last.
    Sticky,
    /// Up to two workers that served it.
    Manual,
    /// Nothing but a hash.
    Hash,
}

words!(Mode { Sticky = "sticky", Manual = "manual", Hash = "hash" });
words!(Assignment { Random = "random", MinLoad = "min_load", MinGroup = "min_group" });

/// Most sessions remembered.
const MAX_SESSIONS: u64 = 10_000_000;

options! {
    /// A session stays on the worker that served it.
    ///
    /// The session is `session=`, else the first tokens of the prompt. Three modes:
    ///     sticky: A new session goes to the worker with the fewest (`least-loaded`) and is bound to it (`session`). If
    ///         that worker is not available, the session moves and stays where it moved (`session-moved`).
    ///     manual: As `sticky`, but a session keeps two workers, and returns to the older one when that is back. A new
    ///         one is placed by `assignment`.
    ///     hash: Nothing is remembered; every router with the same seed picks the same worker (`hash`).
    ///
    /// A binding is provisional until the worker answers; a request that fails before takes it back. A retry elsewhere
    /// moves the session only if its worker is gone by the next request. `finish_session` ends one. Requests without a
    /// session and a full block of prompt go to the least loaded worker (`no-key`).
    ///
    /// Example:
    ///     >>> policy = Session()
    ///     >>> workers = ["gpu0", "gpu1", "gpu2"]
    ///     >>> with policy.select_worker(workers, session="chat-17") as first:
    ///     ...     first.on_first_token()
    ///     >>> second = policy.select_worker(workers, session="chat-17")
    ///     >>> first.reason, second.reason, second.worker == first.worker
    ///     ('least-loaded', 'session', True)
    ///     >>> policy.finish_session("chat-17")
    ///     True
    pub struct SessionOptions {
        /// How a session is bound to a worker.
        mode: Mode = Mode::Sticky;
        /// Never serve a session elsewhere while its worker is registered: if that is not available, no worker
        /// is (`NoWorkerAvailable`). Otherwise an overloaded worker is left for one request (`spill`).
        hard: bool = false;
        /// The policy that places new and moved sessions: a name, or a policy whose options are taken, its block size
        /// among them. None places by the mode.
        base: Option<Within> = None;
        /// Seconds without a request after which a session is forgotten, None for ever.
        ttl_s: Option<Seconds> = Some(Seconds::of(7_200));
        /// How mode "manual" places new sessions: at random, by the fewest requests in flight, or by the fewest
        /// sessions.
        assignment: Assignment = Assignment::Random;
        /// Sessions remembered; the one idle for longest makes room.
        max_sessions: usize = 10_000, (1, MAX_SESSIONS);
        /// A worker is overloaded only above this many times the mean load.
        load_factor: f64 = 1.25, AT_LEAST_ONE;
        /// A worker is overloaded only above the mean load plus this many requests; "auto" is two standard deviations,
        /// from 4 to 32.
        balance_abs_threshold: Margin = Margin::Auto;
        /// Leading tokens that make the key of a request without a session.
        prefix_token_count: u32 = 256, (1, u64::from(u32::MAX));
    }
}

/// The policy.
pub(crate) const POLICY: Policy = Policy::of::<SessionOptions>(About::keyed("session", "Session"));

impl Configure for SessionOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let mode = match self.mode {
            Mode::Hash => SessionMode::Hash,
            Mode::Sticky => SessionMode::Sticky,
            Mode::Manual => SessionMode::Manual(self.assignment),
        };
        let settings = Sessions {
            mode,
            hard: self.hard,
            gate: setup.gate(self.load_factor, self.balance_abs_threshold),
            idle_ms: Seconds::or_for_ever(self.ttl_s),
            max_sessions: self.max_sessions,
            seed: setup.seed,
        };
        let need = Need::prefix(self.prefix_token_count);
        let Some(base) = self.base() else {
            return Ok(Ruled::new(Session::new(settings, None), need));
        };
        if base.policy.about.name == POLICY.about.name {
            return Err(conflict(
                "base must not be a session policy: it places what the session policy does not",
            ));
        }
        let base = base.ruled_within(setup)?;
        let need = need.and(base.need);
        Ok(Ruled::new(Session::new(settings, Some(base.rule)), need))
    }

    fn base(&self) -> Option<&Configured> {
        self.base.as_ref()?.policy()
    }
}
