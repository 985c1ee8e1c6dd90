//! Connections of clients: their requests, how long they may take, and who leaves.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cachelb_serving::{Counters, Event};
use tokio::sync::Notify;

use crate::options::Options;
use crate::transport::guard::lock;
use crate::transport::socket::{Peer, Socket};
use crate::transport::tap::{Framing, Tap};

/// Bytes that a client may send behind the request that is served. Its connection ends beyond them, as it could leave
/// unseen.
const MOST_PIPELINED: usize = 64 << 10;

/// Time between two looks at connections.
pub(crate) const SWEEP: Duration = Duration::from_millis(100);

/// A connection of a client.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Option<SocketAddr>,
    socket: Socket,
    tap: Mutex<Tap>,
    /// Requests that are served.
    open: AtomicUsize,
    /// Whether the body of the request is complete, so that further bytes belong to another one.
    is_read: AtomicBool,
    is_http2: AtomicBool,
    /// When it began to wait for a request, in milliseconds of the connections' clock.
    since_ms: AtomicU64,
    clock: Instant,
    /// Closes it at once.
    pub(crate) end: Notify,
}

/// A request that is served, until it is dropped.
#[derive(Debug)]
pub(crate) struct Serving(pub(crate) Arc<Connection>);

impl Connection {
    /// Takes bytes that the client sent.
    pub(crate) fn came(&self, bytes: &[u8]) {
        if !self.is_http2.load(Ordering::Relaxed) {
            lock(&self.tap).feed(bytes);
        }
    }

    /// Whether no request is served.
    pub(crate) fn is_between(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0 && !self.is_http2.load(Ordering::Relaxed)
    }

    /// Begins to serve a request. Returns its framing.
    pub(crate) fn begin(self: &Arc<Self>, is_http2: bool) -> (Serving, Framing) {
        self.open.fetch_add(1, Ordering::Relaxed);
        if is_http2 {
            self.is_http2.store(true, Ordering::Relaxed);
            return (Serving(Arc::clone(self)), Framing::Unseen);
        }
        self.is_read.store(false, Ordering::Relaxed);
        (Serving(Arc::clone(self)), lock(&self.tap).take())
    }

    /// Notes that the body of the request is complete.
    pub(crate) fn read(&self) {
        self.is_read.store(true, Ordering::Relaxed);
    }

    /// Closes it in the middle of an answer. One of HTTP/2 serves others, and its answer ends by itself.
    pub(crate) fn cut(&self) {
        if !self.is_http2.load(Ordering::Relaxed) {
            self.end.notify_one();
        }
    }

    /// Returns why the connection is to be closed.
    fn fault(&self, options: &Options, scratch: &mut [MaybeUninit<u8>]) -> Option<Event> {
        if self.open.load(Ordering::Relaxed) == 0 {
            let is_first = self.since_ms.load(Ordering::Relaxed) == 0;
            let limit = if is_first || lock(&self.tap).has_begun() {
                options.head_timeout
            } else {
                options.keep_alive
            };
            return (self.waits() > limit).then_some(Event::SlowHead);
        }
        if self.is_http2.load(Ordering::Relaxed) || !self.is_read.load(Ordering::Relaxed) {
            // HTTP/2 reads all the time, and so does the reader of a body.
            return None;
        }
        match self.socket.peer(scratch) {
            Peer::Waits => None,
            Peer::Left => Some(Event::ClientLeft),
            Peer::Pipelines(count) => (count >= MOST_PIPELINED).then_some(Event::Pipelined),
        }
    }

    /// Returns for how long it has waited for a request.
    fn waits(&self) -> Duration {
        let since = self.since_ms.load(Ordering::Relaxed);
        Duration::from_millis(self.now_ms().saturating_sub(since))
    }

