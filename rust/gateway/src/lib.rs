//! An HTTP gateway in front of LLM engines: forwards each request to the worker that its host picks, and streams the
//! answer.
//!
//! [`Started::start`] serves clients and operators on threads of its own. The router is the host's, as are the pages
//! of an [`Operator`]; this crate owns connections, bytes, limits and times. A booking ends with its request, whatever
//! happens.

mod admin;
mod answer;
mod connection;
mod exchange;
mod forwarded;
mod headers;
mod health;
mod models;
mod observe;
mod options;
mod refusal;
mod server;
mod shared;
mod tapped;
mod transport;
mod tunnel;

pub use admin::{Call, Operator, Page};
pub use observe::access::{AccessFormat, AccessLog};
pub use observe::metrics::{BOUNDS_S, Histogram, Series};
pub use options::{Listen, Options};
pub use server::Started;
pub use transport::upstream::{Target, check_worker};
