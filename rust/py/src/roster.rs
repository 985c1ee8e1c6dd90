//! The registered workers: one list, which a change replaces if a selection still uses it.
//!
//! To build a fleet takes time in proportion to it: a list that nothing else uses is changed in place, a worker that goes
//! leaves its place vacant, and what selections read is made by the first of them. A selection works on offers of its own, since it writes eligibilities into them. They are taken from a stock and given
//! back, so that no selection copies the list as long as it does not change.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use cachelb::selector::{Offer, Offers, PoolId, Profile};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::engine::lock;

/// One worker.
#[derive(Debug)]
pub struct Seat {
    pub object: Py<PyAny>,
    /// Its name in every output.
    pub key: Arc<str>,
    /// Its key as the caller has it, which may hold credentials.
    pub raw: Arc<str>,
    /// Data-parallel ranks; 1 is a worker without ranks.
    pub dp_size: u32,
    pub gpu: Option<Arc<str>>,
    pub profile: Profile,
    pub weight: f64,
    pub ready: Arc<AtomicBool>,
}

impl Seat {
    fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            object: self.object.clone_ref(py),
            key: Arc::clone(&self.key),
            raw: Arc::clone(&self.raw),
            dp_size: self.dp_size,
            gpu: self.gpu.clone(),
            profile: self.profile.clone(),
            weight: self.weight,
            ready: Arc::clone(&self.ready),
        }
    }

    /// Unique names of its candidates.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.offers().into_iter().map(|offer| offer.name).collect()
    }

    /// One offer per rank.
    pub fn offers(&self) -> Vec<Offer> {
        if self.dp_size == 1 {
            return vec![Offer::new(Arc::clone(&self.key))];
        }
        (0..self.dp_size)
            .map(|rank| Offer::rank(&self.key, rank))
            .collect()
    }
}

/// Offers for selections, made from the workers.
#[derive(Debug)]
struct Lined {
    offers: Vec<Offer>,
    /// Position in `seats` by position in `offers`.
    seat_of: Vec<u32>,
}

/// The workers at one time.
#[derive(Debug, Default)]
pub struct Registered {
    version: u64,
    /// In order of registration; `None` where one went.
    seats: Vec<Option<Seat>>,
    by_key: HashMap<Arc<str>, usize>,
    lined: OnceLock<Lined>,
    /// Models that have an index of their own.
    pub models: HashMap<String, PoolId>,
    /// Workers that do not name the models they serve.
    undeclared: usize,
    /// Workers that are not their own keys.
    objects: usize,
}

impl Registered {
    /// Every worker, in order of registration.
    pub fn seats(&self) -> impl Iterator<Item = &Seat> {
        self.seats.iter().flatten()
    }

    /// Grows with every change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether every worker names the models it serves.
    pub fn declared(&self) -> bool {
        !self.by_key.is_empty() && self.undeclared == 0
    }

    /// Whether every worker is its own key.
    pub fn are_keys(&self) -> bool {
        self.objects == 0
    }

    /// Another worker that has a candidate of one of these names.
    pub fn rival(&self, key: &str, names: &[Arc<str>]) -> Option<&str> {
        let holder = |name: &Arc<str>| {
            let whole = self.seat(name).filter(|seat| seat.dp_size == 1);
            whole.or_else(|| {
                let (key, rank) = name.rsplit_once('#')?;
                let seat = self.seat(key).filter(|seat| seat.dp_size > 1)?;
                let canonical = |own: &u32| *own < seat.dp_size && own.to_string() == rank;
                rank.parse().ok().filter(canonical).map(|_| seat)
            })
        };
        let others = names.iter().filter_map(holder).map(|seat| &*seat.key);
        others.into_iter().find(|other| *other != key)
    }

    pub fn seat(&self, key: &str) -> Option<&Seat> {
        self.seats[*self.by_key.get(key)?].as_ref()
    }

    /// The model that has pool `pool` to itself.
    pub fn model(&self, pool: PoolId) -> Option<&str> {
        let named = self.models.iter().find(|(_, id)| **id == pool);
        named.map(|(model, _)| model.as_str())
    }

    /// The worker behind an offer.
    pub fn seat_of(&self, offer: usize) -> &Seat {
        let at = self.lined().seat_of[offer] as usize;
        self.seats[at].as_ref().expect("an offer is a worker's")
    }

    fn lined(&self) -> &Lined {
        self.lined.get_or_init(|| {
            let (mut offers, mut seat_of) = (Vec::new(), Vec::new());
            for (at, seat) in (0..).zip(&self.seats) {
                offers.extend(seat.iter().flat_map(Seat::offers));
                seat_of.resize(offers.len(), at);
            }
            Lined { offers, seat_of }
        })
    }

