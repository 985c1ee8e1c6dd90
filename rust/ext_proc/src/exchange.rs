//! One stream: the messages about one HTTP request and its answer, in the order in which the proxy sends them.
//!
//! There is no I/O here. A message goes in by [`Exchange::receive`]; then [`Exchange::next`] returns replies and
//! questions until it returns [`Step::Wait`]. In duplex mode the proxy keeps nothing, so the headers wait until the
//! body is complete, and every byte is given back. In buffered mode the proxy keeps headers and body until it has the
//! reply to the body. In the others the headers leave before the body is there, and are all there is to pick by.
//!
//! Whatever comes in, in whatever order: no panic, no more than `max_body_bytes` and one message held, and with
//! [`Exchange::close`], at the latest as the exchange is dropped, nothing stays held or booked.

mod answering;
mod body;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use cachelb_serving::address::Subset;
use cachelb_serving::{
    Asked, Booking, Event, Headers, Hold, LARGE_BODY_BYTES, Moved, PassingAnswer, Picked, Refusal,
    Usage, with_model,
};

use self::answering::AnswerHeaders;
use self::body::Body;
use crate::read;
use crate::replies::{self, Chunks, PickedAt, Side};
use crate::shared::Shared;
use crate::wire::{BodySendMode, HttpHeaders, Message, Part, Reply};

const NONE: i32 = BodySendMode::None as i32;
const BUFFERED: i32 = BodySendMode::Buffered as i32;
const BUFFERED_PARTIAL: i32 = BodySendMode::BufferedPartial as i32;
const DUPLEX: i32 = BodySendMode::FullDuplexStreamed as i32;

/// Bytes of a text beside its letters.
const TEXT_BYTES: usize = 64;

/// Obeyed for the tests of the inference extension.
const TEST_SELECTION: &str = "test-epp-endpoint-selection";

/// The next action of the server.
#[derive(Debug)]
pub(crate) enum Step {
    /// Send it.
    Reply(Box<Reply>),
    /// Get a pick, and call [`Exchange::answered`].
    Ask(Box<Question>),
    /// Call [`Moving::run`] where it may take long, and [`Exchange::moved`].
    Move(Box<Moving>),
    /// Wait for a message until the deadline.
    Wait,
    /// Close the stream.
    End,
    /// Close the stream with this error: the proxy sent what it must not.
    Fail(&'static str),
}

/// A request to pick for.
#[derive(Debug)]
pub(crate) struct Question {
    /// All but the body.
    asked: Asked,
    /// The parts of the body.
    parts: Vec<Bytes>,
    /// The model to put into the body.
    rename: Option<String>,
}

impl Question {
    /// Whether making its body takes long.
    pub(crate) fn is_long(&self) -> bool {
        let is_work = self.parts.len() > 1 || self.rename.is_some();
        is_work && self.parts.iter().map(Bytes::len).sum::<usize>() > LARGE_BODY_BYTES
    }

