//! `PolledEvents`: polled events of TensorRT-LLM, as messages of the form that other engines publish.

use std::sync::{Mutex, PoisonError};

use cachelb_events::{Polled, PolledSettings};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::args;
use crate::error::enter;

/// Rank, number and bytes.
type Message<'py> = (Option<u32>, u64, Bound<'py, PyBytes>);

#[doc = stub!("PolledEvents")]
#[pyclass(frozen, module = "cachelb._core")]
pub(crate) struct PolledEvents(Mutex<Polled>);

#[pymethods]
impl PolledEvents {
    #[new]
    #[pyo3(signature = (*, ranks=1, block_size=None, verify=true))]
    fn new(ranks: u32, block_size: Option<u32>, verify: bool) -> Self {
        Self(Mutex::new(Polled::new(PolledSettings {
            ranks,
            block_size,
            verify,
        })))
    }

    #[doc = stub!("PolledEvents.take")]
    #[pyo3(signature = (answer, /, *, now_s))]
    fn take<'py>(&self, answer: &Bound<'py, PyAny>, now_s: f64) -> PyResult<Vec<Message<'py>>> {
        let py = answer.py();
        let answer = args::bytes(answer, "answer")?;
        let read = py.detach(|| {
            enter(|| {
                let mut polled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(polled.take(&answer, now_s))
            })
        })?;
        let messages = read.map_err(|why| {
            PyValueError::new_err(format!("answer is no list of KV cache events: {why}"))
        })?;
        let whole = messages.into_iter().map(|message| {
            let payload = PyBytes::new(py, &message.payload);
            (message.rank, message.seq, payload)
        });
        Ok(whole.collect())
    }

    #[doc = stub!("PolledEvents.foreign")]
    #[getter]
    fn foreign(&self) -> u64 {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .foreign()
    }
}
