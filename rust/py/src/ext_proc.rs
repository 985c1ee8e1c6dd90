//! The endpoint picker for Envoy: the server of `cachelb-ext-proc` with a router as its host.

use cachelb_ext_proc::{BodyMode, LargeBodies, Listen, Options, Started};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::args::{Items, integer, number, text};
use crate::arguments::callable;
use crate::options::read::{NOT_NEGATIVE, Options as Given};
use crate::router::NativeRouter;
use crate::serving::{
    Addresses, Certificate, MANY, MAX_NAMES, Service, Source, count, exposed_headers, seconds,
    server_methods, time, tls,
};

const MODES: [(&str, BodyMode); 4] = [
    ("none", BodyMode::None),
    ("streamed", BodyMode::Streamed),
    ("buffered", BodyMode::Buffered),
    ("duplex", BodyMode::Duplex),
];
const LARGE: [(&str, LargeBodies); 2] =
    [("refuse", LargeBodies::Refuse), ("pass", LargeBodies::Pass)];

/// Endpoints that may be named behind the picked one.
const MAX_FALLBACKS: u64 = 3;

#[doc = stub!("NativeEndpointPicker")]
#[pyclass(frozen, module = "cachelb._core")]
#[derive(Debug)]
pub struct NativeEndpointPicker {
    service: Service<Started>,
    options: Options,
}

fn read(given: &Given<'_, '_>) -> PyResult<Options> {
    let count = |name| count(given, name);
    let time = |name| time(given, name);
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
    Ok(Options {
        max_body_bytes: count("max_body_bytes")?,
        large_bodies: given.choice("large_bodies", &LARGE)?,
        max_held_bytes: count("max_held_bytes")?,
        max_streams: count("max_streams")?,
        body_timeout: time("body_timeout_s")?,
        idle_timeout: time("idle_timeout_s")?,
        stream_timeout: time("stream_timeout_s")?,
        fallbacks: given.integer("fallbacks", 0, MAX_FALLBACKS)? as usize,
        priorities: priorities.collect::<PyResult<_>>()?,
        shed_inflight: given.or_none("shed_inflight", |limit| {
            integer(limit, "shed_inflight", 1..=MANY)
        })?,
        rewrite_model: given.flag("rewrite_model")?,
        default_body_mode: given.choice("default_body_mode", &MODES)?,
        expose_headers: exposed_headers(given)?,
        conformance: given.flag("conformance")?,
    })
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
        let address = callable("address", address)?;
        let source = address.map_or(Source::Parsed, Source::Callable);
        Ok(Self {
            service: Service::new("an EndpointPicker", router, &given, Addresses::new(source))?,
            options: read(&given)?,
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
        let certificate = certificate.map(tls);
        let listen = Listen {
            address: listen,
            health_address: health_listen,
            is_ready: ready,
            tls: certificate.transpose()?,
            ..Listen::default()
        };
        let options = self.options.clone();
        let started = (self.service).start(py, |host| Started::start(options, host, &listen))?;
        Ok((started.port, started.health_port))
    }

    /// Ends the service, and waits for it.
    fn stop(&self, py: Python<'_>, grace_s: &Bound<'_, PyAny>) -> PyResult<()> {
        let grace = seconds(number(grace_s, "grace_s", NOT_NEGATIVE)?);
        if let Some(started) = self.service.started() {
            py.detach(|| started.stop(grace));
        }
        Ok(())
    }

    /// Sets what health checks get.
    fn set_ready(&self, py: Python<'_>, ready: bool) {
        if let Some(started) = self.service.started() {
            py.detach(|| started.set_ready(ready));
        }
    }

    /// Requests that the proxies have open here.
    #[getter]
    fn open_streams(&self) -> usize {
        self.service
            .started()
            .map_or(0, |started| started.open_streams())
    }
}

server_methods!(NativeEndpointPicker);
