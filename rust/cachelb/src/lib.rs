#![doc = include_str!("../README.md")]
//!
//! # What is here
//!
//! | item | for |
//! |---|---|
//! | [`Router`] | everything a gateway needs, safe to share between threads |
//! | [`Query`], [`Prompt`], [`Selection`] | one request, and the worker picked for it |
//! | [`BookingId`], [`Ending`], [`Usage`] | what became of it |
//! | [`selector`] | the selection step itself, for hosts with locks, hashes and lists of workers of their own |
//! | [`hashing`] | chained hashes of the blocks of a prompt |
//! | [`events`] | decoding of the KV events of engines |
//!
//! Time comes in, in milliseconds of any clock that does not go back; nothing here reads a clock, opens a socket or starts
//! a thread. The crates below this one are published for it alone and have no stable interface.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod apply;
mod engines;
mod error;
mod options;
mod query;
mod router;
mod state;
mod stats;

pub use cachelb_body::{BodyError, ErrorKind};
pub use cachelb_core::ids::{BookingId, Millis};
pub use cachelb_policy::Reason;
pub use cachelb_router::{Ending, Usage};
pub use error::{Error, Result};
pub use query::{Prompt, Query, Selection};
pub use router::{MOST_KEY_BYTES, Router};
pub use state::Restored;

/// The selection step over a fleet: eligibility, rule, booking and record as one.
///
/// [`Router`] wraps it; this is for hosts that bring their own lock, hashes and lists of workers. A minor
/// version may add fields to these types.
///
/// ```
/// use cachelb::selector::{NamespaceKey, Offer, Offers, Origin, Profile, Request, Selector, Settings, assemble};
/// use cachelb::{Ending, Millis, Usage, hashing::Namespace};
///
/// let parts = assemble("kv-aware", 7, NamespaceKey::of_process())?;
/// let settings = Settings { seed: 7, registered: true, ..Settings::default() };
/// let mut selector = Selector::new(settings, parts.pool);
/// for name in ["gpu0", "gpu1"] {
///     selector.workers_mut().add(name, Profile::default(), Millis(0));
/// }
/// let mut hashes = Vec::new();
/// let tokens: Vec<u32> = (0..64).collect();
/// parts.reader.hasher.hash(&tokens, Namespace::default(), &[], &mut hashes);
/// let request = Request {
///     blocks: Some((&hashes, Origin::Tokens)),
///     prompt_tokens: 64,
///     now: Millis(1),
///     ..Request::default()
/// };
/// let mut offers = Offers::new(["gpu0", "gpu1"].map(Offer::new).to_vec());
/// let pick = selector.select(&mut offers, &request)?;
/// let booking = pick.booking.expect("it was booked");
/// assert!(selector.close(booking, Ending::Completed, Usage::default(), Millis(2)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod selector {
    pub use cachelb_core::block_tracker::Origin;
    pub use cachelb_core::hashing::NamespaceKey;
    pub use cachelb_core::ids::{Millis, WorkerId};
    pub use cachelb_policy::{Content, Placements};
    pub use cachelb_router::{
        Assembly, Breaker, Eligibility, Offer, Offers, Pick, PoolId, PoolSettings, Profile,
        PromptBuffers, PromptReader, Request, Role, Selector, Settings, Veto, Wanted, Workers,
    };

    pub use crate::options::assemble;
}

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
