//! Caches that workers of a model read: registered by name, fed by their own events or by those of the workers. Groups
//! of workers that copy cached blocks from each other.

use std::sync::Arc;

#[cfg(feature = "peers")]
use cachelb::selector::{Form, Naming, PeerTerms};
use cachelb::selector::{Readers, SharedStreams, SharedTerms};
use cachelb_core::ids::Medium;
use cachelb_policy::Loading;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::fleet::{Fleet, count};
use crate::args::{named, number_or_none};
use crate::engine::lock;
use crate::options::read::{ABOVE_ZERO, NOT_NEGATIVE, millis};
use crate::workers::keys_of;

/// The media that are among two.
fn media(given: Vec<String>, among: [(&str, Medium); 2]) -> PyResult<Arc<[Medium]>> {
    let named = |name: String| {
        let found = among.iter().find(|(medium, _)| **medium == *name);
        found.map(|(_, medium)| *medium).ok_or_else(|| {
            let [(one, _), (other, _)] = among;
            PyValueError::new_err(format!(
                "media must be of {one:?} and {other:?}, got {name:?}"
            ))
        })
    };
    given.into_iter().map(named).collect()
}

/// The time that loading takes, which may not be known.
fn loading(
    ms_per_token: Option<&Bound<'_, PyAny>>,
    startup_ms: Option<&Bound<'_, PyAny>>,
) -> PyResult<Loading> {
    let startup_ms = number_or_none(startup_ms, "startup_ms", NOT_NEGATIVE)?;
    Ok(Loading {
        ms_per_token: number_or_none(ms_per_token, "load_ms_per_token", NOT_NEGATIVE)?,
        startup_ms: startup_ms.unwrap_or(0.0),
    })
}

impl Fleet {
    /// The workers given by their keys or themselves, registered or yet to come; `None` for all of the model.
    fn readers_of(&self, what: &str, workers: Option<&Bound<'_, PyAny>>) -> PyResult<Readers> {
        let Some(workers) = workers else {
            return Ok(Readers::default());
        };
        let key = self.key.as_ref().map(|key| key.bind(workers.py()));
        let now = self.registry.roster.now();
        let keys = keys_of(workers, key, self.registry.tags(), |name| {
            now.worker(name).is_some()
        })?;
        if keys.is_empty() {
            return Err(PyValueError::new_err(format!(
                "{what} is empty; name a worker, or pass None for all of the model"
            )));
        }
        Ok(Readers::of(keys))
    }
}

#[pymethods]
impl Fleet {
    /// Registers the shared cache of a model, or changes its properties.
    #[pyo3(signature = (name, *, model=None, load_ms_per_token=None, startup_ms=None, ttl_s=None, kv_blocks=None, media=vec![], workers=None))]
    #[expect(clippy::too_many_arguments, reason = "one keyword argument each")]
    fn add_shared_cache(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = named::name)] name: &str,
        #[pyo3(from_py_with = named::model_or_none)] model: Option<&str>,
        load_ms_per_token: Option<&Bound<'_, PyAny>>,
        startup_ms: Option<&Bound<'_, PyAny>>,
        ttl_s: Option<&Bound<'_, PyAny>>,
        kv_blocks: Option<&Bound<'_, PyAny>>,
        media: Vec<String>,
        workers: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let terms = SharedTerms {
            loading: loading(load_ms_per_token, startup_ms)?,
            ttl_ms: number_or_none(ttl_s, "ttl_s", ABOVE_ZERO)?.map(millis),
            kv_blocks: count("kv_blocks", kv_blocks)?,
            readers: self.readers_of("workers", workers)?,
        };
        let media = self::media(media, [("cpu", Medium::Cpu), ("disk", Medium::Disk)])?;
        self.edit(py, |edit| edit.add_shared_cache(name, model, terms, media))
    }

    /// Forgets a shared cache and its blocks. Returns whether it was known.
    fn remove_shared_cache(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = named::name)] name: &str,
    ) -> PyResult<bool> {
        self.edit(py, |edit| Ok(edit.remove_shared_cache(name)))
    }

    /// Names of the shared caches, and the blocks that each holds.
    fn shared_caches(&self, py: Python<'_>) -> PyResult<Vec<(String, u64)>> {
        let all = lock(&self.registry.feeds.shared).clone();
        self.engine.locked(py, |selector| {
            let row = |cache: &SharedStreams| {
                let blocks = selector.pools().block_count(Some(cache.holder()));
                (cache.name.to_string(), blocks)
            };
            all.values().map(row).collect()
        })
    }
}

#[cfg(feature = "peers")]
#[pymethods]
impl Fleet {
    /// Registers a peer group of a model, or changes its properties.
    #[pyo3(signature = (name, *, form, port, addresses, media, model=None, load_ms_per_token=None, startup_ms=None, workers=None, sources=None))]
    #[expect(clippy::too_many_arguments, reason = "one keyword argument each")]
    fn add_peer_group(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = named::name)] name: &str,
        form: &str,
        port: Option<u16>,
        addresses: std::collections::HashMap<String, String>,
        media: Vec<String>,
        #[pyo3(from_py_with = named::model_or_none)] model: Option<&str>,
        load_ms_per_token: Option<&Bound<'_, PyAny>>,
        startup_ms: Option<&Bound<'_, PyAny>>,
        workers: Option<&Bound<'_, PyAny>>,
        sources: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let forms = Form::ALL.map(|form| (form.name(), form));
        let form = crate::args::chosen(form, "form", &forms)?;
        let members = self.readers_of("workers", workers)?;
        let registered = self.registry.roster.now();
        let keys = registered.workers().map(|worker| &*worker.key);
        let keys = keys.filter(|key| members.has(key));
        let naming = Naming::checked(form, port, addresses, keys).map_err(PyValueError::new_err)?;
        let terms = PeerTerms {
            loading: loading(load_ms_per_token, startup_ms)?,
            media: self::media(media, [("gpu", Medium::Gpu), ("cpu", Medium::Cpu)])?,
            members,
            sources: self.readers_of("sources", sources)?,
            naming: Arc::new(naming),
        };
        self.edit(py, |edit| edit.add_peer_group(name, model, terms))
    }

    /// Forgets a peer group. Returns whether it was known.
    fn remove_peer_group(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = named::name)] name: &str,
    ) -> PyResult<bool> {
        self.edit(py, |edit| Ok(edit.remove_peer_group(name)))
    }

    /// Names of the peer groups, in order.
    fn peer_groups(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.engine.locked(py, |selector| {
            selector.pools().pulls().into_keys().collect()
        })
    }
}
