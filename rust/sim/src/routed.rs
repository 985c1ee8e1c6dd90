//! The router itself as the gateway of a run.
//!
//! Its selector gets simulated milliseconds for the time, and the events and reports of simulated engines as it would get
//! real ones.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;

use cachelb::selector::{
    Access, Eligibility, Ending, Facts, GateId, GateSettings, Newcomer, Offer, Offers, PairTerms,
    Passage, Pick, PoolId, Rank, Receipt, Request, Selector, Source, Ticket, Usage, Waits, Way,
    WorkerStreams,
};
use cachelb::{CoreError, Error, Ranks, Registry};
use cachelb_core::block_tracker::Origin;
use cachelb_core::ids::{Medium, Millis, SequenceHash};
use cachelb_core::load::{BookingId, Known, Report};
use cachelb_events::{FeedState, Holdings, Moment, Worth};

use crate::engine::EngineLoad;
use crate::engine::change::Change;
use crate::engine::layout::CacheLayout;
use crate::gateway::{Attempt, Gateway, News, Notice, Pair, Placed};
use crate::options::WorkerSettings;
use crate::sources::Sources;
use crate::workload::Workload;

/// A router between a workload and its workers.
#[derive(Debug)]
pub struct Routed<'a, T, A> {
    registry: &'a Registry<T>,
    access: &'a A,
    workload: &'a Workload,
    offers: Offers,
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
    sources: Option<Sources>,
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
    /// Tokens from which it names a worker to take cached blocks from, as llm-d does; `None` for never.
    pub pull_min_tokens: Option<u32>,
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

impl<'a, T: Clone + Send + Sync, A: Access + Sync> Routed<'a, T, A> {
    /// `names` are the registered workers in the order of `fleet`.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn new(
        (registry, access): (&'a Registry<T>, &'a A),
        workload: &'a Workload,
        (names, fleet): (&[&str], &[WorkerSettings]),
        keys: Keys<'a>,
    ) -> Result<Self, Error> {
        let layout = |worker: &WorkerSettings| worker.engine.cache_layout.clone();
        let layouts: Vec<_> = fleet.iter().map(layout).collect();
        for (name, layout) in names.iter().zip(&layouts) {
            // As metrics of engines do.
            let facts = Facts {
                retention: layout.as_ref().map(|layout| layout.retention()),
                ..Facts::default()
            };
            let mut edit = registry.edit(access, Millis(0), thread::yield_now);
            edit.learn(name, facts)?;
        }
        let offers = names.iter().map(|name| Offer::new(*name)).collect();
        let sources = (keys.pull_min_tokens)
            .map(|least| Sources::new(least, workload.block_size, names.len()));
        Ok(Self {
            registry,
            access,
            workload,
            offers: Offers::versioned(offers, 0),
            lossy: vec![false; names.len()],
            layouts,
            keys,
            number: 0,
            held: HashMap::new(),
            calls: channel(),
            happened: false,
            sources,
        })
    }
}

