//! The interface to the router: requests to pick for, refusals, and bookings with their end.
//!
//! The server owns streams, bytes and limits; its host owns workers. A pick is asynchronous and may take its time
//! elsewhere; the calls of a booking are short, but for [`Booked::served`] of a long prompt.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task;

use crate::address::Subset;
use crate::counters::Event;
use crate::headers::Headers;

/// Bytes of a body from which on reading it belongs on another thread: it takes milliseconds, in which no other
/// stream would be served.
pub const LARGE_BODY_BYTES: usize = 256 << 10;

/// Tokens that are reported at a time: a block of most engines.
const TOKENS: u64 = 16;

/// Time in which those that came are reported with the next one.
const REPORT: Duration = Duration::from_millis(100);

/// Picks workers for requests, as a router does.
pub trait Host: Send + Sync + 'static {
    /// Picks a worker for a request and books its load there.
    ///
    /// It runs on the thread that serves all streams. Long work, such as a body of more than
    /// [`LARGE_BODY_BYTES`] or a policy in another language, belongs into [`off_thread`]; which bodies are, is up to
    /// the host. The future is dropped if the proxy gives the request up or if its time is over: a booking that is
    /// made nevertheless is cancelled as its [`Picked`] is dropped.
    ///
    /// # Errors
    ///
    /// A [`Refusal`], which is sent to the client and counted.
    fn pick(self: &Arc<Self>, asked: Asked)
    -> impl Future<Output = Result<Picked, Refusal>> + Send;

    /// Returns the keys of the workers.
    fn workers(&self) -> Vec<Arc<str>>;

    /// Returns what to connect to for the worker called `key`, which may hold credentials and is never to be shown;
    /// `None` if there is no such worker.
    fn target(&self, key: &str) -> Option<Arc<str>>;

    /// Returns how many workers may take a whole request, if none has failed lately.
    fn schedulable(&self) -> usize;

    /// Marks a worker that fails its health check, or passes it again, and logs that. One that fails is not picked;
    /// another worker of its key that comes in its place is not marked.
    fn set_health(&self, worker: &str, is_healthy: bool);
}

/// Runs a pick, or a part of one, on a thread for what blocks, where a panic becomes a refusal.
///
/// # Errors
///
/// That of the pick, or [`Refusal::failed`].
///
/// # Panics
///
/// Outside of the server's thread, as it has the runtime.
pub async fn off_thread<T: Send + 'static>(
    pick: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    (task::spawn_blocking(pick).await).unwrap_or_else(|_| Err(Refusal::failed()))
}

/// A request to pick for.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// All headers, those of HTTP/2 with a colon among them.
    pub headers: Headers,
    /// The body, unless it is empty, unknown, or too large to be read. A clone shares the bytes.
    pub body: Option<Bytes>,
    /// The addresses to pick from; `None` for all. A subset may be empty.
    pub subset: Option<Subset>,
    /// Keys of workers that were tried, which are not picked.
    pub exclude: Vec<Arc<str>>,
    /// Who asks, for fairness.
    pub tenant: Option<String>,
    /// The priority of the objective that the request names, 0 for an unknown one; `None` if it names none.
    pub priority: Option<i64>,
    /// The model to route by in place of the body's.
    pub model: Option<String>,
    /// Whether a worker of any model will do, where none of the default one is left. Such a request passes by an
    /// admission, and is never refused by [`Refusal::no_model`].
    pub any_model: bool,
    /// Requests in flight on the worker from which on this request is to be refused, by [`Refusal::shed`]. `None` for
    /// a request that is never shed.
    pub shed_inflight: Option<u64>,
    /// Endpoints to name behind the first, if the worker has no ranks.
    pub fallbacks: usize,
}

impl Asked {
    /// Returns the path with its query, empty if the proxy sends none.
    #[must_use]
    pub fn path(&self) -> &str {
        self.headers.get(":path").unwrap_or_default()
    }
}

