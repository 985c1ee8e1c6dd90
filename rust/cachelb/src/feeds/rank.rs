//! One rank of a worker as its event stream sees it: its holdings in its home pool, a slice at a time.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use cachelb_core::groups::Resuming;
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_events::{Batch, Finding, Heard, Holdings, Place, Worth};

use crate::Selector;
use crate::feeds::Feed;
use crate::feeds::streams::{Feeds, SharedStreams};
use crate::fleet::roster::lock;
use crate::request::PoolId;

/// Blocks for which the selector is locked at once.
const SLICE: usize = 64;

/// A selector that several threads use.
pub trait Access {
    /// Runs `work` on the selector.
    fn held<R: Send>(&self, work: impl FnOnce(&mut Selector) -> R + Send) -> R;

    /// As [`Self::held`], for one of many steps, between which other threads go first.
    fn in_turn<R: Send>(&self, work: impl FnOnce(&mut Selector) -> R + Send) -> R {
        self.held(work)
    }
}

impl Access for Mutex<Selector> {
    fn held<R: Send>(&self, work: impl FnOnce(&mut Selector) -> R + Send) -> R {
        work(&mut lock(self))
    }
}

/// One rank of a worker.
#[derive(Debug, Clone, Copy)]
pub struct Rank<'a, A> {
    /// Where its selector lies.
    pub access: &'a A,
    /// The streams of all workers.
    pub feeds: &'a Feeds,
    /// The shared cache that it reads beside its own blocks.
    pub shared: Option<&'a SharedStreams>,
    /// Its id.
    pub worker: WorkerId,
    /// The pool that its events are about.
    pub home: PoolId,
    /// The time of the message.
    pub now: Millis,
}

impl<A: Access + Sync> Rank<'_, A> {
    /// Whether its events are trusted.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        (self.access).held(|selector| selector.fleet().feed(self.worker).is_some())
    }

    /// Changes the state of the worker, if it is still there.
    fn feed<R: Default + Send>(&self, change: impl FnOnce(&mut Feed<'_>) -> R + Send) -> R {
        self.access.held(|selector| {
            let feed = selector.feed(self.worker);
            feed.map_or_else(R::default, |mut feed| change(&mut feed))
        })
    }
}

impl<A: Access + Sync> Holdings for Rank<'_, A> {
    fn store(
        &mut self,
        mut parent: Option<SequenceHash>,
        hashes: &[SequenceHash],
        medium: Medium,
    ) -> u32 {
        let mut new = 0;
        for slice in hashes.chunks(SLICE) {
            new += self.feed(|feed| feed.announce(parent, slice, medium, self.now));
            parent = slice.last().copied();
        }
        new
    }

    fn spread(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        self.feed(|feed| feed.spread(hash, medium))
    }

    fn remove(&mut self, hashes: &[SequenceHash], medium: Medium) -> u32 {
        let slices = hashes.chunks(SLICE);
        slices
            .map(|slice| self.feed(|feed| feed.withdraw(slice, medium)))
            .sum()
    }

    #[expect(clippy::redundant_closure_for_method_calls, reason = "of any lifetime")]
    fn clear(&mut self) -> u64 {
        self.feed(|feed| feed.withdraw_all())
    }

    fn doubt(&mut self) -> u64 {
        self.feed(|feed| feed.doubt(self.now))
    }

    fn path_to(&self, hash: SequenceHash) -> Vec<SequenceHash> {
        self.feed(|feed| feed.pool().path_to(hash))
    }

    fn set_resumes(&mut self, marked_only: bool, above_tokens: u32, rule: Option<Resuming>) {
        self.feed(|feed| feed.set_resumes(marked_only, above_tokens, rule));
    }

    fn mark(&mut self, hash: SequenceHash, medium: Medium) -> bool {
        self.feed(|feed| feed.mark(hash, medium))
    }

    fn unmark(&mut self, hash: SequenceHash) -> bool {
        self.feed(|feed| feed.unmark(hash))
    }

    fn holds(&self, hash: SequenceHash, medium: Medium) -> bool {
        self.feed(|feed| feed.pool().holds(self.worker, hash, medium))
    }

    fn is_shared(&self, place: Place) -> bool {
        self.shared.is_some_and(|cache| cache.holds(place))
    }

    fn set_trust(&mut self, trust: Worth) {
        self.feed(|feed| feed.set_trust(trust));
        if trust != Worth::Refused && self.home == PoolId::default() {
            self.feeds.fed.store(true, Ordering::Relaxed);
        }
    }

    fn share(&mut self, batch: &Batch, now: Millis) {
        let Some(cache) = self.shared else { return };
        let mut holder = Self {
            shared: None,
            worker: cache.holder(),
            now,
            ..*self
        };
        let streams = &cache.streams.streams;
        streams.share(batch, |place| cache.holds(place), now, &mut holder);
    }

    fn heard(&mut self, heard: Heard) -> Finding {
        self.feed(|feed| feed.applied(heard))
    }
}
