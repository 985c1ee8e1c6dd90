//! Python module `cachelb._core`.

mod decision;
mod options;
mod policy;
mod prompt;
mod workers;

use pyo3::prelude::*;

/// Native core of cachelb.
#[pymodule]
mod _core {
    #[pymodule_export]
    use crate::decision::Decision;
    #[pymodule_export]
    use crate::policy::NativePolicy;
}
