//! Settings of a router and of its models, from dictionaries made by the Python half.

use cachelb::selector::{
    Breaker, Placements, PoolId, PoolSettings, PromptReader, Selector, Settings, Veto,
};
use cachelb_core::hashing::{Hasher, NamespaceKey};
use cachelb_policy::{Need, Rule, Setup};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::args::text;
use crate::error::to_python;
use crate::options::read::{ABOVE_ZERO, AT_LEAST_ONE, FRACTION, NOT_NEGATIVE, Options, millis};
use crate::policy::NativePolicy;

/// Settings of the whole fleet.
pub fn settings(given: &Options<'_, '_>) -> PyResult<Settings> {
    let bound = |name, range| given.number_or_none(name, range);
    let failures = given.integer("breaker_failures", 0, u64::from(u32::MAX))? as u32;
    Ok(Settings {
        seed: given.integer("seed", 0, u64::MAX)?,
        booking_ttl_ms: millis(given.number("booking_ttl_s", ABOVE_ZERO)?),
        max_report_age_ms: millis(given.number("max_report_age_s", ABOVE_ZERO)?),
        reconcile_grace_ms: bound("reconcile_grace_s", NOT_NEGATIVE)?.map(millis),
        registered: true,
        veto: Veto {
            kv_usage: bound("veto_kv_usage", FRACTION)?,
            waiting: bound("veto_waiting", NOT_NEGATIVE)?,
        },
        breaker: (failures > 0).then_some(Breaker::new(
            failures,
            millis(given.number("breaker_cooldown_s", ABOVE_ZERO)?),
        )),
        #[expect(clippy::cast_sign_loss, reason = "checked to be positive")]
        max_memory_bytes: bound("max_memory_mb", AT_LEAST_ONE)?
            .map(|mb| (mb * 1_048_576.0) as usize),
        records: Settings::RECORDS,
    })
}

/// Keys of the hashes of all models.
#[derive(Debug, Clone, Copy)]
pub struct HashKeys {
    pub seed: u64,
    namespaces: NamespaceKey,
    /// Key of sessions: routers without a secret but with the same seed divide them alike.
    pub sessions: NamespaceKey,
}

impl HashKeys {
    /// Reads `hash_seed` and `namespace_key`, without which namespaces are those of the process.
    pub fn read(given: &Options<'_, '_>) -> PyResult<Self> {
        let seed = given.integer("hash_seed", 0, u64::MAX)?;
        let key = given.or_none("namespace_key", |key| key.extract().map(NamespaceKey::new))?;
        Ok(Self {
            seed,
            namespaces: key.unwrap_or_else(NamespaceKey::of_process),
            sessions: key.unwrap_or_else(|| NamespaceKey::new(u128::from(seed).to_le_bytes())),
        })
    }
}

/// One model's part of the router.
pub struct Pool {
    pub model: Option<String>,
    pub settings: PoolSettings,
    pub reader: PromptReader,
}

/// A selector without workers, the readers of its pools, and its models.
pub type Opened = (Selector, Vec<PromptReader>, Vec<(String, PoolId)>);

/// Opens the pools of `specs` in a selector of their own.
pub fn open(
    py: Python<'_>,
    settings: Settings,
    specs: &[Py<PyDict>],
    keys: HashKeys,
) -> PyResult<Opened> {
    let mut specs = specs.iter().map(|spec| read(spec.bind(py), keys));
    let first = specs
        .next()
        .ok_or_else(|| PyValueError::new_err("a router needs a pool"))??;
    let (mut readers, mut models) = (vec![first.reader], Vec::new());
    let mut selector = Selector::new(settings, first.settings);
    for pool in specs {
        let pool = pool?;
        let id = selector.add_pool(pool.settings);
        readers.push(pool.reader);
        models.extend(pool.model.map(|model| (model, id)));
    }
    Ok((selector, readers, models))
}

/// Reads `{"model", "block_size", "replicas", "rule", "prefill", "decode", "shadows"}`, rules being policies.
pub fn read(spec: &Bound<'_, PyDict>, keys: HashKeys) -> PyResult<Pool> {
    let given = Options(spec);
    let mut block_size = given.integer("block_size", 1, 1024)? as u32;
    let mut need = Need::default();
    let mut kept: Option<Placements> = None;
    let replicas = given.integer("replicas", 1, u64::from(u32::MAX))? as f64;
    let mut rule = |policy: &Bound<'_, PyAny>| -> PyResult<Box<dyn Rule>> {
        let configured = &policy.cast::<NativePolicy>()?.get().configured;
        let refused = |error| to_python(&error);
        let setup = Setup {
            own_seed: configured.shared.seed,
            seed: keys.seed,
            replicas,
            block_size,
        };
        let ruled = configured.ruled(&setup).map_err(refused)?;
        need = need.and(ruled.need);
        if kept.is_none() && ruled.rule.properties().records_placement {
            block_size = configured.page_size().unwrap_or(block_size);
            kept = Some(configured.placements(block_size).map_err(refused)?);
        }
        Ok(ruled.rule)
    };
    let main = rule(&given.required("rule")?)?;
    let prefill = given.or_none("prefill", &mut rule)?;
    let decode = given.or_none("decode", &mut rule)?;
    let shadows = given
        .required("shadows")?
        .try_iter()?
        .map(|policy| rule(&policy?))
        .collect::<PyResult<Vec<_>>>()?;
    let placements = kept.unwrap_or_default();
    let hasher = Hasher::new(placements.scheme, block_size as usize, keys.seed)
        .map_err(|error| PyValueError::new_err(error.to_string()))?
        .keyed(Some(keys.namespaces));
    Ok(Pool {
        model: given.or_none("model", |model| {
            text(model, "a model's name").map(str::to_owned)
        })?,
        settings: PoolSettings {
            block_size,
            placements,
            rule: main,
            prefill,
            decode,
            shadows,
        },
        reader: PromptReader::new(hasher, need),
    })
}
