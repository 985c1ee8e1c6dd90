//! The peer to copy blocks from, as the request of a decision names it to the engine.

use std::iter;

use cachelb::selector::{Form, Pick, Selector, host_and_port};
use cachelb_serving::{Outgoing, SOURCE_HEADERS, json_text};

/// How the request of a pick is sent, whose decision has an id; `None` without peer groups.
pub fn outgoing(selector: &Selector, pick: &Pick, id: impl Fn() -> String) -> Option<Outgoing> {
    let mut outgoing = selector.has_peers().then(Outgoing::default)?;
    let Some(source) = selector.named_source(pick) else {
        return Some(outgoing);
    };
    outgoing.key = Some(source.key.into());
    let address = host_and_port(&source.address).filter(|_| source.form == Form::Vllm);
    if let Some((host, port)) = address {
        let (host, id) = (json_text(host.trim_matches(['[', ']'])), json_text(&id()));
        outgoing.params = Some(format!(
            r#"{{"kv_request_id": {id}, "remote_host": {host}, "remote_port": {port}}}"#
        ));
    } else {
        let rank = source.rank.map(|rank| rank.to_string());
        let values = iter::once(source.address).chain(rank);
        outgoing.headers = SOURCE_HEADERS.into_iter().zip(values).collect();
    }
    Some(outgoing)
}
