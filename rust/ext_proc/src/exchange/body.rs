//! Bodies of requests: held until they are complete, within bounds, and given back.

use std::mem;

use bytes::Bytes;
use cachelb_serving::{Event, LARGE_BODY_BYTES, Refusal};

use super::{BUFFERED, BUFFERED_PARTIAL, DUPLEX, Exchange, Outgoing};
use crate::options::LargeBodies;
use crate::replies::{self, Chunks, PickedAt, Side};
use crate::wire::HttpBody;

/// Bytes up to which what arrives is put together: many small messages take no more memory than one.
const PART_BYTES: usize = 64 << 10;

/// A body that arrives. Its parts stay where they are: a buffer that grew with it would be copied, and leave holes.
#[derive(Debug, Default)]
pub(super) struct Body {
    parts: Vec<Vec<u8>>,
    pub(super) length: usize,
}

impl Body {
    fn push(&mut self, chunk: Vec<u8>) {
        self.length += chunk.len();
        match self.parts.last_mut() {
            Some(last) if last.len() + chunk.len() <= PART_BYTES => last.extend_from_slice(&chunk),
            _ => self.parts.push(chunk),
        }
    }

    /// The parts, those of a short body as one.
    fn into_parts(self) -> Vec<Bytes> {
        if self.length <= LARGE_BODY_BYTES && self.parts.len() > 1 {
            return vec![self.parts.concat().into()];
        }
        self.parts.into_iter().map(Bytes::from).collect()
    }
}

impl Exchange {
    pub(super) fn on_request_body(&mut self, part: HttpBody) {
        let (chunk, end) = (part.body, part.end_of_stream);
        if self.pick.is_some() {
            return self.pass(Side::Request, self.request_mode, chunk, end);
        }
        self.held.add(chunk.len());
        self.body.push(chunk);
        let options = &self.shared.options;
        let refusal = if self.body.length > options.max_body_bytes {
            let message = format!("the body is longer than {} bytes", options.max_body_bytes);
            Some(Refusal::new(Event::TooLarge, 413, message, None))
        } else if self.shared.budget.is_exceeded() {
            Some(Refusal::full())
        } else {
            None
        };
        match refusal {
            Some(refusal) if options.large_bodies == LargeBodies::Refuse => self.refuse(&refusal),
            Some(refusal) => {
                self.shared.counters.count(refusal.event);
                self.send(false, end, false);
            }
            None if end || matches!(self.request_mode, BUFFERED | BUFFERED_PARTIAL) => {
                self.send(true, end, false);
            }
            None => {}
        }
    }

    /// Gives a part back at once. It counts as held until the next message.
    pub(super) fn pass(&mut self, side: Side, mode: i32, part: Vec<u8>, end: bool) {
        if mode != DUPLEX {
            self.push(replies::body(side));
        } else if self.passing.large(part.len()) {
            let chunks = Chunks::new(side, part.into(), end);
            self.outgoing.push_back(Outgoing::Body(chunks));
        } else {
            self.refuse(&Refusal::full());
        }
    }

    pub(super) fn on_request_trailers(&mut self) {
        if self.pick.is_some() {
            self.push(replies::trailers(Side::Request));
        } else {
            self.send(true, false, true);
        }
    }

    /// Gets a pick by the body, as far as it is to be read, and releases the held messages.
    pub(super) fn send(&mut self, is_read: bool, end: bool, trailers: bool) {
        let parts = mem::take(&mut self.body).into_parts();
        let read = is_read.then(|| parts.clone());
        if self.request_mode == DUPLEX {
            self.ask(PickedAt::Headers, read, Some((parts, end)), trailers);
        } else {
            self.ask(PickedAt::Body, read, None, trailers);
        }
    }

    /// Gives a body back, which counts as held until all of it is sent: a proxy may be slow to read.
    pub(super) fn give_back(&mut self, mut parts: Vec<Bytes>, end: bool) {
        // The last part has the end mark, and is empty if there are no bytes left.
        let last = parts.pop().unwrap_or_default();
        let before = parts.into_iter().map(|part| (part, false));
        for (part, end) in before.chain([(last, end)]) {
            self.outgoing
                .push_back(Outgoing::Body(Chunks::new(Side::Request, part, end)));
        }
        self.outgoing.push_back(Outgoing::Release);
    }

    /// Drops the body.
    pub(super) fn release_body(&mut self) {
        self.body = Body::default();
        self.held.clear();
    }

    /// Keeps the prompt, if there is room, until the answer begins: another worker may serve the request.
    pub(super) fn keep_prompt(&mut self, bytes: usize) {
        if self.shared.budget.half_takes(bytes) {
            self.kept.add(bytes);
        } else {
            self.forget_prompt();
        }
    }

    pub(super) fn forget_prompt(&mut self) {
        if let Some(pick) = &mut self.pick {
            pick.booking.booked.forget_prompt();
        }
        self.kept.clear();
    }
}
