//! Options of the policy that learns what requests cost.

use std::sync::Arc;
use std::time::Duration;

use cachelb_core::learned::{FeatureSet, Fitting, Kind, Model, Replay, Reward, Schedule, Training};
use cachelb_core::policy::{Learned, Learning, Outside, Rule, Tie};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::read::{ABOVE_ZERO, FRACTION, LONGEST_S, NOT_NEGATIVE, Options, millis};
use super::{Common, Need, Ruled, read_rule};
use crate::args::{number, ranged};
use crate::call::MAX_TOKENS;
use crate::error::to_python;

/// Most samples of a pool.
const MAX_SAMPLES: u64 = 1_000_000;

/// The rule called `rule`, `None` if it is not this one.
pub fn read(rule: &str, given: &Options<'_, '_>, common: Common) -> PyResult<Option<Ruled>> {
    if rule != "learned" {
        return Ok(None);
    }
    let (fallback, need) = fallback(given, common)?;
    let optional = |name, range| {
        let value = given.optional(name)?;
        value.map(|value| number(&value, name, range)).transpose()
    };
    let outside = [
        ("worker", Outside::Worker),
        ("fleet", Outside::Fleet),
        ("ignore", Outside::Ignored),
    ];
    let seed = given.0.get_item("seed")?.filter(|seed| !seed.is_none());
    let seed = seed.map(|seed| ranged(&seed, "seed", 0, u64::MAX));
    let timeout_ms = optional("timeout_ms", ABOVE_ZERO)?;
    let schedule = schedule(given, seed.transpose()?.unwrap_or(common.seed))?;
    let settings = Learning {
        epsilon: given.number("epsilon", FRACTION)?,
        delta: given.number("delta", NOT_NEGATIVE)? as f32,
        crowding: given.number("crowding", NOT_NEGATIVE)? as f32,
        tie: given.choice("tie", &[("cached", Tie::Cached), ("random", Tie::Random)])?,
        k: given.integer("k", 0, u64::from(u32::MAX))? as usize,
        k_slack: optional("k_slack", NOT_NEGATIVE)?.map(|slack| slack as f32),
        tau_sat: given.number("tau_sat", FRACTION)?,
        tau_ben: given.number("tau_ben", NOT_NEGATIVE)?,
        prefix_tokens: given.integer("prefix_token_length", 1, MAX_TOKENS)?,
        max_scored: given.integer("max_scored", 2, u64::from(u32::MAX))? as usize,
        outside: given.choice("outside", &outside)?,
        guards: given.flag("guards")?,
        // A run that is to be repeated must not depend on how fast the machine is.
        timeout: timeout_ms
            .filter(|_| schedule.training == Training::Background)
            .map(|limit| Duration::from_secs_f64((limit / 1e3).min(LONGEST_S))),
        max_model_age_ms: optional("max_model_age_s", ABOVE_ZERO)?.map(millis),
        reward: reward(given)?,
        clip_s: given.number("clip_ttft_s", ABOVE_ZERO)?,
        schedule,
        model: model(given)?,
        seed: common.seed,
    };
    let rule = Learned::new(settings, fallback);
    Ok(Some(Ruled::new(rule, Need::BOUNDARIES.and(need))))
}

/// The rule that decides where the model cannot, from its name and options.
fn fallback(given: &Options<'_, '_>, common: Common) -> PyResult<(Box<dyn Rule>, Need)> {
    let (name, options): (String, Bound<'_, PyDict>) = given.required("fallback")?.extract()?;
    let options = options.copy()?;
    if let Some(replicas) = given.0.get_item("replicas")? {
        options.set_item("replicas", replicas)?;
    }
    let ruled = read_rule(&name, &Options(&options), common)?;
    Ok((ruled.rule, ruled.need))
}

fn schedule(given: &Options<'_, '_>, seed: u64) -> PyResult<Schedule> {
    let count = |name| given.integer(name, 1, MAX_SAMPLES);
    let kinds = [
        ("mlp", Kind::Mlp),
        ("linear", Kind::Linear),
        ("trees", Kind::Trees),
    ];
    let features = [
        ("extended", FeatureSet::Extended),
        ("paper", FeatureSet::Paper),
    ];
    let pools = [
        ("weighted", Replay::Weighted),
        ("lodestar", Replay::Lodestar),
        ("none", Replay::None),
        ("all", Replay::All),
    ];
    let places = [
        ("background", Training::Background),
        ("inline", Training::Inline),
    ];
    let freeze = given.optional("freeze_after")?;
    let freeze = freeze.map(|value| ranged(&value, "freeze_after", 0, u64::MAX));
    Ok(Schedule {
        n_min: count("n_min")?,
        theta: count("theta")?,
        fifo: count("fifo_size")? as usize,
        replay: given.integer("replay_size", 0, MAX_SAMPLES)? as usize,
        how: given.choice("replay", &pools)?,
        freeze_after: freeze.transpose()?,
        fitting: Fitting {
            kind: given.choice("model_kind", &kinds)?,
            features: given.choice("features", &features)?,
            ..Fitting::default()
        },
        training: given.choice("training", &places)?,
        seed,
    })
}

fn reward(given: &Options<'_, '_>) -> PyResult<Reward> {
    let slo = given.optional("slo_ttft_ms")?;
    let slo = slo.map(|value| number(&value, "slo_ttft_ms", ABOVE_ZERO));
    match (
        given.choice("reward", &[("ttft", 0), ("e2e", 1), ("slo", 2)])?,
        slo.transpose()?,
    ) {
        (2, Some(ttft_ms)) => Ok(Reward::Slo { ttft_ms }),
        (2, None) => Err(PyValueError::new_err("reward=\"slo\" needs slo_ttft_ms")),
        (1, _) => Ok(Reward::E2e),
        _ => Ok(Reward::Ttft),
    }
}

fn model(given: &Options<'_, '_>) -> PyResult<Option<Arc<Model>>> {
    let bytes = given.optional("model")?;
    let bytes = bytes.map(|bytes| bytes.extract::<Vec<u8>>()).transpose()?;
    let model = bytes.map(|bytes| Model::from_bytes(&bytes).map(Arc::new));
    model.transpose().map_err(|error| to_python(&error))
}
