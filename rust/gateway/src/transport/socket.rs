//! Sockets of clients and workers, TCP or unix, and addresses to listen on.

use std::fs;
use std::io::{self, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use socket2::{Domain, SockAddr, SockRef, Type};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

const BACKLOG: i32 = 2048;

/// A connected socket. A second handle of it sees the other side leave, which a reader of requests does not while bytes
/// of the next request lie before the end.
#[derive(Debug, Clone)]
pub(crate) struct Socket(Arc<Stream>);

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Calls a method that both kinds have.
macro_rules! either {
    ($stream:expr, $inner:ident => $call:expr) => {
        match &*$stream {
            Stream::Tcp($inner) => $call,
            Stream::Unix($inner) => $call,
        }
    };
}

/// The other side of a socket, while its request is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Waits,
    /// It has closed the connection, or its half.
    Left,
    /// It has sent bytes beyond its request: so many, up to the length of the scratch.
    Pipelines(usize),
}

impl Socket {
    pub(crate) fn tcp(stream: TcpStream) -> Self {
        // An event of an answer waits for no other.
        let _ = stream.set_nodelay(true);
        Self(Arc::new(Stream::Tcp(stream)))
    }

    pub(crate) fn unix(stream: UnixStream) -> Self {
        Self(Arc::new(Stream::Unix(stream)))
    }

    /// Looks at the other side, without taking any bytes.
    pub(crate) fn peer(&self, scratch: &mut [MaybeUninit<u8>]) -> Peer {
        let mut cx = Context::from_waker(Waker::noop());
        let ready = either!(self.0, stream => pin!(stream.ready(Interest::READABLE)).poll(&mut cx));
        match ready {
            Poll::Pending => return Peer::Waits,
            Poll::Ready(Ok(ready)) if !ready.is_read_closed() => {}
            Poll::Ready(_) => return Peer::Left,
        }
        let mut peek = |socket: SockRef<'_>| socket.peek(scratch);
        let peeked = either!(self.0, stream => {
            stream.try_io(Interest::READABLE, || peek(SockRef::from(stream)))
        });
        match peeked {
            Ok(1..) => Peer::Pipelines(peeked.unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Peer::Waits,
            _ => Peer::Left,
        }
    }

    fn write(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(either!(self.0, stream => stream.poll_write_ready(cx)))?;
            match write() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(either!(self.0, stream => stream.poll_read_ready(cx)))?;
            let free = buf.initialize_unfilled();
            let mut part = 0;
            let mut read = |mut socket: &socket2::Socket| match socket.read(free) {
                // All that there was: as if the next read had been tried, which would find nothing.
                Ok(count) if (1..free.len()).contains(&count) => {
                    part = count;
                    Err(io::ErrorKind::WouldBlock.into())
                }
                read => read,
            };
            let read = either!(self.0, stream => {
                stream.try_io(Interest::READABLE, || read(&SockRef::from(stream)))
            });
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && part == 0 => {}
                Err(error) if part == 0 => return Poll::Ready(Err(error)),
                read => {
                    buf.advance(read.unwrap_or(part));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, || either!(self.0, stream => stream.try_write(buf)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(
            cx,
            || either!(self.0, stream => stream.try_write_vectored(bufs)),
        )
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(either!(self.0, stream => SockRef::from(stream).shutdown(Shutdown::Write)))
    }
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Binds `host:port` or `unix:/path`, the latter in place of a socket that a killed process left.
    ///
    /// Belongs into the runtime.
    pub(crate) fn bind(address: &str) -> io::Result<Self> {
        if let Some(path) = address.strip_prefix("unix:") {
            let path = PathBuf::from(format!("/{}", path.trim_start_matches('/')));
            let is_socket = fs::metadata(&path).is_ok_and(|found| found.file_type().is_socket());
            if is_socket && is_dead(&path) {
                fs::remove_file(&path)?;
            }
            let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&SockAddr::unix(&path)?)?;
            socket.listen(BACKLOG)?;
            socket.set_nonblocking(true)?;
            return Ok(Self::Unix(UnixListener::from_std(socket.into())?, path));
        }
        let unknown = || io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        let address: SocketAddr = address.to_socket_addrs()?.next().ok_or_else(unknown)?;
        let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(Self::Tcp(TcpListener::from_std(socket.into())?))
    }

    /// Returns the URL of the address, whose port may have been chosen by the system.
    pub(crate) fn url(&self, host: &str, is_tls: bool) -> String {
        match self {
            Self::Tcp(listener) => {
                let port = listener.local_addr().map_or(0, |address| address.port());
                format!("http{}://{host}:{port}", if is_tls { "s" } else { "" })
            }
            Self::Unix(_, path) => format!("unix://{}", path.display()),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<(Socket, Option<SocketAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok((Socket::tcp(stream), Some(address)))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Socket::unix(stream), None))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether no process listens on a socket.
fn is_dead(path: &Path) -> bool {
    StdUnixStream::connect(path)
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
