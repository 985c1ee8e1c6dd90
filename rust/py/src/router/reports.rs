//! Reports about workers: their load, their health, and facts of their engines.

use cachelb::selector::{EngineKind, Facts, Sleep};
use cachelb_body::Engine as BodyEngine;
use cachelb_core::ids::Millis;
use cachelb_core::load::Report;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::fleet::{Fleet, count};
use crate::args::{named, number_or_none, ranged};
use crate::options::cache_layout;
use crate::options::read::{ABOVE_ZERO, FRACTION, NOT_NEGATIVE, millis};
use crate::options::word;

fn sleep_state(value: &Bound<'_, PyAny>) -> PyResult<Sleep> {
    let name = word(&Sleep::ALL.map(Sleep::name), "sleep", value)?;
    Ok(Sleep::named(name).unwrap_or_default())
}

/// The states of as many ranks, `None` for those that are not named. A single candidate of several engines computes as
/// long as one of them does.
fn sleep_states(given: &Bound<'_, PyAny>, ranks: usize) -> PyResult<Vec<Option<Sleep>>> {
    let Ok(by_rank) = given.cast::<PyDict>() else {
        return Ok(vec![Some(sleep_state(given)?); ranks]);
    };
    let mut states = vec![None; ranks];
    for (rank, value) in by_rank {
        let (rank, state) = (
            ranged(&rank, "a rank of sleep", 0, u64::from(u32::MAX))?,
            sleep_state(&value)?,
        );
        let at = if ranks == 1 { 0 } else { rank as usize };
        if let Some(known) = states.get_mut(at) {
            *known = known.map_or(Some(state), |other: Sleep| Some(other.min(state)));
        }
    }
    Ok(states)
}

fn engine_kind(value: &Bound<'_, PyAny>) -> PyResult<EngineKind> {
    let name = word(&EngineKind::ALL.map(EngineKind::name), "engine", value)?;
    EngineKind::named(name).ok_or_else(|| PyValueError::new_err(name))
}

#[pymethods]
impl Fleet {
    /// Adds cache properties that the engine of a worker reported, to each rank.
    #[pyo3(signature = (worker, *, kv_blocks=None, block_size=None, retention_interval=None, engine=None))]
    fn learn_worker(
        &self,
        worker: &Bound<'_, PyAny>,
        kv_blocks: Option<&Bound<'_, PyAny>>,
        block_size: Option<&Bound<'_, PyAny>>,
        retention_interval: Option<&Bound<'_, PyAny>>,
        engine: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = worker.py();
        let facts = Facts {
            kv_blocks: count("kv_blocks", kv_blocks)?,
            block_size: count("block_size", block_size)?,
            learned: None,
            resuming: None,
            retention: retention_interval
                .map(cache_layout::retention)
                .transpose()?,
            kind: engine.map(engine_kind).transpose()?,
        };
        let key = self.key_name(worker)?;
        let kind = self.edit(py, |edit| edit.learn(&key, facts))?;
        if let Some(kind) = kind {
            self.layouts.found(match kind {
                Some(EngineKind::Vllm) => BodyEngine::Vllm,
                Some(EngineKind::Sglang) => BodyEngine::Sglang,
                _ => BodyEngine::Unset,
            });
        }
        Ok(())
    }

    /// Forgets the blocks of a worker.
    fn reset_cache(&self, worker: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = worker.py();
        let now = self.engine.now(py)?;
        self.reset_streams(py, &self.key_name(worker)?)?;
        let names = self.candidates(worker)?;
        self.engine.locked(py, |selector| {
            for name in &names {
                selector.workers_mut().reset_cache(name, now);
            }
        })
    }

    /// Applies the outcome of one health check.
    #[pyo3(signature = (worker, *, answered, took_s=None, restarted=false))]
    fn update_health(
        &self,
        worker: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = named::answered)] answered: bool,
        took_s: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = named::restarted)] restarted: bool,
    ) -> PyResult<()> {
        let py = worker.py();
        let took = number_or_none(took_s, "took_s", NOT_NEGATIVE)?.map_or(0, millis);
        let (key, names) = (self.key_name(worker)?, self.candidates(worker)?);
        let shown = || (self.registry.feeds.get(&key)).is_some_and(|worker| worker.has_restarted());
        if restarted && !shown() {
            self.reset_cache(worker)?;
        }
        let now = self.engine.now(py)?;
        self.engine.locked(py, |selector| {
            let mut workers = selector.workers_mut();
            if restarted {
                for name in &names {
                    workers.restarted(name, now);
                }
            }
            workers.page(&names, answered.then_some(took), now);
        })?;
        self.engine.released()
    }

    /// Replaces the load report of a worker.
    #[pyo3(signature = (
        worker, *, running=None, waiting=None, queued_tokens=None, kv_usage=None, prefill_tps=None, gen_tps=None, age_s=None,
        sleep=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "one keyword argument each")]
    fn update_load(
        &self,
        worker: &Bound<'_, PyAny>,
        running: Option<&Bound<'_, PyAny>>,
        waiting: Option<&Bound<'_, PyAny>>,
        queued_tokens: Option<&Bound<'_, PyAny>>,
        kv_usage: Option<&Bound<'_, PyAny>>,
        prefill_tps: Option<&Bound<'_, PyAny>>,
        gen_tps: Option<&Bound<'_, PyAny>>,
        age_s: Option<&Bound<'_, PyAny>>,
        sleep: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = worker.py();
        let age = number_or_none(age_s, "age_s", NOT_NEGATIVE)?.map_or(0, millis);
        let names = self.candidates(worker)?;
        let now = self.engine.now(py)?;
        let report = Report {
            running: number_or_none(running, "running", NOT_NEGATIVE)?.into(),
            waiting: number_or_none(waiting, "waiting", NOT_NEGATIVE)?.into(),
            queued_tokens: number_or_none(queued_tokens, "queued_tokens", NOT_NEGATIVE)?.into(),
            kv_usage: number_or_none(kv_usage, "kv_usage", FRACTION)?.into(),
            prefill_tps: number_or_none(prefill_tps, "prefill_tps", ABOVE_ZERO)?.into(),
            gen_tps: number_or_none(gen_tps, "gen_tps", NOT_NEGATIVE)?.into(),
            at: Millis(now.0.saturating_sub(age)),
        };
        let sleeps = sleep.map_or(Ok(Vec::new()), |sleep| sleep_states(sleep, names.len()))?;
        let lost = self.engine.checked(py, |selector| {
            let mut workers = selector.workers_mut();
            let lost = workers.set_sleep(&names, &sleeps, report.at, now);
            workers.set_report(&names, &report, now).map(|_| lost)
        })?;
        if lost > 0 && sleeps.iter().all(|state| *state == Some(Sleep::Asleep)) {
            self.reset_streams(py, &self.key_name(worker)?)?;
        }
        self.engine.released()
    }
}
