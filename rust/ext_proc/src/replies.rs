//! Replies of the endpoint picker to the proxy, built from plain values.

use std::iter;

use bytes::Bytes;
use cachelb_serving::{Event, Outgoing, Refusal, SOURCE_HEADERS, json_text};

use crate::wire::{
    BodyMutation, BodyResponse, CommonResponse, HeaderAppendAction, HeaderMutation, HeaderValue,
    HeaderValueOption, HeadersResponse, HttpStatus, ImmediateResponse, Kind, Mutation, Reply,
    ReplyPart, StreamedBodyResponse, Struct, TrailersResponse, Value,
};

const DESTINATION: &str = "x-gateway-destination-endpoint";
const NAMESPACE: &str = "envoy.lb";

/// Bytes of a body in one message. Proxies want at most 64 KiB.
pub(crate) const CHUNK_BYTES: usize = 62_000;

/// Headers of a request or of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Request,
    Response,
}

/// The message that a pick is the reply to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PickedAt {
    Headers,
    /// Where the proxy holds the headers back until then.
    Body,
}

/// Lets headers pass, and sets some.
pub(crate) fn headers(side: Side, set: Vec<(String, String)>) -> Reply {
    headers_with(side, common(set))
}

/// Sets the picked endpoints in a header and, with the same value, in the dynamic metadata.
pub(crate) fn picked(
    at: PickedAt,
    endpoints: &[String],
    rank: Option<u32>,
    outgoing: Option<Outgoing>,
    body: Option<Bytes>,
) -> Reply {
    let endpoints = endpoints.join(",");
    let mut set = vec![(DESTINATION.to_owned(), endpoints.clone())];
    if let Some(rank) = rank {
        set.push(("x-data-parallel-rank".to_owned(), rank.to_string()));
    }
    if let Some(body) = &body {
        // The proxy checks the length against the header.
        set.push(("content-length".to_owned(), body.len().to_string()));
    }
    let mut removed = Vec::new();
    if let Some(outgoing) = outgoing {
        let named = outgoing.headers.into_iter();
        set.extend(named.map(|(name, value)| (name.to_owned(), value)));
        removed.extend(SOURCE_HEADERS.map(str::to_owned));
        removed.retain(|name| set.iter().all(|(named, _)| named != name));
    }
    let mut common = common(set);
    if let Some(mutation) = &mut common.header_mutation {
        mutation.remove_headers = removed;
    }
    common.clear_route_cache = true;
    common.body_mutation = body.map(|body| mutation(Mutation::Body(body.into())));
    let mut reply = match at {
        PickedAt::Headers => headers_with(Side::Request, common),
        PickedAt::Body => body_with(Side::Request, common),
    };
    let inner = structure(DESTINATION, Kind::StringValue(endpoints));
    reply.dynamic_metadata = Some(structure(NAMESPACE, Kind::StructValue(inner)));
    reply
}

/// Lets a part of a body pass that the proxy keeps.
pub(crate) fn body(side: Side) -> Reply {
    body_with(side, CommonResponse::default())
}

/// A part of a body, to be given back to a proxy that does not keep it. Each reply is made once the one before was
/// sent: a proxy may be slow to read them.
#[derive(Debug)]
pub(crate) struct Chunks {
    side: Side,
    body: Bytes,
    /// Whether not even trailers follow.
    end: bool,
    is_done: bool,
}

impl Chunks {
    pub(crate) fn new(side: Side, body: Bytes, end: bool) -> Self {
        Self {
            side,
            body,
            end,
            is_done: false,
        }
    }
}

impl Iterator for Chunks {
    type Item = Reply;

    /// Returns a reply for an empty part too.
    fn next(&mut self) -> Option<Reply> {
        if self.is_done {
            return None;
        }
        let chunk = self.body.split_to(self.body.len().min(CHUNK_BYTES));
        self.is_done = self.body.is_empty();
        let streamed = StreamedBodyResponse {
            body: chunk.into(),
            end_of_stream: self.end && self.is_done,
            ..Default::default()
        };
        let common = CommonResponse {
            body_mutation: Some(mutation(Mutation::StreamedResponse(streamed))),
            ..Default::default()
        };
        Some(body_with(self.side, common))
    }
}

