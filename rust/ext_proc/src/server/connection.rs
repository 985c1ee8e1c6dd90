//! Connections of proxies, with TLS or without.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use super::tls::Certificates;

/// Time that a client may take to agree on TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Clients that may do so at once.
const MOST_HANDSHAKES: usize = 256;

/// Pause where the system has no more connections.
const PAUSE: Duration = Duration::from_millis(50);

/// A connection. One type for both kinds, or all of the server would be compiled twice.
#[derive(Debug)]
pub(super) enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Accepts connections for as long as the stream is there.
pub(super) fn connections(
    listener: TcpListener,
    certificates: Option<Arc<Certificates>>,
) -> ReceiverStream<io::Result<Connection>> {
    let (accepted, incoming) = mpsc::channel(1);
    tokio::spawn(async move {
        tokio::select! {
            () = accept(&listener, certificates.as_deref(), &accepted) => {}
            () = accepted.closed() => {}
        }
    });
    ReceiverStream::new(incoming)
}

async fn accept(
    listener: &TcpListener,
    certificates: Option<&Certificates>,
    accepted: &mpsc::Sender<io::Result<Connection>>,
) {
    let handshakes = Arc::new(Semaphore::new(MOST_HANDSHAKES));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        // A reply waits for no other.
        let _ = stream.set_nodelay(true);
        let Some(certificates) = certificates else {
            if accepted.send(Ok(Connection::Plain(stream))).await.is_err() {
                return;
            }
            continue;
        };
        let Ok(permit) = Arc::clone(&handshakes).acquire_owned().await else {
            return;
        };
        let acceptor = certificates.acceptor();
        let accepted = accepted.clone();
        tokio::spawn(async move {
            let agreed = timeout(HANDSHAKE, acceptor.accept(stream)).await;
            drop(permit);
            if let Ok(Ok(stream)) = agreed {
                let _ = accepted.send(Ok(Connection::Tls(Box::new(stream)))).await;
            }
        });
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
