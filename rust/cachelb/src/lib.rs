#![doc = include_str!("../README.md")]
//!
//! # Contents
//!
//! | item | for |
//! |---|---|
//! | [`Router`] | everything a gateway needs, safe to share between threads |
//! | [`Query`], [`Prompt`], [`Selection`] | one request, and the worker picked for it |
//! | [`BookingId`], [`Ending`], [`Usage`] | its outcome |
//! | [`selector`] | the selection step itself, for hosts with locks, hashes and lists of workers of their own |
//! | [`hashing`] | chained hashes of the blocks of a prompt |
//! | [`events`] | decoding of the KV events of engines |
//!
//! Time comes in, in milliseconds of any clock that does not go back; nothing here reads a clock, opens a socket or starts
//! a thread. The crates below this one are published for it alone and have no stable interface.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod admission;
mod assembly;
mod bookings;
mod changes;
mod error;
mod feeds;
mod fleet;
mod gates;
mod indexes;
mod request;
mod router;
mod select;
mod settings;
#[cfg(feature = "sharing")]
mod sharing;

pub use cachelb_body::{BodyError, ErrorKind};
pub use cachelb_core::ids::{BookingId, Millis};
pub use cachelb_policy::Reason;
pub use error::{Error, Result};
pub use fleet::about::About;
pub use router::edit::{Edit, Registration};
pub use router::query::{Prompt, Query, Selection};
pub use router::registry::{Ranks, Registry};
pub use router::{MOST_KEY_BYTES, Router};
pub use selector::{Ending, Usage};
#[cfg(feature = "sharing")]
pub use sharing::Restored;

use changes::LocalChange;
#[cfg(not(feature = "sharing"))]
use changes::Shared;
use selector::Selector;
#[cfg(feature = "sharing")]
use sharing::Shared;

pub mod selector;

/// Chained hashes of the blocks of a prompt.
///
/// ```
/// use cachelb::hashing::{DEFAULT_SEED, Hasher, Namespace, Scheme};
///
/// let hasher = Hasher::new(Scheme::Chained, 16, DEFAULT_SEED)?;
/// let (mut long, mut short) = (Vec::new(), Vec::new());
/// let tokens: Vec<u32> = (0..40).collect();
/// hasher.hash(&tokens, Namespace::default(), &[], &mut long);
/// hasher.hash(&tokens[..20], Namespace::default(), &[], &mut short);
/// assert_eq!((long.len(), short.len(), short[0]), (2, 1, long[0]));
/// # Ok::<(), cachelb::CoreError>(())
/// ```
pub mod hashing {
    pub use cachelb_core::hashing::{
        DEFAULT_SEED, Hasher, Identity, MmObject, Namespace, NamespaceKey, Scheme,
    };
    pub use cachelb_core::ids::SequenceHash;
}

/// Decoding of the KV events of engines.
///
/// [`Router::apply_events`] decodes and applies them in one step.
///
/// ```
/// use cachelb::events::{Batch, Event, decode};
///
/// // An array of a time and of one event, `AllBlocksCleared`, in msgpack.
/// let mut payload = vec![0x92, 0xca, 0, 0, 0, 0, 0x91, 0x91, 0xb0];
/// payload.extend_from_slice(b"AllBlocksCleared");
/// let mut batch = Batch::default();
/// decode(&payload, &mut batch)?;
/// assert!(matches!(batch.events[..], [Event::Clear]));
/// # Ok::<(), cachelb::events::Undecodable>(())
/// ```
pub mod events {
    pub use cachelb_events::{
        Attention, Batch, Event, Extra, MAX_PAYLOAD, Name, Place, Remove, Span, Store, Undecodable,
        decode,
    };
}

/// The error of the parts below the [`Router`].
pub use cachelb_core::Error as CoreError;

#[cfg(test)]
mod tests;
