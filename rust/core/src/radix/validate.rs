//! What a recount looks at beside what all forests have.

use super::labels::only_child;
use super::unit::Unit;
use super::{EDGE, NONE, RadixTree};
use crate::error::Result;
use crate::forest::validate::ensure;

impl<U: Unit> RadixTree<U> {
    pub(super) fn validate_label(&self, id: u32) -> Result<()> {
        let node = &self.nodes[id];
        let (label, page) = (&node.own.units, self.shape.children.page);
        ensure!(
            !label.is_empty() && label.len() <= EDGE,
            "node {id} has {} stored units",
            label.len()
        );
        let counted = U::count(label);
        ensure!(
            counted == node.len as usize,
            "node {id} counts {} units, has {counted}",
            node.len
        );
        let mut counts = node.holders.as_slice().iter().map(|e| e.count as usize);
        ensure!(
            U::whole(label, page) == label.len()
                && U::floor(label, 0, page) == 0
                && counted.is_multiple_of(page)
                && counts.all(|count| count.is_multiple_of(page)),
            "node {id} ends inside a step"
        );
        ensure!(
            self.shape.children.finds(&self.nodes, id),
            "node {id} is not the one found by its first step"
        );
        if let Some(child) = only_child(node) {
            ensure!(
                self.nodes.is_live(child) && self.nodes[child].parent == id,
                "node {id} has another only child"
            );
        }
        Ok(())
    }

    pub(super) fn validate_counts(&self, units: u64) -> Result<()> {
        let counted = self.shape.children.units;
        ensure!(counted == units, "{units} units, {counted} are counted");
        let (counted, heap) = self.shape.children.heap_bytes(&self.nodes);
        ensure!(counted == heap, "{heap} heap bytes, {counted} are counted");
        for slot in self.lanes.slots() {
            let worker = self.lanes.worker(slot);
            ensure!(
                worker.is_none_or(|worker| worker.distinct <= u64::from(worker.capacity))
                    || self.shape.owing.contains(&slot),
                "worker {slot} is over its capacity"
            );
        }
        for (id, lane) in self.lanes.iter() {
            ensure!(
                lane.clock <= self.shape.clock,
                "lane {id} was used in the future"
            );
            ensure!(
                lane.oldest == NONE || lane.queued,
                "lane {id} would never be evicted"
            );
        }
        Ok(())
    }
}
