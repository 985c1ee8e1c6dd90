//! Python module `cachelb._core`.
#![allow(
    clippy::doc_markdown,
    clippy::doc_link_with_quotes,
    reason = "docstrings are the stub's, in Markdown with Python"
)]

/// The docstring that the stub has for a name.
macro_rules! stub {
    ($($name:literal),+) => {
        include_str!(concat!(env!("OUT_DIR"), "/docs/", $($name),+))
    };
}

mod args;
mod arguments;
mod bodies;
mod clock;
mod custom;
mod decision;
mod engine;
mod error;
mod events;
#[cfg(feature = "ext-proc")]
mod ext_proc;
mod front;
#[cfg(feature = "gateway")]
mod gateway;
mod items;
mod learned;
mod options;
mod policy;
mod router;
#[cfg(feature = "serving")]
mod serving;
#[cfg(feature = "sim")]
mod sim;
mod structures;
mod workers;

use pyo3::prelude::*;

/// Native core of cachelb.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use crate::bodies::{message_ends, read_body};
    #[pymodule_export]
    use crate::custom::{FleetView, RequestView};
    #[pymodule_export]
    use crate::decision::Decision;
    #[pymodule_export]
    use crate::events::decode_kv_events;
    #[pymodule_export]
    use crate::events::polled::PolledEvents;
    #[cfg(feature = "ext-proc")]
    #[pymodule_export]
    use crate::ext_proc::NativeEndpointPicker;
    #[cfg(feature = "gateway")]
    #[pymodule_export]
    use crate::gateway::{NativeGateway, check_worker};
    #[pymodule_export]
    use crate::learned::LearnedModel;
    #[pymodule_export]
    use crate::options::policy_table;
    #[pymodule_export]
    use crate::policy::NativePolicy;
    #[pymodule_export]
    use crate::router::{AdmissionGate, Fleet, HeldRequest, NativeRouter};
    #[cfg(feature = "sharing")]
    #[pymodule_export]
    use crate::router::{SnapshotPieces, message_origin};
    #[cfg(feature = "serving")]
    #[pymodule_export]
    use crate::serving::fork_gate;
    #[cfg(feature = "sim")]
    #[pymodule_export]
    use crate::sim::{GroupedEngineCache, SimWorkload, simulate};
    #[pymodule_export]
    use crate::structures::hashing::{Namespace, hash_blocks, hash_text};
    #[pymodule_export]
    use crate::structures::index::BlockTracker;
    #[pymodule_export]
    use crate::structures::matched::Match;
    #[pymodule_export]
    use crate::structures::radix::{PrefixMatch, RadixTree};
    #[pymodule_export]
    use crate::workers::worker_name;
}

/// Python allocates its objects at multiples of 16 bytes, whatever alignment a type asks for.
const _: () = {
    const MOST: usize = 16;
    assert!(align_of::<decision::Decision>() <= MOST);
    assert!(align_of::<structures::index::BlockTracker>() <= MOST);
    assert!(align_of::<learned::LearnedModel>() <= MOST);
    assert!(align_of::<policy::NativePolicy>() <= MOST);
    assert!(align_of::<events::polled::PolledEvents>() <= MOST);
    assert!(align_of::<structures::radix::RadixTree>() <= MOST);
    assert!(align_of::<router::NativeRouter>() <= MOST);
    assert!(align_of::<router::Fleet>() <= MOST);
    #[cfg(feature = "sharing")]
    assert!(align_of::<router::SnapshotPieces>() <= MOST);
    #[cfg(feature = "sim")]
    assert!(align_of::<sim::SimWorkload>() <= MOST);
    assert!(align_of::<custom::FleetView>() <= MOST);
    assert!(align_of::<custom::RequestView>() <= MOST);
};
