//! Workloads, workers and options from Python.

use std::hash::RandomState;
use std::sync::Arc;

use cachelb::selector::Role;
use cachelb_core::boundaries::to_blocks;
use cachelb_core::ids::SequenceHash;
use cachelb_sim::{
    Admission, CacheLayout, Commit, EngineSettings, Incident, Link, Options as RunOptions,
    PeerTerms, Polynomial, PoolTerms, Roofline, Scaled, Table, Timing, WorkerSettings, Workload,
};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::args::{Items, MAX_ITEMS, Range, number, ranged, text, wrong_type};
use crate::error::to_python;
use crate::options::read::{ABOVE_ZERO, FRACTION, NOT_NEGATIVE, Options};
use crate::router::settings_of;

/// More than any engine has.
const MANY: u64 = u32::MAX as u64;
const ANY_TIME: Range = ("more than 0 seconds", |v| v > 0.0);

/// Who may go to a worker, and how long requests are held.
pub fn admission(given: &Bound<'_, PyDict>) -> PyResult<Admission> {
    let options = Options(given);
    Ok(Admission {
        gate: settings_of(&options, &RandomState::new())?,
        max_wait: (options.number_or_none("max_wait_s", NOT_NEGATIVE)?).unwrap_or(f64::INFINITY),
    })
}

fn column<T: Element>(columns: &Bound<'_, PyDict>, name: &str) -> PyResult<Vec<T>> {
    let array = Options(columns).required(name)?;
    PyBuffer::<T>::get(&array)
        .and_then(|buffer| buffer.to_vec(columns.py()))
        .map_err(|error| PyValueError::new_err(format!("column {name}: {error}")))
}

/// Hashes of a row's prompt, and behind them those of its output.
fn joined(
    rows: usize,
    [prompt, output]: [&[u64]; 2],
    [prompt_offsets, output_offsets]: [&[u64]; 2],
) -> PyResult<(Vec<SequenceHash>, Vec<u64>)> {
    let proper = |offsets: &[u64], hashes: &[u64]| {
        offsets.len() == rows + 1
            && offsets[0] == 0
            && offsets[rows] == hashes.len() as u64
            && offsets.is_sorted()
    };
    if !(proper(prompt_offsets, prompt) && proper(output_offsets, output)) {
        return Err(PyValueError::new_err(
            "offsets must ascend from 0 to the number of hashes, one more than there are rows",
        ));
    }
    let mut hashes = Vec::with_capacity(prompt.len() + output.len());
    let mut offsets = Vec::with_capacity(rows + 1);
    offsets.push(0);
    for row in 0..rows {
        for (from, starts) in [(prompt, prompt_offsets), (output, output_offsets)] {
            let part = &from[starts[row] as usize..starts[row + 1] as usize];
            hashes.extend(part.iter().copied().map(SequenceHash));
        }
        offsets.push(hashes.len() as u64);
    }
    Ok((hashes, offsets))
}

/// Where the messages of each row end: tokens -> full blocks.
fn boundaries(block_size: u32, columns: &Bound<'_, PyDict>) -> PyResult<(Vec<u32>, Vec<u64>)> {
    let tokens = column::<u32>(columns, "boundaries")?;
    let offsets = column::<u64>(columns, "boundary_offsets")?;
    let (mut blocks, mut starts) = (Vec::new(), vec![0]);
    let mut row = Vec::new();
    for pair in offsets.windows(2) {
        let range = pair[0] as usize..pair[1] as usize;
        let ends = tokens.get(range).ok_or_else(|| {
            PyValueError::new_err("boundary_offsets must ascend from 0 to the number of boundaries")
        })?;
        to_blocks(ends, block_size as usize, usize::MAX, &mut row);
        blocks.extend_from_slice(&row);
        starts.push(blocks.len() as u64);
    }
    Ok((blocks, starts))
}

pub fn workload(block_size: u32, columns: &Bound<'_, PyDict>) -> PyResult<Workload> {
    let arrival = column::<f64>(columns, "arrival_s")?;
    let hashes = column::<u64>(columns, "hashes")?;
    let output_hashes = column::<u64>(columns, "output_hashes")?;
    let offsets = column::<u64>(columns, "offsets")?;
    let output_offsets = column::<u64>(columns, "output_offsets")?;
    let (hashes, offsets) = joined(
        arrival.len(),
        [&hashes, &output_hashes],
        [&offsets, &output_offsets],
    )?;
    let (boundaries, boundary_offsets) = match columns.get_item("boundaries")? {
        Some(_) => boundaries(block_size, columns)?,
        None => Default::default(),
    };
    let workload = Workload {
        block_size,
        arrival,
        parent: column(columns, "parent")?,
        think: column(columns, "think_s")?,
        abort: match columns.get_item("abort_s")? {
            Some(_) => column(columns, "abort_s")?,
            None => Vec::new(),
        },
        prompt_tokens: column(columns, "prompt_tokens")?,
        output_tokens: column(columns, "output_tokens")?,
        hashes,
        offsets,
        boundaries,
        boundary_offsets,
    };
    workload.check().map_err(|error| to_python(&error))?;
    Ok(workload)
}

