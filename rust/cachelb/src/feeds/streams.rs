//! The event streams of the registered workers, and the undeclared models they name.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cachelb_core::ids::{Medium, WorkerId};
use cachelb_events::{FeedSettings, FollowerSettings, IngestSettings, Place, Streams, Totals};

use crate::fleet::model_name::CommonName;
use crate::fleet::roster::{Worker, lock};
use crate::indexes::shared_cache::SharedTerms;
use crate::request::PoolId;
use crate::request::hints::Model;

/// The streams of one worker.
#[derive(Debug)]
pub struct WorkerStreams {
    /// By rank.
    pub ids: Vec<WorkerId>,
    /// The pool of their blocks.
    pub home: PoolId,
    /// Flag of the registration that they belong to.
    life: Arc<AtomicBool>,
    /// Decoding and ordering of the messages.
    pub streams: Streams,
    /// Restarts in them when another source saw the last one.
    restarts: AtomicU64,
}

impl WorkerStreams {
    /// Streams of the ranks `ids` whose blocks are in the pool `home`.
    pub(crate) fn new(
        ids: Vec<WorkerId>,
        home: PoolId,
        life: Arc<AtomicBool>,
        ingest: IngestSettings,
    ) -> Arc<Self> {
        let streams = Streams::new(FeedSettings {
            ingest,
            follower: FollowerSettings::default(),
            ranks: ids.len() as u32,
        });
        Arc::new(Self {
            ids,
            home,
            life,
            streams,
            restarts: AtomicU64::new(0),
        })
    }

    /// Whether they are those of `worker` as it is registered.
    pub(crate) fn are_of<T>(&self, worker: &Worker<T>) -> bool {
        Arc::ptr_eq(&self.life, &worker.ready)
            && self.ids.len() == worker.dp_size as usize
            && self.home == worker.profile.home()
    }

    /// Another source saw that the engine restarted. Returns whether its events have shown that already.
    pub fn has_restarted(&self) -> bool {
        let mut totals = Totals::default();
        self.streams.add_to(&mut totals);
        totals.restarts > self.restarts.swap(totals.restarts, Ordering::Relaxed)
    }
}

/// A registered shared cache.
#[derive(Debug, Clone)]
pub struct SharedStreams {
    /// Its name.
    pub name: Arc<str>,
    /// Cost of loading from it, and its readers.
    pub terms: SharedTerms,
    /// Media that mean this cache in the events of workers.
    pub media: Arc<[Medium]>,
    /// Its own streams.
    pub streams: Arc<WorkerStreams>,
}

impl SharedStreams {
    /// Whether the blocks that a worker announces in `place` are recorded here.
    pub(super) fn holds(&self, place: Place) -> bool {
        match place {
            Place::Shared => true,
            Place::In(medium) => self.media.contains(&medium),
            Place::Unsaid | Place::Unknown => false,
        }
    }

    /// Its id in the index.
    #[must_use]
    pub fn holder(&self) -> WorkerId {
        self.streams.ids[0]
    }
}

/// The streams of all workers.
#[derive(Debug, Default)]
pub struct Feeds {
    /// Locked by threads that are attached to the interpreter alone, and a fork stops those: it finds it free.
    workers: Mutex<HashMap<Arc<str>, Arc<WorkerStreams>>>,
    /// Shared caches by the model whose workers read them.
    pub shared: Mutex<HashMap<PoolId, SharedStreams>>,
    /// Counters of streams that are gone.
    retired: Mutex<Totals>,
    /// Events came for the first pool.
    pub(super) fed: AtomicBool,
    /// The engines' name of the model that no pool was declared for; events do not carry it.
    own: Mutex<CommonName>,
    /// Adapters that events named.
    adapters: Mutex<HashSet<Box<str>>>,
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
    pub(crate) fn forget(&self, key: &str) {
        let gone = lock(&self.workers).remove(key);
        self.retire(gone.as_deref());
    }

    /// Takes in new streams of a worker, in the place of those it had.
    pub(crate) fn put(&self, key: Arc<str>, streams: Arc<WorkerStreams>) {
        let old = lock(&self.workers).insert(key, streams);
        self.retire(old.as_deref());
    }

    fn retire(&self, gone: Option<&WorkerStreams>) {
        if let Some(gone) = gone {
            gone.streams.add_to(&mut lock(&self.retired));
        }
    }

    /// The shared cache of a model.
    pub fn shared(&self, pool: PoolId) -> Option<SharedStreams> {
        lock(&self.shared).get(&pool).cloned()
    }

    /// The streams of the shared cache called `name`.
    pub fn shared_streams(&self, name: &str) -> Option<Arc<WorkerStreams>> {
        let shared = lock(&self.shared);
        let cache = shared.values().find(|cache| &*cache.name == name)?;
        Some(Arc::clone(&cache.streams))
    }

    /// A function that sums over all streams, those that are gone too; it may wait for threads that apply events.
    pub fn totals(&self) -> impl FnOnce() -> Totals + Send + use<> {
        let (mut totals, all) = (*lock(&self.retired), self.all());
        move || {
            for (_, worker) in all {
                worker.streams.add_to(&mut totals);
            }
            totals
        }
    }

    /// Forgets all streams of workers, as the child of a fork must: it does not receive its parent's events.
    pub(crate) fn clear(&self) {
        lock(&self.workers).clear();
        *lock(&self.retired) = Totals::default();
    }

    /// Whether events came for the first pool.
    pub fn has_events(&self) -> bool {
        self.fed.load(Ordering::Relaxed)
    }

    /// Meaning of an undeclared name. The commonest one that is no adapter is the engines' name of their model, which
    /// events do not carry, so it is not mixed into hashes; a dry run only looks it up. Where every worker names its
    /// models (`declared`), clients open no namespaces with other names.
    pub(crate) fn meaning<'a>(&self, name: &'a str, declared: bool, dry_run: bool) -> Model<'a> {
        let fed = self.has_events();
        if fed && lock(&self.adapters).contains(name) {
            return Model::Adapter(name);
        }
        if declared {
            return Model::Unknown;
        }
        if !fed {
            return Model::Mixed(name);
        }
        let mut own = lock(&self.own);
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
        if lock(&self.adapters).insert(name.into()) {
            lock(&self.own).drop_name(name);
        }
    }
}
