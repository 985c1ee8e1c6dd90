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
use pyo3::types::PyDict;

use super::fleet::{Fleet, count};
use crate::args::{MAX_ITEMS, named, texts};
use crate::engine::lock;
use crate::options::read::{ABOVE_ZERO, NOT_NEGATIVE, Options, millis};
use crate::workers::keys_of;

/// The media that are among two.
fn media(given: &Options<'_, '_>, among: [(&str, Medium); 2]) -> PyResult<Arc<[Medium]>> {
    let words = texts(&given.required("media")?, "media", "texts", MAX_ITEMS)?;
    let named = |name: String| {
        let found = among.iter().find(|(medium, _)| **medium == *name);
        found.map(|(_, medium)| *medium).ok_or_else(|| {
            let [(one, _), (other, _)] = among;
            PyValueError::new_err(format!(
                "media must be of {one:?} and {other:?}, got {name:?}"
            ))
        })
    };
    words.into_iter().map(named).collect()
}

/// The time that loading takes, which may not be known.
fn loading(given: &Options<'_, '_>) -> PyResult<Loading> {
    let startup_ms = given.number_or_none("startup_ms", NOT_NEGATIVE)?;
    Ok(Loading {
        ms_per_token: given.number_or_none("load_ms_per_token", NOT_NEGATIVE)?,
        startup_ms: startup_ms.unwrap_or(0.0),
    })
}

impl Fleet {
    /// The workers given by their keys or themselves, registered or yet to come; `None` for all of the model.
    fn readers_of(&self, given: &Options<'_, '_>, what: &str) -> PyResult<Readers> {
        let Some(workers) = given.optional(what)? else {
            return Ok(Readers::default());
        };
        let key = self.key.as_ref().map(|key| key.bind(workers.py()));
        let now = self.registry.roster.now();
        let keys = keys_of(&workers, key, self.registry.tags(), |name| {
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
    fn add_shared_cache(&self, options: &Bound<'_, PyDict>) -> PyResult<()> {
        let given = Options(options);
        let name = given.required("name")?;
        let terms = SharedTerms {
            loading: loading(&given)?,
            ttl_ms: given.number_or_none("ttl_s", ABOVE_ZERO)?.map(millis),
            kv_blocks: count("kv_blocks", given.optional("kv_blocks")?.as_ref())?,
            readers: self.readers_of(&given, "workers")?,
        };
        let media = media(&given, [("cpu", Medium::Cpu), ("disk", Medium::Disk)])?;
        let (name, model) = (named::name(&name)?, given.text_or_none("model")?);
        self.edit(options.py(), |edit| {
            edit.add_shared_cache(name, model.as_deref(), terms, media)
        })
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
    fn add_peer_group(&self, options: &Bound<'_, PyDict>) -> PyResult<()> {
        let given = Options(options);
        let name = given.required("name")?;
        let form = given.choice("form", &Form::ALL.map(|form| (form.name(), form)))?;
        let (port, addresses) = (
            given.or_none("port", |port| port.extract())?,
            given.required("addresses")?,
        );
        let addresses = addresses
            .extract()
            .map_err(|_| crate::args::wrong_type(&addresses, "addresses", "texts by text"))?;
        let members = self.readers_of(&given, "workers")?;
        let registered = self.registry.roster.now();
        let keys = registered.workers().map(|worker| &*worker.key);
        let keys = keys.filter(|key| members.has(key));
        let naming = Naming::checked(form, port, addresses, keys).map_err(PyValueError::new_err)?;
        let terms = PeerTerms {
            loading: loading(&given)?,
            media: media(&given, [("gpu", Medium::Gpu), ("cpu", Medium::Cpu)])?,
            members,
            sources: self.readers_of(&given, "sources")?,
            naming: Arc::new(naming),
        };
        let (name, model) = (named::name(&name)?, given.text_or_none("model")?);
        self.edit(options.py(), |edit| {
            edit.add_peer_group(name, model.as_deref(), terms)
        })
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
