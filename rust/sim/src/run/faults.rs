//! What happens to workers.

use crate::gateway::Gateway;
use crate::kv::Change;
use crate::options::Incident;

use super::heap::Kind;
use super::{Outcome, Run};

impl<G: Gateway> Run<'_, G> {
    pub(super) fn incident(&mut self, worker: u32, what: Incident, now: f64) -> Outcome<G> {
        let known = now + self.options.detection_delay;
        match what {
            Incident::Crash => {
                self.crash(worker, now);
                let ready = false;
                self.heap.at(known, Kind::Ready { worker, ready });
            }
            Incident::Join => {
                self.join(worker, now)?;
                let ready = true;
                self.heap.at(known, Kind::Ready { worker, ready });
            }
            Incident::Drain => {
                let ready = false;
                self.heap.at(now, Kind::Ready { worker, ready });
            }
        }
        Ok(())
    }

    fn crash(&mut self, at: u32, now: f64) {
        let worker = &mut self.workers[at as usize];
        worker.alive = false;
        worker.epoch += 1;
        let lost = worker.engine.crash();
        // Nothing is sent by a worker that crashed; what it held is known to be gone when it is back.
        drop(worker.engine.pool_mut().changes());
        for id in lost {
            if let Some(placed) = self.progress[id as usize].placed {
                let told = now + self.options.net_delay;
                self.heap.at(told, Kind::Failed { id, placed });
            }
        }
    }

    /// One that was only drained has its cache still.
    fn join(&mut self, at: u32, now: f64) -> Outcome<G> {
        let worker = &mut self.workers[at as usize];
        if worker.alive {
            return Ok(());
        }
        worker.alive = true;
        let (epoch, followed) = (worker.epoch, worker.engine.is_followed());
        if let Some(feed) = self.feeds.get_mut(at as usize) {
            feed.restart(epoch, self.options.replay_delay.is_some());
            self.settle(at, now)?;
        }
        if followed {
            self.publish(at, vec![Change::Cleared], now);
        }
        Ok(())
    }
}