    /// Puts a worker in the place of the one of its key, which is returned, or at the end.
    pub fn put(&mut self, py: Python<'_>, seat: Seat) -> Option<Seat> {
        self.count(py, &seat, true);
        if let Some(&at) = self.by_key.get(&seat.key) {
            let old = self.seats[at].replace(seat)?;
            self.count(py, &old, false);
            return Some(old);
        }
        self.by_key.insert(Arc::clone(&seat.key), self.seats.len());
        self.seats.push(Some(seat));
        None
    }

    /// Takes a worker out.
    pub fn take(&mut self, py: Python<'_>, key: &str) -> Option<Seat> {
        let seat = self.seats[self.by_key.remove(key)?].take()?;
        self.count(py, &seat, false);
        if self.by_key.len() * 2 < self.seats.len() {
            self.seats.retain(Option::is_some);
            let keys = self
                .seats
                .iter()
                .flatten()
                .map(|seat| Arc::clone(&seat.key));
            self.by_key = keys.zip(0..).collect();
        }
        Some(seat)
    }

    fn count(&mut self, py: Python<'_>, seat: &Seat, comes: bool) {
        let change = |count: &mut usize| {
            if comes {
                *count += 1;
            } else {
                *count -= 1;
            }
        };
        if seat.profile.pools.is_none() {
            change(&mut self.undeclared);
        }
        if !seat.object.bind(py).is_exact_instance_of::<PyString>() {
            change(&mut self.objects);
        }
    }

    fn clone_ref(&self, py: Python<'_>) -> Self {
        let seats = self.seats.iter();
        Self {
            version: self.version,
            seats: seats
                .map(|seat| seat.as_ref().map(|seat| seat.clone_ref(py)))
                .collect(),
            by_key: self.by_key.clone(),
            lined: OnceLock::new(),
            models: self.models.clone(),
            undeclared: self.undeclared,
            objects: self.objects,
        }
    }
}

/// State displaced by a change. It may hold the last reference to an object of the caller, whose finalizer runs code:
/// to be dropped when others may change the workers again.
#[must_use]
#[derive(Debug)]
pub struct Displaced {
    _seat: Option<Seat>,
    _before: Option<Arc<Registered>>,
}

/// Offers kept for the next selections.
const STOCK: usize = 8;

/// The workers now.
#[derive(Debug, Default)]
pub struct Roster {
    now: Mutex<Arc<Registered>>,
    stock: Mutex<Vec<Offers>>,
}

impl Roster {
    /// The workers as of now.
    pub fn now(&self) -> Arc<Registered> {
        Arc::clone(&lock(&self.now))
    }

    /// Has `change` make the list a new one, for which it is copied if anything else uses it. `change` returns the worker
    /// that it displaced and must not drop any.
    pub fn change(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut Registered) -> Option<Seat>,
    ) -> Displaced {
        let mut now = lock(&self.now);
        let before = (Arc::get_mut(&mut now).is_none())
            .then(|| Arc::new(now.clone_ref(py)))
            .map(|copy| std::mem::replace(&mut *now, copy));
        let registered = Arc::get_mut(&mut now).expect("the lock is held, and the copy is new");
        registered.version += 1;
        registered.lined = OnceLock::new();
        let seat = change(registered);
        drop(now);
        lock(&self.stock).clear();
        Displaced {
            _seat: seat,
            _before: before,
        }
    }

    /// Changes a worker in its place, if there is one.
    pub fn edit(
        &self,
        py: Python<'_>,
        key: &str,
        edit: impl FnOnce(&mut Seat),
    ) -> Option<Displaced> {
        // Not under the lock, where no reference to an object may be given up.
        let mut seat = self.now().seat(key)?.clone_ref(py);
        edit(&mut seat);
        Some(self.change(py, |workers| workers.put(py, seat)))
    }

    /// Names the pool of a model.
    pub fn add_model(&self, py: Python<'_>, model: String, pool: PoolId) -> Displaced {
        self.change(py, |workers| {
            workers.models.insert(model, pool);
            None
        })
    }

    /// Offers of `registered`, all of them candidates.
    pub fn offers(&self, registered: &Registered) -> Offers {
        let mut stock = lock(&self.stock);
        while let Some(mut offers) = stock.pop() {
            if offers.version() == Some(registered.version) {
                offers.reset();
                return offers;
            }
        }
        Offers::versioned(registered.lined().offers.clone(), registered.version)
    }

    /// Takes offers back, whose ids are now known.
    pub fn give_back(&self, offers: Offers) {
        let mut stock = lock(&self.stock);
        if stock.len() < STOCK {
            stock.push(offers);
        }
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Shared with selections that run, in which case the collector sees the workers next time.
        let Ok(now) = self.now.try_lock() else {
            return Ok(());
        };
        if Arc::strong_count(&now) > 1 {
            return Ok(());
        }
        now.seats().try_for_each(|seat| visit.call(&seat.object))
    }
}
