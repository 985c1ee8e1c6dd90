//! The gRPC server: its thread, ports, health, start and end.

mod connection;
mod messages;
mod stream;
#[cfg(test)]
mod tests;

use std::future::pending;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cachelb_serving::{Certificates, Event, FREE_BYTES, Host, StartError, Tls, TlsError};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::transport::server::Router as Services;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::server::HealthReporter;

use self::connection::{Incoming, connections};
use self::messages::Unframed;
use self::stream::{Phase, Processor};
use crate::options::Options;
use crate::shared::Shared;
use crate::wire::{ExternalProcessorServer, SERVICE};

const LIVENESS: &str = "liveness";
const READINESS: &str = "readiness";

/// Bytes of headers and metadata that may come with the longest body.
const MESSAGE_OVERHEAD: usize = 1 << 20;

/// Bytes of a stream that may be under way to a reader that is busy. They do not grow.
const STREAM_WINDOW: u32 = (1 << 16) - 1;

/// Streams of one connection beyond those that are served: they are refused, and do not wait for others.
const REFUSED_STREAMS: u32 = 1024;

/// See [`Listen::patience`].
const PATIENCE: Duration = Duration::from_secs(10);

/// For proxies to take the last replies.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where and how to listen.
#[derive(Debug, Clone, Default)]
pub struct Listen {
    /// `host:port`; port 0 takes a free one.
    pub address: String,
    /// A second port for health checks alone, without TLS, as probes of Kubernetes have none.
    pub health_address: Option<String>,
    /// Whether requests may come at once.
    pub is_ready: bool,
    /// The certificate; `None` for no TLS.
    pub tls: Option<Tls>,
    /// Time that a client may take to agree on TLS and to begin, and to answer a ping; `None` for 10 s.
    pub patience: Option<Duration>,
}

/// A server that runs on a thread of its own, until it is stopped or dropped.
#[derive(Debug)]
pub struct Started {
    /// Returns the port.
    pub port: u16,
    /// Returns the port for health checks alone.
    pub health_port: Option<u16>,
    shared: Arc<Shared>,
    certificates: Option<Arc<Certificates>>,
    phase: Arc<watch::Sender<Phase>>,
    health: HealthReporter,
    handle: Handle,
    thread: Mutex<Option<JoinHandle<()>>>,
}

fn bind(address: &str) -> Result<(TcpListener, u16), StartError> {
    let listen = || {
        // Without SO_REUSEPORT: two services on one port would share the requests, unaware of each other's.
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let port = listener
            .local_addr()
            .as_ref()
            .map(SocketAddr::port)
            .unwrap_or_default();
        Ok((listener, port))
    };
    listen().map_err(|error| StartError::Listen {
        address: address.to_owned(),
        error,
    })
}

