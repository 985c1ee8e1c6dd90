//! State of a gateway that all its requests share.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use cachelb_serving::{Budget, Counters, Host};
use hyper::{Response, StatusCode};
use serde_json::json;
use tokio::sync::watch;

use crate::answer::Answer;
use crate::connection::Connections;
use crate::headers::Filter;
use crate::observe::access::Access;
use crate::observe::metrics::Records;
use crate::options::Options;
use crate::refusal::json_answer;
use crate::transport::upstream::Upstreams;

/// How far a server has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// It serves, and is not ready.
    Draining,
    /// It accepts nothing, and lets answers end.
    Closing,
    /// It ends answers.
    Cut,
}

/// The state that all requests of a gateway share.
pub(crate) struct Shared<H> {
    pub(crate) host: Arc<H>,
    pub(crate) options: Options,
    pub(crate) filter: Filter,
    pub(crate) upstreams: Arc<Upstreams>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) records: Arc<Records>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) open: Arc<AtomicUsize>,
    pub(crate) waiting: Arc<AtomicUsize>,
    pub(crate) phase: watch::Sender<Phase>,
}

// === impl Shared ===

impl<H: Host> Shared<H> {
    pub(crate) fn new(options: Options, host: Arc<H>) -> io::Result<Self> {
        let access = options.access_log.as_ref().map(Access::open).transpose();
        let counters = Arc::new(Counters::default());
        Ok(Self {
            host,
            filter: Filter::new(&options.untrusted_headers),
            upstreams: Arc::new(Upstreams::new(
                &options.authorities,
                options.connect_timeout,
            )),
            connections: Connections::new(),
            records: Records::new(Arc::clone(&counters), access?),
            counters,
            budget: Arc::new(Budget::new(options.max_held_bytes)),
            open: Arc::default(),
            waiting: Arc::default(),
            phase: watch::Sender::new(Phase::Serving),
            options,
        })
    }

    /// Answers whether requests can be served.
    pub(crate) fn readiness(&self) -> Response<Answer> {
        let is_serving = *self.phase.borrow() == Phase::Serving;
        let count = if is_serving {
            self.host.schedulable()
        } else {
            0
        };
        let document = json!({"ready": count > 0, "schedulable_workers": count}).to_string();
        let status = if count > 0 {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        let mut response = json_answer(status, document);
        if count == 0 {
            response
                .headers_mut()
                .insert(hyper::header::RETRY_AFTER, 1.into());
        }
        response
    }
}

/// Returns an id that no other request has.
pub(crate) fn new_id() -> String {
    let random = RandomState::new();
    let half = |salt: u64| {
        let mut hasher = random.build_hasher();
        hasher.write_u64(salt);
        hasher.finish()
    };
    format!("{:016x}{:016x}", half(0), half(1))
}