impl<T: Clone + Send + Sync, A: Access + Sync> Gateway for Routed<'_, T, A> {
    type Error = Error;

    fn select(&mut self, attempt: &Attempt<'_>) -> Result<Option<Placed>, Error> {
        // One that was tried before was admitted.
        let admission = self.keys.admission.filter(|_| attempt.attempt == 0);
        let Some(admission) = admission else {
            let pick = self.ask(attempt, Selector::select)?;
            return Ok(pick.and_then(|pick| self.placed(attempt.id, &pick)));
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
            let gate = Some((&admission.gate, &way));
            selector.pass(gate, offers, &request, Selector::select)
        })?;
        match found {
            Some(Ok(pick)) => Ok(self.placed(id, &pick)),
            Some(Err(Waits { ticket, .. })) => {
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
        let called = (self.access).held(|selector| selector.call_next(happened, millis(now)));
        called.wake();
        Ok(self.calls.1.try_iter().collect())
    }

    fn give_up(&mut self, id: u32) -> Result<(), Error> {
        if let Some((ticket, _)) = self.held.remove(&id) {
            self.access.held(|selector| selector.give_up(GATE, ticket));
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
            let prefill = prefill.and_then(|pick| self.placed(attempt.id, &pick));
            self.placed(attempt.id, &decode)
                .map(|decode| Pair { prefill, decode })
        }))
    }

    fn publish(&mut self) -> Result<Vec<Vec<u8>>, Error> {
        let next = || (self.access).held(|selector| selector.sharing_mut().publish());
        Ok(std::iter::from_fn(next).collect())
    }

    fn receive(&mut self, message: &[u8], now: f64) -> Result<(), Error> {
        let receive =
            |selector: &mut Selector| selector.sharing_mut().receive(message, millis(now));
        match self.access.held(receive)? {
            // None is ever lost here.
            Receipt::Gap => Err(CoreError::Invariant(
                "a message of a router is missing".into(),
            ))?,
            _ => Ok(()),
        }
    }

    fn notice(&mut self, placed: Placed, notice: Notice, now: f64) -> Result<(), Error> {
        let (booking, now) = (booking(placed), millis(now));
        let mut usage = Usage::default();
        let ending = match notice {
            Notice::FirstToken => {
                let first_token = |selector: &mut Selector| selector.first_token(booking, now);
                self.happened |= self.access.held(first_token);
                return Ok(());
            }
            Notice::Tokens(n) => {
                let tokens = u64::from(n);
                (self.access).held(|selector| selector.tokens(booking, tokens, now));
                return Ok(());
            }
            Notice::Finished(cached) => {
                usage.cached_tokens = cached.map(u64::from);
                Ending::Completed
            }
            Notice::Failed => Ending::Failed,
            Notice::Cancelled => Ending::Cancelled,
        };
        self.happened = true;
        (self.access).held(|selector| selector.end(booking, ending, usage, now));
        Ok(())
    }

    fn news(&mut self, news: News<'_>, now: f64) -> Result<(), Error> {
        if let Some(sources) = &mut self.sources {
            match news {
                News::Report(worker, load, _) => sources.report(worker, load.waiting),
                News::Changed(worker, changes) => sources.changed(worker, changes),
                News::Ready(worker, is_ready) => sources.mark_ready(worker, is_ready),
                News::PoolChanged(_) | News::Lost(_) | News::Feed(..) => {}
            }
        }
        match news {
            News::Report(worker, load, at) => self.report(worker, load, at, now),
            News::Changed(worker, changes) => self.events(worker, now, |events| {
                events.changed(changes);
            }),
            News::PoolChanged(changes) => {
                self.pool_changed(changes, now);
                Ok(())
            }
            News::Lost(worker) => {
                self.lossy[worker as usize] = true;
                self.events(worker, now, |events| {
                    events.rank.doubt();
                })
            }
            News::Feed(worker, state) => self.events(worker, now, |events| events.believe(state)),
            News::Ready(worker, ready) => {
                let key = &*self.offers[worker as usize].name;
                let mut edit = (self.registry).edit(self.access, millis(now), thread::yield_now);
                edit.mark_ready(key, ready);
                self.happened = true;
                Ok(())
            }
        }
    }
}

