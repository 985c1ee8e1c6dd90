//! A router as the host of a server: the endpoint picker, or the gateway.
//!
//! Picks run on the server's own thread, without the interpreter's lock: they share the selector, the fleet and the
//! reader of bodies with the router that Python has. Where a policy, a renderer or a clock is Python's, that is asked on
//! a thread of its own, for a time that is limited.

mod addresses;
mod admission;
mod booking;
mod gate;
mod host;
mod peers;
mod select;
mod service;

use std::time::Duration;

use cachelb_serving::{Tls, TlsVersion, exposed};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pub use self::addresses::{Addresses, Source};
pub use self::gate::fork_gate;
pub use self::host::RouterHost;
pub use self::service::Service;
use crate::args::{chosen, texts};
use crate::options::read::{ABOVE_ZERO, Options};

/// Methods that the classes of servers share.
macro_rules! server_methods {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            /// Uses another certificate from the next connection on.
            fn reload_certificate(
                &self,
                py: Python<'_>,
                certificate: Certificate,
            ) -> PyResult<bool> {
                let (tls, started) = (tls(certificate)?, self.service.required()?);
                py.detach(|| started.reload_tls(&tls))
                    .map_err(|error| PyValueError::new_err(error.to_string()))
            }

            /// The counters that are not 0.
            #[getter]
            fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                self.service.counts(py, Started::counts)
            }

            /// Bytes of bodies, the buffers they arrive in, and prompts that are held.
            #[getter]
            fn held_bytes(&self) -> usize {
                let started = self.service.started();
                started.map_or(0, |started| started.held_bytes())
            }
        }
    };
}
pub(crate) use server_methods;

/// Bytes, connections or requests: more than there can be.
pub const MANY: u64 = 1 << 40;
/// Headers, or objectives.
pub const MAX_NAMES: usize = 1000;

/// Chain, key and CA of clients, in PEM, and the lowest version of TLS.
pub type Certificate = (Vec<u8>, Vec<u8>, Option<Vec<u8>>, String);

const VERSIONS: [(&str, TlsVersion); 2] = [("1.2", TlsVersion::V1_2), ("1.3", TlsVersion::V1_3)];

/// A year: longer times never end.
const LONGEST_S: f64 = 365.0 * 86_400.0;

/// A time, of a year at most.
pub fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value.min(LONGEST_S))
}

/// The certificate that Python gives.
pub fn tls((certificate, key, client_ca, min_version): Certificate) -> PyResult<Tls> {
    let min_version = chosen(&min_version, "the lowest version of TLS", &VERSIONS)?;
    Ok(Tls {
        certificate,
        key,
        client_ca,
        min_version,
    })
}

/// A count above 0.
pub fn count(given: &Options<'_, '_>, name: &str) -> PyResult<usize> {
    (given.integer(name, 1, MANY)).map(|count| count as usize)
}

/// A time above 0.
pub fn time(given: &Options<'_, '_>, name: &str) -> PyResult<Duration> {
    let time = seconds(given.number(name, ABOVE_ZERO)?);
    Ok(time.max(Duration::from_nanos(1)))
}

/// Names of headers.
pub fn names(given: &Options<'_, '_>, name: &str) -> PyResult<Vec<String>> {
    texts(&given.required(name)?, name, "names of headers", MAX_NAMES)
}

/// Headers of decisions that clients see, in lower case.
pub fn exposed_headers(given: &Options<'_, '_>) -> PyResult<Vec<String>> {
    exposed(names(given, "expose_headers")?)
        .map_err(|error| PyValueError::new_err(error.to_string()))
}