    fn now_ms(&self) -> u64 {
        self.clock.elapsed().as_millis() as u64
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if !self.0.is_http2.load(Ordering::Relaxed) {
            lock(&self.0.tap).next();
        }
        self.0
            .since_ms
            .store(self.0.now_ms().max(1), Ordering::Relaxed);
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer that passes on a connection.
pub(crate) trait Passes: Send + Sync + std::fmt::Debug {
    /// Whether no byte has passed for longer than `limit`.
    fn is_idle(&self, limit: Duration) -> bool;

    /// Ends it now, in the middle.
    fn cut(&self);
}

/// All connections of a server, and the answers that pass.
#[derive(Debug)]
pub(crate) struct Connections {
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    answers: Mutex<HashMap<u64, Arc<dyn Passes>>>,
    next: AtomicU64,
}

/// A member of one of the tables, until it is dropped.
#[derive(Debug)]
pub(crate) struct Member {
    all: Arc<Connections>,
    number: u64,
    is_answer: bool,
}

impl Connections {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            open: Mutex::default(),
            answers: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    /// Opens a connection, unless there are as many as the limit.
    pub(crate) fn open(
        self: &Arc<Self>,
        socket: Socket,
        peer: Option<SocketAddr>,
        limit: usize,
    ) -> Option<(Arc<Connection>, Member)> {
        let connection = Arc::new(Connection {
            peer,
            socket,
            tap: Mutex::default(),
            open: AtomicUsize::new(0),
            is_read: AtomicBool::new(false),
            is_http2: AtomicBool::new(false),
            since_ms: AtomicU64::new(0),
            clock: Instant::now(),
            end: Notify::new(),
        });
        let mut open = lock(&self.open);
        if open.len() >= limit {
            return None;
        }
        let member = self.member(false);
        open.insert(member.number, Arc::clone(&connection));
        Some((connection, member))
    }

    /// Notes an answer that passes.
    pub(crate) fn pass(self: &Arc<Self>, answer: Arc<dyn Passes>) -> Member {
        let member = self.member(true);
        lock(&self.answers).insert(member.number, answer);
        member
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.open).len()
    }

    fn member(self: &Arc<Self>, is_answer: bool) -> Member {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let all = Arc::clone(self);
        Member {
            all,
            number,
            is_answer,
        }
    }

    /// Closes connections whose client left or is too slow, and ends answers in which no byte passes.
    pub(crate) async fn sweep(&self, options: &Options, counters: &Counters) {
        let mut scratch = vec![MaybeUninit::uninit(); MOST_PIPELINED];
        let mut every = tokio::time::interval(SWEEP);
        loop {
            every.tick().await;
            let open: Vec<_> = lock(&self.open).values().cloned().collect();
            for connection in open {
                if let Some(event) = connection.fault(options, &mut scratch) {
                    if event != Event::SlowHead || lock(&connection.tap).has_begun() {
                        counters.count(event);
                    }
                    connection.end.notify_one();
                }
            }
            let answers: Vec<_> = lock(&self.answers).values().cloned().collect();
            for answer in answers {
                if answer.is_idle(options.idle_timeout) {
                    counters.count(Event::TimedOut);
                    answer.cut();
                }
            }
        }
    }

    /// Closes every connection.
    pub(crate) fn end(&self) {
        let open: Vec<_> = lock(&self.open).values().cloned().collect();
        for connection in open {
            connection.end.notify_one();
        }
    }

    /// Ends every answer that passes.
    pub(crate) fn end_answers(&self) {
        let answers: Vec<_> = lock(&self.answers).values().cloned().collect();
        for answer in answers {
            answer.cut();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Dropped outside of the lock.
        let gone = if self.is_answer {
            (lock(&self.all.answers).remove(&self.number), None)
        } else {
            (None, lock(&self.all.open).remove(&self.number))
        };
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_whose_clock_is_behind_has_not_waited() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
        let connections = Connections::new();
        let (connection, _member) = connections.open(Socket::unix(ours), None, 1).unwrap();
        drop(connection.begin(false));
        std::thread::sleep(Duration::from_millis(5));
        assert!(connection.waits() >= Duration::from_millis(1));
        connection.since_ms.store(60_000, Ordering::Relaxed);
        assert_eq!(connection.waits(), Duration::ZERO);
    }
}
