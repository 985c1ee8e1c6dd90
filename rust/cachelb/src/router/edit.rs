//! Changes of workers and models. Each is one step: list of workers, selector and, of a change made here, the entry for
//! other routers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cachelb_core::ids::{Medium, Millis};

use crate::LocalChange;
use crate::error::{Error, Result};
use crate::feeds::rank::Access;
use crate::fleet::about::{About, Word};
use crate::fleet::block_sizes::{EngineKind, Facts};
use crate::fleet::may_be_worker;
use crate::fleet::names::{Name, resolve};
use crate::fleet::roster::{Change, Worker, lock};
use crate::fleet::worker::{Profile, Role};
use crate::indexes::peers::PeerTerms;
use crate::indexes::shared_cache::SharedTerms;
use crate::request::PoolId;
use crate::request::prompt::PromptReader;
use crate::router::registry::{Registry, add};
use crate::settings::PoolSettings;

/// A worker to be registered, which is a `T` of the host's.
#[derive(Debug)]
pub struct Registration<T> {
    /// The host's object.
    pub object: T,
    /// Its name in every output.
    pub key: Arc<str>,
    /// Its key as the host has it.
    pub raw: Arc<str>,
    /// Whether the object is no more than its key.
    pub is_key: bool,
    /// Its properties.
    pub about: About,
}

/// A change of workers and models, of which a [`Registry`] has one at a time.
#[derive(Debug)]
pub struct Edit<'a, T, A> {
    pub(crate) registry: &'a Registry<T>,
    pub(crate) access: &'a A,
    pub(crate) change: Change<'a, T>,
    /// Whether it is made here, so that other routers receive it.
    pub(crate) own: bool,
    now: Millis,
}

impl<T: Clone + Send + Sync> Registry<T> {
    /// Begins a change of workers or models at the time `now`. While another thread makes one it waits, by `pause`.
    pub fn edit<'a, A: Access>(
        &'a self,
        access: &'a A,
        now: Millis,
        pause: impl Fn(),
    ) -> Edit<'a, T, A> {
        Edit {
            registry: self,
            access,
            change: self.roster.change(pause),
            own: true,
            now,
        }
    }
}

