//! Workers: where their requests go, and the connections to them that are kept.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use bytes::Bytes;
use cachelb_serving::Host;
use http_body::{Body, Frame, SizeHint};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::transport::guard::lock;
use crate::transport::socket::Socket;
use crate::transport::trust;

/// How long a connection is kept: less than the 5 s after which engines, on uvicorn, close it.
const KEPT: Duration = Duration::from_secs(4);

/// Connections to a worker that are kept.
const MOST_KEPT: usize = 1024;

/// Bytes of an answer that are read ahead, and of its head.
const BUFFER: usize = 64 << 10;

/// Headers of an answer.
const MOST_HEADERS: usize = 256;

/// The body of a request to a worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Whole(pub(crate) Option<Bytes>);

/// A worker's address.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    place: Place,
    /// Whether it speaks TLS.
    is_tls: bool,
    /// The prefix of its URLs before the path of a request.
    base: String,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the password.
        f.debug_struct("Target")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// Returns why a worker's URL cannot be one, in words that follow it.
///
/// # Errors
///
/// The words.
pub fn check_worker(worker: &str) -> Result<(), &'static str> {
    Target::read(worker).map(drop)
}

impl Target {
    /// Reads a worker's URL.
    ///
    /// # Errors
    ///
    /// Fails with the fault in words that follow the URL.
    pub fn read(worker: &str) -> Result<Self, &'static str> {
        if let Some(path) = worker.strip_prefix("unix://") {
            if !path.starts_with('/') {
                return Err("must be unix:///path/of.sock");
            }
            let path = percent_decode_str(path).decode_utf8_lossy().into_owned();
            return Ok(Self {
                place: Place::Unix(path.into()),
                is_tls: false,
                base: String::new(),
                host: HeaderValue::from_static("localhost"),
                authorization: None,
            });
        }
        let form = "must be http://host:port, https://host or unix:///path";
        let url: Uri = worker.parse().map_err(|_| form)?;
        let is_tls = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(form),
        };
        if url.query().is_some() || worker.contains('#') {
            return Err("must not have a query");
        }
        let base = url.path().trim_end_matches('/');
        if base.ends_with("/v1") {
            return Err("must end before /v1, which requests bring");
        }
        let authority = url.authority().ok_or(form)?;
        let (login, place) = authority
            .as_str()
            .rsplit_once('@')
            .map_or((None, authority.as_str()), |(login, place)| {
                (Some(login), place)
            });
        let port = match authority.port() {
            Some(port) => port
                .as_str()
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or(form)?,
            None if place
                .rsplit(']')
                .next()
                .is_some_and(|rest| rest.contains(':')) =>
            {
                return Err(form);
            }
            None => {
                if is_tls {
                    443
                } else {
                    80
                }
            }
        };
        if authority.host().is_empty() {
            return Err(form);
        }
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        let authorization = login.map(|login| {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            let mut pair: Vec<u8> = percent_decode_str(user).collect();
            pair.push(b':');
            pair.extend(percent_decode_str(password));
            let mut value = HeaderValue::try_from(format!(
                "Basic {}",
                base64::engine::general_purpose::STANDARD.encode(pair)
            ));
            if let Ok(value) = &mut value {
                value.set_sensitive(true);
            }
            value
        });
        Ok(Self {
            place: Place::Tcp(host.to_owned(), port),
            is_tls,
            base: base.to_owned(),
            host: HeaderValue::try_from(place).map_err(|_| form)?,
            authorization: authorization.transpose().map_err(|_| form)?,
        })
    }

    /// Returns the beginning of its URLs, to be found in where it redirects to.
    pub(crate) fn origin(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}", self.host.to_str().unwrap_or_default())
    }

    /// Brings a request into its form: the path, who it is for, and who asks.
    pub(crate) fn address<B>(&self, request: &mut Request<B>, path: &str) -> Result<(), Failure> {
        let path = if self.base.is_empty() {
            path.parse()
        } else {
            format!("{}{path}", self.base).parse()
        };
        *request.uri_mut() = path.map_err(|_| Failure::Refused)?;
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        Ok(())
    }
}

/// Why a worker does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There is no connection to it: nothing was sent.
    Refused,
    /// It closed the connection before its answer.
    Closed,
    /// It took too long.
    Late,
    /// It does not speak HTTP.
    Garbled,
}

type Sender = SendRequest<Whole>;

/// A worker.
pub(crate) struct Upstream {
    url: Arc<str>,
    pub(crate) target: Target,
    kept: Mutex<Vec<(Sender, Instant)>>,
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream")
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

/// A connection in use.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) upstream: Arc<Upstream>,
    sender: Sender,
    /// Whether it carried a request before.
    pub(crate) is_used: bool,
}

impl Lent {
    /// Keeps the connection, as its answer is complete.
    pub(crate) fn give_back(self) {
        let mut kept = lock(&self.upstream.kept);
        if !self.sender.is_closed() && kept.len() < MOST_KEPT {
            kept.push((self.sender, Instant::now()));
        }
    }

    /// Sends a request. `Err` has whether nothing of it was sent.
    pub(crate) async fn send(
        &mut self,
        request: Request<Whole>,
    ) -> Result<Response<hyper::body::Incoming>, (Failure, bool)> {
        (self.sender.try_send_request(request).await).map_err(|error| {
            let is_unsent = error.message().is_some();
            let error = error.error();
            let is_garbled = error.is_parse();
            (
                if is_garbled {
                    Failure::Garbled
                } else {
                    Failure::Closed
                },
                is_unsent,
            )
        })
    }
}

