//! Requests whose prompt one worker computes and another generates from.
//!
//! The prefill half runs on its worker with one token to generate. When the gateway has that answer it asks the decode
//! worker, which allocates the blocks and fetches what it does not hold. The prefill worker keeps its blocks as cached
//! ones. If it crashes before they are fetched, the request failed there.

use crate::gateway::{Gateway, Placed};

use super::Run;
use super::heap::{Kind, Life, Step};

/// The other half of a request on two workers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Half {
    /// The prompt is being computed; this comes next.
    Next(Placed),
    /// The prompt was computed there.
    Computed(Life),
}

impl<G: Gateway> Run<'_, G> {
    /// Sends for the blocks that a worker has allocated.
    pub(super) fn fetch(&mut self, worker: u32, now: f64) {
        let to = &mut self.workers[worker as usize];
        let life = to.life;
        for fetch in to.engine.fetches() {
            let id = fetch.id;
            if let Some(source) = fetch.source {
                self.pull(life, source, fetch, now);
                continue;
            }
            let half = self.requests.all[id as usize].half.as_deref();
            let Some(Half::Computed(source)) = half else {
                continue;
            };
            let link = &self.workers[worker as usize].link;
            let from = &self.workers[source.worker as usize].link;
            let seconds = from.seconds(link, fetch.tokens);
            self.heap.at(now + seconds, Kind::Fetched(id, life));
        }
    }

    /// Blocks have arrived at a decode worker.
    pub(super) fn fetched(&mut self, id: u32, worker: u32, now: f64) {
        let progress = &self.requests.all[id as usize];
        let Some(Half::Computed(source)) = progress.half.as_deref().copied() else {
            return;
        };
        let from = &self.workers[source.worker as usize];
        let source_lives = from.alive && from.life == source;
        let engine = &mut self.workers[worker as usize].engine;
        if source_lives {
            engine.arrived(id, None, self.workload);
        } else if engine.abort(id)
            && !progress.done
            && let Some(placed) = progress.placed
        {
            let kind = Kind::Request(id, placed, Step::Failed);
            self.heap.at(now + self.options.net_delay, kind);
        }
        self.start(worker, now);
    }
}
