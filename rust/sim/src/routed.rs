//! The router itself as the gateway of a run.
//!
//! The selector is the one that a router made; it gets simulated milliseconds for the time, and the events and reports
//! of simulated engines as it would get real ones.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use cachelb::selector::{
    Eligibility, Ending, Facts, GateId, GateSettings, Newcomer, Offer, Offers, PairTerms, Passage,
    Passed, Pick, PoolId, Receipt, Request, Selector, SharedCache, Ticket, Usage, Way,
};
use cachelb_core::block_tracker::Origin;
use cachelb_core::error::Error;
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_core::load::{BookingId, Known, Report};
use cachelb_events::{FeedState, Worth};

use crate::change::Change;
use crate::engine::EngineLoad;
use crate::gateway::{Attempt, Gateway, News, Notice, Pair, Placed};
use crate::layout::CacheLayout;
use crate::options::WorkerSettings;
use crate::workload::Workload;

/// A selector between a workload and its workers.
#[derive(Debug)]
pub struct Routed<'a> {
    selector: &'a mut Selector,
    workload: &'a Workload,
    offers: Offers,
    ids: Vec<WorkerId>,
    /// By worker, the cache groups of its events.
    layouts: Vec<Option<Arc<CacheLayout>>>,
    keys: Keys<'a>,
    number: u64,
    /// By worker, whether changes in its cache were lost.
    lossy: Vec<bool>,
    /// Requests that are held, and until when.
    held: HashMap<u32, (Ticket, f64)>,
    /// Those that are called.
    calls: (Sender<u32>, Receiver<u32>),
    /// Whether something happened since the last ones were called.
    happened: bool,
}

/// The gate of a router in a run: there is one.
const GATE: GateId = GateId(u64::MAX);

/// Notes that a request is called.
struct Call {
    id: u32,
    calls: Mutex<Sender<u32>>,
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        let calls = self.calls.lock();
        let calls = calls.unwrap_or_else(std::sync::PoisonError::into_inner);
        // It fails after the end of the run.
        let _ = calls.send(self.id);
    }
}

/// Which requests a worker admits, and how long others are held.
#[derive(Debug, Clone, PartialEq)]
pub struct Admission {
    /// The gate.
    pub gate: GateSettings,
    /// Seconds, infinite for any time.
    pub max_wait: f64,
}

/// Inputs of a router's rules, as its bindings would read them from a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Keys<'a> {
    /// Sessions by request; none are missing ones.
    pub sessions: &'a [Option<Box<[u8]>>],
    /// Leading blocks whose hash stands in for a missing session.
    pub prefix_blocks: Option<usize>,
    /// No rule needs the blocks.
    pub blind: bool,
    /// When a request goes to two workers.
    pub terms: PairTerms,
    /// Which requests a worker admits; `None` for all.
    pub admission: Option<&'a Admission>,
}

fn millis(seconds: f64) -> Millis {
    #[expect(clippy::cast_sign_loss, reason = "simulated time begins at 0")]
    Millis((seconds * 1e3) as u64)
}

fn ticket(booking: BookingId) -> u64 {
    u64::from(booking.generation) << 32 | u64::from(booking.entry)
}

fn booking(placed: Placed) -> BookingId {
    BookingId {
        entry: placed.ticket as u32,
        generation: (placed.ticket >> 32) as u32,
    }
}

fn placed(pick: &Pick) -> Option<Placed> {
    pick.booking.map(|booking| Placed {
        worker: pick.offer as u32,
        ticket: ticket(booking),
        predicted_tokens: pick.matched_tokens as u32,
        reason: pick.reason as u8,
        gateway: 0,
    })
}

