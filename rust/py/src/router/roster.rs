//! The registered workers: one immutable list that every change replaces.
//!
//! A selection works on offers of its own, since it writes standings into them. They are taken from a stock and given
//! back, so that no selection copies the list as long as it does not change.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use cachelb_core::router::{Offer, Offers, PoolId, Profile};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

/// One worker.
#[derive(Debug)]
pub struct Seat {
    pub object: Py<PyAny>,
    pub key: Arc<str>,
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

/// The workers at one time.
#[derive(Debug, Default)]
pub struct Registered {
    version: u64,
    pub seats: Vec<Seat>,
    by_key: HashMap<Arc<str>, usize>,
    offers: Vec<Offer>,
    /// Position in `seats` by position in `offers`.
    seat_of: Vec<u32>,
    /// Models that have an index of their own.
    pub models: HashMap<String, PoolId>,
}

impl Registered {
    /// Another worker that has a candidate of one of these names.
    pub fn rival(&self, key: &str, names: &[Arc<str>]) -> Option<&str> {
        let taken = |offer: &&Offer| *offer.key != *key && names.contains(&offer.name);
        self.offers.iter().find(taken).map(|offer| &*offer.key)
    }

    pub fn seat(&self, key: &str) -> Option<&Seat> {
        self.by_key.get(key).map(|&at| &self.seats[at])
    }

    /// Key and rank of a candidate by its unique name; of one that is gone, the name and no rank.
    pub fn split<'a>(&self, name: &'a str) -> (&'a str, Option<u32>) {
        let ranked = |key: &str| self.seat(key).is_some_and(|seat| seat.dp_size > 1);
        let parts = name.rsplit_once('#').filter(|(key, _)| ranked(key));
        parts.map_or((name, None), |(key, rank)| (key, rank.parse().ok()))
    }

    /// The model that has pool `pool` to itself.
    pub fn model(&self, pool: PoolId) -> Option<&str> {
        let named = self.models.iter().find(|(_, id)| **id == pool);
        named.map(|(model, _)| model.as_str())
    }

    /// The worker behind an offer.
    pub fn seat_of(&self, offer: usize) -> &Seat {
        &self.seats[self.seat_of[offer] as usize]
    }
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
        Arc::clone(&self.now.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the list by what `change` makes of a copy. Callers must not run at the same time; the GIL sees to it.
    pub fn change<R>(&self, py: Python<'_>, change: impl FnOnce(&mut Vec<Seat>) -> R) -> R {
        let before = self.now();
        let mut seats: Vec<Seat> = before.seats.iter().map(|seat| seat.clone_ref(py)).collect();
        let result = change(&mut seats);
        let (mut offers, mut seat_of) = (Vec::new(), Vec::new());
        for (i, seat) in seats.iter().enumerate() {
            let own = seat.offers();
            seat_of.extend(own.iter().map(|_| i as u32));
            offers.extend(own);
        }
        let by_key = seats
            .iter()
            .enumerate()
            .map(|(i, seat)| (Arc::clone(&seat.key), i))
            .collect();
        self.replace(Registered {
            version: before.version + 1,
            seats,
            by_key,
            offers,
            seat_of,
            models: before.models.clone(),
        });
        result
    }

    /// Names the pool of a model.
    pub fn add_model(&self, py: Python<'_>, model: String, pool: PoolId) {
        let before = self.now();
        let mut models = before.models.clone();
        models.insert(model, pool);
        self.replace(Registered {
            version: before.version + 1,
            seats: before.seats.iter().map(|seat| seat.clone_ref(py)).collect(),
            by_key: before.by_key.clone(),
            offers: before.offers.clone(),
            seat_of: before.seat_of.clone(),
            models,
        });
    }

    fn replace(&self, new: Registered) {
        let new = Arc::new(new);
        let before = std::mem::replace(
            &mut *self.now.lock().unwrap_or_else(PoisonError::into_inner),
            new,
        );
        self.stock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        // May drop objects of the caller, which run code: only now that nothing is locked.
        drop(before);
    }

    /// Offers of `registered`, all of them candidates.
    pub fn offers(&self, registered: &Registered) -> Offers {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(mut offers) = stock.pop() {
            if offers.version() == Some(registered.version) {
                offers.reset();
                return offers;
            }
        }
        Offers::versioned(registered.offers.clone(), registered.version)
    }

    /// Takes offers back, whose ids are now known.
    pub fn give_back(&self, offers: Offers) {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
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
        now.seats
            .iter()
            .try_for_each(|seat| visit.call(&seat.object))
    }
}
