//! Requests at the gateway, from their arrival to their end.

use cachelb::selector::Role;

use crate::gateway::{Attempt, Gateway, News, Notice, Pair, Placed};
use crate::outcome::Status;

use super::heap::{Kind, Step};
use super::pairs::Half;
use super::{Outcome, Run};

impl<G: Gateway> Run<'_, G> {
    pub(super) fn arrive(&mut self, id: u32, now: f64) -> Outcome<G> {
        self.outcomes.arrival[id as usize] = now;
        if let Some(patience) = self.workload.patience(id) {
            self.heap.at(now + patience, Kind::Abort(id));
        }
        self.place(id, now)
    }

    /// A request takes its next step where it is.
    pub(super) fn proceed(&mut self, id: u32, placed: Placed, step: Step, now: f64) -> Outcome<G> {
        match step {
            Step::Enqueue => self.enqueue(id, placed, now),
            Step::FirstToken => {
                self.outcomes.first_token[id as usize] = now;
                self.requests.all[id as usize].noticed = now + self.options.first_token_delay;
                self.notice(id, placed, Notice::FirstToken, now)?;
            }
            Step::Tokens(n) => self.notice(id, placed, Notice::Tokens(n), now)?,
            Step::Finished => self.finished(id, placed, now)?,
            Step::Failed => self.failed(id, placed, now)?,
        }
        Ok(())
    }

    /// Asks the gateway where a request goes, as soon as it is done with the requests before it.
    fn place(&mut self, id: u32, now: f64) -> Outcome<G> {
        if self.options.decision <= 0.0 {
            return self.decide(id, now);
        }
        let at = usize::from(self.gateway.entrance(id));
        if at >= self.decided.len() {
            self.decided.resize(at + 1, 0.0);
        }
        let decided = self.decided[at].max(now) + self.options.decision;
        self.decided[at] = decided;
        self.heap.at(decided, Kind::Decide(id));
        Ok(())
    }

    /// The gateway picks the worker of a request.
    pub(super) fn decide(&mut self, id: u32, now: f64) -> Outcome<G> {
        if self.options.oracle {
            for (at, worker) in (0..).zip(&self.workers) {
                if worker.alive {
                    let report = News::Report(at, worker.engine.load(), now);
                    self.gateway.news(report, now)?;
                }
            }
        }
        let progress = &self.requests.all[id as usize];
        // One that its worker failed is pinned no longer.
        let others = Some(self.workers.len() as u32).filter(|_| progress.tried.is_empty());
        let others = others.and_then(|workers| self.options.others(id, workers));
        let attempt = Attempt {
            id,
            attempt: progress.tried.len() as u32,
            tried: others.as_deref().unwrap_or(&progress.tried),
            now,
        };
        self.outcomes.selections += 1;
        let pair = if self.pairs {
            self.gateway.select_pair(&attempt)?
        } else {
            let placed = self.gateway.select(&attempt)?;
            placed.map(|decode| Pair {
                prefill: None,
                decode,
            })
        };
        let i = id as usize;
        let was_held = std::mem::take(&mut self.requests.all[i].is_held);
        let Some(Pair { prefill, decode }) = pair else {
            let Some(until) = self.gateway.held(id)? else {
                self.over(id, Status::Rejected, now);
                return Ok(());
            };
            self.requests.all[i].is_held = true;
            if !was_held && until.is_finite() {
                self.heap.at(until, Kind::Expire(id));
            }
            return Ok(());
        };
        let first = prefill.unwrap_or(decode);
        self.outcomes.worker[i] = decode.worker.cast_signed();
        self.outcomes.prefill_worker[i] = prefill.map_or(-1, |half| half.worker.cast_signed());
        self.outcomes.reason[i] = decode.reason;
        self.outcomes.predicted_tokens[i] = first.predicted_tokens;
        let progress = &mut self.requests.all[i];
        progress.placed = Some(first);
        progress.half = prefill.map(|_| Box::new(Half::Next(decode)));
        let kind = Kind::Request(id, first, Step::Enqueue);
        self.heap.at(now + self.options.net_delay, kind);
        Ok(())
    }

    /// Asks for requests that the gateway held and calls now.
    pub(super) fn admit(&mut self, now: f64) -> Outcome<G> {
        loop {
            let called = self.gateway.called(now)?;
            if called.is_empty() {
                return Ok(());
            }
            for id in called {
                if self.requests.all[id as usize].is_held {
                    self.decide(id, now)?;
                }
            }
        }
    }

    fn enqueue(&mut self, id: u32, placed: Placed, now: f64) {
        let progress = &self.requests.all[id as usize];
        let worker = &mut self.workers[placed.worker as usize];
        let mut job = self.workload.job(id);
        if worker.prefill_only || progress.prefills() {
            job.output_tokens = 1;
        }
        job.remote = matches!(progress.half.as_deref(), Some(Half::Computed(_)));
        job.source = placed.source;
        if !worker.alive || !worker.engine.fits(job) {
            let kind = Kind::Request(id, placed, Step::Failed);
            self.heap.at(now + self.options.net_delay, kind);
            return;
        }
        worker.engine.enqueue(job);
        self.start(placed.worker, now);
    }

    fn finished(&mut self, id: u32, placed: Placed, now: f64) -> Outcome<G> {
        let cached = self.outcomes.cached_tokens[id as usize];
        let cached = Some(cached).filter(|_| self.options.report_cached_tokens);
        let cached = match self.requests.all[id as usize].half.as_deref() {
            Some(&Half::Next(decode)) => {
                // The prompt was computed: the decode half begins.
                self.gateway.notice(placed, Notice::Finished(cached), now)?;
                let life = self.workers[placed.worker as usize].life;
                let progress = &mut self.requests.all[id as usize];
                progress.half = Some(Box::new(Half::Computed(life)));
                progress.placed = Some(decode);
                let kind = Kind::Request(id, decode, Step::Enqueue);
                self.heap.at(now + self.options.net_delay, kind);
                return Ok(());
            }
            Some(Half::Computed(_)) => None,
            None => cached,
        };
        self.notice(id, placed, Notice::Finished(cached), now)?;
        self.over(id, Status::Finished, now);
        Ok(())
    }

    fn failed(&mut self, id: u32, placed: Placed, now: f64) -> Outcome<G> {
        self.gateway.notice(placed, Notice::Failed, now)?;
        let i = id as usize;
        let job = self.workload.job(id);
        let mut whole = self.workers.iter().filter(|w| w.role != Role::Prefill);
        let too_long = !whole.any(|worker| worker.engine.fits(job));
        let progress = &mut self.requests.all[i];
        progress.placed = None;
        progress.unreported = 0;
        progress.tried.push(placed.worker);
        let attempts = progress.tried.len() as u32;
        if let Some(Half::Next(decode)) = progress.half.take().as_deref() {
            self.gateway.notice(*decode, Notice::Cancelled, now)?;
        }
        self.outcomes.first_token[i] = f64::NAN;
        if too_long {
            self.over(id, Status::TooLong, now);
        } else if attempts <= self.options.retries {
            self.outcomes.retries[i] += 1;
            self.place(id, now)?;
        } else {
            self.over(id, Status::Failed, now);
        }
        Ok(())
    }

    /// The client goes away; its worker notices later.
    pub(super) fn abort(&mut self, id: u32, now: f64) -> Outcome<G> {
        let progress = &mut self.requests.all[id as usize];
        if progress.done {
            return Ok(());
        }
        if std::mem::take(&mut progress.is_held) {
            self.gateway.give_up(id)?;
        }
        // Taken: no late notice follows the end.
        if let Some(placed) = progress.placed.take() {
            let next = match progress.half.as_deref() {
                Some(&Half::Next(decode)) => Some(decode),
                _ => None,
            };
            self.gateway.notice(placed, Notice::Cancelled, now)?;
            if let Some(next) = next {
                self.gateway.notice(next, Notice::Cancelled, now)?;
            }
            let worker = placed.worker;
            let told = now + self.options.net_delay;
            self.heap.at(told, Kind::Drop(id, worker));
        }
        self.over(id, Status::Aborted, now);
        Ok(())
    }

    /// A request is over; those that follow it come after their thought.
    fn over(&mut self, id: u32, status: Status, now: f64) {
        let i = id as usize;
        self.outcomes.status[i] = status;
        self.outcomes.finish[i] = now;
        self.outcomes.end = self.outcomes.end.max(now);
        for child in self.requests.end(id) {
            let think = self.workload.think[child as usize];
            self.heap.at(now + think, Kind::Arrival(child));
        }
    }
}
