//! A router as the host of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cachelb::selector::{Eligibility, Ending, Role, Usage as Counts, Wanted, Way};
use cachelb_serving::{
    Asked, Booked, Host, Known, LARGE_BODY_BYTES, Moved, Picked, Query, Refusal, Selected,
    Selecting, Usage, off_thread, pick,
};
use pyo3::prelude::*;
use tokio::sync::Semaphore;

use super::addresses::Addresses;
use super::door::{Came, Door, Entrance};
use super::gate;
use super::interpreted::Interpreted;
use super::load::{Chosen, Load};
use super::native::{failed, natively};
use crate::arguments::MAX_TOKENS;
use crate::decision::{Lease, Owner, header_pairs};
use crate::router::NativeRouter;
use crate::workers::Registered;

/// A router and what its server keeps of it.
#[derive(Debug)]
pub struct RouterHost {
    router: Py<NativeRouter>,
    owner: Arc<dyn Owner>,
    addresses: Addresses,
    /// The admission, if there is one.
    door: Option<Arc<Door>>,
    /// Permit to call the interpreter.
    interpreter: Arc<Semaphore>,
    /// How long a request waits for the interpreter in all.
    patience: Duration,
    /// Requests for which the interpreter took too long.
    late: AtomicU64,
}

/// How a request is selected for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Native,
    Interpreted,
}

impl RouterHost {
    pub fn new(
        router: &Bound<'_, NativeRouter>,
        addresses: Addresses,
        door: Option<Arc<Door>>,
        patience: Duration,
    ) -> Self {
        Self {
            router: router.clone().unbind(),
            owner: Arc::new(router.clone().unbind()),
            addresses,
            door,
            interpreter: Arc::new(Semaphore::new(1)),
            patience,
            late: AtomicU64::new(0),
        }
    }

    /// Requests that were picked for without the policy or renderer in Python, which took too long.
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// Whether the interpreter takes part in any selection.
    pub fn needs_python(&self) -> bool {
        let router = self.router.get();
        self.is_asked() || router.bodies.renders() || !router.engine.has_native_clock()
    }

    fn registered(&self) -> Arc<Registered> {
        self.router.get().fleet.get().registry.roster.now()
    }

    /// Whether the interpreter takes part in the selection for a request.
    fn way(&self, asked: &Asked) -> By {
        if self.renders(asked) || self.is_asked() {
            By::Interpreted
        } else {
            By::Native
        }
    }

    /// Whether a policy of the caller's, or one beside, is asked.
    fn is_asked(&self) -> bool {
        self.router.get().customs.are_asked(Wanted::Whole, false)
    }

    fn renders(&self, asked: &Asked) -> bool {
        asked.body.is_some() && self.router.get().bodies.renders()
    }

    fn selecting<R>(
        &self,
        way: By,
        asked: &Asked,
        entry: Entrance<'_>,
        work: impl FnOnce(&Known, &mut dyn Selecting<Load = Load>) -> Selected<R>,
    ) -> Result<Came<R>, Refusal> {
        let registered = self.registered();
        let known = self
            .addresses
            .of(&registered)
            .map_err(|error| failed(&error))?;
        match way {
            By::Native => {
                let _inside = gate::enter();
                natively(
                    self.router.get(),
                    &self.owner,
                    &registered,
                    asked,
                    entry,
                    |natively| work(&known, natively),
                )
            }
            By::Interpreted => Python::attach(|py| {
                let router = self.router.bind(py).clone();
                let mut interpreted =
                    Interpreted::new(router, asked).map_err(|error| failed(&error))?;
                let picked = work(&known, &mut interpreted)?;
                picked.map(Came::Picked).ok_or_else(Refusal::failed)
            }),
        }
    }

    fn picked(self: &Arc<Self>, way: By, asked: Asked) -> Result<Picked, Refusal> {
        self.tried(way, asked, None)?.now()
    }

    /// A try of a request to pass the `door`.
    fn came(
        self: &Arc<Self>,
        door: &Arc<Door>,
        asked: Asked,
        entry: &Way,
    ) -> Result<Came<Picked>, Refusal> {
        let came = self.tried(By::Native, asked, Some((door, entry)));
        if matches!(entry, Way::Again(..)) || matches!(came, Ok(Came::Waits(..))) {
            door.call_next(false);
        }
        came
    }

