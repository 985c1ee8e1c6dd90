//! The server: its threads, addresses, start and end.

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cachelb_serving::{Certificates, Event, Host, StartError, Tls, TlsError};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::admin::{self, Admin, Operator};
use crate::answer::Answer;
use crate::connection::{Connection, Connections, Member};
use crate::exchange;
use crate::health;
use crate::observe::metrics::Series;
use crate::options::{Listen, Options};
use crate::shared::{Phase, Shared};
use crate::tapped::Tapped;
use crate::transport::guard::lock;
use crate::transport::socket::Listener;
use crate::transport::tap::MOST_HEAD;

/// Headers of a request.
const MOST_HEADERS: usize = 256;

/// Bytes of a connection that are read ahead, and those that wait to be sent.
const BUFFER: usize = MOST_HEAD;

/// Requests of one connection of HTTP/2 at a time.
const MOST_STREAMS: u32 = 256;

/// Connections of operators at a time.
const MOST_OPERATORS: usize = 512;

/// Bytes of a request of HTTP/2 that may come before they are read.
const WINDOW: u32 = 64 << 10;

/// Time between two signs of life that a connection of HTTP/2 is asked for.
const PING: Duration = Duration::from_secs(20);

/// Pause where the system has no more connections.
const PAUSE: Duration = Duration::from_millis(50);

/// Time between two looks at the workers.
const KEEP: Duration = Duration::from_secs(1);

/// For answers that are cut to end.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A gateway that serves, until it is stopped or dropped.
pub struct Started<H: Host> {
    shared: Arc<Shared<H>>,
    operators: Arc<Connections>,
    /// Returns the URLs of the addresses for clients.
    pub urls: Vec<String>,
    admin_url: Option<String>,
    certificates: Vec<Option<Arc<Certificates>>>,
    runtime: Mutex<Option<Runtime>>,
}

/// An address that is listened on.
struct Bound {
    listener: Listener,
    certificates: Option<Arc<Certificates>>,
    url: String,
}

impl Bound {
    /// Belongs into the runtime.
    fn new(listen: &Listen) -> Result<Self, StartError> {
        let certificates = listen
            .tls
            .as_ref()
            .map(|tls| Certificates::new(tls, &["h2", "http/1.1"]));
        let certificates = certificates.transpose()?.map(Arc::new);
        let listener = Listener::bind(&listen.address).map_err(|error| {
            let address = listen.address.clone();
            StartError::Listen { address, error }
        })?;
        let host = listen.address.rsplit_once(':').map_or("", |(host, _)| host);
        let url = listener.url(host, certificates.is_some());
        Ok(Self {
            listener,
            certificates,
            url,
        })
    }
}

/// An address that accepts connections.
struct Door<H> {
    shared: Arc<Shared<H>>,
    bound: Bound,
    connections: Arc<Connections>,
    limit: usize,
    /// The phase in which it accepts no more.
    until: Phase,
}

