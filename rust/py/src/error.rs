//! Core errors and panics as Python exceptions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cachelb_body::BodyError;
use cachelb_core::error::{Error, Result};
use pyo3::PyErr;
use pyo3::exceptions::{PyAssertionError, PyTypeError, PyValueError};
use pyo3::prelude::*;

pub(crate) mod classes {
    pyo3::import_exception!(cachelb.errors, BodyError);
    pyo3::import_exception!(cachelb.errors, CachelbError);
    pyo3::import_exception!(cachelb.errors, NoWorkerAvailable);
    pyo3::import_exception!(cachelb.errors, Overloaded);
    pyo3::import_exception!(cachelb.errors, SnapshotError);
    pyo3::import_exception!(cachelb.errors, UnknownWorkerError);
}

/// The exception a core error is raised as.
pub(crate) fn to_python(error: &Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::InvalidSetting { .. }
        | Error::BadOptions(_)
        | Error::Unsupported(_)
        | Error::DuplicateWorker(_)
        | Error::EngineBlockSize { .. } => PyValueError::new_err(text),
        Error::KeyKind(_) => PyTypeError::new_err(text),
        Error::UnknownWorker(_) => classes::UnknownWorkerError::new_err(text),
        Error::BadSnapshot(_) => classes::SnapshotError::new_err(text),
        Error::Invariant(_) => PyAssertionError::new_err(text),
        _ => classes::CachelbError::new_err(text),
    }
}

/// The exception that an error of the router is raised as.
pub(crate) fn of_router(error: cachelb::Error) -> PyErr {
    match error {
        cachelb::Error::UnknownWorker(key) => unknown_worker(&key),
        cachelb::Error::Options(text) => PyValueError::new_err(text),
        cachelb::Error::Snapshot(text) => classes::SnapshotError::new_err(text),
        cachelb::Error::Other(error) => to_python(&error),
        error => classes::CachelbError::new_err(error.to_string()),
    }
}

/// The exception of a worker that is not registered.
pub(crate) fn unknown_worker(key: &str) -> PyErr {
    let text = format!("worker {key:?} is not registered; add_worker() it first");
    classes::UnknownWorkerError::new_err(text)
}

/// The exception of a body that cannot be read.
pub(crate) fn body_error(error: BodyError) -> PyErr {
    classes::BodyError::new_err((error.kind.name(), error.offset))
}

/// Text of the exception for an invalid body.
#[cfg(feature = "serving")]
pub(crate) fn body_text(error: BodyError) -> String {
    format!(
        "request body: {} at byte {}",
        error.kind.name(),
        error.offset
    )
}

/// Runs core code; a core error becomes its exception, a panic a `CachelbError` instead of the end of the process.
pub(crate) fn enter<T>(call: impl FnOnce() -> Result<T>) -> PyResult<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| to_python(&error)),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            Err(classes::CachelbError::new_err(format!(
                "internal error, please report it: {text}"
            )))
        }
    }
}