    fn tried(
        self: &Arc<Self>,
        way: By,
        asked: Asked,
        entry: Entrance<'_>,
    ) -> Result<Came<Picked>, Refusal> {
        let came = self.selecting(way, &asked, entry, |known, selecting| {
            pick(selecting, &asked, (known, way == By::Interpreted))
        })?;
        let (endpoints, chosen) = match came {
            Came::Picked(picked) => picked,
            Came::Waits(waiting) => return Ok(Came::Waits(waiting)),
        };
        let booking = Booking {
            host: Arc::clone(self),
            endpoint: endpoints.first().cloned().unwrap_or_default(),
            asked,
            chosen,
        };
        Ok(Came::Picked(Picked::new(endpoints, Box::new(booking))))
    }

    /// The worker at an address.
    pub fn key_at(&self, address: &str) -> Option<Arc<str>> {
        let registered = self.registered();
        let known = self.addresses.of(&registered).ok()?;
        known.key_at(address).map(Arc::clone)
    }

    /// Books a request on a worker that served it though another one was picked.
    pub fn book_on(&self, asked: &Asked, key: &Arc<str>) -> Result<Chosen, Refusal> {
        let among = [Arc::clone(key)].into();
        let query = Query {
            among: Some(&among),
            exclude: &[],
            dry_run: false,
            pinned: self.router.get().customs.decides(Wanted::Whole),
        };
        // With one candidate a policy has nothing to choose, but a rendered prompt is rendered again.
        let way = if self.renders(asked) {
            By::Interpreted
        } else {
            By::Native
        };
        self.selecting(way, asked, None, |_, selecting| selecting.select(query))?
            .now()
    }
}

/// A booking, with all that another one of the same request takes.
pub struct Booking {
    pub host: Arc<RouterHost>,
    pub asked: Asked,
    pub endpoint: String,
    pub chosen: Chosen,
}

impl Booking {
    /// Runs `step` on the load, if there is one. Errors are reported as unraisable, since no caller waits for them.
    fn with(&self, step: impl FnOnce(&Lease) -> PyResult<()>) {
        let _inside = gate::enter();
        let load = self.chosen.load.as_ref();
        if let Some(Err(error)) = load.map(|load| step(&load.lease)) {
            Python::attach(|py| error.write_unraisable(py, None));
        }
    }

    fn end(&self, ending: Ending, usage: Counts) {
        self.with(|lease| lease.end(ending, usage, lease.engine.any_now()));
    }
}

impl Booked for Booking {
    fn worker(&self) -> &str {
        &self.chosen.key
    }

    fn model(&self) -> &str {
        &self.chosen.model
    }

    fn rank(&self) -> Option<u32> {
        self.chosen.rank
    }

