//! The selection step over a fleet: eligibility, rule, booking and record as one.
//!
//! [`Selector`] composes owners, each of which keeps its state to itself:
//!
//! | file | owner of |
//! |---|---|
//! | `fleet`, `member` | who the workers are, what they serve, whether they take requests now |
//! | `pools`, `pool`, `rules`, `blocks` | per model its rules and what workers hold |
//! | `budget` | the bytes of all indexes |
//! | `candidates`, `rows` | the rows a rule sees, kept from one request to the next |
//! | `decisions`, `ledger` | bookings, and what became of them, for counters and records |
//! | `homes` | which worker served a conversation last, and which made a stored response |
//! | `trace` | what the latest decisions saw, for explanations |
//! | `scales` | how many tokens texts have, learned from engines |
//! | `checks` | whether engines find cached what their events promised |
//! | `hidden` | what was predicted of engines whose events leave out cache groups |
//! | `capture` | the prompts of the latest decisions as hashes, while a capture runs |
//! | `sharing` | what this router publishes and receives |
//! | `gates` | who waits for room, and whose turn it is |
//!
//! | file | job |
//! |---|---|
//! | `select` | one selection from top to bottom |
//! | `scene` | the choice among the candidates |
//! | `placement` | what a routed request leaves in the index |
//! | `pair`, `batch` | the selection of two workers, and of several requests, at once |
//! | `survey` | the candidates for a policy outside |
//! | `bookings` | what happens to a booking after it |
//! | `workers` | workers come, change and go |
//! | `feed` | what KV events of an engine change |
//! | `rank` | one rank of a worker as its event stream sees it |
//! | `shared_cache`, `readers` | caches that workers of a model read, and which |
//!
//! | file | values |
//! |---|---|
//! | `settings` | what a selector and its pools are built from |
//! | `assembly` | the same of a policy on its own |
//! | `prompt` | what a rule takes from a prompt: hashes, its head, its content |
//! | `body` | what a request body says, in memory that is kept |
//! | `request` | one request, and the pick that answers it |
//! | `offers` | the workers offered to one request |
//! | `naming` | the name of a worker in every output |
//! | `common_name` | which of the undeclared models the engines serve |
//! | `sizes` | engines whose blocks are not of the router's size |
//! | `shared_answer` | what the shared cache of a model adds to its candidates |
//! | `admission` | what may be pending on a worker, and the queue of those that wait |
//! | `usable` | how much of what a worker holds its engine can reuse |
//! | `health` | failures and silence of a worker |
//! | `suspects` | prompts that fail on several workers |
//! | `leases` | placements on workers with events |
//! | `timing` | how long selections took |

mod admission;
mod assembly;
mod batch;
mod blocks;
mod body;
mod bookings;
mod budget;
mod candidates;
mod capture;
mod checks;
mod common_name;
mod contradictions;
mod decisions;
mod feed;
mod fleet;
mod gates;
mod health;
mod hidden;
mod homes;
mod known_ends;
mod leases;
mod ledger;
mod member;
mod naming;
mod offers;
mod pair;
mod placement;
mod pool;
mod pools;
mod prompt;
mod rank;
mod readers;
mod request;
mod rows;
mod rules;
mod scales;
mod scene;
mod select;
mod settings;
mod shared_answer;
mod shared_cache;
mod sharing;
mod size_check;
mod sizes;
mod survey;
mod suspects;
mod timing;
mod trace;
mod usable;
mod workers;

pub use admission::{GateId, Order, Passage, PendingLimits, Tenant, Ticket};
pub use assembly::Assembly;
pub use batch::BatchTerms;
pub use blocks::Lost;
pub use body::{
    BYTES_PER_TOKEN, CONVENTIONS, Client, PromptRoom, Read, Room, Shape, response_name,
};
pub use cachelb_policy::Placements;
pub use capture::{Capture, Captured, Renamed};
pub use common_name::CommonName;
pub use feed::Feed;
pub use fleet::{Fleet, may_be_worker};
pub use gates::{Before, Calls, Gate, GateSettings, Gates, Newcomer, Passed, Tally};
pub use health::{Breaker, News, Silence, Sleep};
pub use ledger::{
    Counters, Ending, Funnel, Ledger, Record, ShadowPick, ShadowTally, Usage, WorkerState,
};
pub use member::{Eligibility, FeedStatus, Profile, Role};
pub use naming::{Name, TagKey, whole};
pub use offers::{Offer, Offers};
pub use pair::PairTerms;
pub use pool::Pool;
pub use pools::Pools;
pub use prompt::{LONG, Prompt, PromptBuffers, PromptReader};
pub use rank::{Access, Rank};
pub use readers::Readers;
pub use request::{Family, FamilyName, Pick, PoolId, Request, Wanted};
pub use scales::{Sample, Scales};
pub use settings::{PoolSettings, Settings, Veto};
pub use shared_cache::{SharedCache, SharedTerms};
pub use sharing::{
    Exchange, Keeper, Kept, Receipt, Restoring, RouteCursor, Sharing, SharingCounters, Walk,
};
pub use sizes::{Disagreement, EngineKind, Facts};
pub use survey::{Column, Survey};
pub use timing::Timing;
pub use trace::{Held, Row as TraceRow, Seen, Trace};
pub use workers::Workers;

use std::sync::Arc;

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::load::LoadBook;
use cachelb_core::rng::Rng;

use self::blocks::Blocks;
use self::candidates::{Candidates, condition};
use self::checks::Checks;
use self::decisions::Decisions;
use self::hidden::Predictions;
use self::homes::Homes;
use self::suspects::Suspects;

