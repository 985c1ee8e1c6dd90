//! The workers and models of a router beside its selector. The host defines how the selector is locked, by [`Access`].

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use cachelb_core::ids::{Medium, Millis, WorkerId};
use cachelb_events::{IngestSettings, Moment};

use crate::Selector;
use crate::error::{Error, Result};
use crate::feeds::rank::{Access, Rank};
use crate::feeds::streams::{Feeds, SharedStreams, WorkerStreams};
use crate::fleet::names::{TagKey, names_of};
use crate::fleet::roster::{Registered, Roster, Worker, lock};
use crate::fleet::worker::{Eligibility, Profile, Role};
use crate::indexes::peers::PeerTerms;
use crate::indexes::shared_cache::SharedTerms;
use crate::request::PoolId;
use crate::request::hints::Model;
use crate::request::prompt::PromptReader;

/// The ranks of a worker, by their number.
pub type Ranks<'a, A> = &'a dyn Fn(usize) -> Rank<'a, A>;

/// Workers, models, event streams and readers of prompts.
#[derive(Debug)]
pub struct Registry<T> {
    /// The workers.
    pub roster: Roster<T>,
    /// Their event streams.
    pub feeds: Feeds,
    /// By pool.
    readers: Mutex<Arc<[PromptReader]>>,
    /// The peer groups, for a selector that takes the place of another.
    pub(crate) peers: Mutex<HashMap<Box<str>, (PoolId, PeerTerms)>>,
}

impl<T: Clone + Send + Sync> Registry<T> {
    /// No workers yet; the first of `readers` is that of the first pool.
    #[must_use]
    pub fn new(readers: Vec<PromptReader>, models: Vec<(String, PoolId)>) -> Self {
        Self {
            roster: Roster::new(models.into_iter().collect()),
            feeds: Feeds::default(),
            readers: Mutex::new(readers.into()),
            peers: Mutex::default(),
        }
    }

    /// The readers of prompts, by pool.
    pub fn readers(&self) -> Arc<[PromptReader]> {
        Arc::clone(&lock(&self.readers))
    }

    /// Puts others in their place.
    pub fn edit_readers(&self, edit: impl FnOnce(&mut Vec<PromptReader>)) {
        let mut readers = self.readers().to_vec();
        edit(&mut readers);
        *lock(&self.readers) = readers.into();
    }

    /// Key of the tags of names: routers that share state have it in common.
    pub fn tags(&self) -> TagKey {
        TagKey::of(&self.readers()[0].hasher)
    }