    fn headers(&self) -> Vec<(String, String)> {
        let Chosen {
            key, rank, load, ..
        } = &self.chosen;
        let pairs = load.as_ref().map(|load| {
            let (reason, matched) = (load.reason, load.matched_tokens);
            header_pairs(key, load.lease.id(), reason, matched, *rank)
        });
        (pairs.into_iter().flatten())
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    fn served(&mut self, address: &str) -> Moved {
        if address == self.endpoint {
            return Moved::Fallback;
        }
        let Some(key) = self.host.key_at(address) else {
            self.end(Ending::Cancelled, Counts::default());
            return Moved::Unknown;
        };
        self.error(502, None);
        let Ok(chosen) = self.host.book_on(&self.asked, &key) else {
            return Moved::Unbooked;
        };
        self.chosen = chosen;
        address.clone_into(&mut self.endpoint);
        Moved::Fallback
    }

    fn forget_prompt(&mut self) {
        self.asked.body = None;
    }

    fn first_token(&mut self) {
        self.with(|lease| lease.first_token(None));
    }

    fn tokens(&mut self, count: u64) {
        self.with(|lease| lease.tokens(None, count.min(MAX_TOKENS)));
    }

    fn stores_response(&self) -> bool {
        let load = self.chosen.load.as_ref();
        load.is_some_and(|load| load.lease.client.responses.is_some())
    }

    fn response(&mut self, id: &str) {
        self.with(|lease| lease.responded(None, id));
    }

    fn complete(&mut self, usage: Usage) {
        self.with(|lease| {
            let mut refused = 0;
            let mut count = |count: Option<u64>| {
                let known = count.filter(|count| *count <= MAX_TOKENS);
                refused += u64::from(count.is_some() && known.is_none());
                known
            };
            let counts = Counts {
                cached_tokens: count(usage.cached_tokens),
                prompt_tokens: count(usage.prompt_tokens),
                output_tokens: count(usage.output_tokens),
            };
            if refused > 0 {
                lease.refuse(None, refused)?;
            }
            lease.end(Ending::Completed, counts, lease.engine.any_now())
        });
    }

    fn disconnected(&mut self) {
        self.with(|lease| lease.disconnected(lease.engine.any_now()));
    }

    fn error(&mut self, status: u16, retry_after_s: Option<f64>) {
        let ending = Ending::of_status(status).unwrap_or(Ending::Cancelled);
        self.with(|lease| lease.fail(None, ending, retry_after_s, lease.engine.any_now()));
    }

    fn cancel(&mut self) {
        self.end(Ending::Cancelled, Counts::default());
    }
}

impl Host for RouterHost {
    async fn pick(self: &Arc<Self>, asked: Asked) -> Result<Picked, Refusal> {
        let host = Arc::clone(self);
        if host.way(&asked) == By::Interpreted {
            let (interpreter, patience) = (Arc::clone(&host.interpreter), host.patience);
            let (own, request) = (Arc::clone(&host), asked.clone());
            // The permit goes with the work: a call that hangs keeps it, and all others wait their time and no longer.
            let work = async move {
                let permit = interpreter.acquire_owned().await;
                let work = move || {
                    let _permit = permit;
                    own.picked(By::Interpreted, request)
                };
                off_thread(work).await
            };
            match tokio::time::timeout(patience, work).await {
                Ok(picked) => return picked,
                Err(_) => host.late.fetch_add(1, Ordering::Relaxed),
            };
        }
        let is_long = asked
            .body
            .as_ref()
            .is_some_and(|body| body.len() > LARGE_BODY_BYTES);
        if let Some(door) = host.door.as_ref().filter(|_| !asked.any_model) {
            let tried = |entry: Way| {
                let (host, door, asked) = (Arc::clone(&host), Arc::clone(door), asked.clone());
                let come = move || host.came(&door, asked, &entry);
                async move {
                    if is_long {
                        off_thread(come).await
                    } else {
                        come()
                    }
                }
            };
            return door.admit(tried).await;
        }
        if is_long || !host.router.get().engine.has_native_clock() {
            return off_thread(move || host.picked(By::Native, asked)).await;
        }
        host.picked(By::Native, asked)
    }

    fn workers(&self) -> Vec<Arc<str>> {
        let registered = self.registered();
        registered
            .workers()
            .map(|seat| Arc::clone(&seat.key))
            .collect()
    }

    fn version(&self) -> u64 {
        self.registered().version()
    }

    fn target(&self, key: &str) -> Option<Arc<str>> {
        let registered = self.registered();
        registered.worker(key).map(|seat| Arc::clone(&seat.raw))
    }

    fn schedulable(&self) -> usize {
        let (registered, engine) = (self.registered(), &self.router.get().engine);
        let now = engine.any_now();
        let _inside = gate::enter();
        engine.held(|selector| {
            let takes = |name: &Arc<str>| {
                let id = selector.fleet().find(name);
                let condition = id.and_then(|id| selector.condition(id, now));
                condition.is_some_and(|(profile, eligibility)| {
                    profile.role != Role::Prefill
                        && !matches!(eligibility, Eligibility::NotReady | Eligibility::Draining)
                })
            };
            let seats = registered.workers();
            seats.filter(|seat| seat.names().iter().any(takes)).count()
        })
    }

    fn set_health(&self, worker: &str, is_healthy: bool) {
        let registered = self.registered();
        let Some(seat) = registered.worker(worker) else {
            return;
        };
        let (names, engine) = (seat.names(), &self.router.get().engine);
        let _inside = gate::enter();
        let marked = engine.caught(|selector| {
            for name in &names {
                selector.workers_mut().set_healthy(name, is_healthy);
            }
        });
        if let Err(error) = marked.and_then(|()| engine.released()) {
            failed(&error);
        }
    }
}
