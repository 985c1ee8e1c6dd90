//! A router of registered workers, behind one lock.

mod apply;
mod engines;
mod options;
pub(crate) mod query;
pub(crate) mod state;
mod stats;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::selector::{
    Access, Eligibility, Ending, Offer, Offers, Profile, PromptBuffers, PromptReader, Read,
    Request, Room, Selector, Usage, may_be_worker,
};
use cachelb_body::{Clues, Limits, Profile as Rendering};
use cachelb_core::Error as Core;
use cachelb_core::hashing::{Identity, NamespaceKey};
use cachelb_core::ids::{BookingId, Millis, WorkerId};
use serde_json::Value as Json;

use self::engines::Engines;
use self::options::Built;
use self::query::{Prompt, Query, Selection};
use crate::error::{Error, Result};

/// Most bytes of the key of a worker.
pub const MOST_KEY_BYTES: usize = 511;

/// Routes requests over a fleet of registered workers. Safe to use from any number of threads.
///
/// ```
/// use cachelb::{Ending, Prompt, Query, Router, Usage};
///
/// let router = Router::new(r#"{"policy": "adaptive", "block_size": 16, "seed": 7}"#)?;
/// for worker in ["http://gpu0:8000", "http://gpu1:8000"] {
///     router.add_worker(worker, 0)?;
/// }
/// let prompt: Vec<u32> = (0..1000).collect();
/// let first = router.select(Prompt::Tokens(&prompt), &Query::default(), 10)?;
/// let booking = first.booking.expect("it was booked");
/// assert!(router.first_token(booking, 50));
/// assert!(router.end(booking, Ending::Completed, Usage::default(), 90));
///
/// let again = router.select(Prompt::Tokens(&prompt), &Query::default(), 100)?;
/// assert_eq!((again.worker, again.matched_tokens), (first.worker, 992));
/// # Ok::<(), cachelb::Error>(())
/// ```
#[derive(Debug)]
pub struct Router {
    pub(crate) policy: &'static str,
    pub(crate) own: Json,
    pub(crate) reader: PromptReader,
    sessions: NamespaceKey,
    pub(crate) is_keyed: bool,
    pub(crate) fleet: Mutex<Fleet>,
    pub(crate) engines: Engines,
    numbers: AtomicU64,
}

/// State behind the lock.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub selector: Selector,
    candidates: Offers,
    /// Position of every one, by key.
    places: HashMap<Arc<str>, usize>,
    version: u64,
}

impl Fleet {
    /// Changes the list of candidates.
    fn list(&mut self, change: impl FnOnce(&mut Vec<Offer>)) {
        let mut list = self.candidates.to_vec();
        change(&mut list);
        for candidate in &mut list {
            candidate.eligibility = Eligibility::Candidate;
        }
        self.version += 1;
        let places = (0..).zip(&list);
        self.places = places
            .map(|(at, candidate)| (Arc::clone(&candidate.key), at))
            .collect();
        self.candidates = Offers::versioned(list, self.version);
    }

    /// A worker that is registered and does not leave.
    pub fn find(&self, key: &str) -> Option<WorkerId> {
        self.places.get(key)?;
        self.selector.fleet().find(key)
    }

    /// Keys of the workers, in order of registration.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.candidates.iter().map(|candidate| &candidate.key)
    }

    fn select(&mut self, request: &Request<'_>, query: &Query<'_>) -> Result<Selection> {
        self.candidates.reset();
        for key in query.exclude {
            if let Some(at) = self.places.get(*key) {
                self.candidates.set_eligibility(*at, Eligibility::Excluded);
            }
        }
        let picked = if query.dry_run {
            self.selector.peek(&mut self.candidates, request)
        } else {
            self.selector.select(&mut self.candidates, request)
        };
        let pick = picked.map_err(|error| match error {
            Core::NoCandidate => Error::NoWorker(self.reasons()),
            error => error.into(),
        })?;
        Ok(Selection {
            booking: pick.booking,
            worker: self.candidates[pick.offer].key.to_string(),
            reason: pick.reason,
            prompt_tokens: request.prompt_tokens,
            matched_tokens: pick.matched_tokens,
            best_matched_tokens: pick.best_matched_tokens,
        })
    }

    /// Why each worker was passed over.
    fn reasons(&self) -> Vec<(String, &'static str)> {
        let reason =
            |candidate: &Offer| (candidate.key.to_string(), candidate.eligibility.describe());
        self.candidates.iter().map(reason).collect()
    }
}

