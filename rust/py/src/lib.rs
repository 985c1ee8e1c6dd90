//! Python module `cachelb._core`.

use pyo3::prelude::*;

/// Native core of cachelb.
#[pymodule]
mod _core {}
