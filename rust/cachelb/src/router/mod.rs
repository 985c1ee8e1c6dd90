//! A router of registered workers, behind one lock.

mod apply;
pub(crate) mod edit;
mod options;
pub(crate) mod query;
pub(crate) mod registry;
mod stats;

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cachelb_body::Profile as Rendering;
use cachelb_core::Error as Core;
use cachelb_core::ids::{BookingId, Millis};
use serde_json::Value as Json;

use crate::error::{Error, Result};
use crate::fleet::about::About;
use crate::selector::{
    self, Access, Bodies, BodySettings, Context, Eligibility, Ending, Headers, Hints, Model, Offer,
    PromptBuffers, Request, Room, Scales, Selector, Usage, lock, may_be_worker,
};

use self::edit::{Edit, Registration};
use self::options::Built;
use self::query::{Prompt, Query, Selection};
use self::registry::Registry;

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
    bodies: Bodies,
    #[cfg_attr(not(feature = "sharing"), expect(dead_code, reason = "for snapshots"))]
    pub(crate) is_keyed: bool,
    selector: Mutex<Selector>,
    pub(crate) registry: Registry<()>,
    scales: Scales,
    numbers: AtomicU64,
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
    fn held<R: Send>(&self, work: impl FnOnce(&mut Selector) -> R + Send) -> R {
        work(&mut lock(&self.selector))
    }
}

impl Router {
    /// Builds a router without workers.
    ///
    /// `options` is a JSON object: `policy`, `block_size`, `seed`, `hash_seed`, `max_memory_mb`, `booking_ttl_s`,
    /// `breaker_failures`, `breaker_cooldown_s` and `replicas`, with names and defaults of `Router` in Python;
    /// `namespace_key`, 32 hexadecimal digits known to all routers of the fleet, which snapshots need; and the options
    /// of the policy.
    ///
    /// # Errors
    /// [`Error::Options`] for an option that is unknown or has a wrong value.
    pub fn new(options: &str) -> Result<Self> {
        let built = Built::read(options)?;
        let bodies = BodySettings {
            profile: Rendering {
                seed: built.assembly.reader.hasher.seed(),
                ..Rendering::default()
            },
            strict: true,
            ..BodySettings::default()
        };
        Ok(Self {
            policy: built.policy,
            own: built.own,
            bodies: Bodies::new(bodies, built.sessions),
            is_keyed: built.is_keyed,
            selector: Mutex::new(Selector::new(built.settings, built.assembly.pool)),
            registry: Registry::new(vec![built.assembly.reader], Vec::new()),
            scales: Scales::default(),
            numbers: AtomicU64::new(0),
        })
    }

    /// Registers a worker that takes requests from now on; one that is registered becomes ready. Its key is any text
    /// that names it, such as its URL.
    ///
    /// # Errors
    /// [`Error::Key`] for a key that no worker may have.
    pub fn add_worker(&self, key: &str, now_ms: u64) -> Result<()> {
        if key.is_empty() || key.len() > MOST_KEY_BYTES || !may_be_worker(key) {
            return Err(Error::Key { got: key.len() });
        }
        let worker = Registration {
            object: (),
            key: key.into(),
            raw: key.into(),
            is_key: true,
            about: About::default(),
        };
        self.edit(now_ms, |edit| {
            edit.register(worker)?;
            edit.mark_ready(key, true);
            Ok(())
        })
    }

    fn edit<R>(&self, now_ms: u64, work: impl FnOnce(&mut Edit<'_, (), Self>) -> R) -> R {
        work(&mut (self.registry).edit(self, Millis(now_ms), thread::yield_now))
    }

    /// Forgets a worker and its blocks; its bookings still end as usual. Returns whether it was known.
    pub fn remove_worker(&self, key: &str) -> bool {
        self.edit(0, |edit| edit.leave(key, false))
    }

    /// Lets a worker finish its requests; it is forgotten with its last booking. Returns whether it was known.
    pub fn drain_worker(&self, key: &str) -> bool {
        self.edit(0, |edit| edit.leave(key, true))
    }

    /// Marks a worker ready or not; its blocks and bookings stay. Returns whether it is registered.
    pub fn set_ready(&self, key: &str, ready: bool) -> bool {
        self.edit(0, |edit| edit.mark_ready(key, ready))
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
        let mut read = None;
        if let Prompt::Body { path, body } = prompt {
            let context = Context {
                path,
                headers: &Headers::default(),
                tenant: None,
                session: None,
                has_salt: query.cache_salt.is_some(),
            };
            read = Some(self.bodies.read(Some(body), context, true, room)?.0);
        }
        let reader = &self.registry.readers()[0];
        let mut hints = Hints::of(read.as_deref());
        hints.lora = query.lora.or(hints.lora);
        hints.cache_salt = query.cache_salt.or(hints.cache_salt);
        hints.expected_output_tokens = query
            .expected_output_tokens
            .or(hints.expected_output_tokens);
        hints.is_counted = matches!(prompt, Prompt::Tokens(_));
        let model = query.model.map_or(Model::Own, Model::Mixed);
        let namespace = hints.namespace(&reader.hasher, model);
        let mut found = match prompt {
            Prompt::Tokens(tokens) => reader.words(tokens, namespace, &[], buffers),
            Prompt::Text(text) => reader.bytes(text, namespace, buffers),
            Prompt::Length(tokens) => selector::Prompt::without_tokens(tokens),
            Prompt::Body { .. } => match read.as_deref() {
                Some(read) => reader.body(read, &room.prompt, namespace, buffers),
                None => selector::Prompt::without_tokens(0),
            },
        };
        hints.complete(&mut found, model, &self.scales, buffers);
        found.set_session(query.session.unwrap_or_default());
        let request = Request {
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            now: Millis(now_ms),
            ..hints.request(&found, query.exclude.len() as u32, buffers)
        };
        let selection = self.pick(&request, query);
        room.take_back(&mut read);
        selection
    }

    fn pick(&self, request: &Request<'_>, query: &Query<'_>) -> Result<Selection> {
        let roster = &self.registry.roster;
        let registered = roster.now();
        let mut candidates = roster.candidates(&registered);
        for at in (query.exclude.iter()).flat_map(|key| registered.positions(key)) {
            candidates.set_eligibility(at, Eligibility::Excluded);
        }
        let picked = self.held(|selector| {
            if query.dry_run {
                selector.peek(&mut candidates, request)
            } else {
                selector.select(&mut candidates, request)
            }
        });
        let selection = match picked {
            Ok(pick) => Ok(Selection {
                booking: pick.booking,
                worker: candidates[pick.offer].key.to_string(),
                reason: pick.reason,
                prompt_tokens: request.prompt_tokens,
                matched_tokens: pick.matched_tokens,
                best_matched_tokens: pick.best_matched_tokens,
            }),
            Err(Core::NoCandidate) => {
                let reason = |each: &Offer| (each.key.to_string(), each.eligibility.name());
                Err(Error::NoWorker(candidates.iter().map(reason).collect()))
            }
            Err(error) => Err(error.into()),
        };
        roster.give_back(candidates);
        selection
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
        self.held(|selector| selector.end(booking, ending, usage, Millis(now_ms)))
    }
}
