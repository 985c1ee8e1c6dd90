//! Limits and queue of one admission, and whose turn it is.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

use cachelb_core::block_tracker::Origin;
use cachelb_core::error::{Error, Result};
use cachelb_core::ids::{Millis, SequenceHash, WorkerId};

use super::room::Usable;
use crate::admission::{
    Bounds, Charged, Class, Entry, Full, GateId, Late, Order, Passage, PendingLimits, Queue,
    Tenant, Terms, Ticket,
};
use crate::request::{PoolId, Request};

/// Bands that are counted each; others are counted with the lowest of these.
const BANDS: usize = 16;
/// Tokens that a generated one counts for, beside one of the prompt.
const OUTPUT_WEIGHT: u64 = 2;

/// Settings of a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct GateSettings {
    /// Limits of the pending load on a worker.
    pub limits: PendingLimits,
    /// Routers that serve the same workers.
    pub routers: u32,
    /// How late first tokens are reported, in milliseconds.
    pub lag_ms: f64,
    /// The order of those that wait.
    pub order: Order,
    /// Whether tenants take turns by service received.
    pub is_fair: bool,
    /// Weights of tenants, 1 for others.
    pub weights: Vec<(Tenant, f64)>,
    /// Requests that may wait.
    pub most: usize,
}

cachelb_core::counted! {
    /// Outcomes of the requests of a band.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Tally {
        /// Went to a worker at once.
        pub admitted: u64,
        /// Went to a worker after they had waited.
        pub released: u64,
        /// Refused as they came: no room, or the queue is full.
        pub refused: u64,
        /// Refused as they had waited too long.
        pub expired: u64,
        /// Refused for one of a higher band.
        pub displaced: u64,
        /// Given up while they waited.
        pub cancelled: u64,
        /// Milliseconds that the released ones waited.
        pub waited_ms: u64,
    }
}

/// The counts of a band, or of the lowest where there are many.
fn band_of(tallies: &mut BTreeMap<i64, Tally>, priority: i64) -> &mut Tally {
    let is_known = tallies.contains_key(&priority) || tallies.len() < BANDS;
    let lowest = tallies.keys().next().copied();
    let band = lowest.filter(|_| !is_known).unwrap_or(priority);
    tallies.entry(band).or_default()
}

/// State of a request that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Calls it.
    pub waker: Waker,
    /// Whether the deadline is the caller's own, and not that of all requests.
    pub own_deadline: bool,
    /// Its blocks, where the order depends on the cached part.
    pub blocks: Option<(PoolId, Box<[SequenceHash]>, Origin)>,
    /// Its length as its blocks count it.
    pub units: u64,
    /// The round in which it tried last.
    pub tried: u64,
}

/// One admission.
#[derive(Debug)]
pub struct Gate {
    pub(super) settings: GateSettings,
    pub(super) queue: Queue<Waiting>,
    late: Late,
    /// Candidates that waiting requests can use, and the number of requests for each.
    classes: HashMap<Class, (Usable, usize)>,
    numbers: HashMap<Usable, Class>,
    next_class: u32,
    /// By caller, the one that was called and has not tried yet.
    pub(super) turns: HashMap<u64, Ticket>,
    /// Events so far. Each lets everyone try once.
    pub(super) round: u64,
    /// The one that looks again when something changes without an event.
    pub(super) watcher: Option<Ticket>,
    /// Whether a rule declined the request that tried last.
    pub(super) is_declined: bool,
    /// Those that were displaced and do not know.
    pub(super) displaced: Vec<Waker>,
    /// Wakers of requests that left. To be dropped where nothing is locked: that may run code of the callers.
    pub(super) gone: Vec<Waker>,
    /// Whether newcomers are refused.
    pub(super) is_closed: bool,
    tallies: BTreeMap<i64, Tally>,
}

impl Gate {
    fn new(settings: GateSettings) -> Self {
        let mut queue = Queue::new(settings.order, settings.is_fair, settings.most);
        for &(tenant, weight) in &settings.weights {
            queue.tenants.set_weight(tenant, weight);
        }
        Self {
            queue,
            late: Late::new(settings.lag_ms),
            settings,
            classes: HashMap::new(),
            numbers: HashMap::new(),
            next_class: 0,
            turns: HashMap::new(),
            round: 0,
            watcher: None,
            is_declined: false,
            displaced: Vec::new(),
            gone: Vec::new(),
            is_closed: false,
            tallies: BTreeMap::new(),
        }
    }

    /// Requests that wait, and their tokens.
    #[must_use]
    pub fn waiting(&self) -> (usize, u64) {
        (self.queue.len(), self.queue.tokens)
    }

