//! The endpoint picker for Envoy: the server of `cachelb-ext-proc` with a router as its host.

use std::sync::{Arc, Mutex};

use cachelb_ext_proc::{BodyMode, LargeBodies, Listen, Options, Server, StartError, Started};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::args::{Items, integer, number, text};
use crate::arguments::callable;
use crate::engine::lock;
use crate::options::read::{ABOVE_ZERO, NOT_NEGATIVE, Options as Given};
use crate::router::NativeRouter;
use crate::serving::{Addresses, Certificate, Door, RouterHost, Shared, seconds, tls};

const MODES: [(&str, BodyMode); 4] = [
    ("none", BodyMode::None),
    ("streamed", BodyMode::Streamed),
    ("buffered", BodyMode::Buffered),
    ("duplex", BodyMode::Duplex),
];
const LARGE: [(&str, LargeBodies); 2] =
    [("refuse", LargeBodies::Refuse), ("pass", LargeBodies::Pass)];

/// Bytes, streams or requests: more than there can be.
const MANY: u64 = 1 << 40;
/// Objectives, or headers to show.
const MAX_NAMES: usize = 1000;

#[doc = stub!("NativeEndpointPicker")]
#[pyclass(frozen, module = "cachelb._core")]
#[derive(Debug)]
pub struct NativeEndpointPicker {
    host: Arc<RouterHost>,
    options: Options,
    /// The process that it is served in: the child of a fork has no thread of it.
    pid: u32,
    started: Mutex<Option<Arc<Started>>>,
}

fn read(given: &Given<'_, '_>) -> PyResult<Options> {
    let count = |name| given.integer(name, 1, MANY).map(|count| count as usize);
    let time = |name| given.number(name, ABOVE_ZERO).map(seconds);
    let priorities = given.required("priorities")?;
    let priorities = priorities.cast::<PyDict>()?.items();
    let priorities =
        Items::of(priorities.as_any(), "priorities", "a mapping", MAX_NAMES)?.map(|pair| {
            let (name, priority): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair?.extract()?;
            let name = text(&name, "the name of an objective")?.to_owned();
            let priority = integer(
                &priority,
                &format!("priorities[{name:?}]"),
                i64::MIN..=i64::MAX,
            )?;
            Ok((name, priority))
        });
    let exposed = given.required("expose_headers")?;
    let exposed = Items::of(&exposed, "expose_headers", "names of headers", MAX_NAMES)?;
    let shed = given.optional("shed_inflight")?;
    Ok(Options {
        max_body_bytes: count("max_body_bytes")?,
        large_bodies: given.choice("large_bodies", &LARGE)?,
        max_held_bytes: count("max_held_bytes")?,
        max_streams: count("max_streams")?,
        body_timeout: time("body_timeout_s")?,
        idle_timeout: time("idle_timeout_s")?,
        stream_timeout: time("stream_timeout_s")?,
        fallbacks: given.integer("fallbacks", 0, MANY)? as usize,
        priorities: priorities.collect::<PyResult<_>>()?,
        shed_inflight: shed
            .map(|limit| integer(&limit, "shed_inflight", 1..=MANY))
            .transpose()?,
        rewrite_model: given.flag("rewrite_model")?,
        default_body_mode: given.choice("default_body_mode", &MODES)?,
        expose_headers: exposed
            .map(|name| text(&name?, "expose_headers").map(str::to_owned))
            .collect::<PyResult<_>>()?,
        conformance: given.flag("conformance")?,
    })
}

fn refused(error: &StartError) -> PyErr {
    match error {
        StartError::Option(_) | StartError::Tls(_) => PyValueError::new_err(error.to_string()),
        _ => PyRuntimeError::new_err(error.to_string()),
    }
}

impl NativeEndpointPicker {
    fn started(&self) -> Option<Arc<Started>> {
        let is_own = self.pid == std::process::id();
        lock(&self.started).clone().filter(|_| is_own)
    }
}

