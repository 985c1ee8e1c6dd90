//! Routes that rules learned, told and heard.
//!
//! A route is told when its lesson is, once its worker answered: of a request that fails nothing was told that would have
//! to be taken back. Heard ones are of the lower rank (`policy/routes`). Only chained hashes name a prefix; where pools
//! compare tokens, nothing is told.

use crate::ids::Millis;
use crate::load::BookingId;
use crate::policy::{Claim, RouteCursor};
use crate::router::fleet::Fleet;
use crate::router::request::PoolId;
use crate::router::selector::Selector;
use crate::share::{Entry, Keys, Kind, Message, put};

use super::Sharing;

/// Routes of one message of a snapshot: what is told, and heard, under one lock.
const PART: usize = 512;

/// How far the routes of a pool were told.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoutesTold {
    /// Rules that were told whole.
    rules: usize,
    told: RouteCursor,
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
        let worker = fleet.by_order(run[0].order);
        let number = worker.and_then(|id| sharing.number(id, || fleet.name(id)));
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

impl Selector {
    /// A booking is about to teach the rules of its pool.
    pub(in crate::router) fn say_routes(&mut self, id: BookingId, pool: PoolId, now: Millis) {
        let Some(sharing) = &mut self.sharing else {
            return;
        };
        let shared = &self.pools[pool.0 as usize];
        if !shared.tells_routes() {
            return;
        }
        let mut claims = Vec::new();
        for (part, rule) in shared.numbered() {
            claims.clear();
            rule.teaches(id, now, &mut |claim| claims.push(claim));
            entries(sharing, &self.fleet, (pool, part), &claims, |s, e| {
                s.journal.say(e, &[]);
            });
        }
    }

    /// Further messages of a snapshot: the routes of a pool, some at a time; `None` at the end.
    pub fn snapshot_routes(
        &mut self,
        pool: PoolId,
        told: &mut RoutesTold,
        now: Millis,
    ) -> Option<Vec<u8>> {
        let sharing = self.sharing.as_mut()?;
        let shared = self.pools.get(pool.0 as usize)?;
        if !shared.tells_routes() {
            return None;
        }
        loop {
            let (part, rule) = shared.numbered().nth(told.rules)?;
            let mut claims = Vec::new();
            let further =
                rule.publish_routes(told.told, PART, now, &mut |claim| claims.push(claim));
            let Some(further) = further else {
                *told = RoutesTold {
                    rules: told.rules + 1,
                    told: RouteCursor::default(),
                };
                continue;
            };
            told.told = further;
            let (mut bytes, mut count) = (Vec::new(), 0);
            entries(sharing, &self.fleet, (pool, part), &claims, |_, e| {
                put(&mut bytes, e, &[]);
                count += 1;
            });
            if count > 0 {
                let message = Message {
                    kind: Kind::Continued,
                    origin: sharing.origin,
                    first: sharing.journal.next(),
                    count,
                    entries: &bytes,
                };
                return Some(message.encode());
            }
        }
    }

    /// Another router learned routes.
    pub(super) fn learn_remote(
        &mut self,
        origin: u64,
        number: u64,
        (pool, part, worker): (u32, u32, u32),
        age_ms: u64,
        keys: Keys<'_>,
        now: Millis,
    ) {
        let Some((pool, worker, current)) = self.theirs(origin, (pool, worker), number) else {
            return;
        };
        if !current {
            self.sharing_mut().told.stale += 1;
            return;
        }
        let order = self.fleet.member(worker).map(|member| member.order);
        let rule = self.pools[pool.0 as usize].rule_numbered(part);
        let heard = order.zip(rule).and_then(|(order, rule)| {
            let claim = |(key, depth)| Claim {
                order,
                age_ms,
                key,
                depth,
            };
            let taken = keys.iter().map(|key| rule.receive_route(claim(key), now));
            taken.map(|taken| taken.map(u64::from)).sum::<Option<u64>>()
        });
        let told = &mut self.sharing_mut().told;
        match heard {
            Some(taken) => told.routes += taken,
            // A rule that learns no routes.
            None => told.strangers += 1,
        }
    }
}
