//! Links between peers: how long copies under way take them, and which sources do not send.
//!
//! A request that copies and waits far too long for its first token, or more than half of eight that found nothing, show
//! that a source does not send: it rests, and longer each time. Until it has sent something again, few wait for it at once.

use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::load::BookingId;

use crate::bookings::copying::Copying;
use crate::request::Source;

/// Requests that may wait at once for a source that has not sent anything yet.
const FIRST: usize = 2;
/// Of the latest eight copies, more than so many found nothing: the source rests.
const MISSES: u32 = 4;
const REST_MS: u64 = 30_000;
const LONGEST_REST_MS: u64 = 600_000;

/// The ways of a link.
pub(super) const OUT: usize = 0;
const IN: usize = 1;

#[derive(Debug, Clone, Default)]
struct Link {
    generation: u32,
    /// When it is free: out of the worker, into it.
    free: [f64; 2],
    /// Requests without a first token that copy from it.
    waiting: Vec<BookingId>,
    has_sent: bool,
    /// The latest eight copies as bits, those that found nothing set.
    misses: u8,
    rests_until: Millis,
    /// Rests since it sent something.
    rests: u32,
}

/// The links of all workers.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// By slot.
    workers: Vec<Link>,
}

impl Links {
    fn get(&self, worker: WorkerId) -> Option<&Link> {
        let link = self.workers.get(worker.slot as usize);
        link.filter(|link| link.generation == worker.generation)
    }

    fn at(&mut self, worker: WorkerId) -> &mut Link {
        let (slot, generation) = (worker.slot as usize, worker.generation);
        if slot >= self.workers.len() {
            self.workers.resize_with(slot + 1, Link::default);
        }
        let link = &mut self.workers[slot];
        if link.generation != generation {
            *link = Link {
                generation,
                ..Link::default()
            };
        }
        link
    }

    /// When a worker is free to send, [`OUT`], or to receive, [`IN`].
    pub fn free_at(&self, worker: WorkerId, way: usize) -> f64 {
        self.get(worker).map_or(0.0, |link| link.free[way])
    }

    /// Milliseconds until a copy may begin.
    pub fn wait_ms(&self, from: WorkerId, to: WorkerId, now: Millis) -> f64 {
        let free_at = self.free_at(from, OUT).max(self.free_at(to, IN));
        (free_at - now.0 as f64).max(0.0)
    }

    /// Whether a worker may be a source of one more request.
    pub fn sends(
        &self,
        from: WorkerId,
        now: Millis,
        is_late: impl FnMut(&BookingId) -> bool,
    ) -> bool {
        self.get(from).is_none_or(|link| {
            now >= link.rests_until
                && (link.has_sent || link.waiting.len() < FIRST)
                && !link.waiting.iter().any(is_late)
        })
    }

    /// A copy is booked.
    pub fn book(
        &mut self,
        id: BookingId,
        source: Source,
        (to, is_alone): (WorkerId, bool),
        now: Millis,
    ) -> Copying {
        let from = source.worker;
        let wait_ms = self.wait_ms(from, to, now);
        let until = now.0 as f64 + wait_ms + source.link_ms;
        self.at(from).waiting.push(id);
        let longer = [(from, OUT), (to, IN)].map(|(worker, way)| {
            let free = &mut self.at(worker).free[way];
            until - std::mem::replace(free, until).max(now.0 as f64)
        });
        Copying {
            source,
            until,
            longer,
            is_alone: is_alone && wait_ms <= 0.0,
            is_over: false,
        }
    }

    /// A copy is over: the rest of the time that it was to take the links is free.
    pub fn free(&mut self, id: BookingId, copying: &mut Copying, to: WorkerId, now: Millis) {
        copying.is_over = true;
        let (from, left) = (
            copying.source.worker,
            (copying.until - now.0 as f64).max(0.0),
        );
        self.at(from).waiting.retain(|waiting| *waiting != id);
        for (worker, way) in [(from, OUT), (to, IN)] {
            self.at(worker).free[way] -= left.min(copying.longer[way]);
        }
    }

    /// A source has sent blocks, or not.
    pub fn judge(&mut self, from: WorkerId, is_miss: bool, now: Millis) {
        let link = self.at(from);
        link.misses = link.misses << 1 | u8::from(is_miss);
        if link.misses.count_ones() > MISSES {
            self.rest(from, now);
        } else if !is_miss {
            (link.has_sent, link.rests) = (true, 0);
        }
    }

    /// A source does not send.
    pub fn rest(&mut self, from: WorkerId, now: Millis) {
        let link = self.at(from);
        if now < link.rests_until {
            return;
        }
        let rest_ms = REST_MS << link.rests.min(5);
        link.rests_until = Millis(now.0.saturating_add(rest_ms.min(LONGEST_REST_MS)));
        (link.has_sent, link.misses, link.rests) = (false, 0, link.rests + 1);
    }
}
