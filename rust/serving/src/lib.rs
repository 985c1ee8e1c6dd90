//! Shared by the servers in front of a router: the interface to it, addresses, headers, usage of answers, memory limits,
//! counters and certificates.

pub mod address;
mod budget;
mod counters;
mod error;
mod headers;
mod host;
mod picking;
mod rewrite;
mod tls;
mod usage;

pub use budget::{Budget, FREE_BYTES, Hold};
pub use counters::{Counters, Event};
pub use error::StartError;
pub use headers::{Headers, UnknownHeader, exposed, retry_after, trimmed};
pub use host::{
    Asked, Booked, Booking, Host, LARGE_BODY_BYTES, Moved, Outgoing, Picked, Refusal, Usage,
    off_thread,
};
pub use picking::{Chosen, Known, Query, RETRY_AFTER_S, Select, Selected, pick};
pub use rewrite::{SOURCE_HEADERS, json_text, with_model};
pub use tls::{Certificates, Tls, TlsError, TlsVersion};
pub use usage::PassingAnswer;