/// The worker for a request and the next best ones.
#[derive(Debug)]
pub struct Picked {
    /// Addresses in the order to try, the booked worker's first.
    pub endpoints: Vec<String>,
    /// The load.
    pub booking: Booking,
}

impl Picked {
    /// Takes the addresses in the order to try, the booked worker's first, and what is booked.
    #[must_use]
    pub fn new(endpoints: Vec<String>, booked: Box<dyn Booked>) -> Self {
        let booking = Booking {
            booked,
            is_open: true,
            unreported: 0,
            reported: Instant::now(),
        };
        Self { endpoints, booking }
    }
}

/// How a request is sent where workers copy blocks from each other: with the source of its decision in place of those
/// that its client named, as an engine connects to any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outgoing {
    /// Key of the source.
    pub key: Option<Arc<str>>,
    /// The headers that name it.
    pub headers: Vec<(&'static str, String)>,
    /// Or the value of `remote_kv_source` that does.
    pub params: Option<String>,
}

/// Load that is booked on a worker for one request.
///
/// Exactly one of `complete`, `error` and `cancel` is called for each booking that is open, by the server or as it
/// drops the booking. [`Self::served`] ends it too and may open another one in its place. After the end only
/// `headers`, `response`, `served` and `forget_prompt` are called.
pub trait Booked: Send {
    /// Returns the key of the worker where the load is booked.
    fn worker(&self) -> &str;

    /// Returns the model that was routed by, empty for the default one.
    fn model(&self) -> &str;

    /// Returns the data-parallel rank that serves the request, if the worker has ranks.
    fn rank(&self) -> Option<u32>;

    /// Returns how the request is to be sent, if workers copy blocks from each other; `None`: as it came.
    fn outgoing(&self) -> Option<Outgoing> {
        None
    }

    /// Returns the headers of the decision, of which those that the options name are shown to clients. Names are in
    /// lower case.
    fn headers(&self) -> Vec<(String, String)>;

    /// Moves the booking to another worker than the first endpoint's, that served the request.
    ///
    /// If no worker has the address, the booking is cancelled: [`Moved::Unknown`]. Else it ends as failed, with
    /// status 502, as the proxy goes down the list only where a worker fails, and the load is booked on the other
    /// one. With prompts of more than [`LARGE_BODY_BYTES`] this runs on a thread for what blocks.
    fn served(&mut self, address: &str) -> Moved;

    /// Drops the prompt that was kept for `served`, which books without it from here on.
    fn forget_prompt(&mut self);

    /// Reports the first token of the answer.
    fn first_token(&mut self);

    /// Reports so many further tokens.
    fn tokens(&mut self, count: u64);

    /// Returns whether the answer names a response that the worker stores, so that `response` is to be called.
    fn stores_response(&self) -> bool;

    /// Reports the id of a stored response.
    fn response(&mut self, id: &str);

    /// Ends the booking: the answer is complete.
    fn complete(&mut self, usage: Usage);

    /// Reports that the worker refused the connection, or closed it unanswered. `error` follows.
    fn disconnected(&mut self);

    /// Ends the booking: the worker failed with this status, and wants to be left alone for so many seconds.
    fn error(&mut self, status: u16, retry_after_s: Option<f64>);

    /// Ends the booking: the request was given up.
    fn cancel(&mut self);
}

/// The result of [`Booked::served`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// The load is booked on the worker at the address.
    Fallback,
    /// No worker has the address: nothing is booked.
    Unknown,
    /// The worker at the address takes no booking: nothing is booked.
    Unbooked,
}

/// Counts of tokens that an engine reports with its answer; `None` for what it does not report.
///
/// A count that is negative or beyond 64 bits is `u64::MAX`: reported, and of no use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens from its cache.
    pub cached_tokens: Option<u64>,
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Output tokens.
    pub output_tokens: Option<u64>,
}

/// Why a request is answered in place of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// The status of the answer.
    pub status: u16,
    /// For the client.
    pub message: String,
    /// The event that it counts as.
    pub event: Event,
    /// When the client may try again.
    pub retry_after_s: Option<f64>,
}