/// The clients of all workers.
pub(crate) struct Upstreams {
    known: Mutex<HashMap<Arc<str>, Arc<Upstream>>>,
    /// `None` without any authority.
    tls: Option<TlsConnector>,
    connect_timeout: Duration,
}

impl std::fmt::Debug for Upstreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstreams").finish_non_exhaustive()
    }
}

impl Upstreams {
    pub(crate) fn new(authorities: &[Vec<u8>], connect_timeout: Duration) -> Self {
        Self {
            known: Mutex::default(),
            tls: trust::connector(authorities),
            connect_timeout,
        }
    }

    /// Returns the worker of a key; `None` if it is gone, or cannot be connected to.
    pub(crate) fn of(&self, host: &impl Host, worker: &str) -> Option<Arc<Upstream>> {
        if let Some(found) = lock(&self.known).get(worker) {
            return Some(Arc::clone(found));
        }
        let url = host.target(worker)?;
        let target = Target::read(&url).ok()?;
        let upstream = Arc::new(Upstream {
            url,
            target,
            kept: Mutex::default(),
        });
        lock(&self.known).insert(worker.into(), Arc::clone(&upstream));
        Some(upstream)
    }

    /// Forgets workers that are gone or elsewhere, and connections that are not used.
    pub(crate) fn keep(&self, host: &impl Host) {
        let mut known = lock(&self.known);
        known.retain(|worker, upstream| host.target(worker).is_some_and(|url| url == upstream.url));
        for upstream in known.values() {
            lock(&upstream.kept)
                .retain(|(sender, since)| !sender.is_closed() && since.elapsed() < KEPT);
        }
    }

    /// Returns a connection: one that is kept, if it may be, or a new one.
    pub(crate) async fn lend(
        &self,
        upstream: &Arc<Upstream>,
        is_new: bool,
    ) -> Result<Lent, Failure> {
        let kept = || lock(&upstream.kept).pop().filter(|_| !is_new);
        while let Some((mut sender, since)) = kept() {
            // It is ready once its task has seen the end of the last answer.
            if since.elapsed() < KEPT && sender.ready().await.is_ok() {
                let upstream = Arc::clone(upstream);
                return Ok(Lent {
                    upstream,
                    sender,
                    is_used: true,
                });
            }
        }
        let opened = timeout(self.connect_timeout, self.open(&upstream.target)).await;
        let sender = opened.unwrap_or(Err(Failure::Refused))?;
        Ok(Lent {
            upstream: Arc::clone(upstream),
            sender,
            is_used: false,
        })
    }

    async fn open(&self, target: &Target) -> Result<Sender, Failure> {
        let socket = match &target.place {
            Place::Tcp(host, port) => TcpStream::connect((host.as_str(), *port))
                .await
                .map(Socket::tcp),
            Place::Unix(path) => UnixStream::connect(path).await.map(Socket::unix),
        };
        let socket = socket.map_err(|_| Failure::Refused)?;
        if !target.is_tls {
            return handshake(TokioIo::new(socket)).await;
        }
        let Place::Tcp(host, _) = &target.place else {
            return Err(Failure::Refused);
        };
        let name = ServerName::try_from(host.clone()).map_err(|_| Failure::Refused)?;
        let tls = self.tls.as_ref().ok_or(Failure::Refused)?;
        let stream = tls
            .connect(name, socket)
            .await
            .map_err(|_| Failure::Refused)?;
        handshake(TokioIo::new(stream)).await
    }
}

async fn handshake<S>(io: S) -> Result<Sender, Failure>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let mut builder = Builder::new();
    builder.max_buf_size(BUFFER).max_headers(MOST_HEADERS);
    let (sender, connection) = builder.handshake(io).await.map_err(|_| Failure::Refused)?;
    tokio::spawn(async move {
        // Its errors are those of requests.
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}

impl Body for Whole {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Ready(self.0.take().map(|body| Ok(Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |body| body.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_workers() {
        let found = Target::read("http://us%65r:p%40ss@gpu0:8000/base/").expect("is a worker");
        assert_eq!(
            (found.base.as_str(), found.origin().as_str()),
            ("/base", "http://gpu0:8000")
        );
        let login = found
            .authorization
            .as_ref()
            .and_then(|value| value.to_str().ok());
        assert_eq!(login, Some("Basic dXNlcjpwQHNz"));
        assert!(!format!("{found:?}").contains("ss"));
        let found = Target::read("https://[fd00::1]").expect("is a worker");
        assert_eq!(
            (found.place, found.is_tls),
            (Place::Tcp("fd00::1".to_owned(), 443), true)
        );
        let found = Target::read("unix:///run/a%20b.sock").expect("is a worker");
        assert_eq!(found.place, Place::Unix("/run/a b.sock".into()));
        for wrong in [
            "gpu0:8000",
            "ftp://gpu0",
            "http://gpu0:0",
            "http://gpu0:x",
            "http://gpu0:",
            "http://",
            "http:///v1",
            "unix://run/x",
            "http://gpu0/v1",
            "http://gpu0/v1/",
            "http://gpu0?x=1",
            "http://gpu0#x",
            "http://gpu 0",
            "",
        ] {
            assert!(Target::read(wrong).is_err(), "{wrong}");
        }
    }
}
