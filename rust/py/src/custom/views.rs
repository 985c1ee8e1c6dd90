//! Views for a policy of the caller's own: one request, and the fleet as columns.

use std::sync::{Arc, Mutex};

use cachelb::selector::{Column, Prompt, Request, Survey};
use cachelb_core::hashing::Hasher;
use cachelb_policy::{Rng, key_hash};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyTuple};

use super::memory::Memory;
use crate::args::{named, ranged};
use crate::arguments::Call;
use crate::engine::lock;
use crate::workers::Registered;
use cachelb::selector::Shape;

#[doc = stub!("RequestView")]
#[pyclass(frozen, module = "cachelb.policies")]
#[derive(Debug)]
pub struct RequestView {
    #[doc = stub!("RequestView.prompt_tokens")]
    #[pyo3(get)]
    prompt_tokens: u64,
    #[doc = stub!("RequestView.total_blocks")]
    #[pyo3(get)]
    total_blocks: u64,
    #[doc = stub!("RequestView.block_size")]
    #[pyo3(get)]
    block_size: u32,
    #[doc = stub!("RequestView.has_tokens")]
    #[pyo3(get)]
    has_tokens: bool,
    #[doc = stub!("RequestView.session")]
    #[pyo3(get)]
    session: Option<u64>,
    #[doc = stub!("RequestView.key")]
    #[pyo3(get)]
    key: Option<u64>,
    #[doc = stub!("RequestView.tenant")]
    #[pyo3(get)]
    tenant: Option<Py<PyString>>,
    #[doc = stub!("RequestView.priority")]
    #[pyo3(get)]
    priority: i64,
    #[doc = stub!("RequestView.model")]
    #[pyo3(get)]
    model: Option<Py<PyString>>,
    #[doc = stub!("RequestView.lora")]
    #[pyo3(get)]
    lora: Option<Py<PyString>>,
    #[doc = stub!("RequestView.max_output_tokens")]
    #[pyo3(get)]
    max_output_tokens: Option<u64>,
    #[doc = stub!("RequestView.expected_output_tokens")]
    #[pyo3(get)]
    expected_output_tokens: Option<u64>,
    #[doc = stub!("RequestView.attempt")]
    #[pyo3(get)]
    attempt: u32,
    #[doc = stub!("RequestView.dry_run")]
    #[pyo3(get)]
    dry_run: bool,
    rng: Mutex<Rng>,
}

impl RequestView {
    pub fn new(
        py: Python<'_>,
        call: &Call,
        prompt: &Prompt,
        request: &Request<'_>,
        hasher: &Hasher,
        dry_run: bool,
        seed: u64,
    ) -> Self {
        let copy = |text: &Option<Py<PyString>>| text.as_ref().map(|text| text.clone_ref(py));
        let read = call.read.as_deref();
        let or_read = |given: &Option<Py<PyString>>, read: Option<&String>| {
            let read = || read.map(|text| PyString::new(py, text).unbind());
            copy(given).or_else(read)
        };
        let block_size = hasher.block_size() as u64;
        let key = prompt.key().map(|key| key_hash(key, hasher.seed()));
        Self {
            prompt_tokens: prompt.length,
            total_blocks: request
                .blocks
                .map_or(prompt.length / block_size, |(hashes, _)| {
                    hashes.len() as u64
                }),
            block_size: block_size as u32,
            has_tokens: call.tokens.is_some()
                || call.text.is_some()
                || call.blocks.is_some()
                || read.is_some_and(|read| read.shape != Shape::Nothing),
            session: key.filter(|_| prompt.key_is_session()),
            key,
            tenant: copy(&call.tenant),
            priority: call.priority(),
            model: or_read(&call.model, read.and_then(|read| read.model.as_ref())),
            lora: or_read(&call.lora, read.and_then(|read| read.lora.as_ref())),
            max_output_tokens: call.max_output_tokens(),
            expected_output_tokens: call.expected_output_tokens(),
            attempt: request.attempt,
            dry_run,
            rng: Mutex::new(Rng::new(seed)),
        }
    }
}