    /// Joins the parts of the body. Returns what to ask the host, and the body with the other model.
    pub(crate) fn prepare(self) -> (Asked, Option<Bytes>) {
        let Self {
            mut asked,
            parts,
            rename,
        } = self;
        let body = match &parts[..] {
            [whole] => whole.clone(),
            parts => parts.concat().into(),
        };
        let rewritten = rename.and_then(|model| with_model(&body, &model));
        asked.body = Some(body).filter(|body| !body.is_empty());
        (asked, rewritten.map(Bytes::from))
    }
}

/// A booking with a long prompt, to be moved to the worker that served the request.
#[derive(Debug)]
pub(crate) struct Moving {
    pick: Pick,
    address: String,
}

impl Moving {
    /// Moves it.
    pub(crate) fn run(mut self) -> (Pick, Moved) {
        let moved = self.pick.booking.served(&self.address);
        (self.pick, moved)
    }
}

/// The picked worker, where the load is booked.
#[derive(Debug)]
pub(crate) struct Pick {
    first: Option<String>,
    booking: Booking,
}

/// A pick that was asked for.
#[derive(Debug)]
struct Asking {
    at: PickedAt,
    /// Bytes of the prompt, `None` for one that is not read.
    prompt: Option<usize>,
    /// The body to give back behind the pick, and whether it is complete.
    giving: Option<(Vec<Bytes>, bool)>,
    /// Whether trailers wait for it.
    trailers: bool,
}

#[derive(Debug)]
enum Outgoing {
    Reply(Box<Reply>),
    Body(Chunks),
    /// Release what is held, as it was sent.
    Release,
}

/// The state of one request, from its headers to the end of its answer.
#[derive(Debug)]
pub(crate) struct Exchange {
    shared: Arc<Shared>,
    request_mode: i32,
    answer_mode: i32,
    is_first: bool,
    is_over: bool,
    failure: Option<&'static str>,
    headers: Headers,
    subset: Option<Vec<String>>,
    body: Body,
    /// Bytes of headers and body, which count as held until all of it is sent.
    held: Hold,
    /// Bytes of a part that was given back at once.
    passing: Hold,
    /// Bytes of the prompt, which count as held until the answer begins.
    kept: Hold,
    question: Option<Box<Question>>,
    asking: Option<Asking>,
    pick: Option<Pick>,
    moving: Option<Box<Moving>>,
    /// The answer that waits for a booking to be moved.
    answer_headers: Option<AnswerHeaders>,
    answer: Option<PassingAnswer>,
    outgoing: VecDeque<Outgoing>,
}

impl Exchange {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let mode = shared.options.default_body_mode.number();
        Self {
            held: Hold::new(&shared.budget),
            passing: Hold::new(&shared.budget),
            kept: Hold::new(&shared.budget),
            shared,
            request_mode: mode,
            answer_mode: mode,
            is_first: true,
            is_over: false,
            failure: None,
            headers: Headers::default(),
            subset: None,
            body: Body::default(),
            question: None,
            asking: None,
            pick: None,
            moving: None,
            answer_headers: None,
            answer: None,
            outgoing: VecDeque::new(),
        }
    }

    /// Processes a message, once all steps of the one before were done.
    pub(crate) fn receive(&mut self, mut message: Message) {
        if self.is_over {
            return;
        }
        self.passing.clear();
        if mem::take(&mut self.is_first)
            && let Some(config) = &message.protocol_config
        {
            self.request_mode = config.request_body_mode;
            self.answer_mode = config.response_body_mode;
        }
        if message.observability_mode {
            // The proxy copies its traffic and has no use for a pick.
            self.shared.counters.count(Event::Observed);
            self.is_over = true;
            return;
        }
        // One without any part is about flow control.
        match message.request.take() {
            Some(Part::RequestHeaders(part)) => self.on_request_headers(&message, part),
            Some(Part::RequestBody(part)) => self.on_request_body(part),
            Some(Part::RequestTrailers(_)) => self.on_request_trailers(),
            Some(Part::ResponseHeaders(part)) => self.on_response_headers(&message, part),
            Some(Part::ResponseBody(part)) => self.on_response_body(part),
            Some(Part::ResponseTrailers(_)) => self.on_response_trailers(),
            None => {}
        }
    }

    /// Returns what to do next. A reply counts as sent when this is called again.
    pub(crate) fn next(&mut self) -> Step {
        while let Some(first) = self.outgoing.front_mut() {
            if let Outgoing::Body(chunks) = first
                && let Some(reply) = chunks.next()
            {
                return Step::Reply(Box::new(reply));
            }
            match self.outgoing.pop_front() {
                Some(Outgoing::Reply(reply)) => return Step::Reply(reply),
                Some(Outgoing::Release) => self.release_body(),
                Some(Outgoing::Body(_)) | None => {}
            }
        }
        if let Some(question) = self.question.take() {
            Step::Ask(question)
        } else if let Some(moving) = self.moving.take() {
            Step::Move(moving)
        } else if let Some(failure) = self.failure {
            Step::Fail(failure)
        } else if self.is_over {
            Step::End
        } else {
            Step::Wait
        }
    }

