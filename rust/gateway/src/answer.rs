//! Answers on their way to a client: the gateway's own, or a worker's as it comes.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cachelb_serving::{Booking, Event, PassingAnswer};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::connection::{Connection, Member, Passes, Serving};
use crate::observe::metrics::Record;
use crate::transport::guard::{Opened, lock};
use crate::transport::upstream::Lent;

/// The body of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    kind: Kind,
    /// The request is served until the answer is sent.
    pub(crate) serving: Option<Serving>,
    pub(crate) opened: Option<Opened>,
}

#[derive(Debug)]
enum Kind {
    Whole(Option<Bytes>),
    /// Parts of a page for operators.
    Parts(tokio::sync::mpsc::Receiver<Bytes>),
    Passing(
        Arc<Passing>,
        #[expect(dead_code, reason = "is a member until it is dropped")] Member,
    ),
}

/// A worker's answer that passes.
#[derive(Debug)]
pub(crate) struct Passing {
    /// Taken at the end, whoever ends it: with it go the booking and the connection to the worker.
    live: Mutex<Option<Live>>,
    connection: Arc<Connection>,
    began: Instant,
    /// When the last byte passed, in milliseconds since it began.
    last_ms: AtomicU64,
}

/// The state of an answer while it passes.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) body: Incoming,
    /// Bytes that were read of it.
    pub(crate) first: Option<Bytes>,
    pub(crate) lent: Lent,
    pub(crate) booking: Booking,
    pub(crate) answer: PassingAnswer,
    pub(crate) record: Record,
}

// === impl Answer ===

impl Answer {
    pub(crate) fn whole(body: impl Into<Bytes>) -> Self {
        Self::new(Kind::Whole(Some(body.into())))
    }

    pub(crate) fn parts(parts: tokio::sync::mpsc::Receiver<Bytes>) -> Self {
        Self::new(Kind::Parts(parts))
    }

    pub(crate) fn passing(passing: Arc<Passing>, member: Member) -> Self {
        Self::new(Kind::Passing(passing, member))
    }

    fn new(kind: Kind) -> Self {
        Self {
            kind,
            serving: None,
            opened: None,
        }
    }

    /// Returns how many bytes an answer has that is whole.
    pub(crate) fn len(&self) -> usize {
        match &self.kind {
            Kind::Whole(Some(body)) => body.len(),
            _ => 0,
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut self.kind {
            Kind::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Kind::Parts(parts) => parts
                .poll_recv(cx)
                .map(|part| part.map(|part| Ok(Frame::data(part)))),
            Kind::Passing(passing, _) => passing.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(body) => body.as_ref().is_none_or(Bytes::is_empty),
            Kind::Parts(_) => false,
            Kind::Passing(passing, _) => passing.last_ms.load(Ordering::Relaxed) == ENDED,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(body) => {
                SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64))
            }
            Kind::Parts(_) => SizeHint::default(),
            Kind::Passing(passing, _) => {
                let live = lock(&passing.live);
                live.as_ref()
                    .map_or_else(|| SizeHint::with_exact(0), Live::size_hint)
            }
        }
    }
}

// === impl Live ===

impl Live {
    fn is_over(&self) -> bool {
        self.first.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.body.size_hint();
        let first = self.first.as_ref().map_or(0, |first| first.len() as u64);
        rest.exact()
            .map_or_else(SizeHint::default, |rest| SizeHint::with_exact(rest + first))
    }
}

// === impl Passing ===

/// Mark of a complete answer.
const ENDED: u64 = u64::MAX;

impl Passing {
    pub(crate) fn new(live: Live, connection: Arc<Connection>) -> Arc<Self> {
        let passing = Self {
            live: Mutex::new(Some(live)),
            connection,
            began: Instant::now(),
            last_ms: AtomicU64::new(0),
        };
        let is_empty = lock(&passing.live).as_ref().is_some_and(Live::is_over);
        if is_empty {
            passing.complete();
        }
        Arc::new(passing)
    }

    fn poll_frame(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut slot = lock(&self.live);
        let Some(live) = slot.as_mut() else {
            let is_complete = self.last_ms.load(Ordering::Relaxed) == ENDED;
            let cut = || {
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the answer was cut",
                ))
            };
            return Poll::Ready((!is_complete).then(cut));
        };
        loop {
            let data = match live.first.take() {
                Some(first) => Some(Ok(first)),
                None => match Pin::new(&mut live.body).poll_frame(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => Some(Ok(data)),
                        // Trailers of a worker end here.
                        Err(_) => continue,
                    },
                    Poll::Ready(Some(Err(error))) => Some(Err(error)),
                    Poll::Ready(None) => None,
                },
            };
            match data {
                Some(Ok(data)) => {
                    live.record.passed(data.len());
                    live.answer.feed(&data, &mut live.booking);
                    self.last_ms.store(self.now_ms(), Ordering::Relaxed);
                    if live.is_over() {
                        drop(slot);
                        self.complete();
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(_)) => {
                    live.booking.error(502, None);
                    live.record.event(Event::Torn);
                    drop(slot.take());
                    // The bytes before are sent first.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                None => {
                    drop(slot);
                    self.complete();
                    return Poll::Ready(None);
                }
            }
        }
    }

    fn complete(&self) {
        self.last_ms.store(ENDED, Ordering::Relaxed);
        let live = lock(&self.live).take();
        if let Some(mut live) = live {
            live.answer.end(&mut live.booking);
            live.record.complete();
            live.lent.give_back();
        }
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

impl Passes for Passing {
    fn is_idle(&self, limit: Duration) -> bool {
        let last = self.last_ms.load(Ordering::Relaxed);
        last != ENDED && u128::from(self.now_ms().saturating_sub(last)) > limit.as_millis()
    }

    fn cut(&self) {
        let live = lock(&self.live).take();
        if live.is_some() {
            self.connection.cut();
        }
    }
}
