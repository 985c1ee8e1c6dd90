//! Workers and their addresses at a proxy.

use std::sync::{Arc, Mutex};

use cachelb_serving::Known;
use cachelb_serving::address::address_of;
use pyo3::prelude::*;

use crate::engine::lock;
use crate::engine::log::log;
use crate::workers::{Registered, Worker};

const NO_ADDRESS: &str = "worker %s is never picked: it has no IP address and port; register it by address, or pass \
    `address=` to EndpointPicker";

#[derive(Debug)]
pub enum Source {
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
    /// Those of workers as the source names them.
    pub fn new(source: Source) -> Self {
        let now = Mutex::default();
        Self { source, now }
    }

    /// Those of `registered`. A worker that is new is looked at once; one without an address is never picked, of which
    /// the log has a line.
    pub fn of(&self, registered: &Registered) -> PyResult<Arc<Known>> {
        let before = Arc::clone(&lock(&self.now));
        let version = registered.version;
        if before.version() == Some(version) {
            return Ok(before);
        }
        let addresses = registered.workers().map(|seat| {
            let known = before.of(&seat.key).cloned();
            let address = known.map_or_else(|| self.address(seat), Ok)?;
            Ok((Arc::clone(&seat.key), address))
        });
        let now = Known::new(version, addresses.collect::<PyResult<_>>()?);
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
            log("cachelb.ext_proc", "warning", NO_ADDRESS, &[&seat.key])?;
        }
        Ok(address.map(Arc::from))
    }
}