fn pairs(name: &str, rows: &Bound<'_, PyAny>) -> PyResult<Vec<(f64, f64)>> {
    let pair = |row: PyResult<Bound<'_, PyAny>>| {
        let (first, second): (Bound<'_, PyAny>, Bound<'_, PyAny>) = row?
            .extract()
            .map_err(|_| wrong_type(rows, name, "pairs of numbers"))?;
        let any: Range = ("a number", |_| true);
        Ok((number(&first, name, any)?, number(&second, name, any)?))
    };
    Items::of(rows, name, "pairs of numbers", MAX_ITEMS)?
        .map(pair)
        .collect()
}

fn timing(given: &Bound<'_, PyAny>) -> PyResult<Timing> {
    let given = given.cast::<PyDict>()?;
    let given = Options(given);
    if given.0.contains("prefill_scale")? || given.0.contains("decode_scale")? {
        return Ok(Timing::Scaled(Box::new(Scaled {
            timing: unscaled(&given)?,
            prefill: given.number("prefill_scale", ABOVE_ZERO)?,
            decode: given.number("decode_scale", ABOVE_ZERO)?,
        })));
    }
    unscaled(&given)
}

fn unscaled(given: &Options<'_, '_>) -> PyResult<Timing> {
    let kinds = [("roofline", 0), ("polynomial", 1), ("table", 2)];
    Ok(match given.choice("kind", &kinds)? {
        0 => Timing::Roofline(Roofline {
            body_parameters: given.number("body_parameters", ABOVE_ZERO)?,
            head_parameters: given.number("head_parameters", NOT_NEGATIVE)?,
            attention_flops: given.number("attention_flops", NOT_NEGATIVE)?,
            kv_bytes: given.number("kv_bytes", NOT_NEGATIVE)?,
            flops: given.number("flops", ABOVE_ZERO)?,
            bandwidth: given.number("bandwidth", ABOVE_ZERO)?,
            attention_share: given.number("attention_share", ABOVE_ZERO)?,
            prefill_reads_context: given.flag("prefill_reads_context")?,
            pass_seconds: given.number("pass_seconds", NOT_NEGATIVE)?,
            sequence_seconds: given.number("sequence_seconds", NOT_NEGATIVE)?,
            exchange_seconds: if given.0.contains("exchange_seconds")? {
                given.number("exchange_seconds", NOT_NEGATIVE)?
            } else {
                0.0
            },
        }),
        1 => Timing::Polynomial(Polynomial {
            kv_tokens: given.number("kv_tokens", ABOVE_ZERO)?,
        }),
        _ => {
            let prefill = pairs("prefill", &given.required("prefill")?)?;
            let decode = pairs("decode", &given.required("decode")?)?;
            Timing::Table(Table::new(prefill, decode).map_err(|error| to_python(&error))?)
        }
    })
}

fn pool(given: &Bound<'_, PyAny>) -> PyResult<PoolTerms> {
    let given = Options(given.cast::<PyDict>()?);
    Ok(PoolTerms {
        blocks: given.integer("blocks", 1, MANY)? as u32,
        seconds_per_token: given.number("seconds_per_token", NOT_NEGATIVE)?,
    })
}

fn peers(given: &Bound<'_, PyAny>) -> PyResult<PeerTerms> {
    let given = Options(given.cast::<PyDict>()?);
    let best_from = given.or_none("best_from", |_| given.integer("best_from", 0, MANY))?;
    Ok(PeerTerms {
        startup: given.number("startup_s", NOT_NEGATIVE)?,
        seconds_per_token: given.number("seconds_per_token", NOT_NEGATIVE)?,
        timeout: given.number("timeout_s", NOT_NEGATIVE)?,
        best_from: best_from.map(|tokens| tokens as u32),
    })
}

fn present<T>(
    given: &Options<'_, '_>,
    name: &str,
    read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
) -> PyResult<Option<T>> {
    let value = given.0.get_item(name)?;
    value.map(|value| read(&value)).transpose()
}

