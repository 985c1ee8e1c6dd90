//! Options of the policies that weigh cached prefixes against load.

use std::collections::HashMap;

use cachelb_core::policy::{
    Adaptive, Continuation, Credits, EstimatedTtft, ExpectedWait, KvAware, LeastExpectedWait,
    Objective, OnSlo, OverlapCost, PrefillTime, PrefillTimesBatch, PrefixCache, PrefixCacheAndLoad,
    QueueOverThroughput, Scope, Scoring, SpillGate, StickyUntilSaturated, Threshold, Transfer,
    TtftSource,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyMapping, PySequence, PyString};

use crate::args::type_name;

use super::classic::{min_matched_tokens, spill_gate};
use super::read::{ABOVE_ZERO, FRACTION, NOT_NEGATIVE, Options, millis};
use super::{Common, Need, Ruled};
use crate::args::{Range, number, text};

/// The rule called `rule`, `None` if it is none of these.
pub fn read(rule: &str, given: &Options<'_, '_>, _common: Common) -> PyResult<Option<Ruled>> {
    Ok(Some(match rule {
        "prefix-cache" => {
            let tau = Threshold::new(given.number("tau", FRACTION)?);
            let gate = optional_gate(given)?;
            Ruled::new(PrefixCache { tau, gate }, Need::BLOCKS)
        }
        "prefix-cache-and-load" => Ruled::new(prefix_cache_and_load(given)?, Need::BLOCKS),
        "overlap-cost" => Ruled::new(overlap_cost(given)?, Need::BLOCKS),
        "prefill-times-batch" => {
            let crowding = given.number("crowding", NOT_NEGATIVE)?;
            Ruled::new(PrefillTimesBatch::new(crowding), Need::BLOCKS)
        }
        "sticky-until-saturated" => Ruled::new(sticky_until_saturated(given)?, Need::BLOCKS),
        "least-expected-wait" => Ruled::new(least_expected_wait(given)?, Need::BLOCKS),
        "queue-over-throughput" => Ruled::new(queue_over_throughput(given)?, Need::LENGTH),
        "estimated-ttft" => Ruled::new(estimated_ttft(given)?, Need::BLOCKS),
        "adaptive" => {
            let objectives = [
                ("balanced", Objective::Balanced),
                ("ttft", Objective::Ttft),
                ("e2e", Objective::E2e),
            ];
            let objective = given.choice("objective", &objectives)?;
            Ruled::new(Adaptive::new(objective), Need::BLOCKS)
        }
        "kv-aware" => Ruled::new(kv_aware(given)?, Need::BLOCKS),
        _ => return Ok(None),
    }))
}

/// Options `gate`, `load_factor` and `balance_abs_threshold`.
pub fn optional_gate(given: &Options<'_, '_>) -> PyResult<Option<SpillGate>> {
    let gate = spill_gate(given)?;
    Ok(given.flag("gate")?.then_some(gate))
}

fn optional_number(given: &Options<'_, '_>, name: &str, range: Range) -> PyResult<Option<f64>> {
    let value = given.optional(name)?;
    value.map(|value| number(&value, name, range)).transpose()
}

fn prefix_cache_and_load(given: &Options<'_, '_>) -> PyResult<PrefixCacheAndLoad> {
    let threshold = given.number("imbalance_threshold", NOT_NEGATIVE)?;
    let gate = spill_gate(given)?;
    let scopes = [
        ("fleet", Scope::Fleet(threshold)),
        ("candidate", Scope::Candidate(gate)),
    ];
    Ok(PrefixCacheAndLoad {
        k: given.number("k", NOT_NEGATIVE)?,
        scope: given.choice("scope", &scopes)?,
    })
}