    /// The pool of the model called `name`, and the meaning of the name there. A model without an index of its own
    /// shares the first one.
    pub fn pool_of<'a>(
        &self,
        name: Option<&'a str>,
        registered: &Registered<T>,
        dry_run: bool,
    ) -> (PoolId, Model<'a>) {
        if let Some(pool) = name.and_then(|name| registered.models.get(name)) {
            return (*pool, Model::Own);
        }
        let model = name.map_or(Model::Own, |name| {
            self.feeds.meaning(name, registered.declared(), dry_run)
        });
        (PoolId(0), model)
    }

    /// The registered worker called `key`.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn worker(&self, key: &str) -> Result<Arc<Worker<T>>> {
        let worker = self.roster.now().worker(key).cloned();
        worker.ok_or_else(|| Error::UnknownWorker(key.to_owned()))
    }

    /// How many workers may take a whole request, if none has failed lately.
    pub fn schedulable(&self, access: &impl Access, now: Millis) -> usize {
        let registered = self.roster.now();
        access.held(|selector| {
            let takes = |name: &Arc<str>| {
                let id = selector.fleet().find(name);
                let condition = id.and_then(|id| selector.condition(id, now));
                condition.is_some_and(|(profile, eligibility)| {
                    profile.role != Role::Prefill
                        && !matches!(eligibility, Eligibility::NotReady | Eligibility::Draining)
                })
            };
            let workers = registered.workers();
            let able = workers.filter(|worker| worker.names().iter().any(takes));
            able.count()
        })
    }

    /// Marks a worker, if it is registered, that fails its health check or passes it again.
    pub fn set_healthy(&self, access: &impl Access, key: &str, healthy: bool) {
        let registered = self.roster.now();
        let names = registered.worker(key).map(|worker| worker.names());
        access.held(|selector| {
            for name in names.iter().flatten() {
                selector.workers_mut().set_healthy(name, healthy);
            }
        });
    }

    /// In the child of a fork: registers the workers in a selector that is `anew`, and the shared caches, without their
    /// parent's streams.
    ///
    /// # Errors
    /// None that the parent had not.
    pub fn after_fork(&self, access: &impl Access, anew: bool, now: Millis) -> Result<()> {
        self.feeds.clear();
        let registered = self.roster.now();
        access.held(|selector| {
            if !anew {
                selector.workers_mut().refuse_events();
                return Ok(());
            }
            for worker in registered.workers() {
                let names = worker.names();
                add(selector, &names, &worker.profile, worker.weight, now)?;
                for name in &names {
                    let ready = worker.ready.load(Ordering::Relaxed);
                    selector.workers_mut().set_ready(name, ready);
                }
            }
            Ok::<_, cachelb_core::Error>(())
        })?;
        // Not in the head of the loop, where it would stay locked.
        let peers = lock(&self.peers).clone();
        for (name, (pool, terms)) in peers {
            self.put_peers(access, name, pool, terms);
        }
        let shared = std::mem::take(&mut *lock(&self.feeds.shared));
        for (pool, cache) in shared {
            self.open_shared(access, cache.name, pool, cache.terms, cache.media, now)?;
        }
        Ok(())
    }

    /// Registers a peer group of a model in the selector.
    pub(crate) fn put_peers(
        &self,
        access: &impl Access,
        name: Box<str>,
        pool: PoolId,
        terms: PeerTerms,
    ) {
        access.held(|selector| {
            selector
                .workers_mut()
                .add_peer_group(&name, pool, terms.clone());
        });
        lock(&self.peers).insert(name, (pool, terms));
    }

    /// Registers the shared cache of a model in the selector, with streams of its own unless it has some.
    pub(crate) fn open_shared(
        &self,
        access: &impl Access,
        name: Arc<str>,
        pool: PoolId,
        terms: SharedTerms,
        media: Arc<[Medium]>,
        now: Millis,
    ) -> Result<()> {
        let holder = access.held(|selector| {
            let mut workers = selector.workers_mut();
            workers.add_shared_cache(&name, pool, terms.clone(), now)
        })?;
        let known = self.feeds.shared(pool);
        let known = known.filter(|known| known.holder() == holder);
        let ingest = || IngestSettings {
            is_shared_cache: true,
            ..IngestSettings::new(self.readers()[pool.0 as usize].hasher)
        };
        let streams = known.map_or_else(
            || WorkerStreams::new(vec![holder], pool, Arc::default(), ingest()),
            |known| known.streams,
        );
        let cache = SharedStreams {
            name,
            terms,
            media,
            streams,
        };
        lock(&self.feeds.shared).insert(pool, cache);
        Ok(())
    }

    /// The streams of a registered worker or shared cache; new ones are made in a change of the roster, which waits by
    /// `pause`.
    ///
    /// # Errors
    /// [`Error::UnknownWorker`].
    pub fn streams(
        &self,
        access: &impl Access,
        key: &str,
        pause: impl Fn(),
    ) -> Result<Arc<WorkerStreams>> {
        let known = |worker: &Worker<T>| {
            let known = self.feeds.get(key);
            known.filter(|known| known.are_of(worker))
        };
        match self.roster.now().worker(key) {
            Some(worker) => {
                if let Some(known) = known(worker) {
                    return Ok(known);
                }
            }
            None => {
                if let Some(shared) = self.feeds.shared_streams(key) {
                    return Ok(shared);
                }
            }
        }
        // Looked for again: two threads may have the first messages of a worker.
        let _change = self.roster.change(pause);
        let worker = self.worker(key)?;
        if let Some(known) = known(&worker) {
            return Ok(known);
        }
        let (old, names) = (self.feeds.get(key), worker.names());
        let ids: Option<Vec<WorkerId>> = access.held(|selector| {
            for id in old.iter().flat_map(|old| &old.ids) {
                if let Some(mut feed) = selector.feed(*id) {
                    feed.refuse();
                }
            }
            let ids = names.iter().map(|name| selector.fleet().find(name));
            ids.collect()
        });
        let ids = ids.ok_or_else(|| Error::UnknownWorker(key.to_owned()))?;
        let home = worker.profile.home();
        let ingest = IngestSettings {
            eagle: worker.profile.engine.drafts(),
            ..IngestSettings::new(self.readers()[home.0 as usize].hasher)
        };
        let new = WorkerStreams::new(ids, home, Arc::clone(&worker.ready), ingest);
        self.feeds.put(Arc::clone(&worker.key), Arc::clone(&new));
        Ok(new)
    }

    /// Runs `work` on `streams` of the worker called `key`.
    pub fn on_streams<A: Access + Sync, R>(
        &self,
        access: &A,
        key: &str,
        streams: &WorkerStreams,
        at: Moment,
        work: impl FnOnce(&WorkerStreams, Ranks<'_, A>, Moment) -> R,
    ) -> R {
        let shared = self.feeds.shared(streams.home);
        let is_read = |cache: &&SharedStreams| {
            cache.holder() != streams.ids[0] && cache.terms.readers.has(key)
        };
        let shared = shared.as_ref().filter(is_read);
        let host = |rank: usize| Rank {
            access,
            feeds: &self.feeds,
            shared,
            worker: streams.ids[rank],
            home: streams.home,
            now: at.now,
        };
        work(streams, &host, at)
    }

    /// The workers with these keys, by the names that they are registered under if they are all there are.
    pub fn names_of(&self, raws: &[&str]) -> Vec<String> {
        let listed: HashSet<&str> = raws.iter().copied().collect();
        let now = self.roster.now();
        let known = |name: &str| now.worker(name).is_some();
        let holder = |name: &str| listed.get(&*now.worker(name)?.raw).copied();
        names_of(raws, self.tags(), known, holder)
    }
}

/// Registers the ranks of a worker in the selector.
pub(crate) fn add(
    selector: &mut Selector,
    names: &[Arc<str>],
    profile: &Profile,
    weight: f64,
    now: Millis,
) -> cachelb_core::Result<()> {
    for name in names {
        selector.workers_mut().add(name, profile.clone(), now);
        selector.workers_mut().set_weight(name, weight)?;
    }
    Ok(())
}
