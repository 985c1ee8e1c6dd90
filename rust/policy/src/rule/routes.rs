//! Which workers served which prefixes: a bounded table of routes.
//!
//! The key of a route is the chained hash of a prefix, hashed once more with the seed of the fleet, so the routes that
//! begin a prompt are found by its own hashes, deepest first. Only depths at which there is a route are looked up: a short
//! table costs nothing, a full one a probe a block. Routers with one seed publish their keys to each other, but never
//! the hashes: those may be the caller's, made without a seed.
//!
//! Every worker of a route has a claim that ends a time after it last served the prefix. At the cap, remote routes go
//! before local ones, and within one rank the least recently used. A use of a route uses its ancestors after it, so the
//! deepest route of an idle conversation goes first.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use cachelb_core::collections::heap_bytes;
use cachelb_core::collections::seeded_hash::SeededHash;
use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{Millis, RouteKey, SequenceHash};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::rule::memo::Lesson;

/// Workers that a route names; the oldest claim makes room.
const MAX_HOLDERS: usize = 16;

/// That a worker served a prefix, as routers publish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Registration order of the worker.
    pub order: u64,
    /// How long ago it served.
    pub age_ms: u64,
    /// The prefix.
    pub key: RouteKey,
    /// Its blocks, at least one.
    pub depth: u32,
}

/// How far routes were published: those after it are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoutePosition(Option<(Rank, u64)>);

/// Whose observation a route is. The lower one goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Received from another router.
    Remote,
    /// Seen here.
    Local,
}

/// A worker that served a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holder {
    order: u64,
    /// End of the claim. Clocks of routers begin at different times: a remote observation may be older than the clock.
    until: Millis,
}

/// One prefix.
#[derive(Debug)]
pub struct Route {
    /// Blocks of the prefix.
    pub depth: u32,
    rank: Rank,
    /// Rises with every use of any route.
    used: u64,
    /// Oldest first, by when each was learned first.
    holders: Vec<Holder>,
}

/// How many routes there are and how long they live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub routes: usize,
    /// Time after which a worker that served a prefix is no longer assumed to hold it.
    pub ttl_ms: u64,
}

impl Limits {
    fn is_over(&self, holder: Holder, now: Millis) -> bool {
        self.ttl_ms < u64::MAX && holder.until <= now
    }
}

/// All routes.
#[derive(Debug)]
pub struct Routes {
    limits: Limits,
    table: HashMap<RouteKey, Route, SeededHash>,
    /// By rank and last use: the first goes first.
    queue: BTreeMap<(Rank, u64), RouteKey>,
    /// Routes received from other routers.
    remote: usize,
    /// Routes by depth.
    depths: BTreeMap<u32, u32>,
    uses: u64,
    seed: u64,
}

