//! Keyword options of the policies -> core settings, each checked and named in its error.
//!
//! Defaults live in the Python classes; every option a rule has must be present here.

use std::hash::{BuildHasher, RandomState};

use cachelb_core::hashing::{Hasher, Scheme};
use cachelb_core::index::Matcher;
use cachelb_core::policy::{
    CacheAware, Compare, LeastLoaded, LoadUnit, Margin, PowerOfTwo, Random, Rendezvous, RoundRobin,
    Rule, Settings, SpillGate, Threshold,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};

use crate::args::{ranged, type_name};

/// What a policy needs from the tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Their number.
    Length,
    /// The hash of the first tokens, at most this many.
    Prefix(usize),
    /// The hashes of all blocks.
    Blocks,
}

/// A policy's settings.
#[derive(Debug)]
pub struct Configured {
    pub settings: Settings,
    pub hasher: Hasher,
    pub need: Need,
}

/// Reads `options` for the rule called `rule`.
pub fn configure(rule: &str, options: &Bound<'_, PyDict>) -> PyResult<Configured> {
    let given = Options(options);
    let block_size = given.integer("block_size", 1, 1024)?;
    let seed = given
        .optional("seed")?
        .map(|value| whole("seed", &value, 0, u64::MAX))
        .transpose()?;
    let mut configured = Configured {
        settings: Settings {
            rule: Rule::Random(Random),
            block_size: block_size as u32,
            seed: seed.unwrap_or_else(|| RandomState::new().hash_one(rule)),
            max_blocks_per_worker: u32::MAX,
            scheme: Scheme::Chained,
            matcher: Matcher::Kary,
            ttl_ms: None,
            booking_ttl_ms: millis(given.number("booking_ttl_s", ABOVE_ZERO)?),
        },
        hasher: hasher(
            Scheme::Chained,
            block_size,
            cachelb_core::hashing::DEFAULT_SEED,
        )?,
        need: Need::Length,
    };
    configured.settings.rule = match rule {
        "cache-aware" => {
            configured.need = Need::Blocks;
            let hash_seed = given.integer("hash_seed", 0, u64::MAX)?;
            let scheme = given.choice(
                "hashing",
                &[
                    ("chained", Scheme::Chained),
                    ("positional", Scheme::Positional),
                ],
            )?;
            configured.hasher = hasher(scheme, block_size, hash_seed)?;
            let settings = &mut configured.settings;
            settings.scheme = scheme;
            settings.max_blocks_per_worker =
                given.integer("max_blocks_per_worker", 1, u64::from(u32::MAX))? as u32;
            settings.ttl_ms = given
                .optional("ttl_s")?
                .map(|v| number("ttl_s", &v, ABOVE_ZERO))
                .transpose()?
                .map(millis);
            settings.matcher = given.choice(
                "matcher",
                &[
                    ("kary", Matcher::Kary),
                    ("binary", Matcher::Binary),
                    ("linear", Matcher::Linear),
                ],
            )?;
            if scheme == Scheme::Positional && settings.ttl_ms.is_some() {
                return Err(PyValueError::new_err(
                    "ttl_s needs hashing=\"chained\": positional blocks have no time to live",
                ));
            }
            given.number("eviction_interval_secs", ABOVE_ZERO)?;
            Rule::CacheAware(cache_aware(&given)?)
        }
        "least-loaded" => {
            let units = [
                ("inflight", LoadUnit::Inflight),
                ("tokens", LoadUnit::Tokens),
                ("blocks", LoadUnit::Blocks),
            ];
            Rule::LeastLoaded(LeastLoaded {
                unit: given.choice("load", &units)?,
            })
        }
        "power-of-two" => Rule::PowerOfTwo(PowerOfTwo {
            choices: given.integer("choices", 1, 1 << 20)? as usize,
            compare: given.choice(
                "load",
                &[
                    ("inflight", Compare::Inflight),
                    ("expected-wait", Compare::ExpectedWait),
                ],
            )?,
        }),
        "rendezvous" => {
            configured.need =
                Need::Prefix(given.integer("prefix_token_count", 1, u64::from(u32::MAX))? as usize);
            configured.hasher = hasher(Scheme::Chained, block_size, configured.settings.seed)?;
            Rule::Rendezvous(Rendezvous {
                seed: configured.settings.seed,
            })
        }
        "round-robin" => Rule::RoundRobin(RoundRobin::new(
            given.choice("start", &[("seeded", false), ("first", true)])?,
        )),
        "random" => Rule::Random(Random),
        _ => {
            return Err(PyValueError::new_err(format!(
                "there is no native rule {rule:?}"
            )));
        }
    };
    Ok(configured)
}