/// Lets trailers pass.
pub(crate) fn trailers(side: Side) -> Reply {
    let trailers = TrailersResponse::default();
    reply(match side {
        Side::Request => ReplyPart::RequestTrailers(trailers),
        Side::Response => ReplyPart::ResponseTrailers(trailers),
    })
}

/// Answers the client in place of a worker, which ends the exchange.
pub(crate) fn refusal(refusal: &Refusal) -> Reply {
    let kind = refusal.event.name().replace('-', "_");
    let json = "application/json".to_owned();
    let mut set = vec![("content-type".to_owned(), json)];
    if let Some(seconds) = refusal.retry_after_s {
        let seconds = seconds.ceil().clamp(0.0, 1e9);
        set.push(("retry-after".to_owned(), format!("{seconds:.0}")));
    }
    set.extend(dropped(refusal.event));
    let text = format!(
        r#"{{"error": {{"message": {}, "type": {}, "code": {}}}}}"#,
        json_text(&refusal.message),
        json_text(&kind),
        refusal.status
    );
    reply(ReplyPart::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus {
            code: refusal.status.into(),
        }),
        headers: mutated(set),
        body: text.into_bytes(),
        details: format!("cachelb_{kind}"),
        ..Default::default()
    }))
}

/// Why a request was dropped, in the words of llm-d. This is the one thing that replies have beyond those in Python.
fn dropped(event: Event) -> Option<(String, String)> {
    let reason = match event {
        Event::Shed | Event::WorkersBusy | Event::Full | Event::TooManyStreams => {
            "rejected-saturated"
        }
        Event::NoWorker => "rejected-no-endpoints",
        Event::Draining => "rejected-shutting-down",
        _ => return None,
    };
    let name = "x-llm-d-request-dropped-reason".to_owned();
    Some((name, reason.to_owned()))
}

fn reply(part: ReplyPart) -> Reply {
    Reply {
        response: Some(part),
        ..Default::default()
    }
}

fn headers_with(side: Side, common: CommonResponse) -> Reply {
    let headers = HeadersResponse {
        response: Some(common),
    };
    reply(match side {
        Side::Request => ReplyPart::RequestHeaders(headers),
        Side::Response => ReplyPart::ResponseHeaders(headers),
    })
}

fn body_with(side: Side, common: CommonResponse) -> Reply {
    let body = BodyResponse {
        response: Some(common),
    };
    reply(match side {
        Side::Request => ReplyPart::RequestBody(body),
        Side::Response => ReplyPart::ResponseBody(body),
    })
}

fn common(set: Vec<(String, String)>) -> CommonResponse {
    CommonResponse {
        header_mutation: mutated(set),
        ..Default::default()
    }
}

fn mutation(mutation: Mutation) -> BodyMutation {
    BodyMutation {
        mutation: Some(mutation),
    }
}

fn mutated(set: Vec<(String, String)>) -> Option<HeaderMutation> {
    let set_headers: Vec<_> = set.into_iter().map(option).collect();
    (!set_headers.is_empty()).then(|| HeaderMutation {
        set_headers,
        ..Default::default()
    })
}

fn option((key, value): (String, String)) -> HeaderValueOption {
    let latin_1 = |letter| u8::try_from(letter).unwrap_or(b'?');
    let raw_value = if value.is_ascii() {
        value.into_bytes()
    } else {
        value.chars().map(latin_1).collect()
    };
    HeaderValueOption {
        header: Some(HeaderValue {
            key,
            raw_value,
            ..Default::default()
        }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd as i32,
        ..Default::default()
    }
}

fn structure(name: &str, kind: Kind) -> Struct {
    let value = Value { kind: Some(kind) };
    Struct {
        fields: iter::once((name.to_owned(), value)).collect(),
    }
}
