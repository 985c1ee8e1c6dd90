//! Holders of the parts of every node, and the order of their use.

use super::Shape;
use super::nodes::{Node, Nodes};
use super::sets::LaneSets;
use crate::epoch_lru::expiry::Expiry;
use crate::epoch_lru::lanes::{Lanes, medium_of};
use crate::epoch_lru::records::{Record, Records};
use crate::ids::Medium;

/// Items of scratch space kept between changes.
const SCRATCH: usize = 256;
/// Mean heap bytes of a node's further holder.
const FURTHER: usize = 20;

/// Nodes, their holders and the order of their use.
#[derive(Debug)]
pub struct Held<S: Shape> {
    pub(crate) shape: S,
    pub(crate) nodes: Nodes<S::Own>,
    pub(crate) sets: LaneSets,
    pub(crate) records: Records,
    /// No access from now on counts as older than this, so that the times of lanes and of indexes are comparable.
    pub(crate) tick: u64,
    pub(crate) lanes: Lanes,
    pub(crate) expiry: Expiry,
    /// (worker, unit) pairs held.
    pub(crate) total: u64,
    /// Nodes that may be joined with their only child at the end of the change.
    pub(crate) merges: Vec<u32>,
    /// Scratch of changes that hold paths.
    pub(crate) steps: Vec<(u32, u32)>,
}

impl<S: Shape> Held<S> {
    pub(super) fn of(shape: S) -> Self {
        Self {
            shape,
            nodes: Nodes::default(),
            sets: LaneSets::new(),
            records: Records::default(),
            tick: 0,
            lanes: Lanes::default(),
            expiry: Expiry::default(),
            total: 0,
            merges: Vec::new(),
            steps: Vec::new(),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let (nodes, records) = (self.nodes.len() as usize, self.records.len() as usize);
        self.shape.memory_bytes()
            + nodes * size_of::<Node<S::Own>>()
            + records * size_of::<Record>()
            + records.saturating_sub(nodes) * FURTHER
            + self.sets.memory_bytes()
            + self.lanes.memory_bytes()
            + self.expiry.memory_bytes()
    }

    /// Makes the lanes of a lane's medium on its first use.
    #[inline]
    pub(crate) fn open(&mut self, lane: u32) {
        let medium = Medium::ALL[medium_of(lane)];
        if !self.lanes.is_open(medium) {
            self.lanes.open(medium);
            self.sets.reserve(&self.lanes);
        }
    }

    /// Ends every change.
    pub(crate) fn finish(&mut self) {
        self.shape.changed();
        self.join_nodes();
        if self.merges.capacity() > SCRATCH {
            self.merges = Vec::new();
        }
        if self.steps.capacity() > SCRATCH {
            self.steps = Vec::new();
        }
        if self.nodes.len() == 0 && self.sets.len() > 1 {
            self.shape.emptied();
            // The slabs freed their memory with their last item; this frees the state that refers to them.
            self.sets = LaneSets::new();
            self.sets.reserve(&self.lanes);
            self.merges = Vec::new();
            self.steps = Vec::new();
            self.expiry = Expiry::default();
        }
    }
}
