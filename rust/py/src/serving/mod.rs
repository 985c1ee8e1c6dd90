//! A router as the host of a server: the endpoint picker, or the gateway.
//!
//! Picks run on the server's own thread, without the interpreter's lock: they share the selector, the fleet and the
//! reader of bodies with the router that Python has. Where a policy, a renderer or a clock is Python's, that is asked on
//! a thread of its own, for a time that is limited.

mod addresses;
mod booked;
mod door;
mod gate;
mod host;
mod interpreted;
mod native;
mod picking;

use std::time::Duration;

use cachelb_serving::{Tls, TlsVersion};
use pyo3::PyResult;
use pyo3::exceptions::PyValueError;

pub use self::addresses::Addresses;
pub use self::door::Door;
pub use self::gate::fork_gate;
pub use self::host::{RouterHost, Shared};

/// Chain, key and CA of clients, in PEM, and the lowest version of TLS.
pub type Certificate = (Vec<u8>, Vec<u8>, Option<Vec<u8>>, String);

const VERSIONS: [(&str, TlsVersion); 2] = [("1.2", TlsVersion::V1_2), ("1.3", TlsVersion::V1_3)];

/// A year: what is longer ends never.
const LONGEST_S: f64 = 365.0 * 86_400.0;

/// A time, of a year at most.
pub fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value.min(LONGEST_S))
}

/// The certificate that Python gives.
pub fn tls((certificate, key, client_ca, min_version): Certificate) -> PyResult<Tls> {
    let version = VERSIONS.iter().find(|(name, _)| *name == min_version);
    let (_, min_version) = version.ok_or_else(|| {
        let text =
            format!("the lowest version of TLS must be \"1.2\" or \"1.3\", got {min_version:?}");
        PyValueError::new_err(text)
    })?;
    Ok(Tls {
        certificate,
        key,
        client_ca,
        min_version: *min_version,
    })
}
