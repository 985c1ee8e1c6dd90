//! The HTTP gateway: the server of `cachelb-gateway` with a router as its host.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cachelb_gateway::{
    AccessFormat, AccessLog, BOUNDS_S, Call, Gateway, Histogram, Level, Listen, Operator, Options,
    Page, StartError, Started, check_worker as check,
};
use cachelb_serving::exposed;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};

use crate::args::{Items, number, text};
use crate::engine::lock;
use crate::options::read::{ABOVE_ZERO, NOT_NEGATIVE, Options as Given};
use crate::router::NativeRouter;
use crate::serving::{Addresses, Certificate, Door, RouterHost, Shared, seconds, tls};

/// Bytes, connections or requests: more than there can be.
const MANY: u64 = 1 << 40;
/// Headers.
const MAX_NAMES: usize = 1000;
/// Certificates of authorities.
const MAX_AUTHORITIES: usize = 100_000;
const FORMATS: [(&str, AccessFormat); 2] =
    [("json", AccessFormat::Json), ("text", AccessFormat::Text)];

/// Counts by bucket, and the sum in seconds.
type Times = (Vec<u64>, f64);

#[doc = stub!("NativeGateway")]
#[pyclass(frozen, module = "cachelb._core")]
#[derive(Debug)]
pub struct NativeGateway {
    host: Arc<RouterHost>,
    options: Options,
    /// The process that it is served in: the child of a fork has no thread of it.
    pid: u32,
    started: Mutex<Option<Arc<Started>>>,
}

/// The pages for operators, made by Python.
struct Pages(Py<PyAny>);

impl Operator for Pages {
    fn answer(&self, call: Call) -> Page {
        Python::attach(|py| {
            let body = PyBytes::new(py, &call.body);
            let made = self
                .0
                .call_method1(py, "answer", (call.method, call.path, body));
            made.and_then(|made| match made.extract::<u64>(py) {
                Ok(number) => Ok(Page::Lines(number)),
                Err(_) => made
                    .extract(py)
                    .map(|(status, kind, body)| Page::Whole(status, kind, body)),
            })
            .unwrap_or_else(|error| {
                error.write_unraisable(py, None);
                Page::Whole(
                    500,
                    "application/json".to_owned(),
                    br#"{"error": "the page failed"}"#.to_vec(),
                )
            })
        })
    }

    fn more(&self, page: u64, is_over: bool) -> Option<Vec<u8>> {
        Python::attach(|py| {
            let made = self.0.call_method1(py, "more", (page, is_over));
            made.and_then(|made| made.extract(py))
                .unwrap_or_else(|error| {
                    error.write_unraisable(py, None);
                    None
                })
        })
    }
}

fn read(given: &Given<'_, '_>) -> PyResult<Options> {
    let count = |name| given.integer(name, 1, MANY).map(|count| count as usize);
    let time = |name| given.number(name, ABOVE_ZERO).map(seconds);
    let optional = |name| -> PyResult<Option<Duration>> {
        let value = given.optional(name)?;
        value
            .map(|value| number(&value, name, ABOVE_ZERO).map(seconds))
            .transpose()
    };
    let names = |name| -> PyResult<Vec<String>> {
        let items = Items::of(&given.required(name)?, name, "names of headers", MAX_NAMES)?;
        items
            .map(|item| text(&item?, name).map(str::to_owned))
            .collect()
    };
    let authorities = Items::of(
        &given.required("authorities")?,
        "authorities",
        "certificates",
        MAX_AUTHORITIES,
    )?;
    let access_log = given.optional("access_log")?.map(|log| {
        let (path, format): (Option<std::path::PathBuf>, String) = log.extract()?;
        let format = FORMATS.iter().find(|(name, _)| *name == format);
        let (_, format) = format.ok_or_else(|| {
            PyValueError::new_err("the format of access_log must be \"json\" or \"text\"")
        })?;
        Ok::<_, PyErr>(AccessLog {
            path,
            format: *format,
        })
    });
    Ok(Options {
        attempts: count("attempts")?,
        wait: seconds(given.number("wait_s", NOT_NEGATIVE)?),
        max_body_bytes: count("max_body_bytes")?,
        body_timeout: time("body_timeout_s")?,
        max_open: count("max_open")?,
        max_held_bytes: count("max_held_bytes")?,
        max_connections: count("max_connections")?,
        idle_timeout: time("idle_timeout_s")?,
        first_byte_timeout: optional("first_byte_timeout_s")?,
        connect_timeout: time("connect_timeout_s")?,
        head_timeout: time("head_timeout_s")?,
        keep_alive: time("keep_alive_s")?,
        health_interval: optional("health_interval_s")?,
        untrusted_headers: names("untrusted_headers")?,
        expose_headers: exposed(names("expose_headers")?)
            .map_err(|error| PyValueError::new_err(error.to_string()))?,
        authorities: authorities
            .map(|der| der?.extract())
            .collect::<PyResult<_>>()?,
        access_log: access_log.transpose()?,
        has_admission: given.optional("admission")?.is_some(),
        threads: count("threads")?,
    })
}

fn refused(error: &StartError) -> PyErr {
    match error {
        StartError::Option(_) | StartError::Tls(_) => PyValueError::new_err(error.to_string()),
        _ => PyRuntimeError::new_err(error.to_string()),
    }
}

fn times(histogram: &Histogram) -> Times {
    (histogram.counts.to_vec(), histogram.sum_s)
}

impl NativeGateway {
    fn started(&self) -> Option<Arc<Started>> {
        let is_own = self.pid == std::process::id();
        lock(&self.started).clone().filter(|_| is_own)
    }
}

