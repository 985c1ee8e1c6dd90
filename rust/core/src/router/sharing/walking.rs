//! All that this router knows, told in short steps between which others select.
//!
//! What was used longest ago comes first, whichever worker and model it belongs to: whoever stores it in this order, with
//! less memory or more, evicts what would have been evicted here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::ids::{Medium, WorkerId};
use crate::index::{BlockIndex, Telling};
use crate::router::request::PoolId;
use crate::router::selector::Selector;
use crate::share::{Chain, Entry, Kind, Message, put};
use crate::tracker::store::Store;

/// Bytes of entries from which on a message is not made longer: what is told, or heard, under one lock.
const PART: usize = 1 << 13;
const HASH: usize = 8;

/// What one worker holds in one model's index.
#[derive(Debug)]
struct Stretch {
    pool: PoolId,
    worker: WorkerId,
    /// The worker's number in the messages.
    number: u32,
    telling: Telling,
}

impl Stretch {
    fn index<'a>(&self, selector: &'a Selector) -> Option<&'a BlockIndex> {
        let pool = selector.pools.get(self.pool.0 as usize)?;
        match pool.index.as_ref()? {
            Store::Exact(index) => Some(index),
            Store::Positional(_) | Store::Tree(_) => None,
        }
    }

    fn age(&self, selector: &Selector) -> Option<u64> {
        let index = self.index(selector)?;
        index.tell_age(self.worker, Medium::Gpu, &self.telling)
    }
}

/// How far a snapshot has come.
#[derive(Debug)]
pub struct Walk {
    stretches: Vec<Stretch>,
    /// By age of what is told next.
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    /// Blocks that are told in short steps; what is left then is told in one, so that a walk ends though others use, and
    /// so move to its end, what it told already.
    left: usize,
}

impl Selector {
    /// Begins a snapshot: its first message, with models, workers and open bookings. What happens from now on is told in
    /// deltas. `None` while nothing is shared.
    pub fn snapshot_begin(&mut self) -> Option<(Vec<u8>, Walk)> {
        let head = self.snapshot_head()?;
        let sharing = self.sharing.as_mut()?;
        let pools = sharing.fingerprints.len().min(self.pools.len());
        let mut stretches = Vec::new();
        for (_, worker) in self.fleet.ids() {
            let Some(number) = sharing.number(worker, || None) else {
                continue;
            };
            let pools = (0..pools as u32).map(PoolId);
            stretches.extend(pools.map(|pool| Stretch {
                pool,
                worker,
                number,
                telling: Telling::default(),
            }));
        }
        let (mut queue, mut blocks) = (BinaryHeap::new(), 0);
        for (at, stretch) in stretches.iter().enumerate() {
            if let Some(age) = stretch.age(self) {
                queue.push(Reverse((age, at)));
            }
            let index = stretch.index(self);
            blocks += index.map_or(0, |index| index.block_count(stretch.worker).unwrap_or(0));
        }
        let walk = Walk {
            stretches,
            queue,
            left: 4 * blocks as usize + PART,
        };
        Some((head, walk))
    }

    /// Goes on with a snapshot: its next messages, `None` once all is told but [`Self::snapshot_end`].
    pub fn snapshot_next(&mut self, walk: &mut Walk) -> Option<Vec<Vec<u8>>> {
        let sharing = self.sharing.as_ref()?;
        let (origin, first) = (sharing.origin, sharing.journal.next());
        if walk.queue.is_empty() {
            return None;
        }
        let enough = if walk.left == 0 {
            usize::MAX
        } else {
            walk.left.min(PART / HASH)
        };
        let mut messages = Vec::new();
        let (mut entries, mut count) = (Vec::with_capacity(PART + PART / 2), 0);
        let mut flush = |entries: &mut Vec<u8>, count: &mut u32| {
            let message = Message {
                kind: Kind::Continued,
                origin,
                first,
                count: std::mem::take(count),
                entries,
            };
            messages.push(message.encode());
            entries.clear();
        };
        let mut done = 0;
        while done < enough
            && let Some(Reverse((_, at))) = walk.queue.pop()
        {
            let until = walk.queue.peek().map_or(u64::MAX, |next| next.0.0);
            let stretch = &mut walk.stretches[at];
            let Some(index) = stretch.index(self) else {
                continue;
            };
            let Stretch {
                pool,
                worker,
                number,
                telling,
            } = stretch;
            let (pool, number) = (pool.0, *number);
            let left = enough - done;
            done += index.tell_on(
                *worker,
                Medium::Gpu,
                telling,
                until,
                left,
                |anchor, chain| {
                    let entry = Entry::Placed {
                        key: 0,
                        pool,
                        worker: number,
                        anchor,
                        chain: Chain::default(),
                    };
                    put(&mut entries, entry, chain);
                    count += 1;
                    if entries.len() >= PART {
                        flush(&mut entries, &mut count);
                    }
                },
            );
            if let Some(age) = stretch.age(self) {
                walk.queue.push(Reverse((age, at)));
            }
        }
        walk.left = walk.left.saturating_sub(done);
        if count > 0 {
            flush(&mut entries, &mut count);
        }
        Some(messages)
    }
}
