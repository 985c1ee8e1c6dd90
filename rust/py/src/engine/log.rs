//! Lines of the log of Python, also from threads that do not have the GIL.

use cachelb::selector::{News, Silence};
use cachelb_body::Notice;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Logs a text with its arguments by the logger of that name, at level "info" or "warning".
pub fn log(logger: &str, level: &str, text: &str, args: &[&str]) -> PyResult<()> {
    Python::attach(|py| {
        let logging = py.import(intern!(py, "logging"))?;
        let logger = logging.call_method1(intern!(py, "getLogger"), (logger,))?;
        let line = PyTuple::new(py, [&[text], args].concat())?;
        logger.call_method1(level, line).map(drop)
    })
}

/// Logs what was found out about a worker.
pub fn log_news(key: &str, news: &News) -> PyResult<()> {
    let (level, found) = match news {
        News::Silence(None) => ("info", " is reachable again".to_owned()),
        News::Silence(Some(why)) => {
            let why = match why {
                Silence::Page => "its metrics page did not answer three times in a row",
                Silence::Tokens => "two requests in a row were given up without a first token",
            };
            let then = "requests go to other workers while there are any";
            ("warning", format!(" is unreachable: {why}; {then}"))
        }
        News::Contradiction(fact, stated, learned) => {
            let found = match *fact {
                "kv_blocks" => format!(
                    "about {learned:.0} KV blocks by its load reports, which count from now on; kv_blocks is \
                     {stated:.0}: correct it"
                ),
                "block_size" => format!(
                    "blocks of {learned:.0} tokens by its KV events, which count; block_size is {stated:.0} by its \
                     metrics"
                ),
                _ => format!(
                    "{learned:.2} times as fast as others of its gpu by its first tokens, which count from now on: \
                     correct gpu"
                ),
            };
            ("warning", format!(": {found}"))
        }
    };
    log(
        "cachelb.router",
        level,
        &format!("worker %s{found}"),
        &[key],
    )
}

/// Logs what the reports of an engine led to.
pub fn log_notice(notice: Notice) -> PyResult<()> {
    let (level, text, value) = match notice {
        Notice::Switched(layout) => (
            "info",
            "the cached tokens that engines report fit another layout of prompts, used from now on: %s",
            layout.to_string(),
        ),
        Notice::Contradicted(layout) => (
            "warning",
            "the cached tokens that engines report contradict RequestBodies; they fit: %s",
            layout.to_string(),
        ),
        Notice::VolatileHead(bytes) => (
            "warning",
            "the first %s bytes of a system text change from request to request over an equal rest; engines that \
             render them share nothing behind them: have the client or a proxy leave them out",
            bytes.to_string(),
        ),
    };
    log("cachelb.bodies", level, text, &[&value])
}