fn worker(given: &Bound<'_, PyDict>) -> PyResult<WorkerSettings> {
    let given = Options(given);
    let threshold = "long_prefill_token_threshold";
    let layout = given.0.get_item("cache_layout")?;
    let layout = layout.map(|given| cache_layout(&given));
    let engine = EngineSettings {
        block_size: given.integer("block_size", 1, MANY)? as u32,
        kv_blocks: given.integer("kv_blocks", 1, MANY)? as u32,
        max_num_batched_tokens: given.integer("max_num_batched_tokens", 1, MANY)?,
        max_num_seqs: given.integer("max_num_seqs", 1, MANY)? as usize,
        long_prefill_token_threshold: given
            .or_none(threshold, |_| given.integer(threshold, 1, MANY))?,
        watermark: given.number("watermark", FRACTION)?,
        scheduler_reserve_full_isl: given.flag("scheduler_reserve_full_isl")?,
        hold_after_preemption: given.flag("hold_after_preemption")?,
        prefix_caching: given.flag("prefix_caching")?,
        commit: given.choice(
            "commit",
            &[
                ("schedule", Commit::Schedule),
                ("step_end", Commit::StepEnd),
            ],
        )?,
        followed: given.flag("kv_events")?,
        cache_layout: layout.transpose()?.map(Arc::new),
    };
    Ok(WorkerSettings {
        engine,
        timing: timing(&given.required("timing")?)?,
        prefill_only: given.flag("prefill_only")?,
        role: given.choice("role", &Role::ALL.map(|role| (role.name(), role)))?,
        link: Link {
            kv_bytes: given.number("kv_bytes", NOT_NEGATIVE)?,
            bandwidth: given.number("link_bytes_per_s", ABOVE_ZERO)?,
            latency: given.number("link_latency_s", NOT_NEGATIVE)?,
        },
        slowdown: pairs("slowdown", &given.required("slowdown")?)?,
        pool: present(&given, "pool", pool)?,
        tier: present(&given, "tier", pool)?,
        peers: present(&given, "peers", peers)?,
    })
}

pub fn workers(given: &Bound<'_, PyList>) -> PyResult<Vec<WorkerSettings>> {
    given
        .iter()
        .map(|one| worker(one.cast::<PyDict>()?))
        .collect()
}

fn incident(given: &Bound<'_, PyAny>) -> PyResult<(f64, u32, Incident)> {
    let expected = "tuples of seconds, worker and event";
    let (at, worker, what): (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>) = given
        .extract()
        .map_err(|_| wrong_type(given, "incidents", expected))?;
    let at = number(&at, "seconds of an incident", NOT_NEGATIVE)?;
    let worker = ranged(&worker, "worker of an incident", 0, MANY)? as u32;
    let what = text(&what, "event of an incident")?;
    let what = match what {
        "crash" => Incident::Crash,
        "join" => Incident::Join,
        "drain" => Incident::Drain,
        _ => {
            return Err(PyValueError::new_err(format!(
                "an incident must be \"crash\", \"join\" or \"drain\", got {what:?}"
            )));
        }
    };
    Ok((at, worker, what))
}

/// Options given; the rest keep their defaults.
pub fn options(given: &Bound<'_, PyDict>) -> PyResult<RunOptions> {
    let mut options = RunOptions::default();
    for (name, value) in given.iter() {
        let name: String = name.extract()?;
        let seconds = |range| number(&value, &name, range);
        match name.as_str() {
            "event_loss" => options.event_loss = seconds(FRACTION)?,
            "replay_delay" => {
                options.replay_delay = Options(given).number_or_none(&name, NOT_NEGATIVE)?;
            }
            "loss_seed" => options.loss_seed = ranged(&value, &name, 0, u64::MAX)?,
            "event_lag" => options.event_lag = seconds(NOT_NEGATIVE)?,
            "report_lag" => options.report_lag = seconds(NOT_NEGATIVE)?,
            "net_delay" => options.net_delay = seconds(NOT_NEGATIVE)?,
            "first_token_delay" => options.first_token_delay = seconds(NOT_NEGATIVE)?,
            "decision" => options.decision = seconds(NOT_NEGATIVE)?,
            "detection_delay" => options.detection_delay = seconds(NOT_NEGATIVE)?,
            "scrape_interval" => options.scrape_interval = seconds(ANY_TIME)?,
            "sample_interval" => options.sample_interval = seconds(ANY_TIME)?,
            "until" => options.until = seconds(ANY_TIME)?,
            "retries" => options.retries = Options(given).integer(&name, 0, MANY)? as u32,
            "tokens_per_message" => {
                options.tokens_per_message = Options(given).integer(&name, 1, MANY)? as u32;
            }
            "report_queued_tokens" => {
                options.report_queued_tokens = Options(given).flag(&name)?;
            }
            "report_cached_tokens" => {
                options.report_cached_tokens = Options(given).flag(&name)?;
            }
            "oracle" => options.oracle = Options(given).flag(&name)?,
            "pinned" => options.pinned = column(given, &name)?,
            "pull_min_tokens" => {
                let tokens = Options(given).or_none(&name, |_| ranged(&value, &name, 0, MANY))?;
                options.pull_min_tokens = tokens.map(|tokens| tokens as u32);
            }
            "incidents" => {
                options.incidents = Items::of(&value, &name, "a sequence", MAX_ITEMS)?
                    .map(|one| incident(&one?))
                    .collect::<PyResult<_>>()?;
            }
            _ => {
                return Err(PyValueError::new_err(format!(
                    "there is no option {name:?}"
                )));
            }
        }
    }
    Ok(options)
}

/// The cache groups of an engine.
pub fn cache_layout(given: &Bound<'_, PyAny>) -> PyResult<CacheLayout> {
    let (groups, retention, eagle) = crate::options::cache_layout::read(given)?;
    CacheLayout::new(groups, retention, eagle).map_err(|error| to_python(&error))
}
