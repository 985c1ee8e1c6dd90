//! A prefix that ends where a message ends goes where it was served before.
//!
//! ```text
//! keys: the ends of the messages in whole blocks, else a prefix of fixed length
//! the deepest route that begins the prompt names w:
//!     load(w) within the bound                        -> prefix
//!     else the least loaded worker                    -> diverted
//! no route: a hash ring by the first key, bounded     -> hash, hash-bounded
//! no key                                              -> cold spread (short-prompt, no-key)
//! bound: load_imbalance_factor * lower median + load_imbalance_floor
//! served: every key becomes a route to the worker, or only the first
//! ```
//!
//! A route with several workers names the least loaded; a route all of whose workers are away is passed over for the
//! next shallower one. A request that fails before its first token teaches nothing.

mod options;

use cachelb_core::error::Result;
use cachelb_core::ids::Millis;
use cachelb_core::rng::Rng;

pub use self::options::BoundaryLearningOptions;
pub(crate) use self::options::POLICY;
use crate::common::bounded;
use crate::common::ring::{Ring, VNODES};
use crate::rule::Rule;
use crate::rule::choice::Choice;
use crate::rule::memo::{Lesson, Memory, Memos};
use crate::rule::options::Seconds;
use crate::rule::parts::{Ended, State, state};
use crate::rule::reason::Reason;
use crate::rule::routes::{Claim, Limits, Rank, Route, Routes};
use crate::rule::view::{Candidate, View, cold_spread, lowest};

/// Requests over the bound of `load_imbalance_factor`, of all routers.
const LOAD_IMBALANCE_FLOOR: f64 = 2.0;

/// The worker whose route a diverted request makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Teaches {
    /// The worker that served it, which becomes a holder beside the one of the route.
    Served,
    /// The worker of the route, as if it had served.
    Original,
}

/// The rule, its routes and its ring.
#[derive(Debug)]
pub struct BoundaryLearning {
    options: BoundaryLearningOptions,
    /// Routers that share the load.
    replicas: f64,
    routes: Routes,
    ring: Ring,
}

/// The route that begins a request's prompt.
struct Match {
    /// The least loaded holder.
    row: usize,
    depth: u32,
    /// The first holder that is there.
    original: u64,
}

impl BoundaryLearning {
    /// A rule that has learned nothing; routers that must agree share the seed.
    #[must_use]
    pub fn new(options: BoundaryLearningOptions, replicas: f64, seed: u64) -> Self {
        let limits = Limits {
            routes: options.max_routes,
            ttl_ms: Seconds::or_for_ever(options.ttl_s),
        };
        Self {
            routes: Routes::new(limits, seed),
            ring: Ring::new(VNODES, seed),
            options,
            replicas,
        }
    }

    /// Depths in blocks at which the prompt is learned, rising.
    fn keys(&self, view: &View<'_>) -> Vec<u32> {
        let blocks = view.total_blocks().unwrap_or(0);
        let block_size = u64::from(view.block_size);
        let least = self.options.min_prefix_boundary_tokens;
        let is_key =
            |depth: &u32| (1..=blocks).contains(depth) && u64::from(*depth) * block_size >= least;
        let mut keys: Vec<u32> = view.boundaries.iter().copied().filter(is_key).collect();
        keys.dedup();
        if keys.is_empty() {
            let fixed = self.options.prefix_token_length / block_size;
            let fixed = u32::try_from(fixed).unwrap_or(u32::MAX).min(blocks);
            keys.extend(Some(fixed).filter(|&depth| depth > 0));
        }
        if !self.options.multi_depth {
            keys.truncate(1);
        }
        keys
    }

    fn find(&self, view: &View<'_>, rng: &mut Rng) -> Option<Match> {
        let path = view.blocks?;
        let rows = view.rows;
        let row_of = |route: &Route| {
            let holders = || self.routes.holders(route, view.now);
            let holds = |row: &Candidate| holders().any(|order| order == row.order);
            let row = lowest(rows, rng, holds, Candidate::load)?;
            let is_here = |order: &u64| rows.iter().any(|row| row.order == *order);
            let original = holders().find(is_here)?;
            Some(Match {
                row,
                depth: route.depth,
                original,
            })
        };
        self.routes.along(path).find_map(row_of)
    }

    /// Whether a request of the route of `row` goes elsewhere.
    fn is_over(&self, rows: &[Candidate], row: usize) -> bool {
        let Some(factor) = self.options.load_imbalance_factor else {
            return false;
        };
        let bound = factor * lower_median(rows) + LOAD_IMBALANCE_FLOOR / self.replicas;
        rows[row].load() > bound
    }

