//! Runs of simulated fleets: the router itself in simulated time, or a gateway written in Python.

mod grouped;
mod outside;
mod read;

use std::time::Instant;

use cachelb_core::hashing::Scheme;
use cachelb_policy::Reason;
use cachelb_sim::{
    Admission, Gateway, Keys, Options, Outcomes, Routed, Several, Stopped, WorkerSettings,
    Workload, run,
};
use pyo3::exceptions::{PyKeyboardInterrupt, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

pub use self::grouped::GroupedEngineCache;
use self::outside::Outside;
use crate::args::{ranged, type_name};
use crate::error::{of_router, to_python};
use crate::router::NativeRouter;

#[doc = stub!("SimWorkload")]
#[pyclass(frozen, module = "cachelb._core")]
#[derive(Debug)]
pub struct SimWorkload {
    workload: Workload,
    sessions: Vec<Option<Box<[u8]>>>,
}

#[pymethods]
impl SimWorkload {
    #[new]
    #[pyo3(signature = (columns, *, block_size, sessions=None))]
    fn new(
        columns: &Bound<'_, PyDict>,
        block_size: &Bound<'_, PyAny>,
        sessions: Option<Vec<Option<String>>>,
    ) -> PyResult<Self> {
        let block_size = ranged(block_size, "block_size", 1, u64::from(u32::MAX))? as u32;
        let workload = read::workload(block_size, columns)?;
        let sessions = sessions.unwrap_or_default();
        if !sessions.is_empty() && sessions.len() != workload.len() {
            return Err(PyValueError::new_err(format!(
                "sessions has {} rows, the columns have {}",
                sessions.len(),
                workload.len()
            )));
        }
        let bytes = |text: String| (!text.is_empty()).then(|| text.into_bytes().into());
        let sessions = sessions
            .into_iter()
            .map(|one| one.and_then(bytes))
            .collect();
        Ok(Self { workload, sessions })
    }

    fn __len__(&self) -> usize {
        self.workload.len()
    }
}

type Ran<E> = Result<Outcomes, Stopped<E>>;

/// One run's parts.
struct Stage<'a> {
    workload: &'a SimWorkload,
    fleet: Vec<WorkerSettings>,
    options: Options,
    progress: Option<Py<PyAny>>,
}

impl Stage<'_> {
    /// Runs it before `gateways`, of which `of` has that of each request. Returns how long selections took, too.
    fn run_several<G: Gateway>(
        &self,
        gateways: Vec<G>,
        (of, sharing_lag): (&[u16], Option<f64>),
        to_error: impl Fn(G::Error) -> PyErr,
    ) -> PyResult<(Outcomes, Vec<u32>)> {
        let (mut raised, start) = (None, Instant::now());
        let clock = || start.elapsed();
        let mut gateway = Several::new(gateways, of, &clock, sharing_lag);
        let ran: Ran<G::Error> = run(
            &self.workload.workload,
            &self.fleet,
            &mut gateway,
            &self.options,
            |done| {
                let told = Python::attach(|py| {
                    py.check_signals()?;
                    match &self.progress {
                        Some(progress) => progress.call1(py, (done,)).map(drop),
                        None => Ok(()),
                    }
                });
                raised = told.err();
                raised.is_none()
            },
        );
        let outcomes = ran.map_err(|stopped| match stopped {
            Stopped::Gateway(error) => to_error(error),
            Stopped::Invalid(error) => to_python(&error),
            Stopped::Interrupted => {
                raised.unwrap_or_else(|| PyKeyboardInterrupt::new_err("stopped"))
            }
        })?;
        Ok((outcomes, gateway.nanoseconds))
    }
}

