//! Checks of a recount beside those of all prefix trees.

use super::NONE;
use super::shape::Labelled;
use super::unit::Unit;
use crate::error::Result;
use crate::prefix_tree::Held;
use crate::prefix_tree::validate::ensure;

impl<U: Unit> Labelled<U> {
    pub(super) fn validate_label(held: &Held<Self>, id: u32) -> Result<()> {
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

    pub(super) fn validate_counts(held: &Held<Self>, units: u64) -> Result<()> {
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
