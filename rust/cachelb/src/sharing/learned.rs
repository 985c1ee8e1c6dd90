//! Routes that rules learned, published and received.
//!
//! A route is published when it is learned, once its worker answered: a request that fails has published nothing that
//! would have to be withdrawn. Received ones are of the lower rank (`policy/routes`). Only chained hashes name a
//! prefix; where pools compare tokens, nothing is published.

use cachelb_core::hashing::Scheme;
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_policy::{Claim, RoutePosition};

use crate::bookings::Booking;
use crate::fleet::Fleet;
use crate::indexes::Pools;
use crate::indexes::pool::Pool;
use crate::request::PoolId;

use super::messages::{Entry, Keys, Kind};
use super::snapshot::Parts;
use super::{Exchange, Sharing};

/// Routes of one message of a snapshot: published, or received, under one lock.
const PART: usize = 512;

/// Position up to which the routes of a pool were published.
#[derive(Debug, Clone, Copy, Default)]
pub struct RouteCursor {
    /// Rules whose routes were all published.
    rules: usize,
    told: RoutePosition,
}

/// Whether hashes name the prefix they end, so that routers can name prefixes to each other.
fn name_prefixes(pool: &Pool) -> bool {
    pool.placements.scheme != Scheme::Units
}

/// The worker registered as `order`, if it is still there.
pub(super) fn by_order(fleet: &Fleet, order: u64) -> Option<WorkerId> {
    let found = fleet.current().find(|(_, member)| member.order == order);
    found.map(|(id, _)| id)
}

/// Makes entries of claims: one of those that follow each other and have worker and time in common.
fn entries(
    sharing: &mut Sharing,
    fleet: &Fleet,
    (pool, part): (PoolId, u32),
    claims: &[Claim],
    mut say: impl FnMut(&mut Sharing, Entry<'_>),
) {
    for run in claims.chunk_by(|a, b| (a.order, a.age_ms) == (b.order, b.age_ms)) {
        let worker = by_order(fleet, run[0].order);
        let number = worker.and_then(|id| sharing.number(id, fleet));
        let Some(worker) = number else { continue };
        let keys: Vec<_> = run.iter().map(|c| Keys::pack(c.key, c.depth)).collect();
        let entry = Entry::Learned {
            pool: pool.0,
            part,
            worker,
            age_ms: run[0].age_ms,
            keys: Keys::of(&keys),
        };
        say(sharing, entry);
    }
}

impl Sharing {
    /// A booking is about to teach the rules of its pool.
    pub(super) fn routes(&mut self, fleet: &Fleet, pools: &Pools, booking: &Booking, now: Millis) {
        let (pool, memos) = (booking.pool, &booking.memos);
        let shared = &pools[pool];
        if !name_prefixes(shared) {
            return;
        }
        let mut claims = Vec::new();
        for (part, _, rule) in shared.rules.parts() {
            claims.clear();
            for memo in memos.iter().filter(|memo| memo.part == part) {
                rule.teaches(&memo.memory, now, &mut |claim| claims.push(claim));
            }
            entries(self, fleet, (pool, part), &claims, Sharing::publish_entry);
        }
    }
}

impl Exchange<'_> {
    /// Further messages of a snapshot: the routes of a pool, some at a time; `None` at the end.
    pub fn snapshot_routes(
        &mut self,
        pool: PoolId,
        told: &mut RouteCursor,
        now: Millis,
    ) -> Option<Vec<u8>> {
        let sharing = self.0.sharing.as_mut()?;
        let (_, shared) = self.0.pools.iter().nth(pool.0 as usize)?;
        if !name_prefixes(shared) {
            return None;
        }
        loop {
            let (part, _, rule) = shared.rules.parts().nth(told.rules)?;
            let mut claims = Vec::new();
            let further =
                rule.publish_routes(told.told, PART, now, &mut |claim| claims.push(claim));
            let Some(further) = further else {
                *told = RouteCursor {
                    rules: told.rules + 1,
                    told: RoutePosition::default(),
                };
                continue;
            };
            told.told = further;
            let mut parts = Parts::new(sharing, Kind::Continued, usize::MAX);
            let place = (pool, part);
            entries(sharing, &self.0.fleet, place, &claims, |_, entry| {
                parts.put(entry, &[]);
            });
            if let Some(message) = parts.end().pop() {
                return Some(message);
            }
        }
    }
}
