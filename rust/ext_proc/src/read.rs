//! Reading messages: headers, the subset, who served, and why the proxy answered by itself.

use cachelb_serving::{Headers, trimmed};

use crate::wire::{HeaderMap, Kind, Message, Value};

const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
const SUBSET: &str = "x-gateway-destination-endpoint-subset";
const NAMESPACE: &str = "envoy.lb";
const SERVED: &str = "x-gateway-destination-endpoint-served";
const CODE_DETAILS: &str = "response.code_details";

/// Headers that clients or gateways control a pick by, each with the name of llm-d and the older one of the inference
/// extension, which counts where the former is absent.
pub(crate) const TENANT: [&str; 2] = [
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
];
pub(crate) const OBJECTIVE: [&str; 2] = [
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
];
pub(crate) const MODEL: [&str; 2] = ["x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"];

/// Reads headers. A raw value is bytes, of which each is a character; the other kind counts where it is empty.
pub(crate) fn headers(map: Option<HeaderMap>) -> Headers {
    let headers = map.into_iter().flat_map(|map| map.headers);
    headers
        .map(|header| {
            let name = if header
                .key
                .bytes()
                .any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii())
            {
                header.key.to_lowercase()
            } else {
                header.key
            };
            let value = match header.raw_value {
                raw if raw.is_empty() => header.value,
                raw if raw.is_ascii() => String::from_utf8(raw).unwrap_or_default(),
                raw => raw.into_iter().map(char::from).collect(),
            };
            (name, value)
        })
        .collect()
}

/// Reads the addresses to choose from: a list, or names in one text where a filter copied them from a header. `None`
/// if the proxy names no subset.
pub(crate) fn subset(message: &Message) -> Option<Vec<String>> {
    let value = metadata(message, SUBSET_NAMESPACE, SUBSET)?;
    let entries = match &value.kind {
        Some(Kind::ListValue(list)) => list
            .values
            .iter()
            .flat_map(|value| split(text(value)))
            .collect(),
        _ => split(text(value)).collect(),
    };
    Some(entries)
}

/// Returns the parts between commas that are not blank.
pub(crate) fn split(text: &str) -> impl Iterator<Item = String> {
    text.split(',')
        .map(trimmed)
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
}

/// Reads the address that served the request, `None` if the proxy does not name it.
pub(crate) fn served(message: &Message) -> Option<&str> {
    metadata(message, NAMESPACE, SERVED)
        .map(text)
        .filter(|address| !address.is_empty())
}

/// Reads the source of the answer, `None` if the proxy does not name it.
pub(crate) fn code_details(message: &Message) -> Option<&str> {
    message
        .attributes
        .values()
        .find_map(|attributes| attributes.fields.get(CODE_DETAILS))
        .map(text)
}

/// Reads a status, `None` if it is no number. Absent means success.
pub(crate) fn status(headers: &Headers) -> Option<u16> {
    headers
        .get(":status")
        .map_or(Some(200), |status| trimmed(status).parse().ok())
}

fn metadata<'a>(message: &'a Message, namespace: &str, name: &str) -> Option<&'a Value> {
    let spaces = &message.metadata_context.as_ref()?.filter_metadata;
    spaces.get(namespace)?.fields.get(name)
}

fn text(value: &Value) -> &str {
    match &value.kind {
        Some(Kind::StringValue(text)) => text,
        _ => "",
    }
}