    /// Takes the pick, and the body that is to be sent in place of the client's.
    pub(crate) fn answered(&mut self, result: Result<Picked, Refusal>, rewritten: Option<Bytes>) {
        let Some(asking) = self.asking.take() else {
            return;
        };
        let picked = match result {
            Ok(picked) => picked,
            // The proxy chose the pool by the model, which may get its workers later.
            Err(refusal) if refusal.event == Event::NoModel => {
                return self.refuse(&Refusal::no_worker(Some(1.0)));
            }
            Err(refusal) => return self.refuse(&refusal),
        };
        self.shared.counters.count(Event::Picked);
        if asking.giving.is_none() {
            self.release_body();
        }
        let Picked { endpoints, booking } = picked;
        let (rank, outgoing) = (booking.booked.rank(), booking.booked.outgoing());
        if outgoing.is_some() && asking.prompt.is_none() {
            // It may name a source of its client's.
            let message = "the body is too long to be read";
            return self.refuse(&Refusal::new(Event::TooLarge, 413, message, None));
        }
        self.pick = Some(Pick {
            first: endpoints.first().cloned(),
            booking,
        });
        self.keep_prompt(asking.prompt.unwrap_or(0));
        if let Some((parts, end)) = asking.giving {
            self.push(replies::picked(asking.at, &endpoints, rank, outgoing, None));
            let parts = rewritten.map_or(parts, |rewritten| {
                self.release_body();
                self.held.add(rewritten.len());
                vec![rewritten]
            });
            self.give_back(parts, end);
        } else {
            self.held.add(rewritten.as_ref().map_or(0, Bytes::len));
            self.push(replies::picked(
                asking.at, &endpoints, rank, outgoing, rewritten,
            ));
            if asking.at == PickedAt::Body {
                self.outgoing.push_back(Outgoing::Release);
            }
        }
        if asking.trailers {
            self.push(replies::trailers(Side::Request));
        }
    }

    /// Takes the booking back that was to be moved.
    pub(crate) fn moved(&mut self, pick: Pick, moved: Moved) {
        self.pick = Some(pick);
        self.count_move(moved);
        if let Some(headers) = self.answer_headers.take() {
            self.begin_answer(&headers);
        }
    }

    /// Returns until when the next message has to come.
    pub(crate) fn deadline(&self, began: Instant, now: Instant) -> Instant {
        let options = &self.shared.options;
        if !self.has_pick() {
            return began + options.body_timeout;
        }
        let end = began + options.stream_timeout;
        // An answer whose body passes elsewhere is silent until it ends.
        let is_silent = self.answer.is_some() && self.answer_mode == NONE;
        if is_silent {
            end
        } else {
            end.min(now + options.idle_timeout)
        }
    }

    /// Handles a deadline that passed: answers the client if it has not sent the whole request.
    pub(crate) fn expire(&mut self) {
        let has_pick = self.has_pick();
        self.stop();
        if has_pick {
            self.shared.counters.count(Event::Expired);
        } else {
            let message = "the request took too long to arrive";
            self.refuse(&Refusal::new(Event::SlowBody, 408, message, None));
        }
    }

    /// Handles the end of the messages, which releases any booking; idempotent.
    pub(crate) fn close(&mut self) {
        self.stop();
        self.release_body();
        self.forget_prompt();
        let passes_elsewhere = self.answer.is_some() && self.answer_mode == NONE;
        if let Some(pick) = &mut self.pick {
            if passes_elsewhere {
                // This is the only sign of its end.
                pick.booking.complete(Usage::default());
            } else {
                pick.booking.cancel();
            }
        }
    }