#[pymethods]
impl NativeEndpointPicker {
    #[new]
    #[pyo3(signature = (router, options, *, address=None))]
    fn new(
        router: &Bound<'_, NativeRouter>,
        options: &Bound<'_, PyDict>,
        address: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let given = Given(options);
        let patience = seconds(given.number("policy_timeout_s", ABOVE_ZERO)?);
        let address = callable("address", address)?;
        let admission = given.optional("admission")?;
        let door = admission
            .map(|settings| Door::read(&router.get().engine, settings.cast()?))
            .transpose()?;
        let options = read(&given)?
            .checked()
            .map_err(|error| refused(&error.into()))?;
        let has_door = door.is_some();
        let host = RouterHost::new(router, Addresses::of_proxy(address), door, patience);
        if has_door && host.needs_python() {
            let text = "an admission of an EndpointPicker is for routers whose policy, shadow, renderer and clock are \
                        native: leave it out, or those in Python";
            return Err(PyValueError::new_err(text));
        }
        Ok(Self {
            host: Arc::new(host),
            options,
            pid: std::process::id(),
            started: Mutex::default(),
        })
    }

    /// Listens, and returns the port and that of health checks alone.
    #[pyo3(signature = (listen, *, ready=true, health_listen=None, certificate=None))]
    fn start(
        &self,
        py: Python<'_>,
        listen: String,
        ready: bool,
        health_listen: Option<String>,
        certificate: Option<Certificate>,
    ) -> PyResult<(u16, Option<u16>)> {
        if self.pid != std::process::id() {
            let text =
                "an EndpointPicker does not start in a process that was forked: make another one";
            return Err(PyRuntimeError::new_err(text));
        }
        let certificate = certificate.map(tls);
        let listen = Listen {
            address: listen,
            health_address: health_listen,
            is_ready: ready,
            tls: certificate.transpose()?,
            ..Listen::default()
        };
        py.detach(|| {
            let mut started = lock(&self.started);
            if started.is_some() {
                let text = "an EndpointPicker starts once: make another one";
                return Err(PyRuntimeError::new_err(text));
            }
            let host = Arc::new(Shared(Arc::clone(&self.host)));
            let server = Server::start(self.options.clone(), host, &listen);
            let server = server.map_err(|error| refused(&error))?;
            let ports = (server.port(), server.health_port());
            *started = Some(Arc::new(server));
            Ok(ports)
        })
    }

    /// Ends the service, and waits for it.
    fn stop(&self, py: Python<'_>, grace_s: &Bound<'_, PyAny>) -> PyResult<()> {
        let grace = seconds(number(grace_s, "grace_s", NOT_NEGATIVE)?);
        if let Some(started) = self.started() {
            py.detach(|| started.stop(grace));
        }
        Ok(())
    }

    /// Sets what health checks get.
    fn set_ready(&self, py: Python<'_>, ready: bool) {
        if let Some(started) = self.started() {
            py.detach(|| started.set_ready(ready));
        }
    }

    /// Uses another certificate from the next connection on.
    fn reload_certificate(&self, py: Python<'_>, certificate: Certificate) -> PyResult<()> {
        let tls = tls(certificate)?;
        match self.started() {
            Some(started) => py
                .detach(|| started.reload_tls(&tls))
                .map_err(|error| refused(&error)),
            None => Err(PyRuntimeError::new_err(
                "the EndpointPicker has not started",
            )),
        }
    }

    /// The counters that are not 0.
    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.started().map(|started| started.counts());
        let counts = counts
            .into_iter()
            .flatten()
            .map(|(event, count)| (event.name(), count));
        let late = Some(("policy-timeout", self.host.late()));
        counts
            .chain(late.filter(|(_, count)| *count > 0))
            .into_py_dict(py)
    }

    /// Requests that the proxies have open here.
    #[getter]
    fn open_streams(&self) -> usize {
        self.started().map_or(0, |started| started.open_streams())
    }

    /// Bytes of bodies, the buffers they arrive in, and prompts that are held.
    #[getter]
    fn held_bytes(&self) -> usize {
        self.started().map_or(0, |started| started.held_bytes())
    }
}

impl Drop for NativeEndpointPicker {
    fn drop(&mut self) {
        let Some(started) = lock(&self.started).take() else {
            return;
        };
        if self.pid == std::process::id() {
            // The end of streams may need the interpreter.
            Python::attach(|py| py.detach(|| drop(started)));
        } else {
            // Its thread is the parent's.
            std::mem::forget(started);
        }
    }
}
