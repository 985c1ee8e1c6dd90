//! The index as a stream sees it: one worker's blocks, by our own hashes, and how far its events can be trusted.

use cachelb_core::groups::Resuming;
use cachelb_core::ids::{Medium, Millis, SequenceHash};

use crate::batch::{Batch, Place};
use crate::repair::{Finding, Heard};

cachelb_core::named! {
    /// How far a stream can be trusted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    FeedState {
        /// The first replay is not over.
        #[default]
        Starting = "starting",
        /// Everything the engine announced is known.
        Live = "live",
        /// Messages are missing and requested; announced blocks may be gone.
        Suspect = "suspect",
        /// Announcements since it started over are known, earlier ones are not.
        Degraded = "degraded",
    }
}

/// How far the events of a worker can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    /// Not at all: they cannot be used.
    Refused,
    /// As far as the state of the stream permits.
    Believed {
        /// State of the stream.
        state: FeedState,
        /// Tokens per block of the engine, once it is known.
        engine_block_size: Option<u32>,
    },
}

/// The blocks one worker holds. Writes for a removed worker do nothing.
pub trait Holdings {
    /// The worker holds `hashes`, a chain behind `parent` (`None`: from the root), in `medium`. The chain was computed
    /// from tokens. Returns how many of them it did not hold there before.
    fn store(
        &mut self,
        parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> u32;

    /// The worker holds `hash`, a block it holds in another medium, in `medium` too; nothing happens if it holds the block
    /// nowhere. Returns whether it did not hold it there before and does now.
    fn spread(&mut self, hash: SequenceHash, medium: Medium) -> bool;

    /// The worker no longer holds `hashes` in `medium`. Returns how many of them it held there.
    fn remove(&mut self, hashes: &[SequenceHash], medium: Medium) -> u32;

    /// The worker holds nothing any more, in any medium. Returns the number of blocks it held.
    fn clear(&mut self) -> u64;

    /// A message is lost: what the worker holds in device memory is doubtful from now on, which is [`Medium::Speculative`],
    /// and what it holds elsewhere is dropped. Returns the blocks that are doubtful now and were not.
    fn doubt(&mut self) -> u64;

    /// The blocks up to a known one on its path, the first at the root; none if it is unknown.
    fn path_to(&self, hash: SequenceHash) -> Vec<SequenceHash>;

    /// Whether the engine resumes only where all its groups can: then [`Self::mark`] marks these places. In any case it
    /// resumes only where blocks of `above_tokens` beyond the point are held too. `rule`: where prompts leave the
    /// blocks that resuming needs, as far as that is known.
    fn set_resumes(&mut self, marked_only: bool, above_tokens: u32, rule: Option<Resuming>);

    /// All groups accept resuming behind `hash`, with their blocks in media up to `medium`; the faster one of two marks
    /// stays. A mark goes with its block, and becomes doubtful with it. False if the worker does not hold the block: for
    /// [`Medium::Speculative`] as a doubtful one, else in device memory, host memory or on disk.
    fn mark(&mut self, hash: SequenceHash, medium: Medium) -> bool;

    /// Not all groups accept resuming behind `hash` any more. Returns whether they did.
    fn unmark(&mut self, hash: SequenceHash) -> bool;

    /// Whether the worker holds a block in a medium.
    fn holds(&self, hash: SequenceHash, medium: Medium) -> bool;

    /// Whether blocks that the engine announces in `place` are in a cache that all workers share, and not in this
    /// worker's.
    fn is_shared(&self, place: Place) -> bool {
        let _ = place;
        false
    }

    /// The events of the worker can be trusted that far from now on.
    fn set_trust(&mut self, trust: Worth) {
        let _ = trust;
    }

    /// Some events of a message concern a shared cache, by [`Self::is_shared`].
    fn share(&mut self, batch: &Batch, now: Millis) {
        let _ = (batch, now);
    }

    /// A message was applied. Returns the findings about the worker.
    fn heard(&mut self, heard: Heard) -> Finding {
        let _ = heard;
        Finding::default()
    }
}
