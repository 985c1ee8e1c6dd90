//! The columns of every worker slot, and which of them may have changed.

use super::booking::Half;
use super::changed::Changed;
use super::columns::{Load, Report};
use super::reconcile::Reported;
use crate::error::{Error, Result};
use crate::ids::{Millis, WorkerId};

/// Load of every worker.
#[derive(Debug, Default)]
pub struct Loads {
    columns: Vec<Load>,
    /// By worker slot: bookings without a first token whose prompt another worker computes.
    pub apart: Vec<u32>,
    reported: Vec<Option<Reported>>,
    changed: Changed,
    cold_clock: u64,
}

impl Loads {
    /// Opens the columns of a worker incarnation at zero load and weight 1.
    pub(super) fn add(&mut self, worker: WorkerId) {
        let slots = worker.slot as usize + 1;
        if slots > self.columns.len() {
            self.columns.resize(slots, Load::VACANT);
            self.apart.resize(slots, 0);
            self.reported.resize(slots, None);
            self.changed.reserve(slots);
        }
        self.set(worker.slot, Some(worker.generation));
    }

    /// Vacates the slot of a worker. Returns whether it was registered.
    pub(super) fn remove(&mut self, worker: WorkerId) -> bool {
        let was_registered = self.get(worker).is_some();
        if was_registered {
            self.set(worker.slot, None);
        }
        was_registered
    }

    fn set(&mut self, slot: u32, generation: Option<u32>) {
        self.columns[slot as usize] = Load {
            generation,
            ..Load::VACANT
        };
        self.apart[slot as usize] = 0;
        self.reported[slot as usize] = None;
        self.changed.mark(slot);
    }

    /// The load of a registered worker, to change it.
    pub(super) fn get_mut(&mut self, worker: WorkerId) -> Option<&mut Load> {
        let load = self.columns.get_mut(worker.slot as usize)?;
        if load.generation != Some(worker.generation) {
            return None;
        }
        self.changed.mark(worker.slot);
        Some(load)
    }

    /// The count that a booking for this part of a request is in until its first token, if it is in one.
    pub(super) fn apart_mut(&mut self, worker: WorkerId, half: Half) -> Option<&mut u32> {
        let counts = half == Half::Decode && self.get(worker).is_some();
        counts.then(|| &mut self.apart[worker.slot as usize])
    }

    /// The load of a registered worker.
    #[must_use]
    #[inline]
    pub fn get(&self, worker: WorkerId) -> Option<&Load> {
        self.columns
            .get(worker.slot as usize)
            .filter(|load| load.generation == Some(worker.generation))
    }

    /// Columns by slot; a vacant slot reads as an idle worker.
    #[must_use]
    #[inline]
    pub fn columns(&self) -> &[Load] {
        &self.columns
    }

    /// Requests in flight on a worker; 0 for one that is not registered.
    #[must_use]
    #[inline]
    pub fn inflight(&self, worker: WorkerId) -> u32 {
        self.get(worker).map_or(0, |load| load.inflight)
    }

    /// Marks a slot for the next [`Loads::retain_changed`], whether or not its load changes until then.
    #[inline]
    pub fn mark_changed(&mut self, slot: u32) {
        if (slot as usize) < self.columns.len() {
            self.changed.mark(slot);
        }
    }

    /// Whether the next [`Loads::retain_changed`] looks at a slot.
    #[must_use]
    pub fn is_marked_changed(&self, slot: u32) -> bool {
        self.changed.contains(slot)
    }

    /// Calls `look` with every slot whose load may have changed since the last time; where it returns true, it looks
    /// again the next time.
    pub fn retain_changed(&mut self, look: impl FnMut(u32, &Load) -> bool) {
        self.changed.retain(&self.columns, look);
    }

    /// Sets the relative capacity of a worker.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] unless `weight` is finite and above 0, [`Error::UnknownWorker`].
    pub fn set_weight(&mut self, worker: WorkerId, weight: f64) -> Result<()> {
        if !(weight.is_finite() && weight > 0.0) {
            return Err(Error::setting("weight", "a finite number above 0", weight));
        }
        let load = self.get_mut(worker).ok_or(Error::UnknownWorker(worker))?;
        load.weight = weight;
        Ok(())
    }

    /// Replaces the engine report of a worker.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] from [`Report::check`], [`Error::UnknownWorker`].
    pub fn set_report(&mut self, worker: WorkerId, report: Report) -> Result<()> {
        report.check()?;
        let load = self.get_mut(worker).ok_or(Error::UnknownWorker(worker))?;
        load.report = report;
        load.dispatched_tokens = 0;
        load.others = 0;
        Ok(())
    }

    /// Takes in a report that the engine behind `ranks` had `live` requests: those without a booking are from other
    /// clients. Requests that ended since the report before may still be in it, so they do not count for other clients.
    pub fn credit_others(&mut self, ranks: &[WorkerId], live: u64) {
        let (mut own, mut closed) = (0, 0);
        for load in ranks.iter().filter_map(|&rank| self.get(rank)) {
            own += u64::from(load.inflight);
            closed += u64::from(load.closed);
        }
        let others = live.saturating_sub(own + closed);
        let n = ranks.len() as u64;
        for (rank, i) in ranks.iter().zip(0..) {
            if let Some(load) = self.get_mut(*rank) {
                // Shares that sum up to the whole.
                load.others = u32::try_from((others + n - 1 - i) / n).unwrap_or(u32::MAX);
                load.closed = 0;
            }
        }
    }

    /// Takes in a report of the engine behind `ranks`. Returns how many of its bookings it has lost, and since when these are
    /// silent.
    pub(super) fn missing(
        &mut self,
        ranks: &[WorkerId],
        report: Reported,
        grace_ms: u64,
    ) -> Option<(u64, Millis)> {
        let first = *ranks.first()?;
        self.get(first)?;
        let inflight = ranks.iter().map(|&rank| self.inflight(rank));
        let booked = inflight.map(u64::from).sum();
        report.missing(&mut self.reported[first.slot as usize], booked, grace_ms)
    }

    /// Moves a worker to the newest end of the cold order.
    pub fn mark_cold_pick(&mut self, worker: WorkerId) {
        self.cold_clock += 1;
        let clock = self.cold_clock;
        if let Some(load) = self.get_mut(worker) {
            load.last_cold_pick = clock;
        }
    }
}