    // --- the request ---

    fn on_request_headers(&mut self, message: &Message, part: HttpHeaders) {
        self.headers = read::headers(part.headers);
        self.subset = read::subset(message);
        if self.shared.options.conformance
            && let Some(selection) = self.headers.get(TEST_SELECTION)
        {
            self.subset = Some(read::split(selection).collect());
        }
        let headers = self.headers.iter().flat_map(|(a, b)| [a, b]);
        let texts = headers.chain(self.subset.iter().flatten().map(String::as_str));
        if !(self.held).large(texts.map(|text| text.len() + TEXT_BYTES).sum()) {
            return self.refuse(&Refusal::full());
        }
        // An upgraded request becomes a connection, whose body ends with it.
        if part.end_of_stream || self.headers.get("upgrade").is_some() {
            if self.request_mode == DUPLEX && self.body.length > 0 {
                return self.send(true, false, false);
            }
            return self.ask(PickedAt::Headers, Some(Vec::new()), None, false);
        }
        match self.request_mode {
            DUPLEX => {}
            BUFFERED | BUFFERED_PARTIAL => self.push(replies::headers(Side::Request, Vec::new())),
            _ => {
                self.shared.counters.count(Event::BodyNotSent);
                self.ask(PickedAt::Headers, Some(Vec::new()), None, false);
            }
        }
    }

    /// Gets a pick by the body, `None` for one that is not read.
    fn ask(
        &mut self,
        at: PickedAt,
        body: Option<Vec<Bytes>>,
        giving: Option<(Vec<Bytes>, bool)>,
        trailers: bool,
    ) {
        if let Some(pick) = &mut self.pick {
            // A proxy that sends two requests in one stream means the last.
            pick.booking.cancel();
            self.forget_prompt();
            if let Some(answer) = &mut self.answer {
                answer.detach();
            }
        }
        let count = |parts: &Vec<Bytes>| parts.iter().map(Bytes::len).sum::<usize>();
        let length = body.as_ref().map(count);
        let options = &self.shared.options;
        let rename = (self.headers.first(read::MODEL))
            .filter(|_| options.rewrite_model && length > Some(0))
            .map(str::to_owned);
        let filled = |names| self.headers.first_filled(names);
        let priority = filled(read::OBJECTIVE)
            .map(|objective| options.priorities.get(objective).copied().unwrap_or(0));
        self.asking = Some(Asking {
            at,
            prompt: length,
            giving,
            trailers,
        });
        let asked = Asked {
            body: None,
            exclude: Vec::new(),
            any_model: false,
            subset: self.subset.take().map(Subset::new),
            tenant: filled(read::TENANT).map(str::to_owned),
            priority,
            model: filled(read::MODEL).map(str::to_owned),
            shed_inflight: options
                .shed_inflight
                .filter(|_| priority.is_some_and(|priority| priority < 0)),
            fallbacks: options.fallbacks,
            headers: mem::take(&mut self.headers),
        };
        self.question = Some(Box::new(Question {
            asked,
            parts: body.unwrap_or_default(),
            rename,
        }));
    }

    // --- replies ---

    fn push(&mut self, reply: Reply) {
        self.outgoing.push_back(Outgoing::Reply(Box::new(reply)));
    }

    fn refuse(&mut self, refusal: &Refusal) {
        self.stop();
        self.release_body();
        self.shared.counters.count(refusal.event);
        self.push(replies::refusal(refusal));
    }

    /// Drops what was to be done.
    fn stop(&mut self) {
        self.is_over = true;
        self.passing.clear();
        self.outgoing.clear();
        self.question = None;
        self.asking = None;
        self.moving = None;
        self.answer_headers = None;
    }

    fn has_pick(&self) -> bool {
        self.pick.is_some() || self.answer_headers.is_some()
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.close();
    }
}
