//! Verdicts of a follower on messages, the state of its stream, and its counters.

/// Bounds of the buffer of live messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FollowerSettings {
    /// Messages held back.
    pub max_messages: usize,
    /// Bytes of their payloads.
    pub max_bytes: usize,
}

impl Default for FollowerSettings {
    fn default() -> Self {
        Self {
            max_messages: 8_192,
            max_bytes: 16 << 20,
        }
    }
}

/// Why the stream starts over from nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The engine restarted.
    Restart,
    /// Messages are lost.
    Loss,
}

/// Handling of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is applied now.
    Apply,
    /// It waits: give it to [`super::Follower::hold`].
    Hold,
    /// It was applied before, or belongs to an outdated replay.
    Duplicate,
    /// It cannot be read.
    Drop,
}

/// Actions on a message, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Drop everything the stream announced.
    pub clear: Option<Cause>,
    /// Handling of the message.
    pub fate: Fate,
}

impl From<Fate> for Verdict {
    fn from(fate: Fate) -> Self {
        Self { clear: None, fate }
    }
}

/// An action that is due once a replay is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    /// Drop everything the stream announced.
    Clear(Cause),
    /// Apply a message that waited.
    Apply(Box<[u8]>),
}

cachelb_core::counted! {
    /// Counters of a follower; they only rise.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Tally {
        /// Messages that had been applied already.
        pub duplicates: u64,
        /// Gaps in the numbers of messages.
        pub gaps: u64,
        /// Gaps that no replay closed.
        pub resyncs: u64,
        /// Restarts of the engine.
        pub restarts: u64,
    }
    beside {
        /// Replays that returned all requested messages.
        pub replays_complete: u64,
        /// Replays that began too late or had holes.
        pub replays_short: u64,
        /// Replays that ended early.
        pub replays_failed: u64,
    }
}

impl Tally {
    /// A message that is known already.
    pub(super) fn duplicate(&mut self) -> Verdict {
        self.duplicates += 1;
        Fate::Duplicate.into()
    }

    /// The stream starts over from nothing.
    pub(super) fn cleared(&mut self, cause: Cause, fate: Fate) -> Verdict {
        match cause {
            Cause::Restart => self.restarts += 1,
            Cause::Loss => self.resyncs += 1,
        }
        Verdict {
            clear: Some(cause),
            fate,
        }
    }
}
