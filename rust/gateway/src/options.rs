//! Options of a gateway.

use std::time::Duration;

use cachelb_serving::Tls;

use crate::observe::access::AccessLog;

/// Options of a gateway, as `cachelb_gateway.serve.Gateway` documents them. Counts and times are above 0,
/// times a year at most.
#[derive(Debug, Clone)]
pub struct Options {
    /// Workers that a request is tried on, before the first byte of an answer.
    pub attempts: usize,
    /// Time that a request waits for a worker to become available.
    pub wait: Duration,
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// Time that a body may take to arrive.
    pub body_timeout: Duration,
    /// Requests at a time.
    pub max_open: usize,
    /// Bytes of all bodies at a time.
    pub max_held_bytes: usize,
    /// Connections of clients at a time.
    pub max_connections: usize,
    /// Time without a byte after which a request ends.
    pub idle_timeout: Duration,
    /// Time within which a worker has to begin its answer, beyond which another one is tried.
    pub first_byte_timeout: Option<Duration>,
    /// Time that connecting to a worker may take.
    pub connect_timeout: Duration,
    /// Time that the head of a request may take.
    pub head_timeout: Duration,
    /// Time that a connection may stay open between requests.
    pub keep_alive: Duration,
    /// Time between two health checks of a worker; `None` for no checks.
    pub health_interval: Option<Duration>,
    /// Headers of requests and answers that never pass, in lower case.
    pub untrusted_headers: Vec<String>,
    /// Headers of decisions that clients see, in lower case.
    pub expose_headers: Vec<String>,
    /// Certificates of authorities that workers are checked with, in DER.
    pub authorities: Vec<Vec<u8>>,
    /// The log of requests.
    pub access_log: Option<AccessLog>,
    /// Whether prompts wait at an admission: those that come as the server ends are refused.
    pub has_admission: bool,
    /// Threads that serve.
    pub threads: usize,
}

/// An address to serve on.
#[derive(Debug, Clone, Default)]
pub struct Listen {
    /// `host:port`, port 0 for any that is free, or `unix:/path`.
    pub address: String,
    /// The certificate; `None` for no TLS.
    pub tls: Option<Tls>,
}
