//! A router as the host of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cachelb::selector::{Waits, Wanted, Way};
use cachelb_serving::{
    Asked, Host, Known, LARGE_BODY_BYTES, Picked, Refusal, Selected, off_thread,
};
use pyo3::prelude::*;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::addresses::Addresses;
use super::admission::{Admission, Came, Held};
use super::booking::Booking;
use super::gate;
use super::select::{self, Selection, failed};
use crate::arguments::prompt::with_detached_scratch;
use crate::decision::Owner;
use crate::engine::log::log;
use crate::router::{Fleet, NativeRouter};
use crate::workers::Registered;

/// A router and what its server keeps of it.
#[derive(Debug)]
pub struct RouterHost {
    router: Py<NativeRouter>,
    pub owner: Arc<dyn Owner>,
    addresses: Addresses,
    pub admission: Option<Admission>,
    /// Permit to call the interpreter.
    interpreter: Arc<Semaphore>,
    /// How long a request waits for the interpreter in all.
    patience: Duration,
    /// Requests for which the interpreter took too long.
    late: AtomicU64,
}

impl RouterHost {
    pub fn new(
        router: &Bound<'_, NativeRouter>,
        addresses: Addresses,
        admission: Option<Admission>,
        patience: Duration,
    ) -> Self {
        Self {
            router: router.clone().unbind(),
            owner: Arc::new(router.clone().unbind()),
            addresses,
            admission,
            interpreter: Arc::new(Semaphore::new(1)),
            patience,
            late: AtomicU64::new(0),
        }
    }

    /// Requests that were picked for without the policy or renderer in Python, which took too long.
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    pub fn router(&self) -> &NativeRouter {
        self.router.get()
    }

    pub fn fleet(&self) -> &Fleet {
        self.router().fleet.get()
    }

    /// Whether the interpreter takes part in any selection.
    pub fn needs_python(&self) -> bool {
        let router = self.router();
        self.asks_policies() || router.bodies.renders() || !router.engine.has_native_clock()
    }

    fn registered(&self) -> Arc<Registered> {
        self.fleet().registry.roster.now()
    }

    /// Whether a policy of the caller's, or one beside, is asked.
    fn asks_policies(&self) -> bool {
        self.router().customs.are_asked(Wanted::Whole, false)
    }

    fn renders(&self, asked: &Asked) -> bool {
        asked.body.is_some() && self.router().bodies.renders()
    }

    /// Reads a request and has `work` select for it, by the interpreter if that `is_asked`.
    fn selected<R>(
        &self,
        is_asked: bool,
        asked: &Asked,
        way: Option<&Way>,
        work: impl FnOnce(&Known, &mut Selection<'_>) -> Selected<R>,
    ) -> Result<Result<R, Waits>, Refusal> {
        let registered = self.registered();
        let known = self.addresses.of(&registered);
        let known = known.map_err(|error| failed(&error))?;
        let entrance = way.and_then(|way| Some((&self.admission.as_ref()?.entry, way)));
        with_detached_scratch(|scratch| {
            let read_and_select = |python: Option<Bound<'_, NativeRouter>>| {
                let mut selection =
                    Selection::read(self, python, &registered, asked, entrance, scratch)?;
                match (work(&known, &mut selection)?, selection.waits) {
                    (Some(picked), _) => Ok(Ok(picked)),
                    (None, Some(waits)) => Ok(Err(waits)),
                    (None, None) => Err(Refusal::failed()),
                }
            };
            if is_asked {
                return Python::attach(|py| read_and_select(Some(self.router.bind(py).clone())));
            }
            let _inside = gate::enter();
            read_and_select(None)
        })
    }