fn routed(
    py: Python<'_>,
    stage: &Stage<'_>,
    routers: &[Py<NativeRouter>],
    names: &[String],
    sharing: (&[u16], Option<f64>),
    admission: Option<&Admission>,
) -> PyResult<(Outcomes, Vec<u32>)> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut keys = Vec::new();
    for router in routers {
        keys.push(Keys {
            pull_min_tokens: stage.options.pull_min_tokens,
            ..rule_keys(router.get(), &stage.workload.sessions, admission)?
        });
    }
    let fronts: Vec<_> = (routers.iter().map(Py::get))
        .map(|router| (&router.fleet.get().registry, &*router.engine))
        .collect();
    py.detach(|| {
        let mut gateways = Vec::new();
        for (front, keys) in fronts.into_iter().zip(keys) {
            let fleet = (&names[..], &stage.fleet[..]);
            let gateway = Routed::new(front, &stage.workload.workload, fleet, keys);
            gateways.push(gateway.map_err(of_router)?);
        }
        stage.run_several(gateways, sharing, of_router)
    })
}

fn outside(
    py: Python<'_>,
    stage: &Stage<'_>,
    gateways: Vec<Py<PyAny>>,
    sharing: (&[u16], Option<f64>),
) -> PyResult<(Outcomes, Vec<u32>)> {
    py.detach(|| {
        let gateways = gateways.into_iter().map(Outside::new).collect();
        stage.run_several(gateways, sharing, |error| error)
    })
}

#[doc = stub!("simulate")]
#[pyfunction]
#[pyo3(signature = (gateways, workload, workers, *, names, options, clients=None, sharing_lag=None, progress=None, admission=None))]
#[expect(clippy::too_many_arguments, reason = "one keyword argument each")]
pub fn simulate<'py>(
    py: Python<'py>,
    gateways: &Bound<'py, PyList>,
    workload: &SimWorkload,
    workers: &Bound<'py, PyList>,
    names: &Bound<'py, PyList>,
    options: &Bound<'py, PyDict>,
    clients: Option<Vec<u16>>,
    sharing_lag: Option<f64>,
    progress: Option<Py<PyAny>>,
    admission: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyDict>> {
    let stage = Stage {
        workload,
        fleet: read::workers(workers)?,
        options: read::options(options)?,
        progress,
    };
    let of = clients.unwrap_or_default();
    if let Some(lag) = sharing_lag.filter(|lag| !(lag.is_finite() && *lag >= 0.0)) {
        return Err(PyValueError::new_err(format!(
            "sharing_lag must be a finite number of seconds, 0 or more, got {lag}"
        )));
    }
    if gateways.is_empty() || of.iter().any(|at| usize::from(*at) >= gateways.len()) {
        return Err(PyValueError::new_err(
            "at least one gateway is needed, and one for each of `clients`",
        ));
    }
    let names: Vec<String> = names.extract()?;
    if names.len() != stage.fleet.len() {
        return Err(PyValueError::new_err(format!(
            "{} names for {} workers",
            names.len(),
            stage.fleet.len()
        )));
    }
    let routers: Vec<Py<NativeRouter>> = gateways
        .iter()
        .filter_map(|one| one.cast_into::<NativeRouter>().ok().map(Bound::unbind))
        .collect();
    let (outcomes, nanoseconds) = if routers.is_empty() {
        outside(
            py,
            &stage,
            gateways.iter().map(Bound::unbind).collect(),
            (&of, sharing_lag),
        )?
    } else if routers.len() == gateways.len() {
        let admission = admission.map(read::admission).transpose()?;
        let of = (&of[..], sharing_lag);
        routed(py, &stage, &routers, &names, of, admission.as_ref())?
    } else {
        return Err(PyTypeError::new_err(format!(
            "gateways must all be routers or none of them, got also {}",
            type_name(&gateways.get_item(0)?)
        )));
    };
    columns(py, &outcomes, &nanoseconds)
}

trait Bytes: Copy {
    /// As numpy calls it.
    const DTYPE: &'static str;

    fn put(self, out: &mut Vec<u8>);
}

