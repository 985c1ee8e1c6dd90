//! What a policy of the caller's own sees: one request, and the fleet as columns.

use std::sync::{Arc, Mutex, PoisonError};

use cachelb_core::policy::{Rng, key_hash};
use cachelb_core::router::{Column, Survey};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyTuple};

use super::memory::Memory;
use crate::args::{named, ranged};
use crate::call::Call;
use crate::prompt::Prompt;
use crate::router::Registered;

/// What a request is, as far as routing goes. Nothing in it tells what the prompt or the session says.
#[pyclass(frozen, module = "cachelb")]
#[derive(Debug)]
pub struct RequestView {
    /// Length of the prompt, 0 if unknown.
    #[pyo3(get)]
    prompt_tokens: u64,
    /// Full blocks of the prompt.
    #[pyo3(get)]
    total_blocks: u64,
    /// Tokens per block.
    #[pyo3(get)]
    block_size: u32,
    /// Whether the prompt itself was given, not only its length.
    #[pyo3(get)]
    has_tokens: bool,
    /// Hash of the session's key, or None.
    #[pyo3(get)]
    session: Option<u64>,
    /// Hash of the session's key, else of the head of the prompt if the policy needs it, else None.
    #[pyo3(get)]
    key: Option<u64>,
    #[pyo3(get)]
    tenant: Option<Py<PyString>>,
    #[pyo3(get)]
    priority: i64,
    #[pyo3(get)]
    model: Option<Py<PyString>>,
    #[pyo3(get)]
    lora: Option<Py<PyString>>,
    #[pyo3(get)]
    max_output_tokens: Option<u64>,
    #[pyo3(get)]
    expected_output_tokens: Option<u64>,
    /// How often this request was tried before.
    #[pyo3(get)]
    attempt: u32,
    /// Whether nothing will be booked.
    #[pyo3(get)]
    dry_run: bool,
    rng: Mutex<Rng>,
}

/// What of a request its call does not say.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub block_size: u32,
    pub blocks: Option<usize>,
    pub hash_seed: u64,
    pub attempt: u32,
    pub dry_run: bool,
}

impl RequestView {
    pub fn new(py: Python<'_>, call: &Call, prompt: &Prompt, terms: Terms, seed: u64) -> Self {
        let copy = |text: &Option<Py<PyString>>| text.as_ref().map(|text| text.clone_ref(py));
        let key = prompt.key().map(|key| key_hash(key, terms.hash_seed));
        Self {
            prompt_tokens: prompt.length,
            total_blocks: terms
                .blocks
                .map_or(prompt.length / u64::from(terms.block_size), |n| n as u64),
            block_size: terms.block_size,
            has_tokens: call.tokens.is_some()
                || call.text.is_some()
                || call.messages.is_some()
                || call.blocks.is_some(),
            session: key.filter(|_| prompt.key_is_session()),
            key,
            tenant: copy(&call.tenant),
            priority: call.priority,
            model: copy(&call.model),
            lora: copy(&call.lora),
            max_output_tokens: call.max_output_tokens,
            expected_output_tokens: call.expected_output_tokens,
            attempt: terms.attempt,
            dry_run: terms.dry_run,
            rng: Mutex::new(Rng::new(seed)),
        }
    }
}

#[pymethods]
impl RequestView {
    /// The next number in [0, 1) of the router's generator.
    fn random(&self) -> f64 {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        rng.unit()
    }

    /// The next number from 0 to `n` - 1 of the same generator.
    fn randrange(&self, n: &Bound<'_, PyAny>) -> PyResult<usize> {
        let n = ranged(n, "n", 1, u64::from(u32::MAX))? as usize;
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(rng.below(n))
    }

    fn __repr__(&self) -> String {
        format!(
            "<RequestView prompt_tokens={} total_blocks={}>",
            self.prompt_tokens, self.total_blocks
        )
    }
}

/// The candidates of one request, as columns: cell `i` of each belongs to candidate `i`.
#[pyclass(frozen, module = "cachelb")]
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
        let offers = self.survey.offers().iter();
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
    /// A column as a read-only array on the view's own memory.
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
        let rows = self.survey.offers().len();
        let offset = column as usize * rows * size_of::<u64>();
        from_buffer.bind(py).call1((memory, dtype, rows, offset))
    }

    /// Keys of the workers; one with several ranks occurs once per rank.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.of_seats(py, |offer| &*self.registered.seat_of(offer).key)
    }

    /// Names of the workers' GPU models, None where nobody named one.
    #[getter]
    fn gpu<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.of_seats(py, |offer| self.registered.seat_of(offer).gpu.as_deref())
    }

    fn __len__(&self) -> usize {
        self.survey.offers().len()
    }

    fn __repr__(&self) -> String {
        format!("<FleetView candidates={}>", self.survey.offers().len())
    }

    /// Names of the columns.
    #[classattr]
    #[pyo3(name = "COLUMNS")]
    fn columns(py: Python<'_>) -> PyResult<Py<PyTuple>> {
        Ok(PyTuple::new(py, Column::ALL.map(Column::name))?.unbind())
    }
}