impl<'a> Routed<'a> {
    /// `names` are the registered workers in the order of `fleet`.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a name that is not registered.
    pub fn new(
        selector: &'a mut Selector,
        workload: &'a Workload,
        (names, fleet): (&[&str], &[WorkerSettings]),
        keys: Keys<'a>,
    ) -> Result<Self, Error> {
        let find = |name: &&str| {
            selector
                .fleet()
                .find(name)
                .ok_or_else(|| Error::InvalidSetting {
                    name: "workers",
                    expected: "registered with the router",
                    got: format!("{name:?}"),
                })
        };
        let ids: Vec<WorkerId> = names.iter().map(find).collect::<Result<_, _>>()?;
        let layout = |worker: &WorkerSettings| worker.engine.cache_layout.clone();
        let layouts: Vec<_> = fleet.iter().map(layout).collect();
        for (name, layout) in names.iter().zip(&layouts) {
            // As metrics of engines do.
            let facts = Facts {
                retention: layout.as_ref().map(|layout| layout.retention()),
                ..Facts::default()
            };
            selector
                .workers_mut()
                .learn(name, &[Arc::from(*name)], facts)?;
        }
        let offers = names.iter().map(|name| Offer::new(*name)).collect();
        Ok(Self {
            selector,
            workload,
            offers: Offers::versioned(offers, 0),
            lossy: vec![false; ids.len()],
            ids,
            layouts,
            keys,
            number: 0,
            held: HashMap::new(),
            calls: channel(),
            happened: false,
        })
    }
}

impl Gateway for Routed<'_> {
    type Error = Error;

    fn select(&mut self, attempt: &Attempt<'_>) -> Result<Option<Placed>, Error> {
        // One that was tried before was admitted.
        let admission = self.keys.admission.filter(|_| attempt.attempt == 0);
        let Some(admission) = admission else {
            let pick = self.ask(attempt, Selector::select)?;
            return Ok(pick.and_then(|pick| placed(&pick)));
        };
        let (id, now) = (attempt.id, attempt.now);
        let waited = self.held.remove(&id);
        let passage = Passage {
            gate: GATE,
            ticket: waited.map(|(ticket, _)| ticket),
            ..Passage::default()
        };
        let until = waited.map_or(now + admission.max_wait, |(_, until)| until);
        let newcomer = || Newcomer {
            waker: Waker::from(Arc::new(Call {
                id,
                calls: Mutex::new(self.calls.0.clone()),
            })),
            caller: 0,
            until: until.is_finite().then(|| (millis(until), false)),
            for_workers: false,
        };
        let way = match waited {
            Some((ticket, _)) => Way::Again(ticket, now >= until),
            None if admission.max_wait > 0.0 => Way::Hold(newcomer()),
            None => Way::Now,
        };
        let found = self.ask(attempt, |selector, offers, request| {
            let request = Request {
                passage: Some(passage),
                ..*request
            };
            selector.pass(&admission.gate, &way, offers, &request, Selector::select)
        })?;
        match found {
            Some(Passed::Picked(pick)) => Ok(placed(&pick)),
            Some(Passed::Waits { ticket, .. }) => {
                self.held.insert(id, (ticket, until));
                Ok(None)
            }
            None => Ok(None),
        }
    }

    fn held(&mut self, id: u32) -> Result<Option<f64>, Error> {
        Ok(self.held.get(&id).map(|(_, until)| *until))
    }

    fn called(&mut self, now: f64) -> Result<Vec<u32>, Error> {
        if self.held.is_empty() {
            return Ok(Vec::new());
        }
        let happened = std::mem::take(&mut self.happened);
        self.selector.call_next(happened, millis(now)).wake();
        Ok(self.calls.1.try_iter().collect())
    }

    fn give_up(&mut self, id: u32) -> Result<(), Error> {
        if let Some((ticket, _)) = self.held.remove(&id) {
            self.selector.give_up(GATE, ticket);
        }
        Ok(())
    }

    fn select_pair(&mut self, attempt: &Attempt<'_>) -> Result<Option<Pair>, Error> {
        self.number += 1;
        let (prefill_number, terms) = (self.number, self.keys.terms);
        let picks = self.ask(attempt, |selector, offers, request| {
            selector.select_pair(offers, request, prefill_number, terms, false)
        })?;
        Ok(picks.and_then(|(prefill, decode)| {
            let prefill = prefill.and_then(|pick| placed(&pick));
            placed(&decode).map(|decode| Pair { prefill, decode })
        }))
    }

    fn publish(&mut self) -> Result<Vec<Vec<u8>>, Error> {
        Ok(std::iter::from_fn(|| self.selector.sharing_mut().publish()).collect())
    }

    fn receive(&mut self, message: &[u8], now: f64) -> Result<(), Error> {
        match self.selector.sharing_mut().receive(message, millis(now))? {
            // None is ever lost here.
            Receipt::Gap => Err(Error::Invariant("a message of a router is missing".into())),
            _ => Ok(()),
        }
    }

    fn notice(&mut self, placed: Placed, notice: Notice, now: f64) -> Result<(), Error> {
        let (booking, now) = (booking(placed), millis(now));
        let (ending, cached_tokens) = match notice {
            Notice::FirstToken => {
                self.happened |= self.selector.first_token(booking, now);
                return Ok(());
            }
            Notice::Tokens(n) => {
                self.selector.tokens(booking, u64::from(n), now);
                return Ok(());
            }
            Notice::Finished(cached) => (Ending::Completed, cached.map(u64::from)),
            Notice::Failed => (Ending::Failed, None),
            Notice::Cancelled => (Ending::Cancelled, None),
        };
        let usage = Usage {
            cached_tokens,
            ..Usage::default()
        };
        self.happened = true;
        self.selector.close(booking, ending, usage, now);
        Ok(())
    }

    fn news(&mut self, news: News<'_>, now: f64) -> Result<(), Error> {
        match news {
            News::Report(worker, load, at) => return self.report(worker, load, at, now),
            News::Changed(worker, changes) => self.changed(worker, changes, now),
            News::PoolChanged(changes) => self.pool_changed(changes, now),
            News::Lost(worker) => {
                self.lossy[worker as usize] = true;
                if let Some(mut feed) = self.selector.feed(self.ids[worker as usize]) {
                    feed.doubt(millis(now));
                }
            }
            News::Feed(worker, state) => self.believe(worker, state),
            News::Ready(worker, ready) => {
                let name = Arc::clone(&self.offers[worker as usize].name);
                self.selector.workers_mut().set_ready(&name, ready);
                self.happened = true;
            }
        }
        Ok(())
    }
}

