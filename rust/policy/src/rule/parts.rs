//! The optional state of a rule: of workers, sessions and bookings.

use cachelb_core::error::Result;
use cachelb_core::ids::Millis;
#[cfg(feature = "learned")]
use cachelb_learned::LearnedStats;

use crate::rule::memo::Memory;

/// How a booking ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The worker served it, or no failure was reported.
    Served,
    /// It failed or was given up. Without a first token, its placement is taken back.
    Failed,
    /// Its end is unknown: the child of a fork starts over.
    Unknown,
    /// Its worker is gone.
    WorkerGone,
}

/// State by worker, session and booking, and the model made of it.
pub trait State {
    /// The worker registered as `order` joined, or its description changed.
    fn describe(&mut self, order: u64, gpu: Option<&str>) {
        let _ = (order, gpu);
    }

    /// The worker registered as `order` is gone.
    fn forget(&mut self, order: u64);

    /// The worker registered as `order` is still there, its cache is empty.
    fn cache_lost(&mut self, order: u64) {
        let _ = order;
    }

    /// The session called `key` is over. Returns whether it was bound to a worker.
    fn finish_session(&mut self, key: &[u8]) -> bool {
        let _ = key;
        false
    }

    /// The worker of a booking answered: its first token came at `first_token`; `None` if the request was served without
    /// a report of one.
    fn proven(&mut self, memory: &mut Memory, first_token: Option<Millis>) {
        let _ = (memory, first_token);
    }

    /// A booking was served to its end, with `output_tokens` if they were counted. It closes next.
    fn served(&mut self, memory: &mut Memory, output_tokens: Option<u64>, now: Millis) {
        let _ = (memory, output_tokens, now);
    }

    /// A booking is closed.
    fn ended(&mut self, memory: &mut Memory, ended: Ended) {
        let _ = (memory, ended);
    }

    /// Every booking was closed: the child of a fork starts over.
    fn ended_all(&mut self) {}

    /// Statistics of a learned model.
    #[cfg(feature = "learned")]
    fn learned(&self) -> Option<LearnedStats> {
        None
    }

    /// The learned model, to be loaded by another rule.
    fn model(&self) -> Option<Vec<u8>> {
        None
    }

    /// Heap bytes of the parts that can grow.
    fn memory_bytes(&self) -> usize {
        0
    }

    /// Recounts all counters.
    ///
    /// # Errors
    /// [`cachelb_core::Error::Invariant`] naming the first disagreement.
    fn validate(&self) -> Result<()> {
        Ok(())
    }
}

/// The field with the state of a rule, or `*own` if the rule itself has it.
macro_rules! state {
    ($own:ident => $state:expr) => {
        fn state(&self) -> Option<&dyn $crate::rule::parts::State> {
            let $own = self;
            Some(&$state)
        }

        fn state_mut(&mut self) -> Option<&mut dyn $crate::rule::parts::State> {
            let $own = self;
            Some(&mut $state)
        }
    };
}
pub(crate) use state;
