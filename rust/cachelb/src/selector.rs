//! The selection step over a fleet: eligibility, rule, booking and record as one.
//!
//! [`Router`](crate::Router) wraps it; this is for hosts that bring their own lock, hashes and lists of workers. A minor
//! version may add fields to these types.
//!
//! ```
//! use cachelb::selector::{NamespaceKey, Offer, Offers, Origin, Profile, Request, Selector, Settings, assemble};
//! use cachelb::{Ending, Millis, Usage, hashing::Namespace};
//!
//! let parts = assemble("kv-aware", 7, NamespaceKey::of_process())?;
//! let settings = Settings { seed: 7, registered: true, ..Settings::default() };
//! let mut selector = Selector::new(settings, parts.pool);
//! for name in ["gpu0", "gpu1"] {
//!     selector.workers_mut().add(name, Profile::default(), Millis(0));
//! }
//! let mut hashes = Vec::new();
//! let tokens: Vec<u32> = (0..64).collect();
//! parts.reader.hasher.hash(&tokens, Namespace::default(), &[], &mut hashes);
//! let request = Request {
//!     blocks: Some((&hashes, Origin::Tokens)),
//!     prompt_tokens: 64,
//!     now: Millis(1),
//!     ..Request::default()
//! };
//! let mut offers = Offers::new(["gpu0", "gpu1"].map(Offer::new).to_vec());
//! let pick = selector.select(&mut offers, &request)?;
//! let booking = pick.booking.expect("it was booked");
//! assert!(selector.end(booking, Ending::Completed, Usage::default(), Millis(2)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Selector`] composes owners, each of which keeps its state to itself:
//!
//! | folder | holds |
//! |---|---|
//! | `request` | one request and its pick, the parts of a prompt that a rule needs, the fields of a body |
//! | `fleet` | the workers, the models they serve, their health, the candidates of one request |
//! | `indexes` | per model its rules and the blocks of workers, unconfirmed blocks, shared caches, peer groups, the memory budget |
//! | `bookings` | open decisions, counters and records, conversations and their workers, timing, captures |
//! | `select` | one selection from top to bottom: candidates, rows, choice, placement; pairs, batches, the end of a booking |
//! | `admission`, `gates` | limits of the load pending on a worker, and the queue of the requests that wait |
//! | `feeds` | changes by the KV events of an engine |
//! | `sharing` | state published to and received from other routers, and snapshots |

pub use cachelb_core::block_tracker::Origin;
pub use cachelb_core::hashing::NamespaceKey;
pub use cachelb_core::ids::{Millis, WorkerId};
pub use cachelb_policy::{Content, Placements};

pub use crate::admission::{GateId, Order, Passage, PendingLimits, Tenant, Ticket};
pub use crate::assembly::{Assembly, assemble};
pub use crate::bookings::Booking;
pub use crate::bookings::capture::{Capture, Captured, Renamed};
pub use crate::bookings::ledger::{
    Counters, Ending, Funnel, Ledger, Record, ShadowPick, ShadowTally, Usage, WorkerState,
};
pub use crate::bookings::timing::Timing;
pub use crate::feeds::Feed;
pub use crate::feeds::rank::{Access, Rank};
pub use crate::feeds::streams::{Feeds, SharedStreams, WorkerStreams};
pub use crate::fleet::block_sizes::{Disagreement, EngineKind, Facts};
pub use crate::fleet::health::{Breaker, News, Silence, Sleep};
pub use crate::fleet::membership::Workers;
pub use crate::fleet::model_name::CommonName;
pub use crate::fleet::names::{Name, TagKey, names_of, resolve, whole};
pub use crate::fleet::offers::{Offer, Offers};
pub use crate::fleet::roster::{Change, Registered, Roster, Worker, lock};
pub use crate::fleet::worker::{Eligibility, FeedStatus, Profile, Role};
pub use crate::fleet::{Fleet, may_be_worker};
pub use crate::gates::{Before, Calls, Gate, GateSettings, Gates, Newcomer, Tally, Waits, Way};
pub use crate::indexes::Pools;
pub use crate::indexes::blocks::Lost;
#[cfg(feature = "peers")]
pub use crate::indexes::naming::{Form, Naming, host_and_port};
pub use crate::indexes::peers::{PeerGroup, PeerTerms, Pulls};
pub use crate::indexes::pool::Pool;
pub use crate::indexes::shared_cache::{SharedCache, SharedTerms};
pub use crate::indexes::shared_readers::Readers;
pub use crate::request::bodies::{
    Bodies, BodySettings, Context, Counts, Headers, Tally as BodyTally,
};
pub use crate::request::body::{
    BYTES_PER_TOKEN, CONVENTIONS, Client, PromptRoom, Read, Room, Shape, response_name,
};
pub use crate::request::hints::{Hints, Model};
pub use crate::request::prompt::{LONG, Prompt, PromptBuffers, PromptReader};
pub use crate::request::token_scales::{Sample, Scales};
pub use crate::request::{Family, FamilyName, NoSource, Pick, PoolId, Request, Source, Wanted};
pub use crate::select::batch::BatchTerms;
pub use crate::select::pair::PairTerms;
pub use crate::select::policy_view::{Column, Survey};
#[cfg(feature = "peers")]
pub use crate::select::source::NamedSource;
pub use crate::select::trace::{Held, Row as TraceRow, Seen, Trace};
pub use crate::settings::{PoolSettings, Settings, Veto};
#[cfg(feature = "sharing")]
pub use crate::sharing::{
    Exchange, Keeper, Kept, Message, Receipt, Restoring, RouteCursor, Sharing, SharingCounters,
    Walk,
};

