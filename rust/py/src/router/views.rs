//! Counters and columns of a router as plain Python values, read when somebody asks.

use cachelb_core::ids::Medium;
use cachelb_core::load::Load;
use cachelb_core::policy::Reason;
use cachelb_core::router::{
    Ending, Funnel, PoolId, Record, Selector, ShadowTally, Standing, Timing, Wanted,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyList, PyTuple};

use super::NativeRouter;
use super::roster::Registered;
use crate::args::named;
use crate::engine::Engine;
use crate::error::to_python;
use crate::learned_stats::stats_dict;

/// One candidate's state, copied out under the lock.
struct Row {
    key: String,
    rank: Option<u32>,
    role: &'static str,
    standing: Standing,
    load: Load,
    /// By medium.
    blocks: [u64; Medium::ALL.len()],
}

/// Exact up to 2^53 ns, 104 days.
fn seconds_of(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Everything that is counted, copied out under the lock.
struct Copied {
    decisions: [Vec<u64>; Wanted::ALL.len()],
    endings: [u64; Ending::ALL.len()],
    no_worker: u64,
    unread_usage: u64,
    funnel: Funnel,
    shadows: Vec<ShadowTally>,
    evictions: [(&'static str, u64); 6],
    dropped: [(&'static str, u64); 5],
    open: usize,
    blocks: u64,
    routes: usize,
    remote_routes: usize,
    index_bytes: usize,
    memory_bytes: usize,
}

/// Blocks that left the indexes, by cause.
fn evictions(selector: &Selector) -> [(&'static str, u64); 6] {
    let lost = selector.lost();
    [
        ("capacity", lost.capacity),
        ("ttl", lost.ttl),
        ("memory", lost.memory),
        ("removed", lost.removed),
        ("cleared", lost.cleared),
        ("failed", lost.failed),
    ]
}

/// What the indexes were told and could not take.
fn dropped(selector: &Selector) -> [(&'static str, u64); 5] {
    let stats = selector.index_stats();
    [
        ("orphan", stats.orphans),
        ("conflict", stats.conflicts),
        ("unknown-removal", stats.unknown_removals),
        ("no-room", selector.without_room()),
        ("block-size-mismatch", selector.ledger().size_disagreements),
    ]
}

#[pymethods]
impl NativeRouter {
    #[doc = stub!("Router.loads")]
    fn loads<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.engine.loads(py)
    }

    #[doc = stub!("Router.block_count")]
    #[pyo3(signature = (worker=None))]
    fn block_count(&self, py: Python<'_>, worker: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        match worker {
            None => self
                .engine
                .locked(py, |selector| selector.block_count(None)),
            Some(worker) => Ok(self
                .with_candidates(worker, |selector, name| selector.block_count(Some(name)))?
                .into_iter()
                .sum()),
        }
    }

    #[doc = stub!("Router.memory_bytes")]
    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.engine.locked(py, |selector| selector.memory_bytes())
    }

    #[doc = stub!("Router.validate")]
    fn validate(&self, py: Python<'_>) -> PyResult<()> {
        self.engine
            .locked(py, |selector| selector.validate())?
            .map_err(|error| to_python(&error))
    }

    /// Counts since the start.
    fn _counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = PyDict::new(py);
        let copied = self.engine.locked(py, |selector| {
            let ledger = selector.ledger();
            Copied {
                decisions: ledger.decisions.clone(),
                endings: ledger.endings,
                no_worker: ledger.no_worker,
                unread_usage: ledger.unread_usage,
                funnel: ledger.funnel,
                shadows: ledger.shadows.clone(),
                evictions: evictions(selector),
                dropped: dropped(selector),
                open: selector.book().len(),
                blocks: selector.block_count(None),
                routes: selector.routes(),
                remote_routes: selector.remote_routes(),
                index_bytes: selector.index_bytes(),
                memory_bytes: selector.memory_bytes(),
            }
        })?;
        let by_reason = PyDict::new(py);
        for (wanted, decisions) in Wanted::ALL.iter().zip(&copied.decisions) {
            for (reason, count) in Reason::ALL.iter().zip(decisions).filter(|(_, n)| **n > 0) {
                by_reason.set_item((wanted.name(), reason.name()), count)?;
            }
        }
        let by_ending = PyDict::new(py);
        for (ending, count) in Ending::ALL.iter().zip(copied.endings) {
            by_ending.set_item(ending.name(), count)?;
        }
        let shadows = PyList::empty(py);
        for tally in copied.shadows {
            shadows.append((
                tally.decisions,
                tally.agreed,
                tally.matched_tokens,
                tally.first_matched_tokens,
            ))?;
        }
        let funnel = copied.funnel;
        counters.set_item("decisions", by_reason)?;
        counters.set_item("endings", by_ending)?;
        counters.set_item("no_worker", copied.no_worker)?;
        counters.set_item("unread_usage", copied.unread_usage)?;
        counters.set_item(
            "funnel",
            (
                funnel.requests,
                funnel.prompt_tokens,
                funnel.best_matched_tokens,
                funnel.selected_matched_tokens,
                funnel.engine_cached_tokens,
            ),
        )?;
        counters.set_item("shadows", shadows)?;
        counters.set_item("evictions", copied.evictions.into_py_dict(py)?)?;
        counters.set_item("dropped", copied.dropped.into_py_dict(py)?)?;
        counters.set_item("open_requests", copied.open)?;
        counters.set_item("index_blocks", copied.blocks)?;
        counters.set_item("routes", copied.routes)?;
        counters.set_item("remote_routes", copied.remote_routes)?;
        counters.set_item("index_bytes", copied.index_bytes)?;
        counters.set_item("memory_bytes", copied.memory_bytes)?;
        let (counts, sum_ns) = self.engine.timing.read();
        let bounds = Timing::BOUNDS_NS.map(seconds_of);
        let histogram = (
            PyTuple::new(py, bounds)?,
            PyTuple::new(py, counts)?,
            seconds_of(sum_ns),
        );
        counters.set_item("select_seconds", histogram)?;
        Ok(counters)
    }

    /// What is known of every candidate.
    fn _worker_rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let now = self.engine.now(py)?;
        let rows: Vec<Row> = self.engine.locked(py, |selector| {
            let mut rows = Vec::new();
            for (name, id) in selector.workers() {
                if let (Some((profile, standing)), Some(load)) =
                    (selector.condition(id, now), selector.book().load(id))
                {
                    let (key, rank) = profile.split(&name);
                    rows.push(Row {
                        key: key.into(),
                        rank,
                        role: profile.role.name(),
                        standing,
                        load: *load,
                        blocks: selector.blocks_by_medium(id),
                    });
                }
            }
            rows
        })?;
        let list = PyList::empty(py);
        for row in rows {
            let fields = PyDict::new(py);
            fields.set_item("key", row.key)?;
            fields.set_item("dp_rank", row.rank)?;
            fields.set_item("role", row.role)?;
            let state = match row.standing {
                Standing::Candidate => "ready",
                other => other.describe(),
            };
            fields.set_item("state", state)?;
            fields.set_item("inflight", row.load.inflight)?;
            fields.set_item("pending_prefill_tokens", row.load.pending_prefill_tokens)?;
            fields.set_item("decode_blocks", row.load.decode_blocks)?;
            let blocks = PyDict::new(py);
            for (medium, count) in Medium::ALL.into_iter().zip(row.blocks) {
                if count > 0 {
                    blocks.set_item(medium.name(), count)?;
                }
            }
            fields.set_item("index_blocks", blocks)?;
            fields.set_item("weight", row.load.weight)?;
            let report = row.load.report;
            let age = report
                .is_known()
                .then(|| now.0.saturating_sub(report.at.0) as f64 / 1000.0);
            fields.set_item("report_age_s", age)?;
            fields.set_item("running", report.running.get())?;
            fields.set_item("waiting", report.waiting.get())?;
            fields.set_item("queued_tokens", report.queued_tokens.get())?;
            fields.set_item("kv_usage", report.kv_usage.get())?;
            fields.set_item("prefill_tps", report.prefill_tps.get())?;
            fields.set_item("gen_tps", report.gen_tps.get())?;
            list.append(fields)?;
        }
        Ok(list)
    }

    /// What the rules learned, of those that do.
    fn _learned<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let all = self.engine.locked(py, |selector| selector.learned())?;
        let registered = self.roster.now();
        let fields = |(pool, part, stats)| stats_dict(py, registered.model(pool), part, &stats);
        all.into_iter().map(fields).collect()
    }

    /// The model that the rule of a model's pool learned, as it is saved; of the first pool without one.
    #[pyo3(signature = (model=None, part="whole"))]
    fn _learned_model<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = named::model_or_none)] model: Option<&str>,
        #[pyo3(from_py_with = named::part)] part: &str,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let pool = match model {
            None => PoolId(0),
            Some(model) => *self
                .roster
                .now()
                .models
                .get(model)
                .ok_or_else(|| PyValueError::new_err(format!("model {model:?} has no pool")))?,
        };
        let bytes = self
            .engine
            .locked(py, |selector| selector.learned_model(pool, part))?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Finished requests after the first `cursor` ones, the cursor after them, and how many were lost meanwhile.
    fn _records_since<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = named::cursor)] cursor: u64,
        #[pyo3(from_py_with = named::limit)] limit: usize,
    ) -> PyResult<(Bound<'py, PyList>, u64, u64)> {
        let (records, next, lost) = self
            .engine
            .locked(py, |selector| selector.ledger().since(cursor, limit))?;
        let now = self.engine.now(py)?.0;
        let registered = self.roster.now();
        let finished = PyList::empty(py);
        for record in records {
            finished.append(self.record(py, &registered, &record, now)?)?;
        }
        Ok((finished, next, lost))
    }
}

