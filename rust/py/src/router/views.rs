//! Counters and columns of a router as plain Python values, read on demand.

use std::collections::BTreeMap;

use cachelb::selector::{
    Counters, Eligibility, Ending, EngineKind, PoolId, Pulls, Record, Tally, Timing, Wanted,
};
use cachelb_core::ids::Medium;
use cachelb_core::load::Load;
use cachelb_policy::Reason;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyList, PyTuple};

use super::fleet::Fleet;
use crate::args::named;
use crate::engine::Engine;
use crate::items::set_items;
use crate::learned::stats::learned;

use crate::workers::Registered;

/// One candidate's state, copied out under the lock.
struct Row {
    key: String,
    rank: Option<u32>,
    role: &'static str,
    engine: Option<&'static str>,
    eligibility: Eligibility,
    load: Load,
    learned: BTreeMap<&'static str, f64>,
    /// By medium.
    blocks: [u64; Medium::ALL.len()],
}

/// Exact up to 2^53 ns, 104 days.
fn seconds_of(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Everything that is counted, copied out under the lock.
struct Copied {
    counters: Counters,
    evictions: [(&'static str, u64); 6],
    dropped: [(&'static str, u64); 5],
    sizes: [(&'static str, usize); 5],
    index_blocks: u64,
    bands: BTreeMap<i64, (Tally, usize)>,
    pulls: BTreeMap<String, Pulls>,
}

/// Outcomes of the requests of each priority, as in `BandStats`.
pub fn bands<'py>(
    py: Python<'py>,
    bands: &BTreeMap<i64, (Tally, usize)>,
) -> PyResult<Bound<'py, PyList>> {
    let rows = PyList::empty(py);
    for (band, (tally, waiting)) in bands {
        let row = tally.named().into_py_dict(py)?;
        row.set_item("priority", band)?;
        row.set_item("queued", waiting)?;
        rows.append(row)?;
    }
    Ok(rows)
}

#[pymethods]
impl Fleet {
    /// Counts since the start.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = PyDict::new(py);
        let copied = self.engine.locked(py, |selector| {
            let pools = selector.pools();
            let (lost, counted) = (pools.lost(), &selector.ledger().counters);
            let (mut routes, mut remote_routes) = (0, 0);
            for (.., rule) in pools.rules() {
                routes += rule.routes();
                remote_routes += rule.remote_routes();
            }
            Copied {
                counters: counted.clone(),
                evictions: [
                    ("capacity", lost.index.evicted),
                    ("ttl", lost.index.expired),
                    ("memory", lost.index.displaced),
                    ("removed", lost.removed),
                    ("cleared", lost.cleared),
                    ("failed", lost.failed),
                ],
                dropped: [
                    ("orphan", lost.index.orphans),
                    ("conflict", lost.index.conflicts),
                    ("unknown-removal", lost.index.unknown_removals),
                    ("no-room", pools.without_room()),
                    ("block-size-mismatch", counted.size_disagreements),
                ],
                sizes: [
                    ("open_requests", selector.book().bookings.len()),
                    ("routes", routes),
                    ("remote_routes", remote_routes),
                    ("index_bytes", pools.index_bytes()),
                    ("memory_bytes", selector.memory_bytes()),
                ],
                index_blocks: pools.block_count(None),
                bands: selector.gates.tallies(),
                pulls: pools.pulls(),
            }
        })?;
        let counted = copied.counters;
        let by_reason = PyDict::new(py);
        for (wanted, decisions) in Wanted::ALL.iter().zip(&counted.decisions) {
            for (reason, count) in Reason::ALL.iter().zip(decisions).filter(|(_, n)| **n > 0) {
                by_reason.set_item((wanted.name(), reason.name()), count)?;
            }
        }
        let endings = Ending::ALL.map(Ending::name).into_iter();
        let tallies = counted
            .shadows
            .iter()
            .map(|tally| tally.named().into_py_dict(py));
        let shadows = tallies.collect::<PyResult<Vec<_>>>()?;
        let funnel = counted.funnel.named().into_py_dict(py)?;
        for (name, size) in copied.sizes {
            counters.set_item(name, size)?;
        }
        let (pulls, pulled_tokens) = (PyDict::new(py), PyDict::new(py));
        for (group, counts) in &copied.pulls {
            for (outcome, count) in counts.named() {
                pulls.set_item((group, outcome), count)?;
            }
            pulled_tokens.set_item(group, counts.tokens)?;
        }
        let (counts, sum_ns) = self.engine.timing.read();
        let bounds = Timing::BOUNDS_NS.map(seconds_of);
        let histogram = (
            PyTuple::new(py, bounds)?,
            PyTuple::new(py, counts)?,
            seconds_of(sum_ns),
        );
        set_items!(counters, counted => no_worker, overloaded, unread_usage);
        set_items!(
            counters,
            decisions: by_reason,
            endings: endings.zip(counted.endings).into_py_dict(py)?,
            funnel: funnel,
            shadows: shadows,
            evictions: copied.evictions.into_py_dict(py)?,
            dropped: copied.dropped.into_py_dict(py)?,
            index_blocks: copied.index_blocks,
            bands: bands(py, &copied.bands)?,
            pulls: pulls,
            pulled_tokens: pulled_tokens,
            select_seconds: histogram,
        );
        Ok(counters)
    }

    /// State of every candidate.
    fn worker_rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let now = self.engine.now(py)?;
        let rows: Vec<Row> = self.engine.locked(py, |selector| {
            let mut rows = Vec::new();
            for (name, id) in selector.fleet().ids() {
                if let (Some((profile, eligibility)), Some(load)) =
                    (selector.condition(id, now), selector.book().loads.get(id))
                {
                    let (key, rank) = profile.split(&name);
                    rows.push(Row {
                        key: key.into(),
                        rank,
                        role: profile.role.name(),
                        engine: profile.engine.kind.map(EngineKind::name),
                        eligibility,
                        load: *load,
                        learned: selector.contradictions(id).collect(),
                        blocks: selector.pools().blocks_by_medium(id),
                    });
                }
            }
            rows
        })?;
        let list = PyList::empty(py);
        for row in rows {
            let fields = PyDict::new(py);
            let state = match row.eligibility {
                Eligibility::Candidate => "ready",
                other => other.name(),
            };
            let media = Medium::ALL.map(Medium::name).into_iter();
            let blocks = media.zip(row.blocks).filter(|(_, count)| *count > 0);
            let blocks = blocks.into_py_dict(py)?;
            let (load, report) = (row.load, row.load.report);
            let age = report
                .is_known()
                .then(|| now.0.saturating_sub(report.at.0) as f64 / 1000.0);
            set_items!(fields, row => key, role, engine, learned);
            set_items!(fields, load => inflight, pending_prefill_tokens, decode_blocks, weight);
            set_items!(fields, known report => running, waiting, queued_tokens, kv_usage, prefill_tps, gen_tps);
            set_items!(fields, dp_rank: row.rank, state: state, index_blocks: blocks, report_age_s: age);
            list.append(fields)?;
        }
        Ok(list)
    }

    /// Statistics of the rules that learn.
    fn learned<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let now = self.registry.roster.now();
        learned(py, &self.engine, |pool| now.model(pool).map(str::to_owned))
    }

    /// The model that the rule of a model's pool learned, as it is saved; of the first pool without one.
    #[pyo3(signature = (model=None, part="whole"))]
    fn learned_model<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = named::model_or_none)] model: Option<&str>,
        #[pyo3(from_py_with = named::part)] part: &str,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let pool = match model {
            None => PoolId(0),
            Some(model) => *self
                .registry
                .roster
                .now()
                .models
                .get(model)
                .ok_or_else(|| PyValueError::new_err(format!("model {model:?} has no pool")))?,
        };
        let bytes = self.engine.locked(py, |selector| {
            let mut rules = selector.pools().rules();
            let asked = rules.find(|(of, name, _)| (*of, *name) == (pool, part));
            asked.and_then(|(.., rule)| rule.model())
        })?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Finished requests after the first `cursor` ones, the cursor after them, and how many were lost meanwhile.
    fn records_since<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = named::cursor)] cursor: u64,
        #[pyo3(from_py_with = named::limit)] limit: usize,
    ) -> PyResult<(Bound<'py, PyList>, u64, u64)> {
        let (records, next, lost) = self
            .engine
            .locked(py, |selector| selector.ledger().since(cursor, limit))?;
        let now = self.engine.now(py)?.0;
        let registered = self.registry.roster.now();
        let finished = PyList::empty(py);
        for record in records {
            finished.append(self.record(py, &registered, &record, now)?)?;
        }
        Ok((finished, next, lost))
    }
}

