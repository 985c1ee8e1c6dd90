//! Heads of requests as they come, beside the server of HTTP: framing that it accepts and another reader may not.

/// Bytes of a head.
pub(crate) const MOST_HEAD: usize = 64 << 10;

/// The framing of the request that a server has just read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// The head was not seen alone: bytes before it belong to another request, or it is one of HTTP/2.
    Unseen,
    /// Its body, if it has one, has a length.
    Sized,
    /// Its body comes in chunks. Their end is not seen, so the connection closes behind the answer.
    Chunked,
    /// It must be refused.
    Bad(&'static str),
}

/// Follows the heads of a connection, each of which begins where the request before it ends.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    head: Vec<u8>,
    state: State,
    /// Bytes of the body that are still to come; `None` where their number is unknown, or more came.
    left: Option<usize>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Body(Option<Framing>),
    Lost,
}

impl Tap {
    /// Takes the next bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        match self.state {
            State::Head => {
                let before = self.head.len().saturating_sub(3);
                self.head.extend_from_slice(bytes);
                let start = self
                    .head
                    .iter()
                    .take_while(|byte| b"\r\n".contains(byte))
                    .count();
                let from = before.max(start);
                let Some(end) = find(&self.head[from..], b"\r\n\r\n") else {
                    if self.head.len() > MOST_HEAD {
                        self.head = Vec::new();
                        self.state = State::Lost;
                    }
                    return;
                };
                let (framing, length) = framing(&self.head[start..from + end]);
                self.left =
                    length.and_then(|length| length.checked_sub(self.head.len() - from - end - 4));
                self.state = State::Body(Some(framing));
                self.head.clear();
            }
            State::Body(_) => self.left = self.left.and_then(|left| left.checked_sub(bytes.len())),
            State::Lost => {}
        }
    }

    /// Returns the framing of the request that was read, once.
    pub(crate) fn take(&mut self) -> Framing {
        match &mut self.state {
            State::Body(framing) => framing.take().unwrap_or(Framing::Unseen),
            // The server found an end of the head that has no carriage return.
            State::Head => Framing::Bad("lines of the head must end with CR LF"),
            State::Lost => Framing::Unseen,
        }
    }

    /// Begins the next head, as the answer to the request before is over.
    pub(crate) fn next(&mut self) {
        let is_followed = matches!(self.state, State::Body(_)) && self.left == Some(0);
        self.state = if is_followed {
            State::Head
        } else {
            State::Lost
        };
    }

    /// Whether any byte of a head came.
    pub(crate) fn has_begun(&self) -> bool {
        !self.head.is_empty()
    }
}

/// Returns the framing that a head names, and the length of the body.
fn framing(head: &[u8]) -> (Framing, Option<usize>) {
    if head.starts_with(b"PRI * HTTP/2.0") {
        return (Framing::Unseen, None);
    }
    let (mut length, mut codings) = (None, Vec::new());
    for line in head.split(|byte| *byte == b'\n').skip(1) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            length = std::str::from_utf8(value)
                .ok()
                .and_then(|text| text.parse().ok())
                .or(Some(0));
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            codings.push(value);
        }
    }
    let has_bare_end = head
        .iter()
        .enumerate()
        .any(|(at, byte)| *byte == b'\n' && (at == 0 || head[at - 1] != b'\r'));
    if has_bare_end {
        return (
            Framing::Bad("lines of the head must end with CR LF"),
            Some(0),
        );
    }
    match (length, &codings[..]) {
        (length, []) => (Framing::Sized, length.or(Some(0))),
        (None, [coding]) if coding.eq_ignore_ascii_case(b"chunked") => (Framing::Chunked, None),
        (None, _) => (
            Framing::Bad("the only transfer coding of a request is one \"chunked\""),
            Some(0),
        ),
        (Some(_), _) => (
            Framing::Bad("a request has a length or comes in chunks, not both"),
            Some(0),
        ),
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_followed_however_they_are_cut() {
        let sized = b"\r\nPOST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".as_slice();
        for (bytes, expected, is_followed) in [
            (sized, Framing::Sized, true),
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Framing::Sized, true),
            (b"GET / HTTP/1.1\r\n\r\nGET", Framing::Sized, false),
            (
                b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                Framing::Chunked,
                false,
            ),
            (
                b"POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
                Framing::Bad("the only transfer coding of a request is one \"chunked\""),
                true,
            ),
            (b"PRI * HTTP/2.0\r\n\r\nSM", Framing::Unseen, false),
            (
                b"POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-ENCODING: x\r\n\r\n",
                Framing::Bad("a request has a length or comes in chunks, not both"),
                true,
            ),
            (
                b"GET / HTTP/1.1\nHost: a\r\n\r\n",
                Framing::Bad("lines of the head must end with CR LF"),
                true,
            ),
            (
                b"GET / HTTP/1.1\nHost: a\n\n",
                Framing::Bad("lines of the head must end with CR LF"),
                false,
            ),
        ] {
            for size in 1..=bytes.len() {
                let mut tap = Tap::default();
                bytes.chunks(size).for_each(|chunk| tap.feed(chunk));
                assert_eq!(tap.take(), expected, "{} by {size}", bytes.escape_ascii());
                tap.next();
                assert_eq!(
                    tap.state == State::Head,
                    is_followed,
                    "{}",
                    bytes.escape_ascii()
                );
            }
        }
    }

    #[test]
    fn heads_behind_bytes_of_another_request_are_unseen() {
        let mut tap = Tap::default();
        tap.feed(b"GET / HTTP/1.1\r\n\r\nGET / HT");
        assert_eq!((tap.take(), tap.take()), (Framing::Sized, Framing::Unseen));
        tap.next();
        tap.feed(b"TP/1.1\r\n\r\n");
        assert_eq!(tap.take(), Framing::Unseen);
    }
}
