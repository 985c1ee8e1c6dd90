//! Passes of engines and what they bring.

use crate::engine::Output;
use crate::gateway::Gateway;

use super::Run;
use super::heap::{Kind, Step};

impl<G: Gateway> Run<'_, G> {
    /// Begins a pass, unless one is under way.
    pub(super) fn start(&mut self, at: u32, now: f64) {
        let worker = &mut self.workers[at as usize];
        if let Some(seconds) = worker.begin_step(self.workload, now) {
            let life = worker.life;
            self.outcomes.busy[at as usize] += seconds;
            self.heap.at(now + seconds, Kind::StepEnd(life));
        }
        if self.pairs || self.workers[at as usize].peers.is_some() {
            self.fetch(at, now);
        }
    }

    pub(super) fn end_step(&mut self, at: u32, now: f64) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.workers[at as usize]
            .engine
            .end_step(self.workload, &mut outputs);
        for output in outputs.drain(..) {
            self.output(output, now);
        }
        self.outputs = outputs;
        let engine = &mut self.workers[at as usize].engine;
        if engine.cache.pool.has_changes() {
            let mut changes = engine.cache.changes();
            self.fill_pool(at, &mut changes, now);
            if !changes.is_empty() && self.workers[at as usize].publishes {
                self.publish(at, changes, now);
            }
        }
        self.start(at, now);
    }

    fn output(&mut self, output: Output, now: f64) {
        let back = now + self.options.net_delay;
        match output {
            Output::Admitted { id, cached_tokens } => {
                self.outcomes.cached_tokens[id as usize] = cached_tokens;
            }
            Output::FirstToken { id } => {
                let progress = &mut self.requests.all[id as usize];
                progress.last_token = now;
                // The token of a prefill half goes nowhere: the other half computes it again.
                if let Some(placed) = progress.placed
                    && !progress.prefills()
                {
                    self.heap
                        .at(back, Kind::Request(id, placed, Step::FirstToken));
                }
            }
            Output::Token { id } => {
                let progress = &mut self.requests.all[id as usize];
                let gap = now - progress.last_token;
                progress.last_token = now;
                progress.unreported += 1;
                let due = progress.unreported >= self.options.tokens_per_message;
                if due && let Some(placed) = progress.placed {
                    let n = std::mem::take(&mut progress.unreported);
                    self.heap
                        .at(back, Kind::Request(id, placed, Step::Tokens(n)));
                }
                self.outcomes.gaps.add(gap);
            }
            Output::Finished { id, preemptions } => {
                self.outcomes.preemptions[id as usize] += preemptions;
                let progress = &mut self.requests.all[id as usize];
                let Some(placed) = progress.placed else {
                    return;
                };
                let n = std::mem::take(&mut progress.unreported);
                if n > 0 {
                    self.heap
                        .at(back, Kind::Request(id, placed, Step::Tokens(n)));
                }
                self.heap
                    .at(back, Kind::Request(id, placed, Step::Finished));
            }
        }
    }
}
