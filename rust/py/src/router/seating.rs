//! The fleet changes: by calls of this router, or by changes received from another.
//!
//! A change of either kind is one step: roster, selector and, for an own change, the statement that is published.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cachelb::selector::{Facts, Name, Profile, Role, may_be_worker};
use cachelb_share::{About, Word};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::workers::resolve;

use super::fleet::{Changing, Fleet};
use crate::roster::{Displaced, Seat};

impl Fleet {
    /// The name of a worker that is added. One that differs from a registered worker in nothing but credentials gets a
    /// tag; a `str` without any is the name of the registered worker, which keeps its own.
    pub(super) fn new_name(&self, worker: &mut Bound<'_, PyAny>, raw: &mut Arc<str>) -> Arc<str> {
        let now = self.roster.now();
        let key = Arc::clone(raw);
        let name = Name::of(&key);
        let Some(seat) = now.seat(&name.shown) else {
            let known = |name: &str| now.seat(name).is_some();
            return resolve(&key, self.tags(), known).into();
        };
        if seat.raw == *raw {
            return Arc::clone(&seat.key);
        }
        if name.is_secret {
            return name.tagged(&key, self.tags()).into();
        }
        if Name::of(&seat.raw).is_secret && worker.is_instance_of::<PyString>() {
            *worker = seat.object.bind(worker.py()).clone();
            *raw = Arc::clone(&seat.raw);
        }
        Arc::clone(&seat.key)
    }

    /// Registers a worker, or changes the profile of one. Returns whether it is new, and the state it displaced.
    pub(super) fn take_seat(
        &self,
        worker: &Bound<'_, PyAny>,
        key: &Arc<str>,
        raw: Arc<str>,
        about: About,
        own: bool,
        _changing: &Changing<'_>,
    ) -> PyResult<(bool, Displaced)> {
        let py = worker.py();
        if !may_be_worker(key) {
            return Err(PyValueError::new_err(format!(
                "the key of a worker must not begin with a null character, got {key:?}"
            )));
        }
        if self.feeds.shared_streams(key).is_some() {
            return Err(PyValueError::new_err(format!(
                "{key:?} is a shared cache; remove_shared_cache() it first, or give the worker another key"
            )));
        }
        // Let go before the change, which copies a list that is in use.
        let before = self.roster.now();
        let pool = |model: &String| {
            let pool = before.models.get(model).copied();
            pool.ok_or_else(|| PyValueError::new_err(format!("model {model:?} has no pool")))
        };
        let pools = (!about.models.is_empty())
            .then(|| about.models.iter().map(pool).collect::<PyResult<_>>())
            .transpose()?;
        let mut profile = Profile {
            role: Role::ALL[usize::from(about.role)],
            pools,
            engine: Facts {
                kv_blocks: about.kv_blocks,
                resuming: about.resuming,
                ..Facts::default()
            },
            slow_start_ms: about.slow_start_ms,
            gpu: about.gpu.as_deref().map(Into::into),
            ranked: about.dp_size > 1,
            is_shared_cache: false,
        };
        let now = self.engine.now(py)?;
        // Credentials never leave the process, and without them others could not use the worker.
        let own = own && !Name::of(&raw).is_secret;
        let mut seat = Seat {
            object: worker.clone().unbind(),
            key: Arc::clone(key),
            raw,
            dp_size: about.dp_size,
            gpu: about.gpu.as_deref().map(Into::into),
            profile: Profile::default(),
            weight: about.weight,
            ready: Arc::new(AtomicBool::new(true)),
        };
        let old: Vec<Arc<str>> = before.seat(key).map(Seat::names).unwrap_or_default();
        let names = seat.names();
        if let Some(rival) = before.rival(key, &names) {
            return Err(PyValueError::new_err(format!(
                "worker {key:?} has a rank of the same name as worker {rival:?}; keys must not look like ranks"
            )));
        }
        if let Some(old) = before.seat(key) {
            seat.ready = Arc::clone(&old.ready);
            // A load source reports its findings once.
            profile.engine = old.profile.engine.updated(profile.engine);
        }
        drop(before);
        seat.profile = profile.clone();
        self.engine.checked(py, |selector| {
            for gone in old.iter().filter(|name| !names.contains(name)) {
                selector.workers_mut().remove(gone);
            }
            for name in &names {
                selector.workers_mut().add(name, profile.clone(), now);
                selector.workers_mut().set_weight(name, about.weight)?;
            }
            if own {
                let ready = old.is_empty().then_some(Word::Ready(true));
                selector
                    .sharing_mut()
                    .publish_changes(key, [Word::Here(about)].into_iter().chain(ready));
            }
            Ok(())
        })?;
        let displaced = self.roster.change(py, |workers| workers.put(py, seat));
        Ok((old.is_empty(), displaced))
    }

    /// Takes a worker out: at once, or when its last request ends. Returns whether it was known, and the state it
    /// displaced.
    pub(super) fn leave_seat(
        &self,
        py: Python<'_>,
        key: &str,
        drain: bool,
        own: bool,
        _changing: &Changing<'_>,
    ) -> PyResult<(bool, Option<Displaced>)> {
        let Some(names) = self.roster.now().seat(key).map(Seat::names) else {
            let left = if drain {
                0
            } else {
                self.engine.locked(py, |selector| {
                    let left = selector.workers_mut().remove_draining(key);
                    if own && left > 0 {
                        selector.sharing_mut().publish_changes(key, [Word::Gone]);
                    }
                    left
                })?
            };
            return Ok((left > 0, None));
        };
        self.engine.locked(py, |selector| {
            for name in &names {
                if drain {
                    selector.workers_mut().drain(name);
                } else {
                    selector.workers_mut().remove(name);
                }
            }
            if own {
                let word = if drain { Word::Draining } else { Word::Gone };
                selector.sharing_mut().publish_changes(key, [word]);
            }
        })?;
        let displaced = self.roster.change(py, |workers| workers.take(py, key));
        self.feeds.forget(key);
        Ok((true, Some(displaced)))
    }

    /// Marks a registered worker ready or not.
    pub(super) fn mark_ready(
        &self,
        py: Python<'_>,
        key: &str,
        ready: bool,
        own: bool,
        _changing: &Changing<'_>,
    ) -> PyResult<()> {
        let now = self.roster.now();
        let Some(seat) = now.seat(key) else {
            return Ok(());
        };
        seat.ready.store(ready, Ordering::Relaxed);
        let names = seat.names();
        self.engine.locked(py, |selector| {
            for name in &names {
                selector.workers_mut().set_ready(name, ready);
            }
            if own {
                selector
                    .sharing_mut()
                    .publish_changes(key, [Word::Ready(ready)]);
            }
        })
    }
}
