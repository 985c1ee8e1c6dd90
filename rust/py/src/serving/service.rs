//! A server of a router: it starts once, in the process that made it.

use std::sync::{Arc, Mutex};

use cachelb_serving::{Event, StartError};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use super::addresses::Addresses;
use super::admission::Admission;
use super::host::RouterHost;
use super::seconds;
use crate::engine::lock;
use crate::options::read::{ABOVE_ZERO, Options};
use crate::router::NativeRouter;

/// A router as the host of a server `S`, and that server once it has started.
#[derive(Debug)]
pub struct Service<S: Send + Sync + 'static> {
    host: Arc<RouterHost>,
    /// As errors name it.
    name: &'static str,
    /// The process that it is served in: the child of a fork has no thread of it.
    pid: u32,
    started: Mutex<Option<Arc<S>>>,
}

impl<S: Send + Sync> Service<S> {
    /// Reads the options that all servers have.
    pub fn new(
        name: &'static str,
        router: &Bound<'_, NativeRouter>,
        given: &Options<'_, '_>,
        addresses: Addresses,
    ) -> PyResult<Self> {
        let patience = seconds(given.number("policy_timeout_s", ABOVE_ZERO)?);
        let admission = given.or_none("admission", |settings| {
            Admission::read(&router.get().engine, settings.cast()?)
        })?;
        let host = RouterHost::new(router, addresses, admission, patience);
        if host.admission.is_some() && host.needs_python() {
            return Err(PyValueError::new_err(format!(
                "an admission of {name} is for routers whose policy, shadow, renderer and clock are native: leave it \
                 out, or those in Python"
            )));
        }
        Ok(Self {
            host: Arc::new(host),
            name,
            pid: std::process::id(),
            started: Mutex::default(),
        })
    }

    /// Starts the server.
    pub fn start(
        &self,
        py: Python<'_>,
        start: impl FnOnce(Arc<RouterHost>) -> Result<S, StartError> + Send,
    ) -> PyResult<Arc<S>> {
        let name = self.name;
        if self.pid != std::process::id() {
            return Err(PyRuntimeError::new_err(format!(
                "{name} does not start in a process that was forked: make another one"
            )));
        }
        py.detach(|| {
            let mut started = lock(&self.started);
            if started.is_some() {
                let text = format!("{name} starts once: make another one");
                return Err(PyRuntimeError::new_err(text));
            }
            let server = start(Arc::clone(&self.host));
            let server = Arc::new(server.map_err(|error| match error {
                StartError::Tls(_) => PyValueError::new_err(error.to_string()),
                _ => PyRuntimeError::new_err(error.to_string()),
            })?);
            *started = Some(Arc::clone(&server));
            Ok(server)
        })
    }

    /// The server, if it has started in this process.
    pub fn started(&self) -> Option<Arc<S>> {
        let is_own = self.pid == std::process::id();
        lock(&self.started).clone().filter(|_| is_own)
    }

    /// The server, or an error that it has not started.
    pub fn required(&self) -> PyResult<Arc<S>> {
        let text = || PyRuntimeError::new_err(format!("{} has not started", self.name));
        self.started().ok_or_else(text)
    }

    /// Counters that are not 0, of which the server has `counts`.
    pub fn counts<'py>(
        &self,
        py: Python<'py>,
        counts: impl FnOnce(&S) -> Vec<(Event, u64)>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.started().map(|started| counts(&started));
        let named = |(event, count): (Event, u64)| (event.name(), count);
        let late = Some(("policy-timeout", self.host.late()));
        let counts = counts.into_iter().flatten().map(named);
        counts
            .chain(late.filter(|(_, count)| *count > 0))
            .into_py_dict(py)
    }
}

impl<S: Send + Sync> Drop for Service<S> {
    fn drop(&mut self) {
        let Some(started) = lock(&self.started).take() else {
            return;
        };
        if self.pid == std::process::id() {
            // The end of requests may need the interpreter.
            Python::attach(|py| py.detach(|| drop(started)));
        } else {
            // Its threads are the parent's.
            std::mem::forget(started);
        }
    }
}
