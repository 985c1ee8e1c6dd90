//! Messages of a stream. They are framed here, as tonic counts no bytes that wait for the rest of their message, and
//! keeps its buffer as long as the longest one.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::BytesMut;
use cachelb_serving::{Event, Hold, Refusal};
use prost::Message as _;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::codegen::{Body as _, Service};
use tonic::server::NamedService;
use tonic::{Extensions, Status};

use super::MESSAGE_OVERHEAD;
use crate::shared::Shared;
use crate::wire::{Message, Part};

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Passes the body of each request beside it.
#[derive(Debug, Clone)]
pub(super) struct Unframed<S>(pub(super) S);

/// The messages that a proxy sends.
#[derive(Debug)]
pub(super) struct Messages {
    body: Body,
    buffer: BytesMut,
    shared: Arc<Shared>,
    /// Bytes of the buffer.
    held: Hold,
}

// === impl Unframed ===

impl<S: NamedService> NamedService for Unframed<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for Unframed<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let body = mem::take(request.body_mut());
        request.extensions_mut().insert(Arc::new(Mutex::new(body)));
        self.0.call(request)
    }
}

// === impl Messages ===

impl Messages {
    pub(super) fn new(shared: &Arc<Shared>, extensions: &Extensions) -> Self {
        let body = extensions.get::<Arc<Mutex<Body>>>();
        let body = body.and_then(|body| Some(mem::take(&mut *body.lock().ok()?)));
        Self {
            body: body.unwrap_or_default(),
            buffer: BytesMut::new(),
            shared: Arc::clone(shared),
            held: Hold::new(&shared.budget),
        }
    }

    /// Returns the next message, `None` at the end. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Result<Option<Message>, Status> {
        loop {
            let message = self.framed()?;
            self.held.clear();
            let has_room = self.held.large(self.buffer.len());
            if message.is_some() {
                return Ok(message);
            }
            if !has_room {
                self.shared.counters.count(Event::Full);
                return Err(Status::resource_exhausted(Refusal::full().message));
            }
            let frame = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await;
            match frame.transpose()? {
                Some(frame) => {
                    let data = frame.into_data().unwrap_or_default();
                    self.buffer.extend_from_slice(&data);
                }
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Status::internal("the stream ends within a message")),
            }
        }
    }

    /// Returns the first message of the buffer, if it is complete.
    fn framed(&mut self) -> Result<Option<Message>, Status> {
        let Some(&[compressed, ref length @ ..]) = self.buffer.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        let body = self.shared.options.max_body_bytes.saturating_mul(2);
        if compressed != 0 {
            return Err(Status::unimplemented("messages must not be compressed"));
        }
        if length > MESSAGE_OVERHEAD.saturating_add(body) {
            return Err(self.too_long(length));
        }
        let Some(encoded) = self.buffer.get(PREFIX..PREFIX + length) else {
            return Ok(None);
        };
        let message =
            Message::decode(encoded).map_err(|error| Status::internal(error.to_string()))?;
        // A copy of the rest, which is short: a buffer that goes on keeps the memory of its longest message.
        self.buffer = BytesMut::from(&self.buffer[PREFIX + length..]);
        match message.request {
            Some(Part::RequestBody(_) | Part::ResponseBody(_)) => Ok(Some(message)),
            _ if length > MESSAGE_OVERHEAD => Err(self.too_long(length)),
            _ => Ok(Some(message)),
        }
    }

    fn too_long(&self, length: usize) -> Status {
        self.shared.counters.count(Event::TooLarge);
        Status::resource_exhausted(format!("a message of {length} bytes is too long"))
    }
}