impl<T: Clone + Send + Sync, A: Access> Edit<'_, T, A> {
    /// Publishes `words` on the worker called `key` and runs `work` on the selector, as one step.
    fn step<R: Send>(
        &self,
        key: &str,
        work: impl FnOnce(&mut crate::Selector) -> (R, Vec<Word>) + Send,
    ) -> R {
        let own = self.own;
        self.access.held(|selector| {
            let (done, words) = work(selector);
            if own {
                selector.publish(LocalChange::Worker(key, words));
            }
            done
        })
    }

    /// The name of a worker with key `raw` that is added, and the registered one that it stands for if it is no more
    /// than a key. One that differs from a registered worker in nothing but credentials gets a tag; a key without any
    /// is the name of the registered worker, which keeps its own.
    #[must_use]
    pub fn new_name(&self, raw: &str, is_key: bool) -> (Arc<str>, Option<Arc<Worker<T>>>) {
        let (now, tags) = (self.change.now(), self.registry.tags());
        let name = Name::of(raw);
        let Some(worker) = now.worker(&name.shown) else {
            let known = |name: &str| now.worker(name).is_some();
            return (resolve(raw, tags, known).into(), None);
        };
        let is_other = *worker.raw != *raw;
        if is_other && name.is_secret {
            return (name.tagged(raw, tags).into(), None);
        }
        let stands = is_other && is_key && Name::of(&worker.raw).is_secret;
        (Arc::clone(&worker.key), stands.then(|| Arc::clone(worker)))
    }

    /// Registers a worker, or changes the profile of one. Returns whether it is new.
    ///
    /// # Errors
    /// [`Error::Options`] for a key or a model that cannot be.
    pub fn register(&mut self, worker: Registration<T>) -> Result<bool> {
        let (key, about, now) = (worker.key, worker.about, self.now);
        if key.is_empty() {
            return Err(Error::options("the key of a worker must not be empty"));
        }
        if !may_be_worker(&key) {
            return Err(Error::options(format!(
                "the key of a worker must not begin with a null character, got {key:?}"
            )));
        }
        if self.registry.feeds.shared_streams(&key).is_some() {
            return Err(Error::options(format!(
                "{key:?} is a shared cache; remove it from `shared_caches` first, or give the worker another key"
            )));
        }
        // Let go before the change, which copies a list that is in use.
        let before = self.change.now();
        let pool = |model: &String| {
            let pool = before.models.get(model).copied();
            pool.ok_or_else(|| Error::options(format!("model {model:?} has no pool")))
        };
        let pools = (!about.models.is_empty())
            .then(|| about.models.iter().map(pool).collect::<Result<_>>())
            .transpose()?;
        let old = before.worker(&key).cloned();
        let facts = Facts {
            kv_blocks: about.kv_blocks,
            resuming: about.resuming,
            ..Facts::default()
        };
        // Credentials never leave the process, and without them others could not use the worker.
        let is_shared = !Name::of(&worker.raw).is_secret;
        let ready = || Arc::new(AtomicBool::new(true));
        let new = Worker {
            object: worker.object,
            key: Arc::clone(&key),
            raw: worker.raw,
            is_key: worker.is_key,
            dp_size: about.dp_size,
            profile: Profile {
                role: Role::ALL[usize::from(about.role)],
                pools,
                // A load source reports its findings once.
                engine: (old.as_ref()).map_or(facts, |old| old.profile.engine.updated(facts)),
                slow_start_ms: about.slow_start_ms,
                gpu: about.gpu.as_deref().map(Into::into),
                ranked: about.dp_size > 1,
                is_shared_cache: false,
            },
            weight: about.weight,
            ready: (old.as_ref()).map_or_else(ready, |old| Arc::clone(&old.ready)),
        };
        let names = new.names();
        if let Some(rival) = before.rival(&key, &names) {
            return Err(Error::options(format!(
                "worker {key:?} has a rank of the same name as worker {rival:?}; keys must not look like ranks"
            )));
        }
        drop(before);
        let gone = old.as_ref().map(|old| old.names()).unwrap_or_default();
        self.step(&key, |selector| {
            for name in gone.iter().filter(|name| !names.contains(name)) {
                selector.workers_mut().remove(name);
            }
            let mut words = Vec::new();
            let added = add(selector, &names, &new.profile, new.weight, now);
            if added.is_ok() && is_shared {
                words.push(Word::Here(about));
                words.extend(gone.is_empty().then_some(Word::Ready(true)));
            }
            (added, words)
        })?;
        self.change.update(|workers| workers.put(new));
        Ok(old.is_none())
    }

    /// Takes a worker out: at once, or when its last request ends. Returns whether it was known.
    pub fn leave(&mut self, key: &str, drain: bool) -> bool {
        let names = self.change.now().worker(key).map(|worker| worker.names());
        let Some(names) = names else {
            return !drain
                && self.step(key, |selector| {
                    let left = selector.workers_mut().remove_draining(key) > 0;
                    (left, left.then_some(Word::Gone).into_iter().collect())
                });
        };
        self.step(key, |selector| {
            for name in &names {
                if drain {
                    selector.workers_mut().drain(name);
                } else {
                    selector.workers_mut().remove(name);
                }
            }
            ((), vec![if drain { Word::Draining } else { Word::Gone }])
        });
        self.change.update(|workers| workers.take(key));
        self.registry.feeds.forget(key);
        true
    }

    /// Marks a worker ready or not. Returns whether it is registered.
    pub fn mark_ready(&mut self, key: &str, ready: bool) -> bool {
        let now = self.change.now();
        let Some(worker) = now.worker(key) else {
            return false;
        };
        worker.ready.store(ready, Ordering::Relaxed);
        let names = worker.names();
        self.step(key, |selector| {
            for name in &names {
                selector.workers_mut().set_ready(name, ready);
            }
            ((), vec![Word::Ready(ready)])
        });
        true
    }

    /// Puts another object, whose key is `raw`, in the place of a registered worker's.
    pub fn replace_object(&mut self, key: &str, object: T, raw: Arc<str>, is_key: bool) {
        self.change.edit(key, |worker| {
            (worker.object, worker.raw, worker.is_key) = (object, raw, is_key);
        });
    }

    /// Takes in what the engine of a worker states of its cache, each rank's. Returns the kind that all engines have,
    /// if any is known.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`], and facts that go with no pool.
    pub fn learn(&mut self, key: &str, facts: Facts) -> Result<Option<Option<EngineKind>>> {
        let worker = self.registry.worker(key)?;
        let names = worker.names();
        (self.access).held(|selector| selector.workers_mut().learn(key, &names, facts))?;
        let engine = worker.profile.engine.updated(facts);
        if engine != worker.profile.engine {
            self.change
                .edit(key, |worker| worker.profile.engine = engine);
        }
        let now = self.change.now();
        let mut kinds = now
            .workers()
            .filter_map(|worker| worker.profile.engine.kind);
        let first = kinds.next();
        Ok(first.map(|kind| kinds.all(|other| other == kind).then_some(kind)))
    }

    /// Opens the index of one more model, unless it has one. Returns whether it had none.
    pub fn add_pool(
        &mut self,
        model: String,
        settings: PoolSettings,
        reader: PromptReader,
    ) -> bool {
        if self.change.now().models.contains_key(&model) {
            return false;
        }
        let id = self.access.held(|selector| {
            let id = selector.add_pool(settings);
            selector.publish(LocalChange::Model(&reader.hasher, &model));
            id
        });
        self.registry.edit_readers(|readers| readers.push(reader));
        self.change.add_model(model, id);
        true
    }

    /// Registers the shared cache of a model, or changes its properties.
    ///
    /// # Errors
    /// [`Error::Options`] for a name or a model that cannot be.
    pub fn add_shared_cache(
        &self,
        name: &str,
        model: Option<&str>,
        terms: SharedTerms,
        media: Arc<[Medium]>,
    ) -> Result<()> {
        let pool = self.pool_for("shared cache", name, model)?;
        let name = name.into();
        (self.registry).open_shared(self.access, name, pool, terms, media, self.now)
    }

    /// The pool of the model that a new `kind` of its own called `name` is for.
    fn pool_for(&self, kind: &str, name: &str, model: Option<&str>) -> Result<PoolId> {
        if name.is_empty() {
            let text = format!("the name of a {kind} must not be empty");
            return Err(Error::options(text));
        }
        let registered = self.change.now();
        if registered.worker(name).is_some() {
            return Err(Error::options(format!(
                "{name:?} is the key of a worker; a {kind} needs a name of its own"
            )));
        }
        let Some(model) = model else {
            return Ok(PoolId::default());
        };
        registered.models.get(model).copied().ok_or_else(|| {
            Error::options(format!(
                "model {model:?} has no index of its own; name it in `models` of the router or of a worker first"
            ))
        })
    }

    /// Registers a peer group of a model, or changes its properties.
    ///
    /// # Errors
    /// [`Error::Options`] for a name or a model that cannot be.
    pub fn add_peer_group(&self, name: &str, model: Option<&str>, terms: PeerTerms) -> Result<()> {
        let pool = self.pool_for("peer group", name, model)?;
        if self.registry.feeds.shared_streams(name).is_some() {
            return Err(Error::options(format!(
                "{name:?} is a shared cache; a peer group needs a name of its own"
            )));
        }
        self.registry
            .put_peers(self.access, name.into(), pool, terms);
        Ok(())
    }

    /// Forgets a peer group. Returns whether it was known.
    pub fn remove_peer_group(&mut self, name: &str) -> bool {
        lock(&self.registry.peers).remove(name);
        (self.access).held(|selector| selector.workers_mut().remove_peer_group(name))
    }

    /// Forgets a shared cache and its blocks. Returns whether it was known.
    pub fn remove_shared_cache(&mut self, name: &str) -> bool {
        lock(&self.registry.feeds.shared).retain(|_, cache| *cache.name != *name);
        self.access
            .held(|selector| selector.workers_mut().remove_shared_cache(name))
    }
}
