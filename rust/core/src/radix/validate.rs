//! What a recount looks at beside what all forests have.

use super::labels::only_child;
use super::shape::Labelled;
use super::unit::Unit;
use super::{EDGE, NONE};
use crate::error::Result;
use crate::forest::Held;
use crate::forest::validate::ensure;

impl<U: Unit> Labelled<U> {
    pub(super) fn validate_label(held: &Held<Self>, id: u32) -> Result<()> {
        let node = &held.nodes[id];
        let (label, page) = (&node.own.units, held.shape.children.page);
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
            held.shape.children.finds(&held.nodes, id),
            "node {id} is not the one found by its first step"
        );
        if let Some(child) = only_child(node) {
            ensure!(
                held.nodes.is_live(child) && held.nodes[child].parent == id,
                "node {id} has another only child"
            );
        }
        Ok(())
    }

    pub(super) fn validate_counts(held: &Held<Self>, units: u64) -> Result<()> {
        let counted = held.shape.children.units;
        ensure!(counted == units, "{units} units, {counted} are counted");
        let (counted, heap) = held.shape.children.heap_bytes(&held.nodes);
        ensure!(counted == heap, "{heap} heap bytes, {counted} are counted");
        for slot in held.lanes.slots() {
            let worker = held.lanes.worker(slot);
            ensure!(
                worker.is_none_or(|worker| worker.distinct <= u64::from(worker.capacity))
                    || held.shape.owing.contains(&slot),
                "worker {slot} is over its capacity"
            );
        }
        for (id, lane) in held.lanes.iter() {
            ensure!(
                lane.clock <= held.shape.clock,
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
