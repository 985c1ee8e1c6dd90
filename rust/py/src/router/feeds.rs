//! The event streams of the registered workers, and the undeclared models they name.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cachelb::selector::{CommonName, PoolId, SharedTerms};
use cachelb_core::ids::{Medium, WorkerId};
use cachelb_events::{Place, Streams, Totals};

use crate::call::Model;
use crate::engine::lock;
use crate::roster::Seat;

/// The streams of one worker.
#[derive(Debug)]
pub struct WorkerStreams {
    /// By rank.
    pub ids: Vec<WorkerId>,
    /// The pool that they are about.
    pub home: PoolId,
    /// Flag of the worker, which is one object as long as it is registered.
    pub life: Arc<AtomicBool>,
    pub streams: Streams,
    /// Restarts in them when another source saw the last one.
    pub restarts: AtomicU64,
}

impl WorkerStreams {
    /// Whether they are those of the worker in `seat`.
    pub fn are_of(&self, seat: &Seat) -> bool {
        Arc::ptr_eq(&self.life, &seat.ready)
            && self.ids.len() == seat.dp_size as usize
            && self.home == seat.profile.home()
    }
}

/// One shared cache.
#[derive(Debug, Clone)]
pub struct SharedCache {
    pub name: Arc<str>,
    pub terms: SharedTerms,
    /// Media that mean this cache in the events of workers.
    pub media: Arc<[Medium]>,
    pub streams: Arc<WorkerStreams>,
}

impl SharedCache {
    /// Whether the worker called `key` reads it.
    pub fn serves(&self, key: &str) -> bool {
        self.terms.readers.has(key)
    }

    /// Whether the blocks that a worker announces in `place` are recorded here.
    pub fn holds(&self, place: Place) -> bool {
        match place {
            Place::Shared => true,
            Place::In(medium) => self.media.contains(&medium),
            Place::Unsaid | Place::Unknown => false,
        }
    }

    /// Its id in the index.
    pub fn holder(&self) -> WorkerId {
        self.streams.ids[0]
    }
}

/// Names of models that no pool was declared for, and their meaning where engines publish events.
#[derive(Debug, Default)]
pub struct Undeclared {
    /// Events came for the first pool.
    pub fed: AtomicBool,
    /// The engines' name of their model, which events do not carry.
    own: Mutex<CommonName>,
    /// Adapters that events named.
    adapters: Mutex<HashSet<Box<str>>>,
}

impl Undeclared {
    pub fn has_events(&self) -> bool {
        self.fed.load(Ordering::Relaxed)
    }
}

/// The streams of all workers.
#[derive(Debug, Default)]
pub struct Feeds {
    /// Locked by threads that are attached to the interpreter alone, and a fork stops those: it finds it free.
    workers: Mutex<HashMap<Arc<str>, Arc<WorkerStreams>>>,
    /// Shared caches by the model whose workers read them.
    shared: Mutex<HashMap<PoolId, SharedCache>>,
    /// Counters of streams that are gone.
    retired: Mutex<Totals>,
    pub undeclared: Undeclared,
}

impl Feeds {
    /// Every worker's streams.
    pub fn all(&self) -> Vec<(Arc<str>, Arc<WorkerStreams>)> {
        let workers = lock(&self.workers);
        let rows = workers.iter();
        rows.map(|(key, streams)| (Arc::clone(key), Arc::clone(streams)))
            .collect()
    }

    /// The streams of a worker, if any message came.
    pub fn get(&self, key: &str) -> Option<Arc<WorkerStreams>> {
        lock(&self.workers).get(key).map(Arc::clone)
    }

    /// Forgets the streams of a worker; their counters are kept.
    pub fn forget(&self, key: &str) {
        let gone = lock(&self.workers).remove(key);
        if let Some(gone) = gone {
            self.retire(&gone);
        }
    }

    /// Takes in new streams of a worker, in the place of those it had.
    pub fn put(&self, key: Arc<str>, streams: Arc<WorkerStreams>) {
        if let Some(old) = lock(&self.workers).insert(key, streams) {
            self.retire(&old);
        }
    }

    /// The shared cache of a model.
    pub fn shared(&self, pool: PoolId) -> Option<SharedCache> {
        lock(&self.shared).get(&pool).cloned()
    }

    /// The streams of the shared cache called `name`.
    pub fn shared_streams(&self, name: &str) -> Option<Arc<WorkerStreams>> {
        let shared = lock(&self.shared);
        let cache = shared.values().find(|cache| &*cache.name == name)?;
        Some(Arc::clone(&cache.streams))
    }

    /// Every shared cache.
    pub fn all_shared(&self) -> Vec<SharedCache> {
        lock(&self.shared).values().cloned().collect()
    }

    /// Takes in the shared cache of a model.
    pub fn put_shared(&self, pool: PoolId, cache: SharedCache) {
        lock(&self.shared).insert(pool, cache);
    }

    /// Forgets a shared cache.
    pub fn forget_shared(&self, name: &str) {
        lock(&self.shared).retain(|_, cache| &*cache.name != name);
    }

    /// Forgets all shared caches, and returns them.
    pub fn take_shared(&self) -> HashMap<PoolId, SharedCache> {
        std::mem::take(&mut *lock(&self.shared))
    }

    fn retire(&self, gone: &WorkerStreams) {
        gone.streams.add_to(&mut lock(&self.retired));
    }

    /// Counters of streams that are gone.
    pub fn retired(&self) -> Totals {
        *lock(&self.retired)
    }

    /// Forgets all streams, as the child of a fork must: it does not see what its parent reads.
    pub fn clear(&self) {
        lock(&self.workers).clear();
        *lock(&self.retired) = Totals::default();
    }

    /// Meaning of an undeclared name. The commonest one that is no adapter is the engines' name of their model, which
    /// events do not carry, so it is not mixed into hashes; a dry run only looks it up. Where every worker names its
    /// models (`declared`), clients open no namespaces with other names.
    pub fn meaning<'a>(&self, name: &'a str, declared: bool, dry_run: bool) -> Model<'a> {
        let undeclared = &self.undeclared;
        let fed = undeclared.has_events();
        if fed && lock(&undeclared.adapters).contains(name) {
            return Model::Adapter(name);
        }
        if declared {
            return Model::Unknown;
        }
        if !fed {
            return Model::Mixed(name);
        }
        let mut own = lock(&undeclared.own);
        let is_own = if dry_run {
            own.get().is_none_or(|own| own == name)
        } else {
            own.count(name)
        };
        if is_own {
            Model::Own
        } else {
            Model::Mixed(name)
        }
    }

    /// An event of the first pool named an adapter. For attached threads, as whatever locks these names.
    pub fn learn_adapter(&self, name: &str) {
        if lock(&self.undeclared.adapters).insert(name.into()) {
            lock(&self.undeclared.own).drop_name(name);
        }
    }
}