fn overlap_cost(given: &Options<'_, '_>) -> PyResult<OverlapCost> {
    // Read here, though it bounds the placements, so that its error has its name.
    optional_number(given, "router_ttl_secs", ABOVE_ZERO)?;
    let scale = given.number("prefill_load_scale", NOT_NEGATIVE)?;
    let older_name = optional_number(given, "overlap_score_weight", NOT_NEGATIVE)?;
    let predicted = optional_number(given, "router_predicted_ttl_secs", ABOVE_ZERO)?;
    Ok(OverlapCost {
        overlap_score_credit: given.number("overlap_score_credit", NOT_NEGATIVE)?,
        overlap_score_credit_decay: given.number("overlap_score_credit_decay", NOT_NEGATIVE)?,
        prefill_load_scale: older_name.unwrap_or(scale),
        decode_active_request_weight: given.number("decode_active_request_weight", NOT_NEGATIVE)?,
        host_cache_hit_weight: given.number("host_cache_hit_weight", NOT_NEGATIVE)?,
        disk_cache_hit_weight: given.number("disk_cache_hit_weight", NOT_NEGATIVE)?,
        shared_cache_multiplier: given.number("shared_cache_multiplier", NOT_NEGATIVE)?,
        router_temperature: given.number("router_temperature", NOT_NEGATIVE)?,
        router_predicted_ttl_ms: predicted.map(millis),
    })
}

fn sticky_until_saturated(given: &Options<'_, '_>) -> PyResult<StickyUntilSaturated> {
    let peak = given.required("peak_prefill_throughput")?;
    let throughput = match peak.cast::<PyString>() {
        Ok(_) if text(&peak, "peak_prefill_throughput")? == "observed" => TtftSource::Throughput {
            peak: StickyUntilSaturated::PEAK_PREFILL_THROUGHPUT,
            observed: true,
        },
        Ok(text) => {
            return Err(PyValueError::new_err(format!(
                "peak_prefill_throughput must be \"observed\" or a number above 0, got {:?}",
                text.to_string_lossy()
            )));
        }
        Err(_) => TtftSource::Throughput {
            peak: number(&peak, "peak_prefill_throughput", ABOVE_ZERO)?,
            observed: false,
        },
    };
    let sources = [
        ("prefill_throughput", throughput),
        ("predictor", TtftSource::Predictor(PrefillTime::DEFAULT)),
    ];
    Ok(StickyUntilSaturated {
        affinity_threshold: Threshold::new(given.number("affinity_threshold", FRACTION)?),
        min_matched_tokens: min_matched_tokens(given)?,
        exploration_probability: given.number("exploration_probability", FRACTION)?,
        max_ttft_penalty_ms: given.number("max_ttft_penalty_ms", NOT_NEGATIVE)?,
        ttft: given.choice("ttft_source", &sources)?,
        gate: optional_gate(given)?,
    })
}

fn least_expected_wait(given: &Options<'_, '_>) -> PyResult<LeastExpectedWait> {
    given.number("load_check_interval_secs", ABOVE_ZERO)?;
    let most = given.integer("max_waiting_requests", 0, 1 << 32)?;
    Ok(LeastExpectedWait {
        wait: ExpectedWait {
            kv_pressure_weight: given.number("kv_pressure_weight", NOT_NEGATIVE)?,
            mean_prefill_tokens: given.number("mean_prefill_tokens", ABOVE_ZERO)?,
            default_throughput: given.number("default_throughput", ABOVE_ZERO)?,
        },
        cache_aware: given.flag("cache_aware")?,
        max_waiting_requests: (most > 0).then_some(most as f64),
    })
}

