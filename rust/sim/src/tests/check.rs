//! A recount of everything.

use std::collections::HashMap;

use crate::gateway::Gateway;
use cachelb_core::error::{Error, Result};

use super::Run;
use super::heap::{Kind, Life, Step};

/// Where requests are, as counted.
#[derive(Debug, Default)]
struct Places {
    /// On their way to the gateway or from it, and when they arrive.
    messages: Vec<u32>,
    /// By request and worker.
    engines: HashMap<(u32, u32), u32>,
    held: Vec<u32>,
    /// Requests that a worker is going to drop.
    drops: HashMap<(u32, u32), u32>,
    /// By worker: passes and transfers of its present life that end.
    passes: Vec<u32>,
    transfers: Vec<u32>,
}

impl<G: Gateway> Run<'_, G> {
    /// Recounts everything: blocks, and that every request is in exactly one place, every pass and every transfer ends, and
    /// nothing that is to come lies in the past.
    ///
    /// # Errors
    /// [`Error::Invariant`] naming the first disagreement.
    pub fn validate(&self) -> Result<()> {
        let broken = |text: String| Err(Error::Invariant(text));
        if let Some(past) = self.heap.iter().find(|event| event.at < self.now) {
            return broken(format!("at {} there is still {past:?}", self.now));
        }
        let places = Places::of(self)?;
        for (worker, state) in self.workers.iter().enumerate() {
            let (passes, transfers) = (places.passes[worker], places.transfers[worker]);
            if passes != u32::from(state.engine.in_step) {
                return broken(format!("{passes} passes of worker {worker} end"));
            }
            if transfers as usize != state.engine.arriving().count() {
                return broken(format!("{transfers} transfers to worker {worker} end"));
            }
        }
        let mut open = 0;
        for id in 0..self.workload.len() as u32 {
            open += usize::from(places.check(self, id)?);
        }
        if open != self.requests.left {
            return broken(format!(
                "{open} requests are open, {} counted",
                self.requests.left
            ));
        }
        Ok(())
    }
}

impl Places {
    fn of<G>(run: &Run<'_, G>) -> Result<Self> {
        let n = run.workload.len();
        let mut places = Self {
            messages: vec![0; n],
            held: vec![0; n],
            passes: vec![0; run.workers.len()],
            transfers: vec![0; run.workers.len()],
            ..Self::default()
        };
        let lives = |life: Life| u32::from(run.workers[life.worker as usize].life == life);
        for event in run.heap.iter() {
            match event.kind {
                Kind::Arrival(id) => places.messages[id as usize] += 1,
                Kind::Decide(id) => {
                    places.messages[id as usize] += u32::from(!run.requests.all[id as usize].done);
                }
                Kind::Request(id, at, Step::Enqueue | Step::Finished | Step::Failed) => {
                    let is_at = run.requests.all[id as usize].is_at(at);
                    places.messages[id as usize] += u32::from(is_at);
                }
                Kind::Drop(id, worker) => *places.drops.entry((id, worker)).or_default() += 1,
                Kind::StepEnd(life) => places.passes[life.worker as usize] += lives(life),
                Kind::Fetched(id, life) | Kind::Pulled(id, life, ..) => {
                    let at = life.worker as usize;
                    let waits = run.workers[at].engine.arriving().any(|other| other == id);
                    places.transfers[at] += lives(life) * u32::from(waits);
                }
                _ => {}
            }
        }
        for (worker, state) in (0..).zip(&run.workers) {
            state.engine.validate()?;
            for id in state.engine.requests() {
                places.held[id as usize] += 1;
                *places.engines.entry((id, worker)).or_default() += 1;
            }
        }
        Ok(places)
    }

    /// Returns whether it is open.
    fn check<G>(&self, run: &Run<'_, G>, id: u32) -> Result<bool> {
        let (i, progress) = (id as usize, &run.requests.all[id as usize]);
        let messages = self.messages[i] + u32::from(progress.is_held);
        let held = self.held[i];
        let parent = usize::try_from(run.workload.parent[i]);
        let waits = parent.is_ok_and(|parent| !run.requests.all[parent].done);
        let proper = if progress.done {
            // Its engine may not know yet.
            let mut engines = self.engines.keys().filter(|(of, _)| *of == id);
            engines.all(|key| self.drops.contains_key(key))
        } else if waits {
            messages == 0 && held == 0
        } else {
            let own = |worker: u32| self.engines.get(&(id, worker)).copied();
            let own = progress.placed.and_then(|placed| own(placed.worker));
            messages + held == 1 && own.unwrap_or(0) == held
        };
        if proper {
            return Ok(!progress.done);
        }
        Err(Error::Invariant(format!(
            "request {id}: {progress:?}, {messages} messages, {held} engines"
        )))
    }
}
