//! The registered workers: one list, which a change copies if a selection still uses it.
//!
//! The first selection that uses a list makes its offers. Each selection has candidates of its own, since it writes
//! eligibilities into them. They are taken from a stock and given back, so that no selection copies the list as long as
//! it does not change.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::fleet::offers::{Offer, Offers};
use crate::fleet::worker::Profile;
use crate::request::PoolId;

/// Lists of candidates kept for the next selections.
const STOCK: usize = 8;

/// Locks a value that no panic leaves half changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One registered worker, which is a `T` of the host's.
#[derive(Debug, Clone)]
pub struct Worker<T> {
    /// The host's object.
    pub object: T,
    /// Its name in every output.
    pub key: Arc<str>,
    /// Its key as the host has it, which may hold credentials.
    pub raw: Arc<str>,
    /// Whether the object is no more than its key.
    pub is_key: bool,
    /// Data-parallel ranks; 1 is a worker without ranks.
    pub dp_size: u32,
    /// Its role, models and limits.
    pub profile: Profile,
    /// Its weight.
    pub weight: f64,
    /// Whether it takes requests. One and the same for as long as it is registered.
    pub ready: Arc<AtomicBool>,
}

impl<T> Worker<T> {
    /// One candidate per rank.
    #[must_use]
    pub fn candidates(&self) -> Vec<Offer> {
        if self.dp_size == 1 {
            return vec![Offer::new(Arc::clone(&self.key))];
        }
        (0..self.dp_size)
            .map(|rank| Offer::rank(&self.key, rank))
            .collect()
    }

    /// Unique names of its candidates.
    #[must_use]
    pub fn names(&self) -> Vec<Arc<str>> {
        let candidates = self.candidates().into_iter();
        candidates.map(|candidate| candidate.name).collect()
    }
}

/// Offers for selections, made from the workers.
#[derive(Debug, Clone)]
struct Lined {
    candidates: Vec<Offer>,
    /// Position of the worker by position of the candidate.
    worker_of: Vec<u32>,
    /// Whether every worker names the models it serves.
    declared: bool,
}

/// The workers at one time.
#[derive(Debug, Clone)]
pub struct Registered<T> {
    /// Rises with every change.
    pub version: u64,
    /// In order of registration; `None` where one was taken out.
    workers: Vec<Option<Arc<Worker<T>>>>,
    by_key: HashMap<Arc<str>, usize>,
    lined: OnceLock<Lined>,
    /// Models that have an index of their own.
    pub models: HashMap<String, PoolId>,
}

impl<T> Registered<T> {
    /// Every worker, in order of registration.
    pub fn workers(&self) -> impl Iterator<Item = &Worker<T>> {
        self.workers.iter().flatten().map(|worker| &**worker)
    }

    /// The worker called `key`.
    #[must_use]
    pub fn worker(&self, key: &str) -> Option<&Arc<Worker<T>>> {
        self.workers[*self.by_key.get(key)?].as_ref()
    }

    /// Whether every worker names the models it serves.
    #[must_use]
    pub fn declared(&self) -> bool {
        self.lined().declared
    }

    /// Whether every worker is its own key.
    #[must_use]
    pub fn are_keys(&self) -> bool {
        self.workers().all(|worker| worker.is_key)
    }

    /// Another worker that has a candidate of one of these names.
    pub(crate) fn rival(&self, key: &str, names: &[Arc<str>]) -> Option<&str> {
        let holder = |name: &Arc<str>| {
            let whole = self.worker(name).filter(|worker| worker.dp_size == 1);
            whole.or_else(|| {
                let (key, rank) = name.rsplit_once('#')?;
                let worker = self.worker(key).filter(|worker| worker.dp_size > 1)?;
                let canonical = |own: &u32| *own < worker.dp_size && own.to_string() == rank;
                rank.parse().ok().filter(canonical).map(|_| worker)
            })
        };
        let mut others = names.iter().filter_map(holder).map(|worker| &*worker.key);
        others.find(|other| *other != key)
    }

    /// The model that has pool `pool` to itself.
    #[must_use]
    pub fn model(&self, pool: PoolId) -> Option<&str> {
        let named = self.models.iter().find(|(_, id)| **id == pool);
        named.map(|(model, _)| model.as_str())
    }

    /// The worker behind a candidate.
    ///
    /// # Panics
    /// There is no such candidate.
    #[must_use]
    pub fn worker_of(&self, candidate: usize) -> &Worker<T> {
        let worker = &self.workers[self.lined().worker_of[candidate] as usize];
        worker.as_ref().expect("a candidate is of a worker")
    }

    /// Where the candidates of the worker called `key` are.
    pub(crate) fn positions(&self, key: &str) -> impl Iterator<Item = usize> {
        let worker = self.by_key.get(key).copied();
        let ranks = self.worker(key).map_or(0, |worker| worker.dp_size as usize);
        let worker_of = &self.lined().worker_of;
        let first = worker.map_or(0, |at| worker_of.partition_point(|&of| (of as usize) < at));
        first..first + ranks
    }

    fn lined(&self) -> &Lined {
        self.lined.get_or_init(|| {
            let (mut candidates, mut worker_of) = (Vec::new(), Vec::new());
            for (at, worker) in (0..).zip(&self.workers) {
                candidates.extend(worker.iter().flat_map(|worker| worker.candidates()));
                worker_of.resize(candidates.len(), at);
            }
            let mut pools = self.workers().map(|worker| &worker.profile.pools);
            Lined {
                candidates,
                worker_of,
                declared: !self.by_key.is_empty() && pools.all(Option::is_some),
            }
        })
    }