use std::sync::Arc;

use cachelb_core::error::{Error, Result};
use cachelb_core::rng::Rng;
use cachelb_policy::Ended;

use crate::Shared;
use crate::bookings::affinity::Affinity;
use crate::bookings::{Bookings, LoadBook};
use crate::fleet::failing_prompts::FailingPrompts;
use crate::indexes::blocks::Blocks;
use crate::select::candidates::{Candidates, condition};
#[cfg(feature = "peers")]
use crate::select::source::links::Links;

/// A fleet, its loads, and per model a block index and rules.
#[derive(Debug)]
pub struct Selector {
    pub(crate) settings: Settings,
    pub(crate) rng: Rng,
    pub(crate) fleet: Fleet,
    pub(crate) pools: Pools,
    pub(crate) candidates: Candidates,
    pub(crate) bookings: Bookings,
    pub(crate) affinity: Affinity,
    pub(crate) trace: Trace,
    pub(crate) failing_prompts: FailingPrompts,
    #[cfg(feature = "peers")]
    pub(crate) links: Links,
    /// Admission gates and the requests that wait behind them.
    pub gates: Gates,
    /// Open while the prompts of decisions are recorded.
    pub capture: Option<Capture>,
    /// State published to and received from other routers, if it is shared.
    pub(crate) sharing: Option<Shared>,
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
            bookings: Bookings::new(settings.records),
            affinity: Affinity::default(),
            trace: Trace::default(),
            failing_prompts: FailingPrompts::default(),
            #[cfg(feature = "peers")]
            links: Links::default(),
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

    /// Starts over with an empty book and empty counters, as the child of a fork must. The blocks of workers are kept.
    /// Returns how many bookings were open.
    pub fn forget_bookings(&mut self) -> usize {
        self.trace = Trace::default();
        #[cfg(feature = "peers")]
        (self.links = Links::default());
        self.failing_prompts = FailingPrompts::default();
        self.fleet.forget_probes();
        self.gates.forget();
        self.capture = None;
        self.sharing = None;
        for booking in self.bookings.book.bookings.payloads_mut() {
            let rules = &mut self.pools[booking.pool].rules;
            rules.each_memo(&mut booking.memos, |own, memory| {
                own.ended(memory, Ended::Unknown);
            });
        }
        self.pools.each_rule(|own| own.ended_all());
        self.pools.change_all(|_| true, Blocks::forget_bookings);
        self.bookings.forget(self.settings.records)
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

    /// The load book.
    #[must_use]
    pub fn book(&self) -> &LoadBook {
        &self.bookings.book
    }

    /// Counters and records.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.bookings.ledger
    }

    /// As [`Self::ledger`], to count.
    pub fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.bookings.ledger
    }

    /// Candidates of the latest decisions.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Profile of a registered worker, and the condition that keeps it from being picked now, whatever the request.
    #[must_use]
    pub fn condition(&self, id: WorkerId, now: Millis) -> Option<(&Profile, Eligibility)> {
        let member = self.fleet.member(id)?;
        let report = self.book().loads.get(id).map(|load| &load.report);
        let eligibility = condition(member, report, &self.settings, now);
        Some((&member.profile, eligibility))
    }

    /// Tokens that the cache of a worker holds, `None` if that is not known.
    #[must_use]
    pub fn cache_tokens(&self, id: WorkerId) -> Option<u64> {
        let block_size = self.pools[PoolId::default()].block_size;
        self.fleet.member(id)?.sizes().tokens(block_size)
    }

    /// Heap bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.pools.memory_bytes()
            + self.capture.as_ref().map_or(0, |capture| capture.bytes)
            + match &self.sharing {
                Some(sharing) => sharing.memory_bytes(),
                None => 0,
            }
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first disagreement.
    pub fn validate(&self) -> Result<()> {
        self.bookings.validate()?;
        self.gates.validate()?;
        (self.sharing.as_ref()).map_or(Ok(()), |sharing| sharing.validate(&self.bookings))?;
        let book = self.book();
        for (name, id) in self.fleet.ids() {
            if self.fleet.member(id).is_none() || book.loads.get(id).is_none() {
                return Err(Error::Invariant(format!("worker {name:?} has no columns")));
            }
        }
        self.pools.validate()?;
        let (rows, max_age) = (&self.candidates.rows, self.settings.max_report_age_ms);
        rows.validate(&self.fleet, book, max_age)
    }
}