/// Buffers of a thread.
#[derive(Debug, Default)]
struct Scratch {
    buffers: PromptBuffers,
    room: Room,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

impl Access for Router {
    fn held<R>(&self, work: impl FnOnce(&mut Selector) -> R) -> R {
        work(&mut self.fleet().selector)
    }
}

impl Router {
    /// Builds a router without workers.
    ///
    /// `options` is a JSON object: `policy`, `block_size`, `seed`, `hash_seed`, `max_memory_mb`, `booking_ttl_s`,
    /// `breaker_failures`, `breaker_cooldown_s` and `replicas`, with names and defaults of `Router` in Python; `namespace_key`,
    /// 32 hexadecimal digits known to all routers of the fleet, which snapshots need; and the options of the policy.
    ///
    /// # Errors
    /// [`Error::Options`] for an option that is unknown or has a wrong value.
    pub fn new(options: &str) -> Result<Self> {
        let built = Built::read(options)?;
        let selector = Selector::new(built.settings, built.assembly.pool);
        let fleet = Fleet {
            selector,
            candidates: Offers::default(),
            places: HashMap::new(),
            version: 0,
        };
        Ok(Self {
            policy: built.policy,
            own: built.own,
            reader: built.assembly.reader,
            sessions: built.sessions,
            is_keyed: built.is_keyed,
            fleet: Mutex::new(fleet),
            engines: Engines::default(),
            numbers: AtomicU64::new(0),
        })
    }

    pub(crate) fn fleet(&self) -> MutexGuard<'_, Fleet> {
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a worker that takes requests from now on; one that is registered becomes ready. Its key is any text that
    /// names it, such as its URL.
    ///
    /// # Errors
    /// [`Error::Key`] for a key that no worker may have.
    pub fn add_worker(&self, key: &str, now_ms: u64) -> Result<()> {
        if key.is_empty() || key.len() > MOST_KEY_BYTES || !may_be_worker(key) {
            return Err(Error::Key { got: key.len() });
        }
        let mut fleet = self.fleet();
        let mut workers = fleet.selector.workers_mut();
        workers.add(key, Profile::default(), Millis(now_ms));
        workers.set_ready(key, true);
        if !fleet.places.contains_key(key) {
            fleet.list(|list| list.push(Offer::new(key)));
        }
        Ok(())
    }

    /// Forgets a worker and its blocks; its bookings still end as usual. Returns whether it was known.
    pub fn remove_worker(&self, key: &str) -> bool {
        self.leave(key, |selector| selector.workers_mut().remove(key))
    }

    /// Lets a worker finish its requests; it is forgotten with its last booking. Returns whether it was known.
    pub fn drain_worker(&self, key: &str) -> bool {
        self.leave(key, |selector| selector.workers_mut().drain(key))
    }

    fn leave(&self, key: &str, go: impl FnOnce(&mut Selector) -> bool) -> bool {
        let mut fleet = self.fleet();
        let known = go(&mut fleet.selector);
        if fleet.places.contains_key(key) {
            fleet.list(|list| list.retain(|candidate| *candidate.key != *key));
        }
        drop(fleet);
        self.engines.forget(key);
        known
    }

    /// Marks a worker ready or not; its blocks and bookings stay. Returns whether it is registered.
    pub fn set_ready(&self, key: &str, ready: bool) -> bool {
        let mut fleet = self.fleet();
        let known = fleet.places.contains_key(key);
        if known {
            fleet.selector.workers_mut().set_ready(key, ready);
        }
        known
    }

