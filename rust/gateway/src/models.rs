//! `/v1/models`: the lists of all workers as one.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use cachelb_serving::{Event, Host, Refusal};
use http_body::Body as _;
use hyper::{HeaderMap, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::answer::Answer;
use crate::refusal::{json_answer, refusal};
use crate::shared::Shared;
use crate::transport::upstream::Whole;

const LIMIT: Duration = Duration::from_secs(5);
const MOST_BYTES: usize = 4 << 20;

/// Lists that are read at a time: a client's request costs one of each worker.
static READS: Semaphore = Semaphore::const_new(64);

/// Answers a list, or the entry of the model that the path names, with the client's own credentials. Where several
/// workers have a model, the first one's entry is shown.
pub(crate) async fn answer<H: Host>(
    shared: &Arc<Shared<H>>,
    path: &str,
    headers: &HeaderMap,
) -> Result<Response<Answer>, Refusal> {
    let mut reads = JoinSet::new();
    for (at, worker) in shared.host.workers().into_iter().enumerate() {
        let (shared, headers) = (Arc::clone(shared), headers.clone());
        reads.spawn(async move {
            (
                at,
                read(&shared, &worker, "/v1/models", &headers, LIMIT).await,
            )
        });
    }
    let mut answers = reads.join_all().await;
    answers.sort_by_key(|(at, _)| *at);
    let (mut names, mut found) = (HashSet::new(), Vec::new());
    let mut refused = None;
    let mut is_answered = false;
    for (status, body) in answers.into_iter().filter_map(|(_, answer)| answer) {
        is_answered |= status == StatusCode::OK;
        if status == StatusCode::OK {
            for entry in entries(&body) {
                let id = entry.get("id").and_then(Value::as_str);
                if id.is_some_and(|id| names.insert(id.to_owned())) {
                    found.push(entry);
                }
            }
        }
        refused = refused.or(Some((status, body)));
    }
    let name = path
        .strip_prefix("/v1/models")
        .unwrap_or_default()
        .trim_matches('/');
    let name = percent_decode_str(name).decode_utf8_lossy();
    match refused {
        None => Err(refusal(Event::NoWorker, 503, "no worker is available")),
        Some((status, body)) if !is_answered => Ok(json_answer(status, body.freeze())),
        _ if name.is_empty() => Ok(json_answer(
            StatusCode::OK,
            json!({"object": "list", "data": found}).to_string(),
        )),
        _ => match found.iter().find(|entry| entry["id"] == *name) {
            Some(entry) => Ok(json_answer(StatusCode::OK, entry.to_string())),
            None => Err(Refusal::no_model()),
        },
    }
}

/// Gets a page of a worker, within bounds; `None` if it does not answer.
pub(crate) async fn read<H: Host>(
    shared: &Shared<H>,
    worker: &str,
    path: &str,
    headers: &HeaderMap,
    limit: Duration,
) -> Option<(StatusCode, BytesMut)> {
    let reading = async {
        let _read = READS.acquire().await.ok()?;
        let upstream = shared.upstreams.of(&*shared.host, worker)?;
        let mut is_new = false;
        let (mut response, lent) = loop {
            let mut request = Request::new(Whole(None));
            request.headers_mut().clone_from(headers);
            upstream.target.address(&mut request, path).ok()?;
            let mut lent = shared.upstreams.lend(&upstream, is_new).await.ok()?;
            match lent.send(request).await {
                Ok(response) => break (response, lent),
                Err(_) if lent.is_used => is_new = true,
                Err(_) => return None,
            }
        };
        let mut body = BytesMut::new();
        while let Some(frame) =
            std::future::poll_fn(|cx| std::pin::Pin::new(response.body_mut()).poll_frame(cx)).await
        {
            if let Ok(data) = frame.ok()?.into_data() {
                body.extend_from_slice(&data);
            }
            if body.len() > MOST_BYTES {
                return None;
            }
        }
        lent.give_back();
        Some((response.status(), body))
    };
    timeout(limit, reading).await.ok().flatten()
}

/// Returns the models in a list; anything else is passed over.
fn entries(body: &[u8]) -> Vec<Value> {
    let document: Value = serde_json::from_slice(body).unwrap_or_default();
    document
        .get("data")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default()
}
