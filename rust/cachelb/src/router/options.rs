//! The options of a router, as JSON with the names and defaults of `Router` in Python.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use cachelb_core::hashing::NamespaceKey;
use cachelb_policy::{
    Configured, Declared, HostOptions, Kind, NOT_NEGATIVE, Options as _, Policy, Range, Shared,
    Value,
};
use serde_json::{Map, Value as Json};

use crate::assembly::{Assembly, native};
use crate::error::{Error, Result};
use crate::selector::{Breaker, Settings};

/// The policy unless another is named.
const POLICY: &str = "adaptive";
/// Objects in objects: a policy in a policy.
const DEPTH: u32 = 8;

/// Parts of a router, built from its options.
#[derive(Debug)]
pub(crate) struct Built {
    pub policy: &'static str,
    pub settings: Settings,
    pub assembly: Assembly,
    /// Seed of the names of conversations.
    pub sessions: NamespaceKey,
    /// Whether a router that starts later can have equal hashes.
    pub is_keyed: bool,
    /// The options of the router itself, as read.
    pub own: Json,
}

impl Built {
    /// Reads the text of a JSON object.
    pub fn read(json: &str) -> Result<Self> {
        let given: Json = serde_json::from_str(json)
            .map_err(|error| Error::options(format!("the options are no JSON: {error}")))?;
        let Json::Object(mut given) = given else {
            return Err(Error::options("the options must be a JSON object"));
        };
        let policy = policy_named(&given.remove("policy").unwrap_or_else(|| POLICY.into()))?;
        let key = given.remove("namespace_key");
        let key = key.as_ref().filter(|key| !key.is_null());
        let key = key.map(namespace_key).transpose()?;
        let own = HostOptions::declared().into_iter().map(|option| {
            let value = given.remove(option.name);
            let value = value.map(|value| read(&option.kind, option.name, &value, DEPTH));
            Ok(value.transpose()?.unwrap_or(option.default))
        });
        let own = HostOptions::from_values(own.collect::<Result<_>>()?).ok_or_else(mismatch)?;
        let configured = configured(policy, &given, DEPTH)?;
        let seed = configured.shared.seed;
        let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(policy.about.name) >> 8);
        let namespaces = key.unwrap_or_else(NamespaceKey::of_process);
        let assembly = Assembly::of(&configured, seed, f64::from(own.replicas), namespaces)?;
        #[expect(clippy::cast_sign_loss, reason = "checked to be positive")]
        let max_memory_bytes = own.max_memory_mb.map(|mb| (mb * 1_048_576.0) as usize);
        let hash_seed = assembly.reader.hasher.seed();
        Ok(Self {
            policy: policy.about.name,
            settings: Settings {
                seed,
                booking_ttl_ms: configured.shared.booking_ttl_s.millis(),
                registered: true,
                breaker: (own.breaker_failures > 0)
                    .then(|| Breaker::new(own.breaker_failures, own.breaker_cooldown_s.millis())),
                max_memory_bytes,
                records: Settings::RECORDS,
                ..Settings::default()
            },
            sessions: key.unwrap_or_else(|| NamespaceKey::new(u128::from(hash_seed).to_le_bytes())),
            is_keyed: key.is_some(),
            own: serde_json::json!({
                "max_memory_mb": own.max_memory_mb,
                "breaker_failures": own.breaker_failures,
                "breaker_cooldown_s": own.breaker_cooldown_s.millis() as f64 / 1e3,
                "replicas": own.replicas,
                "block_size": assembly.pool.block_size,
                "booking_ttl_s": configured.shared.booking_ttl_s.millis() as f64 / 1e3,
            }),
            assembly,
        })
    }
}

#[cold]
fn mismatch() -> Error {
    Error::options("an option is of another kind than declared")
}

fn policy_named(name: &Json) -> Result<&'static Policy> {
    let found = name.as_str().and_then(native);
    found.ok_or_else(|| Error::options(format!("there is no policy {name}")))
}

/// 32 hexadecimal digits.
fn namespace_key(key: &Json) -> Result<NamespaceKey> {
    let digits = key
        .as_str()
        .filter(|text| text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit()));
    let number = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
    let key = number.map(|number| NamespaceKey::new(number.to_be_bytes()));
    // The value is a secret, so the message leaves it out.
    key.ok_or_else(|| Error::options("namespace_key must be 32 hexadecimal digits"))
}

