//! Workers and their addresses at a proxy.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use cachelb_serving::address::{Subset, address_of};
use pyo3::intern;
use pyo3::prelude::*;

use crate::engine::lock;
use crate::workers::{Registered, Worker};

const NO_ADDRESS: &str = "worker %s is never picked: it has no IP address and port; register it by address, or pass \
    `address=` to EndpointPicker";

/// The addresses of the workers at one time.
#[derive(Debug, Default)]
pub struct Known {
    /// Version of the list of workers; `None` before the first.
    version: Option<u64>,
    /// Address of every worker, `None` for one without.
    by_key: HashMap<Arc<str>, Option<Arc<str>>>,
    by_address: HashMap<Arc<str>, Arc<str>>,
}

impl Known {
    /// Keys of the workers that may be picked: of a subset, or of all that have an address. `None` for all there are,
    /// unless others may come in between.
    pub fn among(&self, subset: Option<&Subset>, may_grow: bool) -> Option<HashSet<Arc<str>>> {
        if subset.is_none() && !may_grow && self.by_key.values().all(Option::is_some) {
            return None;
        }
        let admitted = self.by_key.iter().filter(|(_, address)| {
            address
                .as_ref()
                .is_some_and(|address| subset.is_none_or(|subset| subset.admits(address)))
        });
        Some(admitted.map(|(key, _)| Arc::clone(key)).collect())
    }

    /// The address of a worker, `None` if it has none.
    pub fn of(&self, key: &str) -> Option<&str> {
        self.by_key.get(key)?.as_deref()
    }

    /// The worker at an address.
    pub fn key_at(&self, address: &str) -> Option<&Arc<str>> {
        self.by_address.get(address)
    }
}

#[derive(Debug)]
enum Source {
    /// The key is a URL with it, or the address itself.
    Parsed,
    /// A function of the caller's gives it.
    Callable(Py<PyAny>),
    Key,
}

/// The addresses as of the latest list of workers.
#[derive(Debug)]
pub struct Addresses {
    source: Source,
    now: Mutex<Arc<Known>>,
}

impl Addresses {
    /// `ip:port`, as a proxy has them, from the `callable` or else from the key.
    pub fn of_proxy(callable: Option<Py<PyAny>>) -> Self {
        Self::new(callable.map_or(Source::Parsed, Source::Callable))
    }

    /// The keys as they are.
    pub fn keys() -> Self {
        Self::new(Source::Key)
    }

    fn new(source: Source) -> Self {
        let now = Mutex::default();
        Self { source, now }
    }

    /// Those of `registered`. A worker that is new is looked at once; one without an address is never picked, of which
    /// the log has a line.
    pub fn of(&self, registered: &Registered) -> PyResult<Arc<Known>> {
        let before = Arc::clone(&lock(&self.now));
        if before.version == Some(registered.version()) {
            return Ok(before);
        }
        let mut now = Known {
            version: Some(registered.version()),
            ..Known::default()
        };
        for seat in registered.workers() {
            let address = match before.by_key.get(&seat.key) {
                Some(known) => known.clone(),
                None => self.address(seat)?,
            };
            if let Some(address) = &address {
                (now.by_address).insert(Arc::clone(address), Arc::clone(&seat.key));
            }
            now.by_key.insert(Arc::clone(&seat.key), address);
        }
        let now = Arc::new(now);
        *lock(&self.now) = Arc::clone(&now);
        Ok(now)
    }

    fn address(&self, seat: &Worker) -> PyResult<Option<Arc<str>>> {
        let address = match &self.source {
            Source::Key => return Ok(Some(Arc::clone(&seat.key))),
            Source::Parsed => address_of(&seat.key),
            Source::Callable(callable) => Python::attach(|py| {
                let given: String = callable.call1(py, (&*seat.object,))?.extract(py)?;
                Ok::<_, PyErr>(address_of(&given))
            })?,
        };
        if address.is_none() {
            Python::attach(|py| {
                let log = py
                    .import(intern!(py, "logging"))?
                    .call_method1(intern!(py, "getLogger"), ("cachelb.ext_proc",))?;
                log.call_method1(intern!(py, "warning"), (NO_ADDRESS, &*seat.key))?;
                Ok::<_, PyErr>(())
            })?;
        }
        Ok(address.map(Arc::from))
    }
}
