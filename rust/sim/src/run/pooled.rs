//! The pool that workers of a fleet share.

use std::sync::{Arc, Mutex};

use cachelb_core::error::{Error, Result};

use crate::engine::change::Change;
use crate::engine::pool::{BlockPool, PoolMember};
use crate::gateway::Gateway;
use crate::options::WorkerSettings;

use super::Run;
use super::heap::Kind;
use super::worker::Worker;

/// Workers that have a pool share one.
pub(super) fn join(workers: &mut [Worker], fleet: &[WorkerSettings]) -> Result<()> {
    let all = fleet.iter().filter_map(|worker| worker.pool);
    let Some(blocks) = all.clone().map(|terms| terms.blocks).next() else {
        return Ok(());
    };
    if let Some(other) = all.map(|terms| terms.blocks).find(|other| *other != blocks) {
        return Err(Error::InvalidSetting {
            name: "pool",
            expected: "of as many blocks for each worker: they share one",
            got: format!("{blocks} and {other}"),
        });
    }
    let pool = Arc::new(Mutex::new(BlockPool::new(blocks)));
    for (worker, settings) in workers.iter_mut().zip(fleet) {
        if let Some(terms) = settings.pool {
            let member = PoolMember::new(Arc::clone(&pool), terms.seconds_per_token);
            worker.engine.join(member);
        }
    }
    Ok(())
}

impl<G: Gateway> Run<'_, G> {
    /// Puts the blocks that a worker computed into its pool.
    pub(super) fn fill_pool(&mut self, at: u32, changes: &[Change], now: f64) {
        let worker = &self.workers[at as usize];
        let Some(member) = worker.engine.shared_pool() else {
            return;
        };
        let mut pool = member.pool();
        for change in changes {
            if let Change::Stored { hash, parent } = *change {
                pool.put(hash, parent);
            }
        }
        let news = pool.changes();
        if !news.is_empty() && worker.publishes {
            let at = now + self.options.event_lag;
            self.heap.at(at, Kind::PoolChanges(news));
        }
    }
}