fn cache_aware(given: &Options<'_, '_>) -> PyResult<CacheAware> {
    let margin = given.required("balance_abs_threshold")?;
    let margin = match margin.cast::<PyString>() {
        Ok(text) if text.to_str()? == "auto" => Margin::Auto,
        Ok(text) => {
            let text = format!(
                "balance_abs_threshold must be \"auto\" or a number, 0 or more, got {text:?}"
            );
            return Err(PyValueError::new_err(text));
        }
        Err(_) => Margin::Fixed(number("balance_abs_threshold", &margin, NOT_NEGATIVE)?),
    };
    let min_matched_tokens = given.optional("min_matched_tokens")?;
    Ok(CacheAware {
        cache_threshold: Threshold::new(given.number("cache_threshold", FRACTION)?),
        min_matched_tokens: min_matched_tokens
            .map(|v| whole("min_matched_tokens", &v, 1, u64::MAX))
            .transpose()?,
        holder_slack: given.integer("holder_slack", 0, u64::from(u32::MAX))? as u32,
        overlap_decay: given.number("overlap_decay", NOT_NEGATIVE)?,
        temperature: given.number("temperature", NOT_NEGATIVE)?,
        kv_spread: given.number("kv_spread", FRACTION)?,
        kv_ceiling: given.number("kv_ceiling", FRACTION)?,
        gate: SpillGate {
            load_factor: given.number("load_factor", AT_LEAST_ONE)?,
            margin,
        },
    })
}

fn hasher(scheme: Scheme, block_size: u64, seed: u64) -> PyResult<Hasher> {
    Hasher::new(scheme, block_size as usize, seed)
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Seconds that are positive and finite; beyond five hundred million years they saturate.
fn millis(seconds: f64) -> u64 {
    #[expect(clippy::cast_sign_loss, reason = "checked to be positive")]
    let millis = (seconds * 1000.0).ceil() as u64;
    millis
}

/// A range of numbers, in words and as a test.
pub type Range = (&'static str, fn(f64) -> bool);
pub const FRACTION: Range = ("between 0 and 1", |v| (0.0..=1.0).contains(&v));
pub const NOT_NEGATIVE: Range = ("a finite number, 0 or more", |v| v.is_finite() && v >= 0.0);
pub const ABOVE_ZERO: Range = ("a finite number above 0", |v| v.is_finite() && v > 0.0);
const AT_LEAST_ONE: Range = ("a finite number, 1 or more", |v| v.is_finite() && v >= 1.0);

struct Options<'a, 'py>(&'a Bound<'py, PyDict>);

impl<'py> Options<'_, 'py> {
    fn required(&self, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.0
            .get_item(name)?
            .ok_or_else(|| PyTypeError::new_err(format!("option {name} is missing")))
    }

    fn optional(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(Some(self.required(name)?).filter(|value| !value.is_none()))
    }

    fn integer(&self, name: &str, low: u64, high: u64) -> PyResult<u64> {
        whole(name, &self.required(name)?, low, high)
    }

    fn number(&self, name: &str, range: Range) -> PyResult<f64> {
        number(name, &self.required(name)?, range)
    }

    fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> PyResult<T> {
        let value = self.required(name)?;
        let accepted = || {
            let names: Vec<String> = choices
                .iter()
                .map(|(name, _)| format!("{name:?}"))
                .collect();
            names.join(", ")
        };
        let Ok(text) = value.cast::<PyString>() else {
            let text = format!(
                "{name} must be one of {}, not {}",
                accepted(),
                type_name(&value)
            );
            return Err(PyTypeError::new_err(text));
        };
        let text = text.to_str()?;
        let found = choices
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, choice)| *choice);
        found.ok_or_else(|| {
            PyValueError::new_err(format!(
                "{name} must be one of {}, got {text:?}",
                accepted()
            ))
        })
    }
}

fn whole(name: &str, value: &Bound<'_, PyAny>, low: u64, high: u64) -> PyResult<u64> {
    if value.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!(
            "{name} must be int, got bool"
        )));
    }
    ranged(value, name, low, high)
}

/// A real number in a range; whatever converts to float counts, except bool.
pub fn number(name: &str, value: &Bound<'_, PyAny>, (expected, accepts): Range) -> PyResult<f64> {
    let read = value.extract::<f64>();
    let wrong_type = |error: &PyErr| error.is_instance_of::<PyTypeError>(value.py());
    if value.is_instance_of::<PyBool>() || read.as_ref().is_err_and(wrong_type) {
        return Err(PyTypeError::new_err(format!(
            "{name} must be a number, not {}",
            type_name(value)
        )));
    }
    read.ok().filter(|v| accepts(*v)).ok_or_else(|| {
        let got = value
            .str()
            .map_or_else(|_| String::from("a huge number"), |text| text.to_string());
        PyValueError::new_err(format!("{name} must be {expected}, got {got}"))
    })
}