impl<T: Clone + Send + Sync, A: Access + Sync> Routed<'_, T, A> {
    fn placed(&mut self, id: u32, pick: &Pick) -> Option<Placed> {
        let mut placed = Placed {
            worker: pick.offer as u32,
            ticket: ticket(pick.booking?),
            predicted_tokens: pick.matched_tokens as u32,
            reason: pick.reason as u8,
            gateway: 0,
            source: None,
        };
        let is_at = |source: Source| self.offers.iter().position(|o| o.id == Some(source.worker));
        placed.source = pick.source.and_then(is_at).map(|at| at as u32);
        if let Some(sources) = &mut self.sources {
            placed.source = sources.pick(self.workload.prompt(id), placed);
        }
        Some(placed)
    }

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
        self.access.held(|selector| {
            let mut workers = selector.workers_mut();
            workers.set_report(&name, &report, millis(now))
        })?;
        self.happened = true;
        Ok(())
    }

    /// Runs `work` on the events of a worker.
    fn events(
        &self,
        worker: u32,
        now: f64,
        work: impl FnOnce(&mut Events<'_, A>),
    ) -> Result<(), Error> {
        let (registry, access) = (self.registry, self.access);
        let at = worker as usize;
        let key = &*self.offers[at].name;
        let streams = registry.streams(access, key, thread::yield_now)?;
        self.on_rank(key, &streams, now, |rank| {
            work(&mut Events {
                rank,
                layout: self.layouts.get(at).and_then(Option::as_deref),
                block_size: self.workload.block_size,
                is_lossy: self.lossy[at],
            });
        });
        Ok(())
    }

    fn on_rank(
        &self,
        key: &str,
        streams: &WorkerStreams,
        now: f64,
        work: impl FnOnce(Rank<'_, A>),
    ) {
        let at = Moment {
            now: millis(now),
            wall_s: now,
        };
        let work = |_: &_, ranks: Ranks<'_, A>, _| work(ranks(0));
        (self.registry).on_streams(self.access, key, streams, at, work);
    }

    fn pool_changed(&mut self, changes: &[Change], now: f64) {
        let Some(cache) = self.registry.feeds.shared(PoolId(0)) else {
            return;
        };
        self.on_rank(&cache.name, &cache.streams, now, |mut rank| {
            for change in changes {
                match *change {
                    Change::Stored {
                        hash,
                        parent,
                        medium,
                    } => {
                        rank.store(parent, &[hash], medium);
                    }
                    Change::Removed { hash, medium } => {
                        rank.remove(&[hash], medium);
                    }
                    Change::Cleared | Change::Marked { .. } | Change::Unmarked { .. } => {}
                }
            }
        });
    }

    /// Puts a request to the selector; `None` if there is no worker for it.
    fn ask<R: Send>(
        &mut self,
        attempt: &Attempt<'_>,
        step: impl FnOnce(&mut Selector, &mut Offers, &Request<'_>) -> Result<R, CoreError> + Send,
    ) -> Result<Option<R>, Error> {
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
            sends_source: true,
            number: self.number,
            now: millis(attempt.now),
            ..Request::default()
        };
        self.offers.reset();
        for &worker in attempt.tried {
            self.offers
                .set_eligibility(worker as usize, Eligibility::Excluded);
        }
        let offers = &mut self.offers;
        match (self.access).held(|selector| step(selector, offers, &request)) {
            Err(CoreError::NoCandidate | CoreError::Refused(_) | CoreError::Overloaded { .. }) => {
                Ok(None)
            }
            found => Ok(Some(found?)),
        }
    }
}

/// The events of one worker.
struct Events<'a, A> {
    rank: Rank<'a, A>,
    /// The cache groups they are about.
    layout: Option<&'a CacheLayout>,
    block_size: u32,
    /// Whether changes in the worker's cache were lost.
    is_lossy: bool,
}

impl<A: Access + Sync> Events<'_, A> {
    fn changed(&mut self, changes: &[Change]) {
        if !self.rank.is_followed() {
            self.believe(FeedState::Live);
        }
        let mut chain: Vec<SequenceHash> = Vec::new();
        let mut before = (None, Medium::Gpu);
        for change in changes {
            if let Change::Stored {
                hash,
                parent,
                medium,
            } = *change
            {
                if chain.is_empty() || medium != before.1 || parent != chain.last().copied() {
                    self.announce(before, &mut chain);
                    before = (parent, medium);
                }
                chain.push(hash);
                continue;
            }
            self.announce(before, &mut chain);
            let rank = &mut self.rank;
            match *change {
                Change::Removed { hash, medium } => {
                    rank.remove(&[hash], medium);
                }
                Change::Cleared => {
                    rank.clear();
                }
                Change::Marked { hash } => {
                    // Its block may be doubtful.
                    let _ = rank.mark(hash, Medium::Gpu) || rank.mark(hash, Medium::Speculative);
                }
                Change::Unmarked { hash } => {
                    rank.unmark(hash);
                }
                Change::Stored { .. } => {}
            }
        }
        self.announce(before, &mut chain);
    }

    fn believe(&mut self, state: FeedState) {
        let size = (self.layout).map_or(self.block_size, CacheLayout::full_block);
        self.rank.set_trust(Worth::Believed {
            state,
            engine_block_size: Some(size),
        });
        if let Some(layout) = self.layout {
            (self.rank).set_resumes(!layout.is_full(), layout.beyond(), layout.resuming());
        }
    }

    fn announce(
        &mut self,
        (parent, medium): (Option<SequenceHash>, Medium),
        chain: &mut Vec<SequenceHash>,
    ) {
        if chain.is_empty() {
            return;
        }
        if let Some(before) = parent.filter(|_| self.is_lossy)
            && !self.rank.holds(before, medium)
        {
            // A block shows that all blocks before it are there.
            let path = self.rank.path_to(before);
            self.rank.store(None, &path, medium);
        }
        self.rank.store(parent, chain, medium);
        chain.clear();
    }
}