    /// By band, the outcomes of its requests and how many wait.
    #[must_use]
    pub fn tallies(&self) -> BTreeMap<i64, (Tally, usize)> {
        let bands = self.tallies.iter();
        let mut all: BTreeMap<i64, (Tally, usize)> = bands
            .map(|(&band, &tally)| (band, (tally, self.queue.in_band(band))))
            .collect();
        let counted: usize = all.values().map(|(_, waiting)| waiting).sum();
        if let Some(mut lowest) = all.first_entry() {
            lowest.get_mut().1 += self.queue.len() - counted;
        }
        all
    }

    /// Whether it bounds anything: one that does not is for requests that wait for any worker.
    fn is_bounded(&self) -> bool {
        let limits = self.settings.limits;
        limits.requests.is_some() || limits.tokens.is_some()
    }

    /// Refuses newcomers from now on; who waits is still served.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    pub(super) fn tally(&mut self, priority: i64) -> &mut Tally {
        band_of(&mut self.tallies, priority)
    }

    /// Terms of a request at this gate.
    pub(crate) fn terms(&self, passage: &Passage, is_sharing: bool, now: Millis) -> Terms<'_> {
        let by_cache = matches!(self.settings.order, Order::ShortestUncached { .. });
        Terms {
            bounds: self.bounds(is_sharing, now),
            may_pass: passage.ticket.is_some() || self.queue.before(passage.priority).0 == 0,
            is_narrow: by_cache && passage.ticket.is_some(),
        }
    }

    /// Limits of the pending load on a worker now. Routers that share their bookings count all of them.
    pub(super) fn bounds(&self, is_sharing: bool, now: Millis) -> Bounds<'_> {
        let routers = if is_sharing { 1 } else { self.settings.routers };
        Bounds {
            limits: self.settings.limits.divided(routers),
            late: &self.late,
            now,
        }
    }

    pub(super) fn class_of(&mut self, terms: Usable) -> Class {
        let class = *self.numbers.entry(terms.clone()).or_insert_with(|| {
            self.next_class = self.next_class.wrapping_add(1);
            Class(self.next_class)
        });
        self.classes.entry(class).or_insert((terms, 0)).1 += 1;
        class
    }

    /// Candidates that the classes of waiting requests can use, but for callers that were called and have not answered.
    pub(super) fn callable(&self) -> impl Iterator<Item = (Class, &Usable)> {
        let classes = self.classes.iter();
        let all = classes.map(|(class, (terms, _))| (*class, terms));
        all.filter(|(_, terms)| !self.turns.contains_key(&terms.caller))
    }

    /// Whether every request of the caller of a class that was called has answered.
    pub(super) fn may_call(&self, class: Class) -> bool {
        let caller = self.classes.get(&class).map(|(terms, _)| terms.caller);
        caller.is_some_and(|caller| !self.turns.contains_key(&caller))
    }

    /// It is the turn of a request. Returns what calls it.
    pub(super) fn call(&mut self, ticket: Ticket) -> Option<Waker> {
        let (entry, waiting) = self.queue.get(ticket)?;
        let (terms, _) = self.classes.get(&entry.class)?;
        self.turns.insert(terms.caller, ticket);
        Some(waiting.waker.clone())
    }

    /// Charges the first request whose turn it is not with looking again. Returns what calls it.
    pub(super) fn appoint(&mut self) -> Option<Waker> {
        let is_called = |ticket: &Ticket| self.turns.values().any(|called| called == ticket);
        let mut others = self.queue.tickets().filter(|ticket| !is_called(ticket));
        let ticket = others.next()?;
        self.watcher = Some(ticket);
        Some(self.queue.get(ticket)?.1.waker.clone())
    }

    /// Lets a request wait, in the place of the newest of a lower band if the queue is full.
    pub(super) fn push(
        &mut self,
        entry: Entry,
        terms: Usable,
        waiting: Waiting,
    ) -> std::result::Result<Ticket, Full> {
        if let Some(ticket) = self.queue.displaced(entry.priority)?
            && let Some(entry) = self.remove(ticket)
        {
            self.displaced.extend(self.gone.pop());
            self.tally(entry.priority).displaced += 1;
        }
        let class = self.class_of(terms);
        self.tally(entry.priority);
        Ok(self.queue.push(Entry { class, ..entry }, waiting))
    }

    /// A request waits no longer.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Entry> {
        let (entry, waiting) = self.queue.remove(ticket)?;
        self.gone.push(waiting.waker);
        self.turns.retain(|_, called| *called != ticket);
        self.watcher = self.watcher.filter(|watcher| *watcher != ticket);
        if let Some((terms, count)) = self.classes.get_mut(&entry.class) {
            *count -= 1;
            if *count == 0 {
                self.numbers.remove(terms);
                self.classes.remove(&entry.class);
            }
        }
        Some(entry)
    }

    fn forget(&mut self) {
        // In the child of a fork, what would call the parent's requests is not touched.
        std::mem::forget(std::mem::replace(self, Self::new(self.settings.clone())));
    }

    fn validate(&self) -> Result<()> {
        self.queue.validate()?;
        let fail = |what: &str| Err(Error::Invariant(format!("a gate's {what} are wrong")));
        let counts: usize = self.classes.values().map(|(_, count)| count).sum();
        if counts != self.queue.len() || self.numbers.len() != self.classes.len() {
            return fail("classes");
        }
        let waits = |ticket: &Ticket| self.queue.get(*ticket).is_some();
        if !self.turns.values().chain(&self.watcher).all(waits) {
            return fail("turns");
        }
        Ok(())
    }
}

