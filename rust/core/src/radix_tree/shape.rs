//! Labels as the units of a tree: found by their parent and their first step.

use std::marker::PhantomData;

use super::labels::{Children, Label, Labels, only_child};
use super::unit::Unit;
use super::{EDGE, NONE, STEPS};
use crate::epoch_lru::lanes::{is_device, lane_of, slot_of};
use crate::error::Result;
use crate::ids::{Medium, WorkerId};
use crate::prefix_tree::validate::ensure;
use crate::prefix_tree::{Held, PrefixTree, Shape};

/// Labels, and the table that finds them.
#[derive(Debug)]
pub struct Labelled<U> {
    pub(super) children: Children,
    pub(super) max_units: u64,
    /// Time of the latest use.
    pub(super) clock: u64,
    unit: PhantomData<U>,
}

impl<U> Labelled<U> {
    pub(super) fn new(page: usize, max_units: Option<u64>) -> Self {
        Self {
            children: Children::new(page),
            max_units: max_units.unwrap_or(u64::MAX),
            clock: 0,
            unit: PhantomData,
        }
    }
}

impl<U: Unit> Shape for Labelled<U> {
    type Own = Label<U>;

    const HOLES: bool = false;
    const EXPIRED_AT_ONCE: usize = STEPS as usize;

    fn memory_bytes(&self) -> usize {
        self.children.memory_bytes()
    }

    fn truncate(&mut self, nodes: &mut Labels<U>, node: u32, count: u32) {
        self.children.truncate(nodes, node, count);
    }

    fn remove(&mut self, nodes: &mut Labels<U>, node: u32) -> u32 {
        self.children.forget(nodes, node)
    }

    fn divide(&mut self, nodes: &mut Labels<U>, node: u32, at: u32) -> u32 {
        self.children.divide(nodes, node, at)
    }

    fn sequel(&self, nodes: &Labels<U>, node: u32) -> Option<u32> {
        let stored = |node: u32| nodes[node].own.units.len();
        only_child(&nodes[node]).filter(|child| stored(node) + stored(*child) <= EDGE)
    }

    fn unite(&mut self, nodes: &mut Labels<U>, upper: u32, lower: u32) {
        self.children.unite(nodes, upper, lower);
    }

    fn fit(tree: &mut PrefixTree<Self>, worker: WorkerId) {
        let capacity = tree.worker(worker).map_or(0, |present| present.capacity);
        let _ = tree.evict_worker(worker, u64::from(capacity));
    }

    /// Units that the worker holds in its other lane.
    fn beside(held: &Held<Self>, node: u32, lane: u32) -> u32 {
        if !held.sets.several_media() {
            return 0;
        }
        let other = if is_device(lane) {
            Medium::Speculative
        } else {
            Medium::Gpu
        };
        held.nodes.covered(node, lane_of(slot_of(lane), other))
    }

    fn step(&self, units: u64) -> u64 {
        let units = units.min(u64::from(u32::MAX));
        units.next_multiple_of(self.children.page as u64)
    }

    fn rank(lane: u32) -> usize {
        usize::from(is_device(lane))
    }

    fn validate_node(held: &Held<Self>, id: u32) -> Result<()> {
        let node = &held.nodes[id];
        let counted = U::count(&node.own.units);
        ensure!(
            counted == node.len as usize,
            "node {id} counts {} units, has {counted}",
            node.len
        );
        ensure!(
            held.shape.children.finds(&held.nodes, id),
            "node {id} is not the one found by its first step"
        );
        Ok(())
    }

    fn validate_sums(held: &Held<Self>, units: u64) -> Result<()> {
        let counted = held.shape.children.units;
        ensure!(counted == units, "{units} units, {counted} are counted");
        let (total, most) = (held.total, held.shape.max_units);
        ensure!(total <= most, "{total} pairs are held, {most} may be");
        for slot in held.lanes.slots() {
            let worker = held.lanes.worker(slot);
            ensure!(
                worker.is_none_or(|worker| worker.distinct <= u64::from(worker.capacity)),
                "worker {slot} is over its capacity"
            );
        }
        for (id, lane) in held.lanes.iter() {
            ensure!(
                lane.oldest == NONE || lane.queued,
                "lane {id} would never be evicted"
            );
        }
        Ok(())
    }
}
