//! Headers between two connections: those that pass in each direction.

use std::collections::HashSet;

use cachelb_serving::Headers;
use hyper::HeaderMap;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, DATE, EXPECT, HOST, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SERVER, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];
const UNNAMED: [&str; 2] = ["keep-alive", "proxy-connection"];

/// Headers that never pass.
#[derive(Debug)]
pub(crate) struct Filter {
    untrusted: HashSet<HeaderName>,
}

impl Filter {
    pub(crate) fn new(untrusted: &[String]) -> Self {
        let names = untrusted.iter().filter_map(|name| name.parse().ok());
        Self {
            untrusted: names.collect(),
        }
    }

    /// Leaves the headers that a worker gets of a client's. The answer comes as it is asked for here, or without an
    /// encoding: where it `is_read` on its way, and where the client asks for none, for which any may be sent.
    pub(crate) fn request(&self, headers: &mut HeaderMap, is_read: bool) {
        self.strip(headers);
        for name in [HOST, CONTENT_LENGTH, EXPECT] {
            headers.remove(name);
        }
        if is_read || !headers.contains_key(ACCEPT_ENCODING) {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
    }

    /// Leaves the headers that a client gets of a worker's.
    pub(crate) fn answer(&self, headers: &mut HeaderMap) {
        self.strip(headers);
        for name in [DATE, SERVER] {
            headers.remove(name);
        }
    }

    fn strip(&self, headers: &mut HeaderMap) {
        if headers.contains_key(CONNECTION) {
            let named: Vec<HeaderName> = (headers.get_all(CONNECTION).iter())
                .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
                .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
                .collect();
            for name in named {
                headers.remove(name);
            }
        }
        for name in &HOP_BY_HOP {
            headers.remove(name);
        }
        for name in UNNAMED {
            headers.remove(name);
        }
        for name in &self.untrusted {
            headers.remove(name);
        }
    }
}

/// Returns the headers as the router reads them, with the path. Each byte of a value is a character.
pub(crate) fn readable(path: &str, headers: &HeaderMap) -> Headers {
    let text = |value: &HeaderValue| match value.to_str() {
        Ok(text) => text.to_owned(),
        Err(_) => value
            .as_bytes()
            .iter()
            .map(|byte| char::from(*byte))
            .collect(),
    };
    let path = [(":path".to_owned(), path.to_owned())];
    let rest = headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), text(value)));
    path.into_iter().chain(rest).collect()
}

/// Whether a request asks for another protocol on its connection.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    let asks = |value: &HeaderValue| {
        let mut tokens = value.as_bytes().split(|byte| *byte == b',');
        tokens.any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
    };
    headers.contains_key(UPGRADE) && headers.get_all(CONNECTION).iter().any(asks)
}
