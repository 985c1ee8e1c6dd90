//! The pool that workers of a fleet share, and their own host memories, from which others take blocks.

use std::sync::{Arc, Mutex};

use cachelb_core::error::{Error, Result};

use crate::engine::Fetch;
use crate::engine::change::Change;
use crate::engine::peers::{Peers, Tiers};
use crate::engine::pool::{BlockPool, PoolMember};
use crate::gateway::Gateway;
use crate::options::WorkerSettings;

use super::Run;
use super::heap::{Kind, Life};
use super::worker::Worker;

/// The links of a worker.
const OUT: usize = 0;
const IN: usize = 1;

/// Workers that have a pool share one; each that has a tier has it for itself.
pub(super) fn join(workers: &mut [Worker], fleet: &[WorkerSettings]) -> Result<()> {
    let mut tiers = Vec::new();
    for (worker, settings) in workers.iter_mut().zip(fleet) {
        tiers.push(settings.tier.map(|terms| {
            let tier = Arc::new(Mutex::new(BlockPool::new(terms.blocks)));
            let member = PoolMember::new(Arc::clone(&tier), terms.seconds_per_token);
            worker.engine.join(member);
            tier
        }));
    }
    let tiers: Tiers = tiers.into();
    for (at, worker) in workers.iter_mut().enumerate() {
        if let Some(terms) = worker.peers {
            worker
                .engine
                .meet(Peers::new(at, Arc::clone(&tiers), terms));
        }
    }
    let all = fleet.iter().filter_map(|worker| worker.pool);
    let Some(blocks) = all.clone().map(|terms| terms.blocks).next() else {
        return Ok(());
    };
    if let Some(other) = all.map(|terms| terms.blocks).find(|other| *other != blocks) {
        return Err(Error::setting(
            "pool",
            "of as many blocks for each worker: they share one",
            format!("{blocks} and {other}"),
        ));
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
    /// Puts the blocks that a worker computed into its pool. Changes of its own host memory join its others.
    pub(super) fn fill_pool(&mut self, at: u32, changes: &mut Vec<Change>, now: f64) {
        let worker = &self.workers[at as usize];
        let Some(member) = worker.engine.shared_pool() else {
            return;
        };
        let mut pool = member.pool();
        for change in changes.iter() {
            if let Change::Stored { hash, parent, .. } = *change {
                pool.put(hash, parent);
            }
        }
        let mut news = pool.changes();
        if worker.tier.is_some() {
            changes.append(&mut news);
        }
        if !news.is_empty() && worker.publishes {
            let at = now + self.options.event_lag;
            self.heap.at(at, Kind::PoolChanges(news));
        }
    }

    /// Begins to move cached blocks from one worker to another.
    pub(super) fn pull(&mut self, to: Life, source: u32, fetch: Fetch, now: f64) {
        let (i, from) = (to.worker as usize, source as usize);
        let Some(terms) = self.workers[i].peers else {
            return;
        };
        let life = self.workers[from].life;
        let mut tokens = fetch.tokens;
        let end = if self.workers[from].alive {
            let free = self.workers[from].links[OUT].max(self.workers[i].links[IN]);
            let moved = f64::from(tokens) * terms.seconds_per_token;
            let end = free.max(now + fetch.loading) + moved;
            self.workers[from].links[OUT] = end;
            self.workers[i].links[IN] = end;
            end + terms.startup
        } else {
            tokens = 0;
            now + terms.timeout
        };
        self.heap.at(end, Kind::Pulled(fetch.id, to, life, tokens));
    }

    /// Blocks have arrived from another worker, unless it went away before.
    pub(super) fn pulled(&mut self, id: u32, to: Life, source: Life, tokens: u32, now: f64) {
        let worker = &self.workers[to.worker as usize];
        let from = &self.workers[source.worker as usize];
        if tokens > 0 && !(from.alive && from.life == source) {
            let timeout = worker.peers.map_or(0.0, |terms| terms.timeout);
            let kind = Kind::Pulled(id, to, source, 0);
            return self.heap.at(now + timeout, kind);
        }
        let engine = &mut self.workers[to.worker as usize].engine;
        if engine.arrived(id, Some(tokens), self.workload) {
            self.outcomes.pulled_tokens[id as usize] += tokens;
        }
        self.start(to.worker, now);
    }
}
