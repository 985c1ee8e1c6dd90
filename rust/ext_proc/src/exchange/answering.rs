//! Answers: who served the request, how it ended, and the engine's counts.

use std::time::SystemTime;

use cachelb_serving::{
    Booking, Event, Headers, LARGE_BODY_BYTES, Moved, PassingAnswer, Usage, retry_after,
};

use super::{Exchange, Moving};
use crate::read;
use crate::replies::{self, Side};
use crate::wire::{HttpBody, HttpHeaders, Message};

/// Shown for the tests of the inference extension.
const TEST_SERVED: &str = "x-conformance-test-served-endpoint";

/// How Envoy shows that a connection was closed, and refused: by the text of the error, or its number in Linux.
const DISCONNECTS: [&str; 3] = [
    "connection_termination",
    "connect_error:_Connection_refused",
    "connect_error:_111",
];

const CLIENT_ERROR: u16 = 400;
const SERVER_ERROR: u16 = 500;

/// The content of the first message about an answer.
#[derive(Debug)]
pub(super) struct AnswerHeaders {
    headers: Headers,
    served: Option<String>,
    details: Option<String>,
    end: bool,
}

impl Exchange {
    pub(super) fn on_response_headers(&mut self, message: &Message, part: HttpHeaders) {
        let Some(pick) = self.pick.as_mut() else {
            return self.push(replies::headers(Side::Response, Vec::new()));
        };
        let headers = AnswerHeaders {
            headers: read::headers(part.headers),
            served: read::served(message).map(str::to_owned),
            details: read::code_details(message).map(str::to_owned),
            end: part.end_of_stream,
        };
        match headers
            .served
            .as_deref()
            .filter(|served| pick.first.as_deref() != Some(served))
        {
            Some(address) if self.kept.bytes() > LARGE_BODY_BYTES => {
                let address = address.to_owned();
                let pick = self.pick.take();
                self.moving = pick.map(|pick| Box::new(Moving { pick, address }));
                self.answer_headers = Some(headers);
            }
            Some(address) => {
                let moved = pick.booking.served(address);
                self.count_move(moved);
                self.begin_answer(&headers);
            }
            None => self.begin_answer(&headers),
        }
    }

    pub(super) fn count_move(&self, moved: Moved) {
        match moved {
            Moved::Unknown => self.shared.counters.count(Event::ServedUnknown),
            Moved::Fallback => self.shared.counters.count(Event::ServedFallback),
            Moved::Unbooked => {
                self.shared.counters.count(Event::ServedFallback);
                self.shared.counters.count(Event::ServedUnbooked);
            }
        }
    }

    pub(super) fn begin_answer(&mut self, answer: &AnswerHeaders) {
        self.forget_prompt();
        let Some(pick) = &mut self.pick else {
            return;
        };
        let booking = &mut pick.booking;
        let kind = answer.headers.get("content-type").unwrap_or_default();
        let is_stream = kind.starts_with("text/event-stream");
        self.answer = Some(PassingAnswer::new(booking, is_stream));
        let Some(status) = read::status(&answer.headers) else {
            self.is_over = true;
            self.failure = Some("the status of an answer is no number");
            return;
        };
        if status >= CLIENT_ERROR {
            report_error(booking, status, answer);
        } else if answer.end {
            booking.complete(Usage::default());
        }
        let options = &self.shared.options;
        let mut shown = Vec::new();
        if !options.expose_headers.is_empty() {
            shown = booking.booked.headers();
            shown.retain(|(name, _)| options.expose_headers.contains(name));
        }
        if options.conformance {
            let missing = "fail: missing destination endpoint served metadata";
            let served = answer.served.as_deref().unwrap_or(missing);
            shown.push((TEST_SERVED.to_owned(), served.to_owned()));
        }
        self.push(replies::headers(Side::Response, shown));
    }

    pub(super) fn on_response_body(&mut self, part: HttpBody) {
        let (chunk, end) = (part.body, part.end_of_stream);
        if let (Some(answer), Some(pick)) = (&mut self.answer, &mut self.pick) {
            answer.feed(&chunk, &mut pick.booking);
            if end {
                answer.end(&mut pick.booking);
            }
        }
        self.pass(Side::Response, self.answer_mode, chunk, end);
    }

    pub(super) fn on_response_trailers(&mut self) {
        if let (Some(answer), Some(pick)) = (&self.answer, &mut self.pick) {
            answer.end(&mut pick.booking);
        }
        self.push(replies::trailers(Side::Response));
    }
}

/// Ends a request that failed, and counts the failure only if the worker caused it.
///
/// The proxy answers by itself when it cannot connect to a worker, and for many reasons that have nothing to do with
/// one, such as limits of its own.
fn report_error(booking: &mut Booking, status: u16, answer: &AnswerHeaders) {
    let is_of_upstream = |details: &str| {
        (details.contains("upstream") || details.contains("response_timeout"))
            && !details.contains("overflow")
    };
    match answer.details.as_deref() {
        None | Some("via_upstream") => {
            let retry_after_s = (answer.headers.get("retry-after"))
                .and_then(|value| retry_after(value, SystemTime::now()));
            booking.error(status, retry_after_s);
        }
        Some(details) if status >= SERVER_ERROR && is_of_upstream(details) => {
            if DISCONNECTS.iter().any(|shown| details.contains(shown)) {
                booking.disconnected();
            }
            booking.error(502, None);
        }
        Some(_) => booking.cancel(),
    }
}