macro_rules! bytes {
    ($($kind:ty => $dtype:literal),*) => {
        $(impl Bytes for $kind {
            const DTYPE: &'static str = $dtype;

            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_ne_bytes());
            }
        })*
    };
}
bytes!(u8 => "u1", u32 => "u4", i32 => "i4", u64 => "u8", f32 => "f4", f64 => "f8");

/// Columns as bytes, under the name of their dtype and their own.
fn columns<'py>(
    py: Python<'py>,
    outcomes: &Outcomes,
    nanoseconds: &[u32],
) -> PyResult<Bound<'py, PyDict>> {
    fn add<'a, T: Bytes + 'a>(
        out: &Bound<'_, PyDict>,
        name: &str,
        values: impl IntoIterator<Item = &'a T>,
    ) -> PyResult<()> {
        let mut bytes = Vec::new();
        values.into_iter().for_each(|value| value.put(&mut bytes));
        out.set_item(name, (T::DTYPE, PyBytes::new(out.py(), &bytes)))
    }
    let out = PyDict::new(py);
    let o = outcomes;
    let status: Vec<u8> = o.status.iter().map(|status| *status as u8).collect();
    add(&out, "status", &status)?;
    add(&out, "arrival_s", &o.arrival)?;
    add(&out, "first_token_s", &o.first_token)?;
    add(&out, "finish_s", &o.finish)?;
    add(&out, "worker", &o.worker)?;
    add(&out, "prefill_worker", &o.prefill_worker)?;
    add(&out, "reason", &o.reason)?;
    add(&out, "predicted_tokens", &o.predicted_tokens)?;
    add(&out, "cached_tokens", &o.cached_tokens)?;
    add(&out, "pulled_tokens", &o.pulled_tokens)?;
    add(&out, "preemptions", &o.preemptions)?;
    add(&out, "retries", &o.retries)?;
    add(&out, "sample_s", &o.sample_time)?;
    add(&out, "samples", o.samples.iter().flatten())?;
    add(&out, "busy_s", &o.busy)?;
    add(&out, "evicted_blocks", &o.evicted)?;
    add(&out, "worker_preemptions", &o.worker_preemptions)?;
    add(&out, "event_messages", &o.event_messages)?;
    add(&out, "lost_messages", &o.lost_messages)?;
    add(&out, "replays", &o.replays)?;
    add(&out, "resyncs", &o.resyncs)?;
    add(&out, "select_ns", nanoseconds)?;
    let quantile = |q| o.gaps.quantile(q).unwrap_or(f64::NAN);
    let gaps = [
        o.gaps.mean().unwrap_or(f64::NAN),
        quantile(0.5),
        quantile(0.9),
        quantile(0.99),
    ];
    add(&out, "itl_s", &gaps)?;
    out.set_item("end_s", o.end)?;
    out.set_item("selections", o.selections)?;
    let reasons: Vec<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
    out.set_item("reasons", reasons)?;
    Ok(out)
}

/// Keys that its rules use.
fn rule_keys<'a>(
    router: &NativeRouter,
    sessions: &'a [Option<Box<[u8]>>],
    admission: Option<&'a Admission>,
) -> PyResult<Keys<'a>> {
    if !router.customs.is_empty() {
        return Err(PyTypeError::new_err(
            "the router asks a policy written in Python; put it behind a gateway",
        ));
    }
    let readers = router.fleet.get().registry.readers();
    let reader = readers
        .first()
        .ok_or_else(|| PyValueError::new_err("a router needs a pool"))?;
    if reader.hasher.scheme() == Scheme::Units {
        return Err(PyValueError::new_err(
            "index=\"radix\" compares tokens, and prompts of a workload are blocks: leave index out, which matches the same blocks",
        ));
    }
    Ok(Keys {
        sessions,
        prefix_blocks: reader.prefix_blocks(),
        blind: !reader.need.blocks,
        terms: router.terms,
        admission,
        pull_min_tokens: None,
    })
}
