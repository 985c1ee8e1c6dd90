//! Options of a gateway.

use std::time::Duration;

use cachelb_serving::Tls;

use crate::access::AccessLog;

/// Thirty years: practically for ever, without overflow of any clock.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// Options of a gateway, as `cachelb.serve.Gateway` documents them.
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

/// An option out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} must be above 0, got 0")]
pub struct InvalidOption(&'static str);

impl Options {
    /// Checks the values, and cuts times to thirty years.
    ///
    /// # Errors
    ///
    /// An option is 0.
    pub fn checked(mut self) -> Result<Self, InvalidOption> {
        for (name, count) in [
            ("attempts", self.attempts),
            ("max_body_bytes", self.max_body_bytes),
            ("max_open", self.max_open),
            ("max_held_bytes", self.max_held_bytes),
            ("max_connections", self.max_connections),
            ("threads", self.threads),
        ] {
            if count == 0 {
                return Err(InvalidOption(name));
            }
        }
        let times = [
            ("body_timeout_s", &mut self.body_timeout),
            ("idle_timeout_s", &mut self.idle_timeout),
            ("connect_timeout_s", &mut self.connect_timeout),
            ("head_timeout_s", &mut self.head_timeout),
            ("keep_alive_s", &mut self.keep_alive),
        ];
        for (name, time) in times {
            if time.is_zero() {
                return Err(InvalidOption(name));
            }
            *time = LONGEST.min(*time);
        }
        let optional = [
            ("health_interval_s", self.health_interval),
            ("first_byte_timeout_s", self.first_byte_timeout),
        ];
        if let Some((name, _)) = optional
            .iter()
            .find(|(_, time)| time.is_some_and(|time| time.is_zero()))
        {
            return Err(InvalidOption(name));
        }
        self.wait = LONGEST.min(self.wait);
        Ok(self)
    }
}