/// A policy with its options; those of a router go with every policy.
fn configured(
    policy: &'static Policy,
    given: &Map<String, Json>,
    depth: u32,
) -> Result<Configured> {
    let (own, taken, all) = ((policy.declared)(), policy.shared(), Shared::declared());
    // As of a router: size and seed of blocks belong to it, whatever its policy makes of them.
    let routed = &all[..4];
    for key in given.keys() {
        let mut known = own.iter().chain(&taken).chain(routed);
        if !known.any(|option| option.name == key) {
            let name = policy.about.name;
            return Err(Error::options(format!(
                "policy {name:?} has no option {key:?}"
            )));
        }
    }
    for option in routed {
        if let Some(value) = given.get(option.name) {
            read(&option.kind, option.name, value, depth)?;
        }
    }
    let value = |option: &Declared| {
        let value = given.get(option.name);
        let value = value.map(|value| read(&option.kind, option.name, value, depth));
        value.transpose()
    };
    let configured = policy.configured(value)?;
    configured.ok_or_else(mismatch)
}

/// A value of `kind`.
fn read(kind: &Kind, name: &str, value: &Json, depth: u32) -> Result<Value> {
    let refused = |expected: &str| {
        let text = format!("{name} must be {expected}, got {}", shown(value));
        Err(Error::options(text))
    };
    let value = match kind {
        Kind::Flag => value
            .as_bool()
            .map(Value::Flag)
            .ok_or("true or false".into()),
        Kind::Integer(low, high) => whole(value, *low, *high).map(Value::Integer),
        Kind::Number(range) => number(value, *range).map(Value::Number),
        Kind::Word(words) => word(value, words).map(Value::Word),
        Kind::WordOrNumber(only, range) => match word(value, &[only]) {
            Ok(word) => Ok(Value::Word(word)),
            Err(_) => number(value, *range)
                .map(Value::Number)
                .map_err(|expected| format!("{only:?} or {expected}")),
        },
        Kind::Optional(_) if value.is_null() => Ok(Value::Nothing),
        Kind::Optional(kind) => return read(kind, name, value, depth),
        Kind::Three(meaning) => {
            let all = value.as_array().filter(|all| all.len() == 3);
            let all = all.map(|all| {
                all.iter()
                    .map(|one| number(one, NOT_NEGATIVE).ok())
                    .collect()
            });
            let expected = || format!("three numbers of 0 or more: {meaning}");
            all.flatten().map(Value::Numbers).ok_or_else(expected)
        }
        Kind::Integers(low, high) => {
            let all = value.as_array();
            let all = all.map(|all| all.iter().map(|one| whole(one, *low, *high).ok()).collect());
            let expected = || format!("a list of whole numbers from {low} to {high}");
            all.flatten().map(Value::Integers).ok_or_else(expected)
        }
        Kind::ByWorker(range) => match value.as_object() {
            Some(by_name) => numbers(by_name, *range, None).map(Value::Named),
            None => number(value, *range).map(Value::Number),
        },
        Kind::ByWord(words, range) => match value.as_object() {
            Some(by_word) => numbers(by_word, *range, Some(words)).map(Value::Named),
            None => Err(format!("an object with keys among {words:?}")),
        },
        Kind::Policy => return Ok(Value::Policy(Arc::new(inner(value, depth)?))),
        #[cfg(feature = "learned")]
        Kind::Model => Err("null: JSON holds no learned model".into()),
    };
    value.or_else(|expected: String| refused(&expected))
}

/// A policy within another: its name, or an object of its name and options.
fn inner(value: &Json, depth: u32) -> Result<Configured> {
    let Json::Object(given) = value else {
        let configured = policy_named(value)?.by_name();
        return configured.ok_or_else(|| Error::options("a policy has no defaults"));
    };
    let mut given = given.clone();
    let name = given.remove("policy").unwrap_or_default();
    match depth.checked_sub(1) {
        Some(depth) => configured(policy_named(&name)?, &given, depth),
        None => Err(Error::options("policies lie too deep within each other")),
    }
}

type Read<T> = std::result::Result<T, String>;

fn whole(value: &Json, low: u64, high: u64) -> Read<u64> {
    let number = value
        .as_u64()
        .filter(|number| (low..=high).contains(number));
    number.ok_or_else(|| format!("a whole number from {low} to {high}"))
}

fn number(value: &Json, (expected, accepts): Range) -> Read<f64> {
    let number = value.as_f64().filter(|number| accepts(*number));
    number.ok_or_else(|| expected.to_owned())
}

fn word(value: &Json, words: &[&'static str]) -> Read<&'static str> {
    let found = words.iter().find(|word| value.as_str() == Some(word));
    found.copied().ok_or_else(|| format!("one of {words:?}"))
}

fn numbers(
    given: &Map<String, Json>,
    range: Range,
    words: Option<&[&str]>,
) -> Read<Vec<(String, f64)>> {
    let read = |(key, value): (&String, &Json)| {
        if let Some(words) = words.filter(|words| !words.contains(&&**key)) {
            return Err(format!("an object with keys among {words:?}"));
        }
        Ok((key.clone(), number(value, range)?))
    };
    given.iter().map(read).collect()
}

/// A value in a message, cut.
fn shown(value: &Json) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
