//! The fleet changes: by the calls of this router, or as another router said.
//!
//! A change of either kind is one step: roster, selector and, of an own change, the word that others are told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cachelb_core::router::{Facts, Profile, Role, Selector};
use cachelb_core::share::{About, Word};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::to_python;

use super::roster::{Registered, Seat};
use super::{Changing, NativeRouter};

pub(super) const ROLES: [Role; 3] = [Role::Both, Role::Prefill, Role::Decode];

impl NativeRouter {
    /// Registers a worker, or changes what is known of one. Returns whether it is new, and the workers before, to be
    /// dropped when others may change them again.
    pub(super) fn take_seat(
        &self,
        worker: &Bound<'_, PyAny>,
        key: &Arc<str>,
        about: About,
        own: bool,
        _changing: &Changing<'_>,
    ) -> PyResult<(bool, Arc<Registered>)> {
        let py = worker.py();
        let known = self.roster.now();
        let pool = |model: &String| {
            let pool = known.models.get(model).copied();
            pool.ok_or_else(|| PyValueError::new_err(format!("model {model:?} has no pool")))
        };
        let pools = (!about.models.is_empty())
            .then(|| about.models.iter().map(pool).collect::<PyResult<_>>())
            .transpose()?;
        let mut profile = Profile {
            role: ROLES[usize::from(about.role)],
            pools,
            engine: Facts {
                kv_blocks: about.kv_blocks,
                block_size: None,
            },
            slow_start_ms: about.slow_start_ms,
            gpu: about.gpu.as_deref().map(Into::into),
        };
        let now = self.engine.now(py)?;
        let mut seat = Seat {
            object: worker.clone().unbind(),
            key: Arc::clone(key),
            dp_size: about.dp_size,
            gpu: about.gpu.as_deref().map(Into::into),
            profile: Profile::default(),
            weight: about.weight,
            ready: Arc::new(AtomicBool::new(true)),
        };
        let before = self.roster.now();
        let old: Vec<Arc<str>> = before.seat(key).map(Seat::names).unwrap_or_default();
        let names = seat.names();
        if let Some(rival) = before.rival(key, &names) {
            return Err(PyValueError::new_err(format!(
                "worker {key:?} has a rank of the same name as worker {rival:?}; keys must not look like ranks"
            )));
        }
        if let Some(old) = before.seat(key) {
            seat.ready = Arc::clone(&old.ready);
            // What a load source found out is told once.
            profile.engine = old.profile.engine.updated(profile.engine);
        }
        seat.profile = profile.clone();
        self.engine
            .locked(py, |selector| {
                for gone in old.iter().filter(|name| !names.contains(name)) {
                    selector.remove_worker(gone);
                }
                for name in &names {
                    selector.add_worker(name, profile.clone(), now);
                    selector.set_weight(name, about.weight)?;
                }
                if own {
                    let ready = old.is_empty().then_some(Word::Ready(true));
                    selector.say_words(key, [Word::Here(about)].into_iter().chain(ready));
                }
                Ok(())
            })?
            .map_err(|error| to_python(&error))?;
        self.roster.change(py, |seats| {
            match seats.iter_mut().find(|old| old.key == *key) {
                Some(old) => *old = seat,
                None => seats.push(seat),
            }
        });
        Ok((old.is_empty(), before))
    }

    /// Takes a worker out: at once, or when its last request ends. Returns whether it was known, and the workers before.
    pub(super) fn leave_seat(
        &self,
        py: Python<'_>,
        key: &str,
        drain: bool,
        own: bool,
        _changing: &Changing<'_>,
    ) -> PyResult<(bool, Arc<Registered>)> {
        let before = self.roster.now();
        let Some(seat) = before.seat(key) else {
            let left = if drain {
                0
            } else {
                self.engine.locked(py, |selector| {
                    let left = selector.remove_draining(key);
                    if own && left > 0 {
                        selector.say_words(key, [Word::Gone]);
                    }
                    left
                })?
            };
            return Ok((left > 0, before));
        };
        let names = seat.names();
        self.engine.locked(py, |selector| {
            for name in &names {
                if drain {
                    selector.drain_worker(name);
                } else {
                    selector.remove_worker(name);
                }
            }
            if own {
                let word = if drain { Word::Draining } else { Word::Gone };
                selector.say_words(key, [word]);
            }
        })?;
        self.roster
            .change(py, |seats| seats.retain(|seat| *seat.key != *key));
        self.feeds.forget(key);
        Ok((true, before))
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
                selector.set_ready(name, ready);
            }
            if own {
                selector.say_words(key, [Word::Ready(ready)]);
            }
        })
    }

    /// Whether the workers are their own keys, so that one can be registered that only has a name.
    fn workers_are_keys(&self, py: Python<'_>) -> bool {
        let is_key = |seat: &Seat| seat.object.bind(py).is_exact_instance_of::<PyString>();
        self.key.is_none() && self.roster.now().seats.iter().all(is_key)
    }

    /// Does what another router said last of a worker. Returns whether the worker was known, or is now.
    fn follow(&self, py: Python<'_>, key: &str, changing: &Changing<'_>) -> PyResult<bool> {
        let Some(due) = self.engine.locked(py, |selector| selector.take_word(key))? else {
            // It was changed here since.
            return Ok(true);
        };
        let known = self.roster.now();
        let known = known.seat(key).map(|seat| seat.object.clone_ref(py));
        match (due.standing, known) {
            (Some(Word::Here(about)), known) => {
                let object = match known {
                    Some(object) => object.into_bound(py),
                    None if self.workers_are_keys(py) && !key.is_empty() => {
                        PyString::new(py, key).into_any()
                    }
                    None => return Ok(false),
                };
                self.take_seat(&object, &key.into(), about, false, changing)?;
            }
            (Some(word), _) => {
                self.leave_seat(py, key, word == Word::Draining, false, changing)?;
            }
            (None, Some(_)) => {}
            (None, None) => return Ok(false),
        }
        if let Some(ready) = due.ready {
            self.mark_ready(py, key, ready, false, changing)?;
        }
        Ok(true)
    }
}

#[pymethods]
impl NativeRouter {
    /// Workers that another router changed, with the models it named, and that were not changed here yet.
    fn _fleet_changes(&self, py: Python<'_>) -> PyResult<Vec<(String, Vec<String>)>> {
        let due = self.engine.locked(py, |selector| selector.words_due())?;
        let keys = self.workers_are_keys(py);
        let now = self.roster.now();
        let named = due.into_iter().map(|(key, due)| {
            let models = match due.standing {
                Some(Word::Here(about)) if keys || now.seat(&key).is_some() => about.models,
                _ => Vec::new(),
            };
            (key.to_string(), models)
        });
        Ok(named.collect())
    }

    /// Does what another router said last of a worker; what cannot be done is counted.
    fn _follow(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        let changing = self.change(py);
        // Kept until others may change the workers again: to drop the last of an object may run code.
        let before = self.roster.now();
        let done = self.follow(py, key, &changing);
        if !matches!(done, Ok(true)) {
            self.engine.locked(py, Selector::count_stranger)?;
        }
        drop(changing);
        drop(before);
        done.map(|_| ())
    }
}