impl<H: Host> Door<H> {
    async fn serve<F, R>(self, answer: F)
    where
        F: Fn(Arc<Connection>, Request<Incoming>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Response<Answer>> + Send + 'static,
    {
        let mut phase = self.shared.phase.subscribe();
        let until = self.until;
        loop {
            let accepted = tokio::select! {
                accepted = self.bound.listener.accept() => accepted,
                _ = phase.wait_for(|phase| *phase >= until) => return,
            };
            let Ok((socket, peer)) = accepted else {
                sleep(PAUSE).await;
                continue;
            };
            let Some((connection, member)) =
                self.connections.open(socket.clone(), peer, self.limit)
            else {
                self.shared.counters.count(Event::TooManyConnections);
                continue;
            };
            let (answer, phase) = (answer.clone(), self.shared.phase.subscribe());
            let acceptor = self
                .bound
                .certificates
                .as_deref()
                .map(Certificates::acceptor);
            let limit = self.shared.options.head_timeout;
            tokio::spawn(async move {
                match acceptor {
                    None => converse(socket, connection, member, phase, until, answer).await,
                    Some(acceptor) => {
                        if let Ok(Ok(stream)) = timeout(limit, acceptor.accept(socket)).await {
                            converse(stream, connection, member, phase, until, answer).await;
                        }
                    }
                }
            });
        }
    }
}

/// Serves one connection to its end.
async fn converse<S, F, R>(
    stream: S,
    connection: Arc<Connection>,
    _member: Member,
    mut phase: watch::Receiver<Phase>,
    until: Phase,
    answer: F,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Arc<Connection>, Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Answer>> + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .max_headers(MOST_HEADERS)
        .max_buf_size(BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .max_header_list_size(MOST_HEAD as u32)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(8 * WINDOW)
        .max_send_buf_size(BUFFER)
        .keep_alive_interval(PING);
    let own = Arc::clone(&connection);
    let service = service_fn(move |request| {
        let answered = answer(Arc::clone(&own), request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let io = TokioIo::new(Tapped {
        stream,
        connection: Arc::clone(&connection),
    });
    let served = builder.serve_connection_with_upgrades(io, service);
    let mut served = std::pin::pin!(served);
    let mut is_closing = false;
    loop {
        tokio::select! {
            _ = served.as_mut() => return,
            () = connection.end.notified() => return,
            _ = phase.wait_for(|phase| *phase >= until), if !is_closing => {
                is_closing = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}

// === impl Started ===

impl<H: Host> fmt::Debug for Started<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Started")
            .field("urls", &self.urls)
            .finish_non_exhaustive()
    }
}

impl<H: Host> Started<H> {
    /// Listens, and serves until [`Started::stop`].
    ///
    /// # Errors
    ///
    /// An address cannot be listened on, or a certificate cannot be used.
    pub fn start(
        options: Options,
        host: Arc<H>,
        listen: &[Listen],
        admin: Option<(Listen, Operator, Option<String>)>,
    ) -> Result<Self, StartError> {
        let shared = Arc::new(Shared::new(options, host).map_err(StartError::AccessLog)?);
        let runtime = Builder::new_multi_thread()
            .enable_all()
            .worker_threads(shared.options.threads)
            .thread_name("cachelb-gateway")
            .build()
            .map_err(StartError::Thread)?;
        let inside = runtime.enter();
        let operators = Connections::new();
        let outside = listen
            .iter()
            .map(Bound::new)
            .collect::<Result<Vec<_>, _>>()?;
        let admin = admin.map(|(listen, operator, token)| {
            let open = Arc::default();
            let admin = Arc::new(Admin {
                operator,
                token,
                open,
            });
            Ok::<_, StartError>((Bound::new(&listen)?, admin))
        });
        let admin = admin.transpose()?;
        let urls = outside.iter().map(|bound| bound.url.clone()).collect();
        let admin_url = admin.as_ref().map(|(bound, _)| bound.url.clone());
        let certificates = outside
            .iter()
            .map(|bound| bound.certificates.clone())
            .collect();
        for bound in outside {
            let own = Arc::clone(&shared);
            let answer =
                move |connection, request| exchange::serve(Arc::clone(&own), connection, request);
            let (connections, limit) = (
                Arc::clone(&shared.connections),
                shared.options.max_connections,
            );
            let shared = Arc::clone(&shared);
            let door = Door {
                shared,
                bound,
                connections,
                limit,
                until: Phase::Closing,
            };
            runtime.spawn(door.serve(answer));
        }
        if let Some((bound, admin)) = admin {
            let own = Arc::clone(&shared);
            let answer = move |connection, request| {
                admin::serve(Arc::clone(&own), Arc::clone(&admin), connection, request)
            };
            let (connections, shared) = (Arc::clone(&operators), Arc::clone(&shared));
            // It is served to the end.
            let door = Door {
                shared,
                bound,
                connections,
                limit: MOST_OPERATORS,
                until: Phase::Cut,
            };
            runtime.spawn(door.serve(answer));
        }
        for connections in [&shared.connections, &operators] {
            let (own, connections) = (Arc::clone(&shared), Arc::clone(connections));
            runtime.spawn(async move { connections.sweep(&own.options, &own.counters).await });
        }
        let own = Arc::clone(&shared);
        runtime.spawn(async move {
            loop {
                own.upstreams.keep(&*own.host);
                sleep(KEEP).await;
            }
        });
        if let Some(every) = shared.options.health_interval {
            let own = Arc::clone(&shared);
            runtime.spawn(async move { health::check(&own, every).await });
        }
        drop(inside);
        Ok(Self {
            shared,
            operators,
            urls,
            admin_url,
            certificates,
            runtime: Mutex::new(Some(runtime)),
        })
    }

    /// Returns the URL of the address for operators.
    #[must_use]
    pub fn admin_url(&self) -> Option<&str> {
        self.admin_url.as_deref()
    }

    /// Uses another certificate from the next connection to the address for clients on. Returns whether it is
    /// another one.
    ///
    /// # Errors
    ///
    /// It cannot be used, or the address was started without one.
    pub fn reload_tls(&self, tls: &Tls) -> Result<bool, TlsError> {
        let mut found = self.certificates.iter().flatten().peekable();
        found.peek().ok_or(TlsError::None)?;
        found.try_fold(false, |changed, certificates| {
            Ok(changed | certificates.reload(tls)?)
        })
    }

    /// Returns the counters that are not 0.
    #[must_use]
    pub fn counts(&self) -> Vec<(Event, u64)> {
        self.shared.counters.counts()
    }

    /// Returns counts and times of requests, by worker and model.
    #[must_use]
    pub fn series(&self) -> Vec<(Arc<str>, Arc<str>, Series)> {
        self.shared.records.series(&self.shared.host.workers())
    }

    /// Returns the requests that are served.
    #[must_use]
    pub fn open_requests(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Returns the bytes of bodies that are held.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.shared.budget.held()
    }

    /// Ends the service and waits for it; idempotent. It is not ready, and serves for `drain`; then it accepts nothing
    /// more, and answers that have begun may end within `grace`, of which `drain` is a part. The rest is cut off.
    ///
    /// A second call, from another thread, cuts them off at once.
    pub fn stop(&self, drain: Duration, grace: Duration) {
        let phase = &self.shared.phase;
        phase.send_modify(|phase| {
            *phase = if *phase == Phase::Serving {
                Phase::Draining
            } else {
                Phase::Cut
            };
        });
        let mut runtime = lock(&self.runtime);
        let Some(running) = runtime.take() else {
            return;
        };
        let (shared, operators) = (&self.shared, &self.operators);
        running.block_on(async {
            let end = Instant::now() + grace;
            let mut seen = phase.subscribe();
            let mut cut = async |until: Instant| {
                tokio::select! {
                    () = sleep_until(until) => false,
                    _ = seen.wait_for(|phase| *phase == Phase::Cut) => true,
                }
            };
            let mut is_cut = cut((Instant::now() + drain).min(end)).await;
            if !is_cut {
                phase.send_modify(|phase| *phase = (*phase).max(Phase::Closing));
            }
            let clients = &shared.connections;
            while !is_cut
                && (clients.count() > 0 || shared.open.load(Ordering::Relaxed) > 0)
                && Instant::now() < end
            {
                is_cut = cut(Instant::now() + Duration::from_millis(10)).await;
            }
            phase.send_modify(|phase| *phase = Phase::Cut);
            // Those whose answer has not begun are answered.
            sleep(Duration::from_millis(20)).await;
            clients.end_answers();
            let words = Instant::now() + LAST_WORDS;
            while clients.count() + operators.count() > 0 && Instant::now() < words {
                sleep(Duration::from_millis(10)).await;
            }
            clients.end();
            operators.end();
        });
        running.shutdown_timeout(LAST_WORDS);
    }
}

impl<H: Host> Drop for Started<H> {
    fn drop(&mut self) {
        self.stop(Duration::ZERO, Duration::ZERO);
    }
}
