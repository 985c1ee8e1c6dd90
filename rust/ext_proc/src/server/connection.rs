//! Connections of proxies, with TLS or without.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use super::tls::Certificates;

/// Clients that may be connected at once; further ones wait.
const MOST_CONNECTIONS: usize = 4096;

/// Bytes that begin a connection of HTTP/2.
const PREFACE: usize = 24;

/// Pause where the system has no more connections.
const PAUSE: Duration = Duration::from_millis(50);

/// Connections that are accepted.
pub(super) type Incoming = ReceiverStream<io::Result<Connection>>;

trait Socket: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Socket for S {}

/// A connection. One type for both kinds, or all of the server would be compiled twice.
pub(super) struct Connection {
    socket: Pin<Box<dyn Socket>>,
    /// The end of the time to begin, until the preface is there.
    beginning: Option<Pin<Box<Sleep>>>,
    /// Bytes of the preface that are missing.
    missing: usize,
    _place: OwnedSemaphorePermit,
}

/// Accepts connections for as long as the stream is there.
pub(super) fn connections(
    listener: std::net::TcpListener,
    certificates: Option<Arc<Certificates>>,
    patience: Duration,
) -> Incoming {
    let (accepted, incoming) = mpsc::channel(1);
    tokio::spawn(async move {
        let Ok(listener) = TcpListener::from_std(listener) else {
            return;
        };
        tokio::select! {
            () = accept(&listener, certificates.as_deref(), patience, &accepted) => {}
            () = accepted.closed() => {}
        }
    });
    ReceiverStream::new(incoming)
}

async fn accept(
    listener: &TcpListener,
    certificates: Option<&Certificates>,
    patience: Duration,
    accepted: &mpsc::Sender<io::Result<Connection>>,
) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        // A reply waits for no other.
        let _ = stream.set_nodelay(true);
        let acceptor = certificates.map(Certificates::acceptor);
        let accepted = accepted.clone();
        tokio::spawn(async move {
            let until = Instant::now() + patience;
            let socket: Pin<Box<dyn Socket>> = match acceptor {
                None => Box::pin(stream),
                Some(acceptor) => match timeout_at(until, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => Box::pin(stream),
                    _ => return,
                },
            };
            let connection = Connection {
                socket,
                beginning: Some(Box::pin(sleep_until(until))),
                missing: PREFACE,
                _place: place,
            };
            let _ = accepted.send(Ok(connection)).await;
        });
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(end) = &mut self.beginning
            && end.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buf.filled().len();
        let polled = self.socket.as_mut().poll_read(cx, buf);
        self.missing = self.missing.saturating_sub(buf.filled().len() - before);
        if self.missing == 0 {
            self.beginning = None;
        }
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.socket.as_mut().poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.socket.as_mut().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.as_mut().poll_shutdown(cx)
    }
}
