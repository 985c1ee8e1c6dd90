//! Newtypes for ids, hashes and times.

use std::hash::{BuildHasherDefault, Hasher};

/// One incarnation of a worker: a dense slot (reused after removal) and the generation that makes a reused slot
/// distinguishable. A removed worker's id is refused by every write, so it cannot come back as a ghost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId {
    /// Dense index into per-worker columns.
    pub slot: u32,
    /// Incarnation count of the slot.
    pub generation: u32,
}

/// Names one booking; an id of a closed booking names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BookingId {
    /// Entry of the slab.
    pub entry: u32,
    /// Use count of the entry.
    pub generation: u32,
}

/// Chained hash of a block and all blocks before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct SequenceHash(pub u64);

/// Names a route that a policy learned, the same at all routers of one seed: the hash of a [`SequenceHash`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteKey(pub u64);

/// For maps whose keys are uniform hashes, such as [`SequenceHash`].
pub type AsIs = BuildHasherDefault<KeyItself>;

/// The key is its hash.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeyItself(u64);

impl Hasher for KeyItself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// Monotonic milliseconds, given by the caller. The crate has no clock of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Millis(pub u64);

crate::named! {
    /// Where a block lies.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    Medium {
        /// Device memory.
        Gpu = "gpu",
        /// Assumed to be on its way into device memory, without an event of the engine.
        Speculative = "speculative",
        /// Host memory.
        Cpu = "cpu",
        /// Local or shared disk.
        Disk = "disk",
    }
}

impl Medium {
    /// Those an engine can name.
    pub const ANNOUNCED: [Self; 3] = [Self::Gpu, Self::Cpu, Self::Disk];

    /// The announced medium named `name` in any case, or `None` for an unknown one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ANNOUNCED
            .into_iter()
            .find(|m| m.name().eq_ignore_ascii_case(name))
    }
}