/// The gates of a selector.
#[derive(Debug, Default)]
pub struct Gates {
    open: BTreeMap<GateId, Gate>,
    /// Counts of those that were removed.
    gone: BTreeMap<i64, Tally>,
}

impl Gates {
    /// A gate, opened if it is not there.
    pub fn open(&mut self, id: GateId, settings: &GateSettings) -> &mut Gate {
        let gate = self.open.entry(id);
        gate.or_insert_with(|| Gate::new(settings.clone()))
    }

    /// One gate.
    #[must_use]
    pub fn get(&self, id: GateId) -> Option<&Gate> {
        self.open.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: GateId) -> Option<&mut Gate> {
        self.open.get_mut(&id)
    }

    /// Forgets a gate; its requests are not called. Its counts stay.
    pub fn remove(&mut self, id: GateId) {
        let gate = self.open.remove(&id);
        if let Some(gate) = gate.filter(Gate::is_bounded) {
            for (band, tally) in gate.tallies {
                band_of(&mut self.gone, band).merge(&tally);
            }
        }
    }

    /// By band, the outcomes of the requests at all gates, and how many wait.
    #[must_use]
    pub fn tallies(&self) -> BTreeMap<i64, (Tally, usize)> {
        let gates = self.open.values().filter(|gate| gate.is_bounded());
        let gates = gates.flat_map(Gate::tallies);
        let gone = self.gone.iter().map(|(band, tally)| (*band, (*tally, 0)));
        let mut all: BTreeMap<i64, (Tally, usize)> = BTreeMap::new();
        for (band, (tally, waiting)) in gates.chain(gone) {
            let sum = all.entry(band).or_default();
            sum.0.merge(&tally);
            sum.1 += waiting;
        }
        all
    }

    /// Requests that wait, or were displaced and not called yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let gates = self.open.values();
        gates
            .map(|gate| gate.queue.len() + gate.displaced.len())
            .sum()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Gate> {
        self.open.values_mut()
    }

    /// A request that passed was booked: its tenant is charged for the prompt, where tenants take turns.
    pub(crate) fn charge(&mut self, request: &Request<'_>, uncached: u64) -> Option<Charged> {
        let passage = request.passage.as_ref()?;
        let gate = self.get_mut(passage.gate);
        let gate = gate.filter(|gate| gate.settings.is_fair)?;
        Some(Charged {
            gate: passage.gate,
            tenant: gate.queue.tenants.charge(passage.tenant, uncached),
            output: 0,
        })
    }

    /// A request on a worker has its first token.
    pub(crate) fn first_token(&mut self, worker: WorkerId, tokens: u64, now: Millis) {
        for gate in self.iter_mut() {
            gate.late.first_token(worker, tokens, now);
        }
    }

    /// A booking has `n` more output tokens.
    pub(crate) fn generated(&mut self, charged: &mut Charged, n: u64) {
        if let Some(gate) = self.get_mut(charged.gate) {
            charged.output = charged.output.saturating_add(n);
            let cost = n.saturating_mul(OUTPUT_WEIGHT);
            gate.queue.tenants.charge(charged.tenant, cost);
        }
    }

    /// A booking ended with so many output tokens in all.
    pub(crate) fn ended(&mut self, mut charged: Charged, output: u64) {
        let more = output.saturating_sub(charged.output);
        self.generated(&mut charged, more);
    }

    /// Empties the queue and the counts, as in the child of a fork.
    pub(crate) fn forget(&mut self) {
        self.iter_mut().for_each(Gate::forget);
        self.gone.clear();
    }

    pub(crate) fn validate(&self) -> Result<()> {
        self.open.values().try_for_each(Gate::validate)
    }
}
