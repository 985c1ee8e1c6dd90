//! Which workers served which prefixes: a bounded table of routes.
//!
//! A route is the chained hash of a prefix, so the routes that begin a prompt are found by its own hashes, deepest
//! first. Only depths at which there is a route are looked up: a short table costs nothing, a full one a probe a block.
//!
//! Every worker of a route has a claim that ends a time after it last served the prefix. At the cap, routes heard from
//! others go before own ones, and of one rank the least recently used. Whoever uses a route uses its ancestors after
//! it, so of an idle conversation the deepest goes first.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::error::{Error, Result};
use crate::ids::{Millis, SequenceHash};

/// Workers that a route names; the oldest claim makes room.
const MAX_HOLDERS: usize = 16;

/// Sequence hashes are uniform already.
#[derive(Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = self.0.rotate_left(5) ^ hash;
    }
}

/// Whose observation a route is. The lower one goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Heard from another router.
    Remote,
    /// Seen here.
    Local,
}

/// A worker that served a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holder {
    order: u64,
    /// When.
    at: Millis,
}

/// One prefix.
#[derive(Debug)]
pub(super) struct Route {
    depth: u32,
    rank: Rank,
    /// Rises with every use of any route.
    used: u64,
    /// Oldest first, by when each was learned first.
    holders: Vec<Holder>,
}

/// How many routes there are and how long they live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub routes: usize,
    /// From then on a worker that served a prefix is no longer believed to hold it.
    pub ttl_ms: u64,
}

impl Limits {
    fn is_over(self, holder: Holder, now: Millis) -> bool {
        now.0.saturating_sub(holder.at.0) >= self.ttl_ms
    }
}

/// A route as seen at one time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen<'a> {
    route: &'a Route,
    limits: Limits,
    now: Millis,
}

impl Seen<'_> {
    /// Blocks of the prefix.
    pub fn depth(&self) -> u32 {
        self.route.depth
    }

    /// Registration orders of the workers that hold it, the first that learned it first.
    pub fn holders(&self) -> impl Iterator<Item = u64> {
        let live = |holder: &&Holder| !self.limits.is_over(**holder, self.now);
        self.route.holders.iter().filter(live).map(|h| h.order)
    }
}

/// All routes.
#[derive(Debug)]
pub(super) struct Routes {
    limits: Limits,
    table: HashMap<SequenceHash, Route, BuildHasherDefault<Identity>>,
    /// By rank and last use: the first goes first.
    queue: BTreeMap<(Rank, u64), SequenceHash>,
    /// Routes by depth.
    depths: BTreeMap<u32, u32>,
    uses: u64,
}

impl Routes {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            table: HashMap::default(),
            queue: BTreeMap::new(),
            depths: BTreeMap::new(),
            uses: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// The routes that begin the prompt with the blocks `path`, deepest first, at `now`.
    pub fn along<'a>(
        &'a self,
        path: &'a [SequenceHash],
        now: Millis,
    ) -> impl Iterator<Item = Seen<'a>> {
        self.depths
            .range(..=path.len() as u32)
            .rev()
            .filter_map(move |(&depth, _)| {
                let hash = path.get((depth as usize).checked_sub(1)?)?;
                let route = self.table.get(hash).filter(|route| route.depth == depth)?;
                Some(Seen {
                    route,
                    limits: self.limits,
                    now,
                })
            })
    }

    /// Marks the routes that begin `path` as used, the shallowest last.
    pub fn touch(&mut self, path: &[SequenceHash]) {
        let depths = self.depths.range(..=path.len() as u32).rev();
        let hashes = depths.filter_map(|(&depth, _)| path.get((depth as usize).checked_sub(1)?));
        for &hash in hashes {
            if let Some(route) = self.table.get_mut(&hash) {
                self.queue.remove(&(route.rank, route.used));
                route.used = self.uses;
                self.queue.insert((route.rank, route.used), hash);
                self.uses += 1;
            }
        }
    }

    /// The worker registered as `order` served the prefix of `depth` blocks that ends with `hash`. What others say never
    /// changes what was seen here.
    pub fn learn(&mut self, hash: SequenceHash, depth: u32, order: u64, rank: Rank, now: Millis) {
        let known = self.table.get(&hash);
        if known.is_some_and(|route| route.rank > rank) {
            return;
        }
        let mut route = self.take(hash).unwrap_or_else(|| Route {
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
            holder.at = holder.at.max(now);
        } else {
            if route.holders.len() == MAX_HOLDERS {
                let oldest = (0..MAX_HOLDERS).min_by_key(|&i| route.holders[i].at.0);
                route.holders.remove(oldest.unwrap_or(0));
            }
            route.holders.push(Holder { order, at: now });
        }
        self.queue.insert((route.rank, route.used), hash);
        *self.depths.entry(depth).or_default() += 1;
        self.table.insert(hash, route);
        self.shrink(now);
    }

    /// Drops routes beyond the cap, and from the old ends of the queue those that nobody holds any more.
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

    fn take(&mut self, hash: SequenceHash) -> Option<Route> {
        let route = self.table.remove(&hash)?;
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
        for (hash, route) in &mut self.table {
            route.holders.retain(|holder| holder.order != order);
            if route.holders.is_empty() {
                empty.push(*hash);
            }
        }
        for hash in empty {
            self.take(hash);
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let holders = |route: &Route| route.holders.capacity() * size_of::<Holder>();
        let queued = size_of::<(Rank, u64)>() + size_of::<SequenceHash>();
        self.table.capacity() * (size_of::<(SequenceHash, Route)>() + 1)
            + self.table.values().map(holders).sum::<usize>()
            + self.queue.len() * queued
            + self.depths.len() * size_of::<(u32, u32)>()
    }

    /// Recounts everything.
    pub fn validate(&self) -> Result<()> {
        let broken = |what: String| Err(Error::Invariant(what));
        let mut depths: BTreeMap<u32, u32> = BTreeMap::new();
        for (hash, route) in &self.table {
            *depths.entry(route.depth).or_default() += 1;
            if self.queue.get(&(route.rank, route.used)) != Some(hash) {
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
        if depths != self.depths {
            return broken("the routes by depth are counted wrongly".into());
        }
        Ok(())
    }
}
