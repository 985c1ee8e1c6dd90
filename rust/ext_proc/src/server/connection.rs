//! Connections of proxies, with TLS or without.

use std::io::{self, Cursor, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cachelb_serving::Certificates;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, join, split};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

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
    #[expect(dead_code, reason = "is free for another one once this is dropped")]
    place: OwnedSemaphorePermit,
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
            let begun = async {
                match acceptor {
                    None => begin(stream, place).await,
                    Some(acceptor) => begin(acceptor.accept(stream).await?, place).await,
                }
            };
            if let Ok(Ok(connection)) = timeout(patience, begun).await {
                let _ = accepted.send(Ok(connection)).await;
            }
        });
    }
}

/// Waits for the preface, and puts it back. The server itself would wait for ever.
async fn begin(
    socket: impl Socket + 'static,
    place: OwnedSemaphorePermit,
) -> io::Result<Connection> {
    let (mut read, write) = split(socket);
    let mut preface = [0; PREFACE];
    read.read_exact(&mut preface).await?;
    let socket = Box::pin(join(Cursor::new(preface).chain(read), write));
    Ok(Connection { socket, place })
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
        self.socket.as_mut().poll_read(cx, buf)
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