impl Fleet {
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
        let (worker, usage) = (&record.worker, record.usage);
        set_items!(fields, record => prompt_tokens, best_matched_tokens, matched_tokens, held_tokens, shared_tokens, candidates, attempt);
        set_items!(fields, usage => cached_tokens, output_tokens);
        set_items!(fields, known worker => running, waiting, kv_usage);
        set_items!(fields, worker => inflight, pending_prefill_tokens, decode_tokens, credited_tokens);
        set_items!(
            fields,
            id: Engine::id(self.engine.nonce(), record.number),
            pulled_tokens: record.source.map_or(0, |source| source.tokens()),
            part: record.wanted.name(),
            age_s: seconds(decided, now),
            model: registered.model(record.pool),
            key: &*record.key,
            dp_rank: record.rank,
            reason: record.reason.name(),
            engine_prompt_tokens: usage.prompt_tokens,
            outcome: record.ended.map(|(_, ending)| ending.name()),
            ttft_s: record.first_token.map(|at| seconds(decided, at.0)),
            duration_s: record.ended.map(|(at, _)| seconds(decided, at.0)),
            stale_load: worker.is_stale,
            gpu: record.gpu.as_deref(),
            queued_s: record.queued_ms as f64 / 1000.0,
            convention: record.convention,
        );
        let shadows = record.shadows.iter().map(|shadow| {
            let reason = shadow.reason.name();
            (&*shadow.key, reason, shadow.matched_tokens, shadow.agrees)
        });
        fields.set_item("shadows", PyList::new(py, shadows)?)?;
        Ok(fields)
    }
}
