//! The least that a gateway on hyper does: read a body, choose a port in turn, forward, stream. Benches compare with it.
//!
//! `pass_through LISTEN PORT PORT ...`

#![expect(clippy::print_stdout, reason = "tells its address")]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};

struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(self.0.take().map(|body| Ok(Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |body| body.len() as u64))
    }
}

async fn forward(
    client: Client<HttpConnector, Whole>,
    port: u16,
    request: Request<Incoming>,
) -> Result<Response<Incoming>, Box<dyn std::error::Error + Send + Sync>> {
    let (mut parts, mut incoming) = request.into_parts();
    let mut body = BytesMut::new();
    while let Some(frame) =
        std::future::poll_fn(|cx| std::pin::Pin::new(&mut incoming).poll_frame(cx)).await
    {
        if let Ok(data) = frame?.into_data() {
            body.extend_from_slice(&data);
        }
    }
    parts.uri = format!("http://127.0.0.1:{port}{}", parts.uri.path()).parse::<Uri>()?;
    let whole = Whole((!body.is_empty()).then(|| body.freeze()));
    Ok(client.request(Request::from_parts(parts, whole)).await?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().ok_or("give an address")?;
    let ports: Arc<Vec<u16>> = Arc::new(
        arguments
            .map(|port| port.parse())
            .collect::<Result<_, _>>()?,
    );
    let threads = std::env::var("THREADS")
        .ok()
        .and_then(|threads| threads.parse().ok())
        .unwrap_or(2);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()?;
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind(listen).await?;
        println!("on http://{}", listener.local_addr()?);
        let client = Client::builder(TokioExecutor::new()).build_http();
        let next = Arc::new(AtomicUsize::new(0));
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (client, ports, next) = (client.clone(), Arc::clone(&ports), Arc::clone(&next));
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let port = ports[next.fetch_add(1, Ordering::Relaxed) % ports.len()];
                    forward(client.clone(), port, request)
                });
                let _ = http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    })
}
