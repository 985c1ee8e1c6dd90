//! Why a server does not start.

use std::io;

use crate::tls::TlsError;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        error: io::Error,
    },
    /// The log of requests cannot be written.
    #[error("cannot write the access log: {0}")]
    AccessLog(io::Error),
    /// The certificate or the key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The system has no thread for it.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}