impl NativeRouter {
    /// A record as a dictionary; times are seconds before now, or spans.
    fn record<'py>(
        &self,
        py: Python<'py>,
        registered: &Registered,
        record: &Record,
        now: u64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1000.0;
        let decided = record.decided.0;
        fields.set_item("id", Engine::id(self.engine.nonce(), record.number))?;
        fields.set_item("part", record.wanted.name())?;
        fields.set_item("age_s", seconds(decided, now))?;
        fields.set_item("model", registered.model(record.pool))?;
        fields.set_item("key", &*record.key)?;
        fields.set_item("dp_rank", record.rank)?;
        fields.set_item("reason", record.reason.name())?;
        fields.set_item("prompt_tokens", record.prompt_tokens)?;
        fields.set_item("best_matched_tokens", record.best_matched_tokens)?;
        fields.set_item("matched_tokens", record.matched_tokens)?;
        fields.set_item("cached_tokens", record.usage.cached_tokens)?;
        fields.set_item("engine_prompt_tokens", record.usage.prompt_tokens)?;
        fields.set_item("output_tokens", record.usage.output_tokens)?;
        fields.set_item("candidates", record.candidates)?;
        fields.set_item("attempt", record.attempt)?;
        fields.set_item("outcome", record.ended.map(|(_, ending)| ending.name()))?;
        fields.set_item(
            "ttft_s",
            record.first_token.map(|at| seconds(decided, at.0)),
        )?;
        fields.set_item(
            "duration_s",
            record.ended.map(|(at, _)| seconds(decided, at.0)),
        )?;
        let worker = &record.worker;
        fields.set_item("running", worker.running.get())?;
        fields.set_item("waiting", worker.waiting.get())?;
        fields.set_item("kv_usage", worker.kv_usage.get())?;
        fields.set_item("stale_load", worker.is_stale)?;
        fields.set_item("inflight", worker.inflight)?;
        fields.set_item("pending_prefill_tokens", worker.pending_prefill_tokens)?;
        fields.set_item("decode_tokens", worker.decode_tokens)?;
        fields.set_item("credited_tokens", worker.credited_tokens)?;
        fields.set_item("gpu", record.gpu.as_deref())?;
        let shadows = PyList::empty(py);
        for shadow in &record.shadows {
            shadows.append((
                &*shadow.key,
                shadow.reason.name(),
                shadow.matched_tokens,
                shadow.agrees,
            ))?;
        }
        fields.set_item("shadows", shadows)?;
        Ok(fields)
    }
}