fn queue_over_throughput(given: &Options<'_, '_>) -> PyResult<QueueOverThroughput> {
    let value = given.required("throughput")?;
    let Ok(by_worker) = value.cast::<PyMapping>() else {
        return Ok(QueueOverThroughput {
            throughput: HashMap::new(),
            default_throughput: number(&value, "throughput", ABOVE_ZERO)?,
        });
    };
    let mut throughput = HashMap::new();
    for pair in by_worker.items()?.iter() {
        let (worker, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        let Ok(name) = worker.cast::<PyString>() else {
            let text = format!(
                "throughput must be by worker key, a str, not {}",
                type_name(&worker)
            );
            return Err(PyTypeError::new_err(text));
        };
        let name = text(name, "a key of throughput")?.to_owned();
        let value = number(&value, &format!("throughput[{name:?}]"), ABOVE_ZERO)?;
        throughput.insert(name, value);
    }
    let default_throughput = if throughput.is_empty() {
        1.0
    } else {
        throughput.values().sum::<f64>() / throughput.len() as f64
    };
    Ok(QueueOverThroughput {
        throughput,
        default_throughput,
    })
}

fn estimated_ttft(given: &Options<'_, '_>) -> PyResult<EstimatedTtft> {
    let transfer = Transfer {
        kvcache_balancing_threshold: given.number("kvcache_balancing_threshold", NOT_NEGATIVE)?,
        kv_bytes_per_token: given.number("kv_bytes_per_token", ABOVE_ZERO)?,
        transfer_gbps: given.number("transfer_gbps", ABOVE_ZERO)?,
    };
    let outcomes = [("route", OnSlo::Route), ("reject", OnSlo::Reject)];
    Ok(EstimatedTtft {
        prefill: prefill_time(given)?,
        transfer: given.flag("can_transfer")?.then_some(transfer),
        ttft_slo_ms: optional_number(given, "ttft_slo_ms", ABOVE_ZERO)?,
        tbt_slo_ms: optional_number(given, "tbt_slo_ms", ABOVE_ZERO)?,
        on_slo: given.choice("on_slo", &outcomes)?,
        gate: optional_gate(given)?,
    })
}

/// Option `prefill`: three factors, of tokens squared, of tokens, of requests.
pub fn prefill_time(given: &Options<'_, '_>) -> PyResult<PrefillTime> {
    let value = given.required("prefill")?;
    let factors = value.cast::<PySequence>().ok().filter(|factors| {
        !factors.is_instance_of::<PyString>() && factors.len().is_ok_and(|n| n == 3)
    });
    let Some(factors) = factors else {
        let text = "prefill must be three numbers: milliseconds per token squared, per token and per request";
        return Err(if value.cast::<PySequence>().is_ok() {
            PyValueError::new_err(format!("{text}, got {}", value.str()?))
        } else {
            PyTypeError::new_err(format!("{text}, not {}", type_name(&value)))
        });
    };
    let factor = |i: usize| {
        number(
            &factors.get_item(i)?,
            &format!("prefill[{i}]"),
            NOT_NEGATIVE,
        )
    };
    Ok(PrefillTime {
        square: factor(0)?,
        linear: factor(1)?,
        constant: factor(2)?,
    })
}

fn kv_aware(given: &Options<'_, '_>) -> PyResult<KvAware> {
    let scorings = [("prefix", Scoring::Prefix), ("cost", Scoring::Cost)];
    let ttl_ms = given.integer("speculative_ttl_ms", 1, 1 << 40)?;
    Ok(KvAware {
        scoring: given.choice("scoring", &scorings)?,
        credits: credits(given)?,
        gate: spill_gate(given)?,
        router_temperature: given.number("router_temperature", NOT_NEGATIVE)?,
        speculative_ttl_ms: given.flag("enable_speculative")?.then_some(ttl_ms),
    })
}

/// Options `credits` and `continuation`. Media that `credits` leaves out keep their default.
fn credits(given: &Options<'_, '_>) -> PyResult<Credits> {
    let continuations = [
        ("longest", Continuation::Longest),
        ("best-credit", Continuation::BestCredit),
    ];
    let mut credits = Credits {
        continuation: given.choice("continuation", &continuations)?,
        ..Credits::DEFAULT
    };
    let Some(value) = given.optional("credits")? else {
        return Ok(credits);
    };
    let Ok(by_medium) = value.cast::<PyMapping>() else {
        return Err(PyTypeError::new_err(format!(
            "credits must be a mapping of medium to credit, not {}",
            type_name(&value)
        )));
    };
    for pair in by_medium.items()?.iter() {
        let (medium, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        let slot = match medium.extract::<&str>() {
            Ok("gpu") => &mut credits.gpu,
            Ok("cpu") => &mut credits.cpu,
            Ok("external") => &mut credits.external,
            Ok("disk") => &mut credits.disk,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "credits must be of \"gpu\", \"cpu\", \"external\" or \"disk\", got {}",
                    medium.repr()?
                )));
            }
        };
        *slot = number(&value, &format!("credits[{}]", medium.repr()?), FRACTION)?;
    }
    Ok(credits)
}
