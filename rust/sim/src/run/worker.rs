//! One worker of a run.

use cachelb::selector::Role;
use cachelb_core::error::{Error, Result};

use crate::engine::peers::PeerTerms;
use crate::engine::pool::PoolTerms;
use crate::engine::{Engine, EngineLoad};
use crate::options::{Link, Options, WorkerSettings};
use crate::workload::Workload;

use super::heap::Life;

#[derive(Debug)]
pub(super) struct Worker {
    pub engine: Engine,
    pub prefill_only: bool,
    pub role: Role,
    pub link: Link,
    /// Whether it publishes the changes of its cache.
    pub publishes: bool,
    slowdown: Vec<(f64, f64)>,
    /// Terms of its own host memory, if its pool is that.
    pub tier: Option<PoolTerms>,
    pub peers: Option<PeerTerms>,
    /// When its links are free, out and in.
    pub links: [f64; 2],
    pub alive: bool,
    /// Passes of an earlier one end nowhere.
    pub life: Life,
}

impl Worker {
    pub fn new(worker: u32, settings: &WorkerSettings, workload: &Workload) -> Result<Self> {
        if settings.engine.block_size != workload.block_size {
            return Err(Error::setting(
                "block_size",
                "that of the workload",
                settings.engine.block_size,
            ));
        }
        let mut engine = settings.engine.clone();
        // Its computed blocks go into its pool.
        engine.followed |= settings.pool.is_some() || settings.tier.is_some();
        Ok(Self {
            engine: Engine::new(engine, settings.timing.clone())?,
            publishes: settings.engine.followed,
            prefill_only: settings.prefill_only,
            role: settings.role,
            link: settings.link,
            slowdown: settings.slowdown.clone(),
            tier: settings.tier,
            peers: settings.peers,
            links: [0.0; 2],
            alive: true,
            life: Life { worker, epoch: 0 },
        })
    }

    /// Begins a pass, unless one is under way. Returns its seconds.
    pub fn begin_step(&mut self, workload: &Workload, now: f64) -> Option<f64> {
        if self.engine.in_step || !self.alive {
            return None;
        }
        let seconds = self.engine.begin_step(workload)?;
        let slower = self.slowdown.iter().rev().find(|(from, _)| *from <= now);
        Some(seconds * slower.map_or(1.0, |(_, factor)| *factor))
    }

    /// Its load as it reports it.
    pub fn report(&self, options: &Options) -> EngineLoad {
        let mut load = self.engine.load();
        load.queued_tokens = load.queued_tokens.filter(|_| options.report_queued_tokens);
        load
    }

    /// Its host memory comes back, empty, or is gone.
    pub fn set_tier_up(&self, is_up: bool) {
        if let Some(member) = self.engine.shared_pool().filter(|_| self.tier.is_some()) {
            member.pool().set_up(is_up);
        }
    }

    /// Loses its memory and all requests, which it returns.
    pub fn crash(&mut self) -> Vec<u32> {
        self.alive = false;
        self.life.epoch += 1;
        let lost = self.engine.crash();
        self.links = [0.0; 2];
        self.set_tier_up(false);
        // Nothing is sent by a worker that crashed; what it held is known to be gone when it is back.
        drop(self.engine.cache.changes());
        lost
    }
}
