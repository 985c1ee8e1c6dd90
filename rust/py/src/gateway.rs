//! The HTTP gateway: the server of `cachelb-gateway` with a router as its host.

use std::sync::Arc;

use cachelb_gateway::{
    AccessFormat, AccessLog, BOUNDS_S, Call, Histogram, Listen, Operator, Options, Page, Started,
    check_worker as check,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};

use crate::args::{Items, chosen, number};
use crate::options::read::{NOT_NEGATIVE, Options as Given};
use crate::router::NativeRouter;
use crate::serving::{
    Addresses, Certificate, RouterHost, Service, Source, count, exposed_headers, names, seconds,
    server_methods, time, tls,
};

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
    service: Service<Started<RouterHost>>,
    options: Options,
}

/// The pages for operators, which a function in Python makes.
fn operator(answer: Py<PyAny>) -> Operator {
    Arc::new(move |call: Call| {
        Python::attach(|py| {
            let body = PyBytes::new(py, &call.body);
            let made = answer.bind(py).call1((call.method, call.path, body));
            made.and_then(page).unwrap_or_else(|error| {
                error.write_unraisable(py, None);
                Page::Whole(
                    500,
                    "application/json".to_owned(),
                    br#"{"error": "the page failed"}"#.to_vec(),
                )
            })
        })
    })
}

/// A page as a function in Python returned it.
fn page(made: Bound<'_, PyAny>) -> PyResult<Page> {
    if !made.is_callable() {
        let (status, kind, body) = made.extract()?;
        return Ok(Page::Whole(status, kind, body));
    }
    let more = made.unbind();
    Ok(Page::Lines(Box::new(move |is_over| {
        Python::attach(|py| {
            let part = more.call1(py, (is_over,));
            (part.and_then(|part| part.extract(py))).unwrap_or_else(|error| {
                error.write_unraisable(py, None);
                None
            })
        })
    })))
}

fn read(given: &Given<'_, '_>) -> PyResult<Options> {
    let count = |name| count(given, name);
    let time = |name| time(given, name);
    let optional = |name| given.or_none(name, |_| time(name));
    let authorities = Items::of(
        &given.required("authorities")?,
        "authorities",
        "certificates",
        MAX_AUTHORITIES,
    )?;
    let access_log = given.optional("access_log")?.map(|log| {
        let (path, format): (_, String) = log.extract()?;
        let format = chosen(&format, "the format of access_log", &FORMATS)?;
        Ok::<_, PyErr>(AccessLog { path, format })
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
        untrusted_headers: names(given, "untrusted_headers")?,
        expose_headers: exposed_headers(given)?,
        authorities: authorities
            .map(|der| der?.extract())
            .collect::<PyResult<_>>()?,
        access_log: access_log.transpose()?,
        has_admission: given.optional("admission")?.is_some(),
        threads: count("threads")?,
    })
}

fn times(histogram: &Histogram) -> Times {
    (histogram.counts.to_vec(), histogram.sum_s)
}

#[pymethods]
impl NativeGateway {
    #[new]
    #[pyo3(signature = (router, options, /))]
    fn new(router: &Bound<'_, NativeRouter>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let given = Given(options);
        Ok(Self {
            service: Service::new("a gateway", router, &given, Addresses::new(Source::Key))?,
            options: read(&given)?,
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
        let listen = listen.into_iter().map(|(address, certificate)| {
            let tls = certificate.map(tls).transpose()?;
            Ok(Listen { address, tls })
        });
        let listen: Vec<Listen> = listen.collect::<PyResult<_>>()?;
        let admin = admin.map(|(address, answer, token)| {
            (Listen { address, tls: None }, operator(answer), token)
        });
        let options = self.options.clone();
        let started =
            (self.service).start(py, |host| Started::start(options, host, &listen, admin))?;
        let admin_url = started.admin_url().map(str::to_owned);
        Ok((started.urls.clone(), admin_url))
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
        if let Some(started) = self.service.started() {
            py.detach(|| started.stop(drain, grace));
        }
        Ok(())
    }

    /// Counts and times of requests, by worker and model.
    #[expect(clippy::type_complexity, reason = "the stub names the parts")]
    fn series<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Vec<(String, String, Bound<'py, PyDict>, Times, Times, u64, u64)>> {
        let series = self
            .service
            .started()
            .map(|started| py.detach(|| started.series()));
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

    /// Requests that are served.
    #[getter]
    fn open_requests(&self) -> usize {
        self.service
            .started()
            .map_or(0, |started| started.open_requests())
    }
}

server_methods!(NativeGateway);

#[doc = stub!("check_worker")]
#[pyfunction]
pub fn check_worker(worker: &str) -> Option<&'static str> {
    check(worker).err()
}