impl Routed<'_> {
    fn report(&mut self, worker: u32, load: EngineLoad, at: f64, now: f64) -> Result<(), Error> {
        let report = Report {
            running: Known::from(Some(f64::from(load.running))),
            waiting: Known::from(Some(f64::from(load.waiting))),
            queued_tokens: Known::from(load.queued_tokens.map(|tokens| tokens as f64)),
            kv_usage: Known::from(Some(load.kv_usage)),
            at: millis(at),
            ..Report::NONE
        };
        let name = [Arc::clone(&self.offers[worker as usize].name)];
        let mut workers = self.selector.workers_mut();
        workers.set_report(&name, &report, millis(now))?;
        self.happened = true;
        Ok(())
    }

    fn changed(&mut self, worker: u32, changes: &[Change], now: f64) {
        let id = self.ids[worker as usize];
        if self.selector.fleet().feed(id).is_none() {
            self.believe(worker, FeedState::Live);
        }
        let mut chain: Vec<SequenceHash> = Vec::new();
        let mut before = None;
        for change in changes {
            if let Change::Stored { hash, parent } = *change {
                if chain.is_empty() || parent != chain.last().copied() {
                    self.announce(worker, before, &mut chain, now);
                    before = parent;
                }
                chain.push(hash);
                continue;
            }
            self.announce(worker, before, &mut chain, now);
            match (self.selector.feed(id), *change) {
                (Some(mut feed), Change::Removed { hash }) => {
                    feed.withdraw(&[hash], Medium::Gpu);
                }
                (Some(mut feed), Change::Cleared) => {
                    feed.withdraw_all();
                }
                (Some(mut feed), Change::Marked { hash }) => {
                    if !feed.mark(hash, Medium::Gpu) {
                        // Its block is doubtful.
                        feed.mark(hash, Medium::Speculative);
                    }
                }
                (Some(mut feed), Change::Unmarked { hash }) => {
                    feed.unmark(hash);
                }
                (_, Change::Stored { .. }) | (None, _) => {}
            }
        }
        self.announce(worker, before, &mut chain, now);
    }

    fn pool_changed(&mut self, changes: &[Change], now: f64) {
        let shared = self.selector.pools()[PoolId(0)].shared();
        let Some(mut feed) = shared
            .map(SharedCache::holder)
            .and_then(|holder| self.selector.feed(holder))
        else {
            return;
        };
        for change in changes {
            match *change {
                Change::Stored { hash, parent } => {
                    feed.announce(parent, &[hash], Medium::Cpu, millis(now));
                }
                Change::Removed { hash } => {
                    feed.withdraw(&[hash], Medium::Cpu);
                }
                Change::Cleared | Change::Marked { .. } | Change::Unmarked { .. } => {}
            }
        }
    }

    /// Puts a request to the selector; `None` if there is no worker for it.
    fn ask<T>(
        &mut self,
        attempt: &Attempt<'_>,
        step: impl FnOnce(&mut Selector, &mut Offers, &Request<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let blocks = self.workload.prompt(attempt.id);
        let session = self.keys.sessions.get(attempt.id as usize);
        let session = session.and_then(Option::as_deref);
        let prefix = self.keys.prefix_blocks.and_then(|count| {
            let hash = blocks.get(..count).unwrap_or(blocks).last()?;
            Some(hash.0.to_le_bytes())
        });
        self.number += 1;
        let request = Request {
            pool: PoolId(0),
            blocks: (!self.keys.blind).then_some((blocks, Origin::Tokens)),
            boundaries: self.workload.boundaries(attempt.id),
            prompt_tokens: u64::from(self.workload.prompt_tokens[attempt.id as usize]),
            key: session.or(prefix.as_ref().map(<[u8; 8]>::as_slice)),
            key_is_session: session.is_some(),
            attempt: attempt.attempt,
            number: self.number,
            now: millis(attempt.now),
            ..Request::default()
        };
        self.offers.reset();
        for &worker in attempt.tried {
            self.offers
                .set_eligibility(worker as usize, Eligibility::Excluded);
        }
        match step(self.selector, &mut self.offers, &request) {
            Err(Error::NoCandidate | Error::Refused(_) | Error::Overloaded { .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    fn believe(&mut self, worker: u32, state: FeedState) {
        let layout = self.layouts.get(worker as usize).and_then(Option::as_deref);
        let size = layout.map_or(self.workload.block_size, CacheLayout::full_block);
        let worth = Worth::Believed {
            state,
            engine_block_size: Some(size),
        };
        if let Some(mut feed) = self.selector.feed(self.ids[worker as usize]) {
            feed.set_trust(worth);
            if let Some(layout) = layout {
                feed.set_resumes(!layout.is_full(), layout.beyond(), layout.resuming());
            }
        }
    }

    fn announce(
        &mut self,
        worker: u32,
        parent: Option<SequenceHash>,
        chain: &mut Vec<SequenceHash>,
        now: f64,
    ) {
        let id = self.ids[worker as usize];
        let feed = self.selector.feed(id);
        if let Some(mut feed) = feed.filter(|_| !chain.is_empty()) {
            if let Some(before) = parent.filter(|_| self.lossy[worker as usize])
                && !feed.pool().holds(id, before, Medium::Gpu)
            {
                // A block shows that all blocks before it are there.
                let path = feed.pool().path_to(before);
                feed.announce(None, &path, Medium::Gpu, millis(now));
            }
            feed.announce(parent, chain, Medium::Gpu, millis(now));
            chain.clear();
        }
    }
}