    /// Picks a worker, books its load and remembers that it will hold the prompt, in one step.
    ///
    /// # Errors
    /// [`Error::NoWorker`] or [`Error::Refused`] if none may be picked, [`Error::Body`] for a body that cannot be read.
    pub fn select(&self, prompt: Prompt<'_>, query: &Query<'_>, now_ms: u64) -> Result<Selection> {
        let mut scratch = SCRATCH.take();
        let picked = self.select_with(&mut scratch, prompt, query, now_ms);
        if !scratch.room.is_large() {
            SCRATCH.set(scratch);
        }
        picked
    }

    fn select_with(
        &self,
        scratch: &mut Scratch,
        prompt: Prompt<'_>,
        query: &Query<'_>,
        now_ms: u64,
    ) -> Result<Selection> {
        let Scratch { buffers, room } = scratch;
        buffers.boundaries.clear();
        let mut read = Read::default();
        if let Prompt::Body { path, body } = prompt {
            self.read_body(&mut read, room, path, body, query)?;
        }
        let named = |given: Option<&_>, read: Option<&_>| given.or(read).copied();
        let namespace = self.reader.hasher.namespace(Identity {
            lora: named(query.lora.as_ref(), read.lora.as_deref().as_ref()),
            salt: named(
                query.cache_salt.as_ref(),
                read.cache_salt.as_deref().as_ref(),
            ),
            model: query.model,
            beside: read.beside.as_deref(),
        });
        let mut found = match prompt {
            Prompt::Tokens(tokens) => self.reader.words(tokens, namespace, &[], buffers),
            Prompt::Text(text) => self.reader.bytes(text, namespace, buffers),
            Prompt::Body { .. } => self.reader.body(&read, &room.prompt, namespace, buffers),
            Prompt::Length(tokens) => crate::selector::Prompt::without_tokens(tokens),
        };
        if let Some(own) = read.family.own {
            found.set_key(own, read.is_soft);
        }
        found.set_session(query.session.unwrap_or_default());
        let expected = query.expected_output_tokens;
        let request = Request {
            convention: read.client.convention,
            family: Some(&read.family),
            expected_output_tokens: expected
                .or(read.expected_output_tokens)
                .or(read.max_output_tokens),
            attempt: query.exclude.len() as u32,
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            now: Millis(now_ms),
            ..found.request(buffers)
        };
        self.fleet().select(&request, query)
    }

    fn read_body(
        &self,
        read: &mut Read,
        room: &mut Room,
        path: &str,
        body: &[u8],
        query: &Query<'_>,
    ) -> Result<()> {
        let rendering = Rendering {
            seed: self.reader.hasher.seed(),
            ..Rendering::default()
        };
        read.unread(body.len());
        let (reader, prompt) = room.reader(rendering, Limits::default(), body.len());
        let body = reader.read(path, body)?;
        read.prompt(&body, prompt);
        read.hints(&body, query.cache_salt.is_some());
        read.responses(&body, path, self.sessions);
        let mut clues = Clues::default();
        body.identify(&mut clues);
        if let Some(identity) = clues.identity() {
            read.identify(identity, None, self.sessions);
        }
        Ok(())
    }

    /// The first token of a request arrived. Returns whether its booking is open.
    pub fn first_token(&self, booking: BookingId, now_ms: u64) -> bool {
        self.held(|selector| selector.first_token(booking, Millis(now_ms)))
    }

    /// `count` more output tokens of a request arrived. Returns whether its booking is open.
    pub fn tokens(&self, booking: BookingId, count: u64, now_ms: u64) -> bool {
        self.held(|selector| selector.tokens(booking, count, Millis(now_ms)))
    }

    /// A request ended. Returns whether its booking was still open.
    pub fn end(&self, booking: BookingId, ending: Ending, usage: Usage, now_ms: u64) -> bool {
        self.held(|selector| selector.close(booking, ending, usage, Millis(now_ms)))
    }
}
