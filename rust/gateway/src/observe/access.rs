//! The log of requests: a line each, as JSON or text, written by a thread of its own.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime};

use cachelb_serving::{Counters, Event};
use hyper::header::HeaderValue;
use hyper::{Method, Uri};
use serde_json::json;

/// Lines that wait to be written. More are dropped and counted.
const MOST_LINES: usize = 8192;

/// The form of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessFormat {
    /// An object of JSON.
    Json,
    /// Words of `name=value`.
    Text,
}

/// Where requests are logged.
#[derive(Debug, Clone)]
pub struct AccessLog {
    /// The file, to whose end lines are written; `None` for the standard output.
    pub path: Option<PathBuf>,
    /// The form of lines.
    pub format: AccessFormat,
}

/// A request, as it is logged.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) id: HeaderValue,
    pub(crate) client: Option<SocketAddr>,
    pub(crate) method: Method,
    /// Logged without its query, which may hold secrets.
    pub(crate) uri: Uri,
    pub(crate) worker: Arc<str>,
    pub(crate) model: Arc<str>,
    /// 0 without an answer.
    pub(crate) status: u16,
    pub(crate) attempts: usize,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) is_complete: bool,
}

/// The end of the log at which lines come in.
#[derive(Debug)]
pub(crate) struct Access {
    lines: SyncSender<String>,
    format: AccessFormat,
}

impl Access {
    /// Opens the log. Its thread ends with this end.
    pub(crate) fn open(log: &AccessLog) -> io::Result<Self> {
        let sink: Box<dyn Write + Send> = match &log.path {
            None => Box::new(io::stdout()),
            Some(path) => Box::new(OpenOptions::new().create(true).append(true).open(path)?),
        };
        let (lines, written) = sync_channel(MOST_LINES);
        thread::Builder::new()
            .name("cachelb-access-log".to_owned())
            .spawn(move || write_all(&written, sink))?;
        Ok(Self {
            lines,
            format: log.format,
        })
    }

    pub(crate) fn write(
        &self,
        line: &Line,
        first: Option<Duration>,
        whole: Duration,
        counters: &Counters,
    ) {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let time = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let fields = json!({
            "time": ms(time) / 1e3,
            "id": line.id.to_str().unwrap_or_default(),
            "client": line.client.map(|client| client.to_string()),
            "method": line.method.as_str(),
            "path": line.uri.path(),
            "status": line.status,
            "complete": line.is_complete,
            "worker": &*line.worker,
            "model": &*line.model,
            "attempts": line.attempts,
            "ttft_ms": first.map(ms),
            "latency_ms": ms(whole),
            "bytes_in": line.bytes_in,
            "bytes_out": line.bytes_out,
        });
        let text = match self.format {
            AccessFormat::Json => fields.to_string(),
            AccessFormat::Text => {
                let mut text = String::new();
                for (name, value) in fields.as_object().into_iter().flatten() {
                    let space = if text.is_empty() { "" } else { " " };
                    // Quoted as in JSON, so that no value can pass for another one.
                    let _ = write!(text, "{space}{name}={value}");
                }
                text
            }
        };
        if self.lines.try_send(text).is_err() {
            counters.count(Event::LineDropped);
        }
    }
}

fn write_all(lines: &Receiver<String>, sink: Box<dyn Write + Send>) {
    let mut sink = BufWriter::new(sink);
    while let Ok(line) = lines.recv() {
        // A log that cannot be written loses lines, and holds up nothing.
        let _ = writeln!(sink, "{line}");
        for line in lines.try_iter().take(MOST_LINES) {
            let _ = writeln!(sink, "{line}");
        }
        let _ = sink.flush();
    }
}
