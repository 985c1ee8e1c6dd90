//! Incidents of workers.

use crate::engine::change::Change;
use crate::gateway::Gateway;
use crate::options::Incident;

use super::heap::{Kind, Step};
use super::{Outcome, Run};

impl<G: Gateway> Run<'_, G> {
    pub(super) fn incident(&mut self, worker: u32, what: Incident, now: f64) -> Outcome<G> {
        let known = now + self.options.detection_delay;
        let (at, ready) = match what {
            Incident::Crash => {
                for id in self.workers[worker as usize].crash() {
                    if let Some(placed) = self.requests.all[id as usize].placed {
                        let told = now + self.options.net_delay;
                        self.heap.at(told, Kind::Request(id, placed, Step::Failed));
                    }
                }
                (known, false)
            }
            Incident::Join => {
                self.join(worker, now)?;
                (known, true)
            }
            Incident::Drain => (now, false),
        };
        self.heap.at(at, Kind::Ready(worker, ready));
        Ok(())
    }

    /// One that was only drained has its cache still.
    fn join(&mut self, at: u32, now: f64) -> Outcome<G> {
        let worker = &mut self.workers[at as usize];
        if worker.alive {
            return Ok(());
        }
        worker.alive = true;
        worker.set_tier_up(true);
        let (life, followed) = (worker.life, worker.publishes);
        if let Some(feed) = self.feeds.get_mut(at as usize) {
            feed.restart(life, self.options.replay_delay.is_some());
            self.relay(at, now)?;
        }
        if followed {
            self.publish(at, vec![Change::Cleared], now);
        }
        Ok(())
    }
}