/// A fleet, its loads, and per model a block index and rules.
#[derive(Debug)]
pub struct Selector {
    settings: Settings,
    rng: Rng,
    fleet: Fleet,
    pools: Pools,
    candidates: Candidates,
    decisions: Decisions,
    homes: Homes,
    trace: Trace,
    checks: Checks,
    predictions: Predictions,
    suspects: Suspects,
    gates: Gates,
    /// Open while the prompts of decisions are recorded.
    capture: Option<Capture>,
    /// What this router publishes and receives, if it does.
    sharing: Option<Box<Sharing>>,
}

impl Selector {
    /// An empty fleet under `settings` that serves one model.
    #[must_use]
    pub fn new(settings: Settings, pool: PoolSettings) -> Self {
        let mut pools = Pools::new(settings.max_memory_bytes);
        pools.open(Pool::new(pool, settings.seed));
        Self {
            rng: Rng::new(settings.seed),
            fleet: Fleet::default(),
            pools,
            candidates: Candidates::default(),
            decisions: Decisions::new(settings.records),
            homes: Homes::default(),
            trace: Trace::default(),
            checks: Checks::default(),
            predictions: Predictions::default(),
            suspects: Suspects::default(),
            gates: Gates::default(),
            capture: None,
            sharing: None,
            settings,
        }
    }

    /// Opens the pool of one more model. Workers that serve every model serve it too.
    pub fn add_pool(&mut self, settings: PoolSettings) -> PoolId {
        let id = self.pools.open(Pool::new(settings, self.settings.seed));
        for (_, worker) in self.fleet.ids() {
            if let Some(member) = self.fleet.member(worker) {
                self.pools.add_worker_to(id, worker, member);
            }
        }
        id
    }

    /// Starts over with an empty book and empty counters, as the child of a fork must. What workers hold stays known.
    /// Returns how many bookings were open.
    pub fn forget_bookings(&mut self) -> usize {
        self.trace = Trace::default();
        self.checks = Checks::default();
        self.predictions = Predictions::default();
        self.suspects = Suspects::default();
        self.fleet.forget_probes();
        self.gates.forget();
        self.capture = None;
        self.sharing = None;
        self.pools.each_rule(|rule| rule.ended_all());
        self.pools.change_all(|_| true, Blocks::forget_bookings);
        self.decisions.forget(self.settings.records)
    }

    /// The workers, to change them.
    pub fn workers_mut(&mut self) -> Workers<'_> {
        Workers(self)
    }

    /// Findings about workers since the last time, with their keys.
    pub fn take_news(&mut self) -> Vec<(Arc<str>, News)> {
        self.fleet.take_news()
    }

    /// Who the workers are.
    #[must_use]
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Rules and blocks of the models.
    #[must_use]
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// What this router publishes and keeps of others, if it shares.
    #[must_use]
    pub fn sharing(&self) -> Option<&Sharing> {
        self.sharing.as_deref()
    }

    /// What this router and others exchange.
    pub fn sharing_mut(&mut self) -> Exchange<'_> {
        Exchange(self)
    }

    /// The load book.
    #[must_use]
    pub fn book(&self) -> &LoadBook {
        &self.decisions.book
    }

    /// Counters and records.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.decisions.ledger
    }

    /// The same, to count.
    pub fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.decisions.ledger
    }

    /// Who waits for room.
    #[must_use]
    pub fn gates(&self) -> &Gates {
        &self.gates
    }

    /// The same, to open gates and to close them.
    pub fn gates_mut(&mut self) -> &mut Gates {
        &mut self.gates
    }

    /// What the latest decisions saw.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// What a registered worker is, and what would keep it from being picked now, whatever the request.
    #[must_use]
    pub fn condition(&self, id: WorkerId, now: Millis) -> Option<(&Profile, Eligibility)> {
        let member = self.fleet.member(id)?;
        let report = self.book().loads.get(id).map(|load| &load.report);
        let eligibility = condition(member, report, &self.settings, now);
        Some((&member.profile, eligibility))
    }

    /// The capture of the prompts of decisions, while there is one.
    pub fn capture_mut(&mut self) -> &mut Option<Capture> {
        &mut self.capture
    }

    /// Tokens that the cache of a worker holds, `None` if that is not known.
    #[must_use]
    pub fn cache_tokens(&self, id: WorkerId) -> Option<u64> {
        let block_size = self.pools[PoolId::default()].block_size();
        self.fleet.member(id)?.sizes().tokens(block_size)
    }

    /// Heap bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.pools.memory_bytes()
            + self.capture.as_ref().map_or(0, Capture::memory_bytes)
            + self.sharing.as_ref().map_or(0, |s| s.memory_bytes())
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first disagreement.
    pub fn validate(&self) -> Result<()> {
        let remote = self.sharing.as_ref().map(|sharing| sharing.bookings());
        let is_remote = |id| remote.as_ref().is_some_and(|remote| remote.contains(&id));
        self.decisions.validate(is_remote)?;
        self.gates.validate()?;
        self.sharing.as_ref().map_or(Ok(()), |s| s.validate())?;
        let book = self.book();
        for (name, id) in self.fleet.ids() {
            if self.fleet.member(id).is_none() || book.loads.get(id).is_none() {
                return Err(Error::Invariant(format!("worker {name:?} has no columns")));
            }
        }
        self.pools.validate(book.bookings.len())?;
        let (rows, max_age) = (&self.candidates.rows, self.settings.max_report_age_ms);
        rows.validate(&self.fleet, book, max_age)
    }
}

#[cfg(test)]
mod tests;