#[pymethods]
impl NativeGateway {
    #[new]
    #[pyo3(signature = (router, options, /))]
    fn new(router: &Bound<'_, NativeRouter>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let given = Given(options);
        let patience = seconds(given.number("policy_timeout_s", ABOVE_ZERO)?);
        let admission = given.optional("admission")?;
        let door = admission
            .map(|settings| Door::read(&router.get().engine, settings.cast()?))
            .transpose()?;
        let options = read(&given)?
            .checked()
            .map_err(|error| refused(&error.into()))?;
        let has_door = door.is_some();
        let host = RouterHost::new(router, Addresses::keys(), door, patience);
        if has_door && host.needs_python() {
            let text = "an admission of a gateway is for routers whose policy, shadow, renderer and clock are native: \
                        leave it out, or those in Python";
            return Err(PyValueError::new_err(text));
        }
        Ok(Self {
            host: Arc::new(host),
            options,
            pid: std::process::id(),
            started: Mutex::default(),
        })
    }

    /// Listens, and returns the URLs of the addresses for clients, and of the one for operators.
    #[pyo3(signature = (listen, admin=None, /))]
    fn start(
        &self,
        py: Python<'_>,
        listen: Vec<(String, Option<Certificate>)>,
        admin: Option<(String, Py<PyAny>, Option<String>)>,
    ) -> PyResult<(Vec<String>, Option<String>)> {
        if self.pid != std::process::id() {
            let text = "a gateway does not start in a process that was forked: make another one";
            return Err(PyRuntimeError::new_err(text));
        }
        let listen = listen.into_iter().map(|(address, certificate)| {
            let tls = certificate.map(tls).transpose()?;
            Ok(Listen { address, tls })
        });
        let listen: Vec<Listen> = listen.collect::<PyResult<_>>()?;
        let admin = admin.map(|(address, operator, token)| {
            let operator: Arc<dyn Operator> = Arc::new(Pages(operator));
            (Listen { address, tls: None }, operator, token)
        });
        py.detach(|| {
            let mut started = lock(&self.started);
            if started.is_some() {
                return Err(PyRuntimeError::new_err(
                    "a gateway starts once: make another one",
                ));
            }
            let host = Arc::new(Shared(Arc::clone(&self.host)));
            let gateway = Gateway::start(self.options.clone(), host, &listen, admin);
            let gateway = gateway.map_err(|error| refused(&error))?;
            let urls = (
                gateway.urls().to_vec(),
                gateway.admin_url().map(str::to_owned),
            );
            *started = Some(Arc::new(gateway));
            Ok(urls)
        })
    }

    /// Ends the service, and waits for it.
    #[pyo3(signature = (drain_s, grace_s, /))]
    fn stop(
        &self,
        py: Python<'_>,
        drain_s: &Bound<'_, PyAny>,
        grace_s: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let drain = seconds(number(drain_s, "drain_s", NOT_NEGATIVE)?);
        let grace = seconds(number(grace_s, "grace_s", NOT_NEGATIVE)?);
        if let Some(started) = self.started() {
            py.detach(|| started.stop(drain, grace));
        }
        Ok(())
    }

    /// Uses another certificate from the next connection on.
    #[pyo3(signature = (certificate, /))]
    fn reload_certificate(&self, py: Python<'_>, certificate: Certificate) -> PyResult<()> {
        let tls = tls(certificate)?;
        let started = self
            .started()
            .ok_or_else(|| PyRuntimeError::new_err("the gateway has not started"))?;
        py.detach(|| started.reload_tls(&tls))
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Waits for a notice for the log.
    #[pyo3(signature = (timeout_s, /))]
    fn notice(
        &self,
        py: Python<'_>,
        timeout_s: &Bound<'_, PyAny>,
    ) -> PyResult<Option<(&'static str, String)>> {
        let limit = seconds(number(timeout_s, "timeout_s", NOT_NEGATIVE)?);
        let notice = self
            .started()
            .and_then(|started| py.detach(|| started.notice(limit)));
        Ok(notice.map(|(level, text)| {
            (
                if level == Level::Info {
                    "info"
                } else {
                    "warning"
                },
                text,
            )
        }))
    }

    /// Counts and times of requests, by worker and model.
    #[expect(clippy::type_complexity, reason = "the stub names the parts")]
    fn series<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Vec<(String, String, Bound<'py, PyDict>, Times, Times, u64, u64)>> {
        let series = self.started().map(|started| py.detach(|| started.series()));
        let rows = series.into_iter().flatten().map(|(worker, model, series)| {
            Ok((
                worker.to_string(),
                model.to_string(),
                series.statuses.into_py_dict(py)?,
                times(&series.first),
                times(&series.whole),
                series.bytes_in,
                series.bytes_out,
            ))
        });
        rows.collect()
    }

    /// Upper bounds of the buckets of times, in seconds.
    #[classattr]
    fn bounds_s() -> Vec<f64> {
        BOUNDS_S.to_vec()
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

    /// Requests that are served.
    #[getter]
    fn open_requests(&self) -> usize {
        self.started().map_or(0, |started| started.open_requests())
    }

    /// Bytes of bodies that are held.
    #[getter]
    fn held_bytes(&self) -> usize {
        self.started().map_or(0, |started| started.held_bytes())
    }
}

impl Drop for NativeGateway {
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

#[doc = stub!("check_worker")]
#[pyfunction]
pub fn check_worker(worker: &str) -> Option<&'static str> {
    check(worker).err()
}