    /// Puts a worker in the place of the one of its key, which is returned, or at the end.
    pub(crate) fn put(&mut self, worker: Worker<T>) -> Option<Arc<Worker<T>>> {
        let key = Arc::clone(&worker.key);
        let at = *self.by_key.entry(key).or_insert(self.workers.len());
        if at == self.workers.len() {
            self.workers.push(None);
        }
        self.workers[at].replace(Arc::new(worker))
    }

    /// Takes a worker out.
    pub(crate) fn take(&mut self, key: &str) -> Option<Arc<Worker<T>>> {
        let taken = self.workers[self.by_key.remove(key)?].take();
        if self.by_key.len() * 2 < self.workers.len() {
            self.workers.retain(Option::is_some);
            let keys = self.workers().map(|worker| Arc::clone(&worker.key));
            self.by_key = keys.zip(0..).collect();
        }
        taken
    }
}

/// The workers now.
#[derive(Debug)]
pub struct Roster<T> {
    now: Mutex<Arc<Registered<T>>>,
    stock: Mutex<Vec<Offers>>,
    /// Whether a thread is changing them.
    changing: AtomicBool,
}

impl<T> Roster<T> {
    /// No workers, and these models.
    pub(crate) fn new(models: HashMap<String, PoolId>) -> Self {
        let registered = Registered {
            version: 0,
            workers: Vec::new(),
            by_key: HashMap::new(),
            lined: OnceLock::new(),
            models,
        };
        Self {
            now: Mutex::new(Arc::new(registered)),
            stock: Mutex::default(),
            changing: AtomicBool::new(false),
        }
    }

    /// The workers as of now.
    pub fn now(&self) -> Arc<Registered<T>> {
        Arc::clone(&lock(&self.now))
    }

    /// Begins a change of workers or models: the selector and this list must agree. While another thread changes them
    /// it waits, by `pause` time and again.
    pub fn change(&self, pause: impl Fn()) -> Change<'_, T> {
        while self.changing.swap(true, Ordering::Acquire) {
            pause();
        }
        Change {
            roster: self,
            displaced: Vec::new(),
        }
    }

    /// In the child of a fork, which has no other thread.
    pub fn after_fork(&self) {
        self.changing.store(false, Ordering::Relaxed);
    }

    /// Candidates of `registered`, all of them eligible.
    pub fn candidates(&self, registered: &Registered<T>) -> Offers {
        let mut stock = lock(&self.stock);
        while let Some(mut candidates) = stock.pop() {
            if candidates.version() == Some(registered.version) {
                candidates.reset();
                return candidates;
            }
        }
        Offers::versioned(registered.lined().candidates.clone(), registered.version)
    }

    /// Takes candidates back, whose ids are now known.
    pub fn give_back(&self, candidates: Offers) {
        let mut stock = lock(&self.stock);
        if stock.len() < STOCK {
            stock.push(candidates);
        }
    }

    /// The objects that nothing else refers to, for a garbage collector.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn visit<E>(&self, mut visit: impl FnMut(&T) -> Result<(), E>) -> Result<(), E> {
        // Shared with selections that run, in which case the collector sees the workers next time.
        let Ok(now) = self.now.try_lock() else {
            return Ok(());
        };
        if Arc::strong_count(&now) > 1 {
            return Ok(());
        }
        let workers = now.workers.iter().flatten();
        let mut own = workers.filter(|worker| Arc::strong_count(worker) == 1);
        own.try_for_each(|worker| visit(&worker.object))
    }
}

/// A change of the workers, of which there is one at a time. A worker that it displaced may hold the last reference to
/// an object of the host, whose end runs code: it is dropped when others may change the workers again.
#[derive(Debug)]
pub struct Change<'a, T> {
    roster: &'a Roster<T>,
    displaced: Vec<Arc<Worker<T>>>,
}

impl<T> Drop for Change<'_, T> {
    fn drop(&mut self) {
        self.roster.changing.store(false, Ordering::Release);
    }
}

impl<T: Clone> Change<'_, T> {
    /// The workers as of now.
    #[must_use]
    pub fn now(&self) -> Arc<Registered<T>> {
        self.roster.now()
    }

    /// Has `change` make the list a new one, for which it is copied if anything else uses it. It returns the worker
    /// that it displaced and must not drop any.
    pub(crate) fn update(
        &mut self,
        change: impl FnOnce(&mut Registered<T>) -> Option<Arc<Worker<T>>>,
    ) {
        let mut now = lock(&self.roster.now);
        let registered = Arc::make_mut(&mut now);
        registered.version += 1;
        registered.lined = OnceLock::new();
        self.displaced.extend(change(registered));
        drop(now);
        lock(&self.roster.stock).clear();
    }

    /// Changes a worker in its place, if there is one.
    pub fn edit(&mut self, key: &str, edit: impl FnOnce(&mut Worker<T>)) {
        let worker = self.now().worker(key).cloned();
        if let Some(worker) = worker {
            let mut worker = Worker::clone(&worker);
            edit(&mut worker);
            self.update(|workers| workers.put(worker));
        }
    }

    /// Names the pool of a model.
    pub fn add_model(&mut self, model: String, pool: PoolId) {
        self.update(|workers| {
            workers.models.insert(model, pool);
            None
        });
    }
}
