//! Large and malicious bodies: the same result, and work in proportion.

use super::{CHAT, try_stream};
use crate::canon::Canon;
use crate::scan::Reader;
use crate::{BodyReader, ErrorKind, Limits, Profile};

const MIB: usize = 1 << 20;

fn error(body: &[u8]) -> ErrorKind {
    try_stream(Profile::default(), CHAT, body).unwrap_err().kind
}

#[test]
fn sixteen_mebibytes_of_one_thing() {
    let fill = |part: &str| part.repeat(16 * MIB / part.len()).into_bytes();
    assert_eq!(error(&fill("[")), ErrorKind::TooDeep);
    assert_eq!(error(&fill("{\"a\":")), ErrorKind::TooDeep);
    assert_eq!(error(&fill("\\")), ErrorKind::Syntax);
    let text = [b"{\"messages\": \"".to_vec(), fill("\\")].concat();
    assert_eq!(error(&text[..16 * MIB]), ErrorKind::Truncated);
    let text = [b"{\"tools\": [".to_vec(), fill("\"\",")].concat();
    assert_eq!(error(&text[..16 * MIB]), ErrorKind::Truncated);
    let text = [b"{\"tools\": [1e".to_vec(), fill("9")].concat();
    assert_eq!(error(&text[..16 * MIB]), ErrorKind::Truncated);
    assert_eq!(
        error(&[fill(" "), vec![b' ']].concat()),
        ErrorKind::TooLarge
    );
}