    /// Picks for a request, which may pass the admission in this `way`.
    fn came(
        self: &Arc<Self>,
        is_asked: bool,
        asked: Asked,
        way: Option<&Way>,
    ) -> Result<Came, Refusal> {
        let passed = self.selected(is_asked, &asked, way, |known, selection| {
            selection.pick(known)
        });
        if way.is_some_and(|way| way.ticket().is_some()) || matches!(passed, Ok(Err(_))) {
            self.call_next(false);
        }
        let (endpoints, chosen) = match passed? {
            Ok(picked) => picked,
            Err(Waits { ticket, again_ms }) => {
                return Ok(Came::Waits(Held::new(self, ticket, again_ms)));
            }
        };
        let booking = Booking {
            host: Arc::clone(self),
            endpoint: endpoints.first().cloned().unwrap_or_default(),
            asked,
            chosen,
        };
        Ok(Came::Picked(Picked::new(endpoints, Box::new(booking))))
    }

    /// As [`Self::came`] without the interpreter, on another thread if it takes long.
    pub async fn tried(self: &Arc<Self>, asked: Asked, way: Option<Way>) -> Result<Came, Refusal> {
        let body = asked.body.as_ref();
        let is_long = body.is_some_and(|body| body.len() > LARGE_BODY_BYTES);
        let host = Arc::clone(self);
        let come = move || host.came(false, asked, way.as_ref());
        if is_long || !self.router().engine.has_native_clock() {
            off_thread(come).await
        } else {
            come()
        }
    }

    /// The worker at an address.
    pub fn key_at(&self, address: &str) -> Option<Arc<str>> {
        let known = self.addresses.of(&self.registered()).ok()?;
        known.key_at(address).map(Arc::clone)
    }

    /// Books a request on a worker that served it though another one was picked.
    pub fn book_on(&self, asked: &Asked, key: &Arc<str>) -> Result<select::Picked, Refusal> {
        // With one candidate a policy has nothing to choose, but a rendered prompt is rendered again.
        let passed = self.selected(self.renders(asked), asked, None, |_, selection| {
            selection.pick_at(key)
        })?;
        passed.map_err(|_| Refusal::failed())
    }
}

impl Host for RouterHost {
    async fn pick(self: &Arc<Self>, asked: Asked) -> Result<Picked, Refusal> {
        if self.renders(&asked) || self.asks_policies() {
            let interpreter = Arc::clone(&self.interpreter);
            let (host, request) = (Arc::clone(self), asked.clone());
            // The permit goes with the work: a call that hangs keeps it, and all others wait their time and no longer.
            let work = async move {
                let permit = interpreter.acquire_owned().await;
                let work = move || {
                    let _permit = permit;
                    host.came(true, request, None)
                };
                off_thread(work).await
            };
            match tokio::time::timeout(self.patience, work).await {
                Ok(came) => return came?.now(),
                Err(_) => self.late.fetch_add(1, Ordering::Relaxed),
            };
        }
        if let Some(admission) = self.admission.as_ref().filter(|_| !asked.any_model) {
            return self.admit(admission, asked).await;
        }
        self.tried(asked, None).await?.now()
    }

    fn workers(&self) -> Vec<Arc<str>> {
        let registered = self.registered();
        let keys = registered.workers().map(|seat| Arc::clone(&seat.key));
        keys.collect()
    }

    fn target(&self, key: &str) -> Option<Arc<str>> {
        let registered = self.registered();
        registered.worker(key).map(|seat| Arc::clone(&seat.raw))
    }

    fn schedulable(&self) -> usize {
        let engine = &*self.router().engine;
        let now = engine.any_now();
        let _inside = gate::enter();
        self.fleet().registry.schedulable(engine, now)
    }

    fn set_health(&self, worker: &str, is_healthy: bool) {
        let engine = &*self.router().engine;
        let inside = gate::enter();
        (self.fleet().registry).set_healthy(engine, worker, is_healthy);
        if let Err(error) = engine.released() {
            failed(&error);
        }
        drop(inside);
        let worker = worker.to_owned();
        let (level, text) = if is_healthy {
            ("info", "worker %s passes its health check")
        } else {
            (
                "warning",
                "worker %s fails its health check, and is not picked",
            )
        };
        spawn_blocking(move || log("cachelb_gateway.serve", level, text, &[&worker]));
    }
}