/// Sets what health checks get.
fn report(handle: &Handle, health: &HealthReporter, is_ready: bool) {
    let status = if is_ready {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    handle.block_on(async {
        health
            .set_service_status(LIVENESS, ServingStatus::Serving)
            .await;
        for name in ["", READINESS, SERVICE] {
            health.set_service_status(name, status).await;
        }
    });
}

/// The main function of a server's thread.
struct Run<H> {
    processor: Processor<H>,
    shared: Arc<Shared>,
    listener: TcpListener,
    health_listener: Option<TcpListener>,
    certificates: Option<Arc<Certificates>>,
    patience: Duration,
    phase: Arc<watch::Sender<Phase>>,
}

impl<H: Host> Run<H> {
    fn until_stopped<S: Health>(self, runtime: Runtime, health: HealthServer<S>) {
        runtime.block_on(async {
            let phases = self.phase.subscribe();
            let shared = self.shared;
            let options = &shared.options;
            let health = health.max_decoding_message_size(FREE_BYTES);
            let services = transport(options.max_streams, self.patience)
                .add_service(Unframed(ExternalProcessorServer::new(self.processor)))
                .add_service(health.clone());
            let incoming = connections(self.listener, self.certificates, self.patience);
            let serving = serve(services, incoming, phases.clone());
            let health_services = transport(1, self.patience).add_service(health);
            let serving_health = async {
                if let Some(listener) = self.health_listener {
                    let incoming = connections(listener, None, self.patience);
                    serve(health_services, incoming, phases.clone()).await;
                }
            };
            let serving = async { tokio::join!(serving, serving_health) };
            tokio::pin!(serving);
            tokio::select! {
                _ = &mut serving => {}
                () = drained(phases.clone(), &shared) => {
                    self.phase.send_replace(Phase::Stopped);
                    // The rest is broken off as the runtime goes, which releases its load.
                    let _ = timeout(LAST_WORDS, serving).await;
                }
            }
        });
        // Picks elsewhere may take longer: their bookings end as soon as they are made.
        runtime.shutdown_timeout(LAST_WORDS);
    }
}

fn transport(max_streams: usize, patience: Duration) -> tonic::transport::Server {
    let streams = u32::try_from(max_streams)
        .unwrap_or(u32::MAX)
        .saturating_add(REFUSED_STREAMS);
    // So that streams which wait for a slow proxy leave room for the others.
    let window = u64::from(streams) * u64::from(STREAM_WINDOW);
    let window = u32::try_from(window).unwrap_or(u32::MAX).min(u32::MAX >> 1);
    tonic::transport::Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(window)
        .http2_adaptive_window(Some(false))
        .max_concurrent_streams(streams)
        // A health check may be sent in part, and a client may be gone without a sign.
        .timeout(patience)
        .http2_keepalive_interval(Some(patience * 3))
        .http2_keepalive_timeout(Some(patience))
        // Clients that leave all at once are no attack.
        .http2_max_pending_accept_reset_streams(Some(streams as usize))
}

async fn serve(services: Services, incoming: Incoming, phases: watch::Receiver<Phase>) {
    // It fails with the listener only, which does not.
    let _ = services
        .serve_with_incoming_shutdown(incoming, stopped(phases))
        .await;
}

/// Waits until the service is to end, and then for the streams that are open, within the grace.
async fn drained(mut phases: watch::Receiver<Phase>, shared: &Shared) {
    loop {
        let phase = *phases.borrow_and_update();
        tokio::select! {
            changed = phases.changed() => if changed.is_err() {
                return;
            },
            () = shared.all_closed(), if phase != Phase::Serving => return,
            () = until(phase) => return,
        }
    }
}

async fn until(phase: Phase) {
    match phase {
        Phase::Serving => pending().await,
        Phase::Draining(until) => sleep_until(until).await,
        Phase::Stopped => {}
    }
}

async fn stopped(mut phases: watch::Receiver<Phase>) {
    let _ = phases.wait_for(|phase| *phase == Phase::Stopped).await;
}

// === impl Started ===

impl Started {
    /// Listens, and serves until [`Started::stop`].
    ///
    /// # Errors
    ///
    /// An address cannot be listened on, or the certificate cannot be used.
    pub fn start<H: Host>(
        options: Options,
        host: Arc<H>,
        listen: &Listen,
    ) -> Result<Self, StartError> {
        let certificates = listen
            .tls
            .as_ref()
            .map(|tls| Certificates::new(tls, &["h2"]))
            .transpose()?
            .map(Arc::new);
        let (listener, port) = bind(&listen.address)?;
        let health_listener = listen.health_address.as_deref().map(bind).transpose()?;
        let health_port = health_listener.as_ref().map(|(_, port)| *port);
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(
                thread::available_parallelism().map_or(2, |count| count.get().max(2)),
            )
            .thread_name("cachelb-ext-proc-pick")
            .build()
            .map_err(StartError::Thread)?;
        let handle = runtime.handle().clone();
        let shared = Arc::new(Shared::new(options));
        let phase = Arc::new(watch::Sender::new(Phase::Serving));
        let health = HealthReporter::new();
        report(&handle, &health, listen.is_ready);
        let service = tonic_health::server::HealthService::from_health_reporter(health.clone());
        let service = HealthServer::new(service);
        let run = Run {
            processor: Processor {
                host,
                shared: Arc::clone(&shared),
                phases: phase.subscribe(),
            },
            shared: Arc::clone(&shared),
            phase: Arc::clone(&phase),
            listener,
            health_listener: health_listener.map(|(listener, _)| listener),
            certificates: certificates.clone(),
            patience: listen.patience.unwrap_or(PATIENCE),
        };
        let thread = thread::Builder::new()
            .name("cachelb-ext-proc".to_owned())
            .spawn(move || run.until_stopped(runtime, service))
            .map_err(StartError::Thread)?;
        Ok(Self {
            port,
            health_port,
            shared,
            certificates,
            phase,
            health,
            handle,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Sets the readiness that health checks get. Without effect once the server stops.
    ///
    /// # Panics
    ///
    /// On a thread of an asynchronous runtime, as it waits.
    pub fn set_ready(&self, is_ready: bool) {
        let is_serving = || *self.phase.borrow() == Phase::Serving;
        if is_serving() {
            // No end comes in between, and no other change.
            let _thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
            report(&self.handle, &self.health, is_ready && is_serving());
        }
    }

    /// Uses another certificate from the next connection on. Returns whether it is another one.
    ///
    /// # Errors
    ///
    /// The certificate or the key cannot be used, or the server has no TLS; what was there remains.
    pub fn reload_tls(&self, tls: &Tls) -> Result<bool, TlsError> {
        let certificates = self.certificates.as_ref().ok_or(TlsError::None)?;
        certificates.reload(tls)
    }

    /// Returns the counters that are not 0.
    #[must_use]
    pub fn counts(&self) -> Vec<(Event, u64)> {
        self.shared.counters.counts()
    }

    /// Returns the requests that proxies have open.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.shared.streams()
    }

    /// Returns the bytes of messages, headers, bodies and prompts that are held.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.shared.budget.held()
    }

    /// Ends the service and waits for it; idempotent. Readiness goes, requests that come are refused, and those that
    /// are open may end within the grace. The rest is broken off and its load released.
    ///
    /// A second call, from another thread, cuts the grace of the first.
    pub fn stop(&self, grace: Duration) {
        let until = Instant::now() + grace;
        self.phase.send_modify(|phase| {
            *phase = match *phase {
                Phase::Serving => Phase::Draining(until),
                Phase::Draining(earlier) => Phase::Draining(earlier.min(until)),
                Phase::Stopped => Phase::Stopped,
            }
        });
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            report(&self.handle, &self.health, false);
            // It ends by a panic of the runtime alone, after which nothing is left to stop.
            let _ = thread.join();
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}