#[test]
fn limits_are_counted() {
    let limits = Limits {
        parts: 2,
        ids: 3,
        ..Limits::default()
    };
    let mut reader = BodyReader::new(Profile::default(), limits);
    let mut kind = |path: &str, body: &str| {
        reader
            .read(path, body.as_bytes())
            .err()
            .map(|error| error.kind)
    };
    let part = r#"{"type":"text","text":"x"}"#;
    let message = format!(r#"{{"role":"user","content":[{part},{part}]}}"#);
    assert_eq!(kind(CHAT, &format!(r#"{{"messages":[{message}]}}"#)), None);
    let over = format!(r#"{{"messages":[{message},{message}]}}"#);
    assert_eq!(kind(CHAT, &over), Some(ErrorKind::TooManyParts));
    assert_eq!(
        kind(CHAT, r#"{"messages":[{},{},{}]}"#),
        Some(ErrorKind::TooManyParts)
    );
    let ids = "/v1/completions";
    assert_eq!(kind(ids, r#"{"prompt":[0,4294967295,2]}"#), None);
    assert_eq!(
        kind(ids, r#"{"prompt":[[1,2],[3,4]]}"#),
        Some(ErrorKind::TooManyIds)
    );
    for id in ["4294967296", "-1", "1.0", "1e3", "99999999999999999999999"] {
        let body = format!(r#"{{"prompt":[{id}]}}"#);
        assert_eq!(kind(ids, &body), Some(ErrorKind::TokenId), "{id}");
    }
    assert_eq!(kind(CHAT, "[]"), Some(ErrorKind::NotObject));
    assert_eq!(kind(CHAT, "{} {}"), Some(ErrorKind::Trailing));
    assert_eq!(kind(CHAT, r#"{"a":"\ud800"}"#), Some(ErrorKind::Surrogate));
}

/// Bodies that Python's `json.loads` takes are no invalid ones, and a byte order mark is nothing.
#[test]
fn forms_of_other_readers_are_not_invalid() {
    let forms: [(&[u8], ErrorKind); 9] = [
        (b"{\"a\":NaN}", ErrorKind::NotFinite),
        (b"{\"a\":[-Infinity]}", ErrorKind::NotFinite),
        (b"{\"a\":\"\xED\xA0\x80\"}", ErrorKind::Surrogate),
        (b"{\0\"\0", ErrorKind::Encoding),
        (b"\xFF\xFE{\0", ErrorKind::Encoding),
        (b"\0\0\0{", ErrorKind::Encoding),
        (b"{\"a\":nan}", ErrorKind::Syntax),
        (b"{\"a\":\"\xED\xA0\"}", ErrorKind::Utf8),
        (b"\xEF\xBB\xBF\xEF\xBB\xBF{}", ErrorKind::Syntax),
    ];
    for (body, kind) in forms {
        assert_eq!(error(body), kind, "{body:?}");
        let invalid = matches!(kind, ErrorKind::Syntax | ErrorKind::Utf8);
        assert_eq!(kind.is_invalid(), invalid);
    }
    let mut reader = BodyReader::new(Profile::default(), Limits::default());
    reader.read(CHAT, b"\xEF\xBB\xBF{}").unwrap();
}

fn canonical(text: &str) -> Canon {
    let mut canon = Canon::default();
    canon
        .put_value(&mut Reader::new(text.as_bytes(), 128))
        .unwrap();
    canon
}

/// Keys that come twice, in every object down to the deepest, before a long value: it is copied a constant number of
/// times, which the room that was taken shows.
#[test]
fn nested_doubles_are_not_copied_at_every_depth() {
    let long = "x".repeat(4 * MIB);
    for (open, close) in [("{\"a\":1,\"a\":", "}"), ("{\"a\":1,\"b\":2,\"a\":", "}")] {
        let mut text = format!("\"{long}\"");
        let mut expected = text.clone();
        for _ in 0..120 {
            text = format!("{open}{text}{close}");
            expected = if open.contains('b') {
                format!("{{\"a\":{expected},\"b\":2}}")
            } else {
                format!("{{\"a\":{expected}}}")
            };
        }
        let canon = canonical(&text);
        assert!(canon.bytes() == canonical(&expected).bytes());
        assert!(canon.room() < 17 * MIB, "{}", canon.room());
    }
}

#[test]
fn a_million_keys() {
    let entries = |step: usize| -> Vec<String> {
        (0..1_000_000)
            .map(|at| format!("\"k{}\":{at}", at / step))
            .collect()
    };
    let unique = format!("{{{}}}", entries(1).join(","));
    assert!(canonical(&unique).end() > 8 * MIB);
    let doubles = format!("{{{}}}", entries(2).join(","));
    let last: Vec<String> = (0..500_000)
        .map(|at| format!("\"k{at}\":{}", at * 2 + 1))
        .collect();
    let last = canonical(&format!("{{{}}}", last.join(",")));
    assert!(canonical(&doubles).bytes() == last.bytes());
}

/// Results between texts: the fields of the message come once, so that the arena stays in proportion.
#[test]
fn a_long_name_is_not_repeated() {
    let blocks = r#"{"type":"text","text":"a"},{"type":"tool_result","tool_use_id":"1"}"#;
    let blocks = vec![blocks; 10_000].join(",");
    let name = "n".repeat(MIB);
    let body =
        format!(r#"{{"messages":[{{"role":"user","name":"{name}","content":[{blocks}]}}]}}"#);
    let mut reader = BodyReader::new(Profile::default(), Limits::default());
    reader.read(super::MESSAGES, body.as_bytes()).unwrap();
    assert!(reader.room() < 8 * body.len());
}

#[test]
fn nothing_that_is_printed_has_content() {
    let mut reader = BodyReader::new(Profile::default(), Limits::default());
    let body = br#"{"messages":[{"role":"user","content":"secret"}],"model":"secret"}"#;
    let shown = {
        let body = reader.read(CHAT, body).unwrap();
        format!("{body:?} {:?}", body.longest())
    };
    let shown = format!(
        "{shown} {reader:?} {}",
        reader.read(CHAT, b"{\"secret\"").unwrap_err()
    );
    assert!(
        !shown.contains("secret") && !shown.contains("115, 101"),
        "{shown}"
    );
    assert!(shown.ends_with("truncated at byte 9"), "{shown}");
}