    /// Where nothing is learned yet: by hash of the first key, bounded.
    fn by_hash(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let first = self.keys(view).first().map(|&depth| depth as usize - 1);
        let first = first.and_then(|at| view.blocks?.get(at).copied());
        let prefix = first.map(|hash| hash.0.to_le_bytes());
        let key = prefix.as_ref().map(<[u8; 8]>::as_slice).or(view.key);
        let Some(key) = key else {
            let reason = view
                .total_blocks()
                .map_or(Reason::NoKey, |_| Reason::ShortPrompt);
            return Choice::cold(cold_spread(view.rows, rng), reason);
        };
        bounded::choose(&self.ring, view, key, self.options.epsilon)
    }

    /// Depths of the routes that begin the prompt, rising.
    #[cfg(test)]
    pub(crate) fn depths(&self, view: &View<'_>) -> Vec<u32> {
        let path = view.blocks.unwrap_or_default();
        let routes = self.routes.along(path);
        let mut depths: Vec<u32> = routes.map(|route| route.depth).collect();
        depths.reverse();
        depths
    }

    /// The key of the prefix that ends with `hash`.
    #[cfg(test)]
    pub(crate) fn key(&self, hash: cachelb_core::ids::SequenceHash) -> cachelb_core::ids::RouteKey {
        self.routes.key(hash)
    }
}

/// The median of the loads; of an even number of them the lower one, so that of two workers one can be over it.
fn lower_median(rows: &[Candidate]) -> f64 {
    let mut loads: Vec<f64> = rows.iter().map(Candidate::load).collect();
    let middle = (loads.len() - 1) / 2;
    *loads.select_nth_unstable_by(middle, f64::total_cmp).1
}

impl Rule for BoundaryLearning {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let Some(found) = self.find(view, rng) else {
            return self.by_hash(view, rng);
        };
        if !self.is_over(view.rows, found.row) {
            return Choice::warm(found.row, Reason::Prefix);
        }
        match lowest(view.rows, rng, |_| true, Candidate::load) {
            Some(other) if other != found.row => Choice::warm(other, Reason::Diverted),
            _ => Choice::warm(found.row, Reason::Prefix),
        }
    }

    fn settled(&mut self, view: &View<'_>, choice: Choice, _served: usize, memos: &mut Memos<'_>) {
        self.ring.settle(view);
        let Some(path) = view.blocks else { return };
        let mut order = view.rows[choice.row].order;
        if matches!(choice.reason, Reason::Prefix | Reason::Diverted)
            // Draws from another generator: only the fields of a match that no tie decides are used.
            && let Some(found) = self.find(view, &mut Rng::new(0))
        {
            self.routes.touch(&path[..found.depth as usize]);
            if choice.reason == Reason::Diverted && self.options.learn == Teaches::Original {
                order = found.original;
            }
        }
        let key = |depth: u32| (path[depth as usize - 1], depth);
        let lesson = Lesson {
            order,
            at: view.now,
            keys: self.keys(view).into_iter().map(key).collect(),
        };
        if !lesson.keys.is_empty() {
            memos.keep(Memory::Lesson(lesson));
        }
    }

    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        Some(view.rows[row].load())
    }

    state!(own => *own);

    fn routed(&self) -> Option<&Routes> {
        Some(&self.routes)
    }

    fn routed_mut(&mut self) -> Option<&mut Routes> {
        Some(&mut self.routes)
    }
}

impl State for BoundaryLearning {
    fn forget(&mut self, order: u64) {
        self.routes.forget(order);
        self.ring.forget(order);
    }

    fn cache_lost(&mut self, order: u64) {
        self.routes.forget(order);
    }

    fn memory_bytes(&self) -> usize {
        self.routes.memory_bytes()
    }

    fn validate(&self) -> Result<()> {
        self.routes.validate()
    }

    fn proven(&mut self, memory: &mut Memory, _first_token: Option<Millis>) {
        let Memory::Lesson(lesson) = memory else {
            return;
        };
        let claims: Vec<Claim> = self.routes.claims(lesson, lesson.at).collect();
        for claim in claims {
            self.routes.learn(claim, Rank::Local, lesson.at);
        }
        lesson.keys = Box::default();
    }

    fn ended(&mut self, memory: &mut Memory, ended: Ended) {
        if ended == Ended::Served {
            self.proven(memory, None);
        }
    }
}