#[pymethods]
impl RequestView {
    #[doc = stub!("RequestView.random")]
    fn random(&self) -> f64 {
        let mut rng = lock(&self.rng);
        rng.unit()
    }

    #[doc = stub!("RequestView.randrange")]
    fn randrange(&self, n: &Bound<'_, PyAny>) -> PyResult<usize> {
        let n = ranged(n, "n", 1, u64::from(u32::MAX))? as usize;
        let mut rng = lock(&self.rng);
        Ok(rng.below(n))
    }

    fn __repr__(&self) -> String {
        format!(
            "<RequestView prompt_tokens={} total_blocks={}>",
            self.prompt_tokens, self.total_blocks
        )
    }
}

#[doc = stub!("FleetView")]
#[pyclass(frozen, module = "cachelb.policies")]
pub struct FleetView {
    survey: Arc<Survey>,
    registered: Arc<Registered>,
    memory: PyOnceLock<Py<Memory>>,
}

impl FleetView {
    pub fn new(survey: Arc<Survey>, registered: Arc<Registered>) -> Self {
        Self {
            survey,
            registered,
            memory: PyOnceLock::new(),
        }
    }

    fn of_seats<'py, T: IntoPyObject<'py>>(
        &self,
        py: Python<'py>,
        value: impl Fn(usize) -> T,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let offers = self.survey.offers.iter();
        let values: Vec<T> = offers.map(|offer| value(*offer as usize)).collect();
        PyTuple::new(py, values)
    }
}

/// `numpy.frombuffer` and the two dtypes of columns.
fn numpy(py: Python<'_>) -> PyResult<&(Py<PyAny>, Py<PyAny>, Py<PyAny>)> {
    static NUMPY: PyOnceLock<(Py<PyAny>, Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
    NUMPY.get_or_try_init(py, || {
        let numpy = py.import("numpy")?;
        let dtype = numpy.getattr("dtype")?;
        PyResult::Ok((
            numpy.getattr("frombuffer")?.unbind(),
            dtype.call1(("int64",))?.unbind(),
            dtype.call1(("float64",))?.unbind(),
        ))
    })
}

fn unknown_column(py: Python<'_>, name: &str) -> PyErr {
    let hint = || -> PyResult<String> {
        let errors = py.import("cachelb.errors")?;
        let names = Column::ALL.map(Column::name);
        errors
            .call_method1("did_you_mean", (name, names))?
            .extract()
    };
    match hint() {
        Ok(hint) => PyKeyError::new_err(format!("there is no column {name:?}{hint}")),
        Err(error) => error,
    }
}

#[pymethods]
impl FleetView {
    #[doc = stub!("FleetView.column")]
    fn column<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = named::name)] name: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let column = Column::named(name).ok_or_else(|| unknown_column(py, name))?;
        let memory = self
            .memory
            .get_or_try_init(py, || Py::new(py, Memory(Arc::clone(&self.survey))))?;
        let (from_buffer, whole, float) = numpy(py)?;
        let dtype = if column.is_whole() { whole } else { float };
        let rows = self.survey.offers.len();
        let offset = column as usize * rows * size_of::<u64>();
        from_buffer.bind(py).call1((memory, dtype, rows, offset))
    }

    #[doc = stub!("FleetView.keys")]
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.of_seats(py, |offer| &*self.registered.worker_of(offer).key)
    }

    #[doc = stub!("FleetView.gpu")]
    #[getter]
    fn gpu<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.of_seats(py, |offer| {
            self.registered.worker_of(offer).profile.gpu.as_deref()
        })
    }

    fn __len__(&self) -> usize {
        self.survey.offers.len()
    }

    fn __repr__(&self) -> String {
        format!("<FleetView candidates={}>", self.survey.offers.len())
    }

    /// Names of the columns.
    #[classattr]
    #[pyo3(name = "COLUMNS")]
    fn columns(py: Python<'_>) -> PyResult<Py<PyTuple>> {
        Ok(PyTuple::new(py, Column::ALL.map(Column::name))?.unbind())
    }
}