impl Routes {
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self {
            limits,
            seed,
            remote: 0,
            table: HashMap::default(),
            queue: BTreeMap::new(),
            depths: BTreeMap::new(),
            uses: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// How many of them were received from other routers.
    pub fn remote(&self) -> usize {
        self.remote
    }

    /// The key of the prefix that ends with the block `hash`.
    pub fn key(&self, hash: SequenceHash) -> RouteKey {
        RouteKey(xxh3_64_with_seed(&hash.0.to_le_bytes(), self.seed))
    }

    /// The claims of a lesson, the deepest first: it is the first to go.
    pub fn claims(&self, lesson: &Lesson, now: Millis) -> impl Iterator<Item = Claim> {
        lesson.keys.iter().rev().map(move |&(hash, depth)| Claim {
            order: lesson.order,
            age_ms: now.0.saturating_sub(lesson.at.0),
            key: self.key(hash),
            depth,
        })
    }

    /// The routes that begin the prompt with the blocks `path`, deepest first.
    pub fn along<'a>(&'a self, path: &'a [SequenceHash]) -> impl Iterator<Item = &'a Route> {
        self.depths
            .range(..=path.len() as u32)
            .rev()
            .filter_map(move |(&depth, _)| {
                let hash = path.get((depth as usize).checked_sub(1)?)?;
                let route = self.table.get(&self.key(*hash));
                route.filter(|route| route.depth == depth)
            })
    }

    /// Registration orders of the workers that hold a route at `now`, the first that learned it first.
    pub fn holders(&self, route: &Route, now: Millis) -> impl Iterator<Item = u64> {
        let live = move |holder: &&Holder| !self.limits.is_over(**holder, now);
        route.holders.iter().filter(live).map(|holder| holder.order)
    }

    /// Marks the routes that begin `path` as used, the shallowest last.
    pub fn touch(&mut self, path: &[SequenceHash]) {
        let depths = self.depths.range(..=path.len() as u32).rev();
        let hashes = depths.filter_map(|(&depth, _)| path.get((depth as usize).checked_sub(1)?));
        for &hash in hashes {
            let key = self.key(hash);
            if let Some(route) = self.table.get_mut(&key) {
                self.queue.remove(&(route.rank, route.used));
                route.used = self.uses;
                self.queue.insert((route.rank, route.used), key);
                self.uses += 1;
            }
        }
    }

    /// A worker served a prefix. A remote claim never changes a local one. Returns whether it was taken in.
    pub fn learn(&mut self, claim: Claim, rank: Rank, now: Millis) -> bool {
        let Claim {
            order,
            age_ms,
            key,
            depth,
        } = claim;
        let known = self.table.get(&key);
        let left_ms = self.limits.ttl_ms.saturating_sub(age_ms);
        if left_ms == 0 || known.is_some_and(|route| route.rank > rank) {
            return false;
        }
        let until = Millis(now.0.saturating_add(left_ms));
        let mut route = self.take(key).unwrap_or_else(|| Route {
            depth,
            rank,
            used: 0,
            holders: Vec::with_capacity(1),
        });
        (route.depth, route.rank, route.used) = (depth, rank, self.uses);
        self.uses += 1;
        let limits = self.limits;
        route
            .holders
            .retain(|holder| holder.order == order || !limits.is_over(*holder, now));
        if let Some(holder) = route.holders.iter_mut().find(|h| h.order == order) {
            holder.until = holder.until.max(until);
        } else {
            if route.holders.len() == MAX_HOLDERS {
                let oldest = (0..MAX_HOLDERS).min_by_key(|&i| route.holders[i].until.0);
                route.holders.remove(oldest.unwrap_or(0));
            }
            route.holders.push(Holder { order, until });
        }
        self.queue.insert((route.rank, route.used), key);
        *self.depths.entry(depth).or_default() += 1;
        self.remote += usize::from(rank == Rank::Remote);
        self.table.insert(key, route);
        self.shrink(now);
        true
    }

    /// Calls `each` with the claims on the next routes behind `after` that are alive at `now`, at most `most` routes, the
    /// first to go first. A route that is used meanwhile moves back: it may be published twice, none is left out. Returns how
    /// far it came, `None` at the end.
    pub fn publish(
        &self,
        after: RoutePosition,
        most: usize,
        now: Millis,
        each: &mut dyn FnMut(Claim),
    ) -> Option<RoutePosition> {
        let from = after.0.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for (&at, &key) in self.queue.range((from, Bound::Unbounded)).take(most) {
            last = Some(at);
            let Some(route) = self.table.get(&key) else {
                continue;
            };
            let live = route.holders.iter();
            for holder in live.filter(|holder| !self.limits.is_over(**holder, now)) {
                let ttl_ms = now.0.saturating_add(self.limits.ttl_ms);
                each(Claim {
                    order: holder.order,
                    age_ms: ttl_ms.saturating_sub(holder.until.0),
                    key,
                    depth: route.depth,
                });
            }
        }
        last.map(|at| RoutePosition(Some(at)))
    }

    /// Drops routes beyond the cap, and from the old ends of the queue those that no worker holds any more.
    fn shrink(&mut self, now: Millis) {
        while self.table.len() > self.limits.routes {
            let Some((_, &victim)) = self.queue.first_key_value() else {
                return;
            };
            self.take(victim);
        }
        for rank in [Rank::Remote, Rank::Local] {
            while let Some((_, &oldest)) = self.queue.range((rank, 0)..=(rank, u64::MAX)).next() {
                let live = |holder: &Holder| !self.limits.is_over(*holder, now);
                let route = self.table.get(&oldest);
                if route.is_none_or(|route| route.holders.iter().any(live)) {
                    break;
                }
                self.take(oldest);
            }
        }
    }

    fn take(&mut self, key: RouteKey) -> Option<Route> {
        let route = self.table.remove(&key)?;
        self.remote -= usize::from(route.rank == Rank::Remote);
        self.queue.remove(&(route.rank, route.used));
        if let Some(count) = self.depths.get_mut(&route.depth) {
            *count -= 1;
            if *count == 0 {
                self.depths.remove(&route.depth);
            }
        }
        Some(route)
    }

    /// Ends the claims of the worker registered as `order`.
    pub fn forget(&mut self, order: u64) {
        let mut empty = Vec::new();
        for (key, route) in &mut self.table {
            route.holders.retain(|holder| holder.order != order);
            if route.holders.is_empty() {
                empty.push(*key);
            }
        }
        for key in empty {
            self.take(key);
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let holders = |route: &Route| route.holders.capacity() * size_of::<Holder>();
        heap_bytes::table(&self.table)
            + self.table.values().map(holders).sum::<usize>()
            + heap_bytes::tree(&self.queue)
            + heap_bytes::tree(&self.depths)
    }

    /// Recounts everything.
    pub fn validate(&self) -> Result<()> {
        let broken = |what: String| Err(Error::Invariant(what));
        let mut depths: BTreeMap<u32, u32> = BTreeMap::new();
        let mut remote = 0;
        for (key, route) in &self.table {
            *depths.entry(route.depth).or_default() += 1;
            remote += usize::from(route.rank == Rank::Remote);
            if self.queue.get(&(route.rank, route.used)) != Some(key) {
                return broken(format!("a route of {} blocks is not queued", route.depth));
            }
            if !(1..=MAX_HOLDERS).contains(&route.holders.len()) {
                return broken(format!("a route has {} holders", route.holders.len()));
            }
        }
        if self.queue.len() != self.table.len() || self.table.len() > self.limits.routes {
            return broken(format!(
                "{} routes, {} queued, at most {}",
                self.table.len(),
                self.queue.len(),
                self.limits.routes
            ));
        }
        if remote != self.remote {
            let counted = self.remote;
            return broken(format!("{remote} routes of others, {counted} counted"));
        }
        if depths != self.depths {
            return broken("the routes by depth are counted wrongly".into());
        }
        Ok(())
    }
}