impl Refusal {
    /// Refuses a request for a reason of the server's.
    #[must_use]
    pub fn new(
        event: Event,
        status: u16,
        message: impl Into<String>,
        retry_after_s: Option<f64>,
    ) -> Self {
        let message = message.into();
        Self {
            status,
            message,
            event,
            retry_after_s,
        }
    }

    /// 503: there is no room for the request.
    #[must_use]
    pub fn full() -> Self {
        Self::new(Event::Full, 503, "too many requests arrive", Some(1.0))
    }

    /// 503: no worker may take the request, for so many seconds.
    #[must_use]
    pub fn no_worker(retry_after_s: Option<f64>) -> Self {
        Self::new(
            Event::NoWorker,
            503,
            "no worker is available",
            retry_after_s,
        )
    }

    /// 404: no worker serves the model.
    #[must_use]
    pub fn no_model() -> Self {
        Self::new(Event::NoModel, 404, "the model does not exist", None)
    }

    /// 429: the request is of low priority, and its worker has [`Asked::shed_inflight`] requests.
    #[must_use]
    pub fn shed() -> Self {
        let message = "the request is of low priority and the workers are busy";
        Self::new(Event::Shed, 429, message, Some(1.0))
    }

    /// 429: an admission refuses the request, as every worker has as much before it as the bounds allow, for so many
    /// seconds.
    #[must_use]
    pub fn busy(retry_after_s: f64) -> Self {
        let message = "the workers are busy; try again later";
        Self::new(Event::WorkersBusy, 429, message, Some(retry_after_s))
    }

    /// 400: a router that is strict cannot read the body. The client gets the message.
    #[must_use]
    pub fn bad_body(message: impl Into<String>) -> Self {
        Self::new(Event::BadBody, 400, message, None)
    }

    /// 500: the pick failed.
    #[must_use]
    pub fn failed() -> Self {
        Self::new(Event::Failed, 500, "the pick failed", None)
    }
}

// === impl Booking ===

/// A booking that ends exactly once, by being dropped at the latest.
pub struct Booking {
    /// Ends through the methods of `Booking` only.
    pub booked: Box<dyn Booked>,
    is_open: bool,
    /// Tokens that are not reported yet, and when those before were.
    unreported: u64,
    reported: Instant,
}

impl fmt::Debug for Booking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f.debug_struct("Booking").field("is_open", &self.is_open)).finish_non_exhaustive()
    }
}

impl Booking {
    /// Moves it, as [`Booked::served`] does.
    pub fn served(&mut self, address: &str) -> Moved {
        let moved = self.booked.served(address);
        self.is_open = moved == Moved::Fallback;
        moved
    }

    /// Reports the first token, while it is open.
    pub fn first_token(&mut self) {
        if self.is_open {
            self.booked.first_token();
        }
    }

    /// Reports further tokens, while it is open: some at a time, as a report costs as much as passing a token on.
    pub fn tokens(&mut self, count: u64) {
        self.unreported += count;
        if self.unreported >= TOKENS || self.reported.elapsed() >= REPORT {
            self.report();
        }
    }

    fn report(&mut self) {
        let count = std::mem::take(&mut self.unreported);
        if self.is_open && count > 0 {
            self.reported = Instant::now();
            self.booked.tokens(count);
        }
    }

    /// Ends it, if it is open: the answer is complete.
    pub fn complete(&mut self, usage: Usage) {
        self.report();
        if std::mem::take(&mut self.is_open) {
            self.booked.complete(usage);
        }
    }

    /// Reports that the worker refused the connection or closed it, while it is open.
    pub fn disconnected(&mut self) {
        if self.is_open {
            self.booked.disconnected();
        }
    }

    /// Ends it, if it is open, as [`Booked::error`] does.
    pub fn error(&mut self, status: u16, retry_after_s: Option<f64>) {
        if std::mem::take(&mut self.is_open) {
            self.booked.error(status, retry_after_s);
        }
    }

    /// Ends it, if it is open: the request was given up.
    pub fn cancel(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.booked.cancel();
        }
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.cancel();
    }
}
