//! Bodies of requests: held until they are complete, within bounds, and given back.

use std::mem;

use bytes::Bytes;

use super::{BUFFERED, BUFFERED_PARTIAL, DUPLEX, Exchange, Outgoing};
use crate::host::Refusal;
use crate::options::LargeBodies;
use crate::replies::{self, Chunks, PickedAt, Side};
use crate::shared::Event;
use crate::wire::HttpBody;

impl Exchange {
    pub(super) fn on_request_body(&mut self, part: HttpBody) {
        let (chunk, end) = (part.body, part.end_of_stream);
        if self.pick.is_some() {
            if self.request_mode == DUPLEX {
                self.outgoing.push_back(Outgoing::Body(Chunks::new(
                    Side::Request,
                    chunk.into(),
                    end,
                )));
            } else {
                self.push(replies::body(Side::Request));
            }
            return;
        }
        self.hold(chunk.len());
        if self.body.is_empty() {
            self.body = chunk;
        } else {
            self.body.extend_from_slice(&chunk);
        }
        let options = &self.shared.options;
        let refusal = if self.body.len() > options.max_body_bytes {
            let message = format!("the body is longer than {} bytes", options.max_body_bytes);
            Some(Refusal::new(Event::TooLarge, 413, message, None))
        } else if self.shared.held() > options.max_held_bytes {
            let message = "too many requests arrive";
            Some(Refusal::new(Event::Full, 503, message, Some(1.0)))
        } else {
            None
        };
        match refusal {
            Some(refusal) if options.large_bodies == LargeBodies::Refuse => self.refuse(&refusal),
            Some(refusal) => {
                self.shared.count(refusal.event);
                self.send(false, end, false);
            }
            None if end || matches!(self.request_mode, BUFFERED | BUFFERED_PARTIAL) => {
                self.send(true, end, false);
            }
            None => {}
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
    fn send(&mut self, is_read: bool, end: bool, trailers: bool) {
        let body = Bytes::from(mem::take(&mut self.body));
        let read = is_read.then(|| body.clone());
        if self.request_mode == DUPLEX {
            self.ask(PickedAt::Headers, read, Some((body, end)), trailers);
        } else {
            self.ask(PickedAt::Body, read, None, trailers);
        }
    }

    /// Gives a body back, which counts as held until all of it is sent: a proxy may be slow to read, and the parts
    /// share one allocation.
    pub(super) fn give_back(&mut self, body: Bytes, end: bool) {
        self.outgoing
            .push_back(Outgoing::Body(Chunks::new(Side::Request, body, end)));
        self.outgoing.push_back(Outgoing::Release);
    }

    pub(super) fn hold(&mut self, bytes: usize) {
        self.held += bytes;
        self.shared.hold(bytes);
    }

    /// Drops the body.
    pub(super) fn release_body(&mut self) {
        self.body = Vec::new();
        self.shared.release(mem::take(&mut self.held));
    }

    /// Keeps the prompt, if there is room, until the answer begins: another worker may serve the request.
    pub(super) fn keep_prompt(&mut self, bytes: usize) {
        if self.shared.held() + bytes > self.shared.options.max_held_bytes / 2 {
            self.forget_prompt();
        } else {
            self.kept += bytes;
            self.shared.hold(bytes);
        }
    }

    pub(super) fn forget_prompt(&mut self) {
        if let Some(pick) = &mut self.pick {
            pick.booking.forget_prompt();
        }
        self.shared.release(mem::take(&mut self.kept));
    }
}
