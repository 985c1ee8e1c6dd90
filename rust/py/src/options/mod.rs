//! Keyword options of the policies: values of the kinds that the core declares, each checked and named in its error.

pub mod cache_layout;
mod describe;
pub mod read;

use std::sync::Arc;

use cachelb_learned::Model;
use cachelb_policy::{Configured, Declared, Kind, NOT_NEGATIVE, Policy, Range, Value, named};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMapping, PySequence, PyString};

pub use self::describe::policy_table;
use crate::args::{Items, MAX_ITEMS, choice, flag, number, quoted, ranged, text, type_name};
use crate::error::to_python;
use crate::learned::{LearnedModel, read_file};

/// The options of a built-in policy, `None` for another object.
type ConfiguredBy = fn(&Bound<'_, PyAny>) -> Option<Configured>;

/// The policy called `name` with the options `given`, whose names its class has checked; `by` reads a policy in one.
pub fn configure(name: &str, given: &Bound<'_, PyDict>, by: ConfiguredBy) -> PyResult<Configured> {
    let policy = named(name)
        .ok_or_else(|| PyValueError::new_err(format!("there is no native policy {name:?}")))?;
    let read = |option: &Declared| {
        let value = given.get_item(option.name)?;
        let read = |value| read_value(&option.kind, option.name, &value, by);
        value.map(read).transpose()
    };
    policy.configured(read)?.ok_or_else(|| mismatch(policy))
}

#[cold]
fn mismatch(policy: &Policy) -> PyErr {
    let name = policy.about.name;
    PyValueError::new_err(format!(
        "an option of {name:?} is of another kind than declared"
    ))
}

/// A value of `kind`.
fn read_value(
    kind: &Kind,
    name: &str,
    value: &Bound<'_, PyAny>,
    by: ConfiguredBy,
) -> PyResult<Value> {
    Ok(match kind {
        Kind::Flag => Value::Flag(flag(value, name)?),
        Kind::Integer(low, high) => Value::Integer(ranged(value, name, *low, *high)?),
        Kind::Number(range) => Value::Number(number(value, name, *range)?),
        Kind::Word(words) => Value::Word(word(words, name, value)?),
        Kind::WordOrNumber(word, range) => word_or_number(word, *range, name, value)?,
        Kind::Optional(_) if value.is_none() => Value::Nothing,
        Kind::Optional(kind) => read_value(kind, name, value, by)?,
        Kind::Three(meaning) => Value::Numbers(three(meaning, name, value)?),
        Kind::Integers(low, high) => {
            let items = Items::of(value, name, "a sequence of int", MAX_ITEMS)?;
            let read = |(i, item): (usize, PyResult<Bound<'_, PyAny>>)| {
                ranged(&item?, &format!("{name}[{i}]"), *low, *high)
            };
            Value::Integers(items.enumerate().map(read).collect::<PyResult<_>>()?)
        }
        Kind::ByWorker(range) => match value.cast::<PyMapping>() {
            Ok(by_worker) => Value::Named(by_name(by_worker, name, *range, None)?),
            Err(_) => Value::Number(number(value, name, *range)?),
        },
        Kind::ByWord(words, range) => {
            let Ok(by_word) = value.cast::<PyMapping>() else {
                let found = type_name(value);
                let text = format!("{name} must be a mapping of medium to credit, not {found}");
                return Err(PyTypeError::new_err(text));
            };
            Value::Named(by_name(by_word, name, *range, Some(words))?)
        }
        Kind::Policy => Value::Policy(Arc::new(policy(name, value, by)?)),
        Kind::Model => Value::Model(Arc::new(model(value)?)),
    })
}

/// One of `words`.
pub fn word(
    words: &[&'static str],
    name: &str,
    value: &Bound<'_, PyAny>,
) -> PyResult<&'static str> {
    let choices: Vec<_> = words.iter().map(|word| (*word, *word)).collect();
    choice(value, name, &choices)
}

fn word_or_number(
    word: &'static str,
    range: Range,
    name: &str,
    value: &Bound<'_, PyAny>,
) -> PyResult<Value> {
    match value.cast::<PyString>() {
        Ok(_) if text(value, name)? == word => Ok(Value::Word(word)),
        Ok(text) => {
            let number = range.0.replace("finite ", "");
            Err(PyValueError::new_err(format!(
                "{name} must be {word:?} or {number}, got {:?}",
                text.to_string_lossy()
            )))
        }
        Err(_) => Ok(Value::Number(number(value, name, range)?)),
    }
}

/// Three factors.
fn three(meaning: &str, name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<f64>> {
    let factors = value.cast::<PySequence>().ok().filter(|factors| {
        !factors.is_instance_of::<PyString>() && factors.len().is_ok_and(|n| n == 3)
    });
    let Some(factors) = factors else {
        let text = format!("{name} must be three numbers: {meaning}");
        return Err(if value.cast::<PySequence>().is_ok() {
            PyValueError::new_err(format!("{text}, got {}", value.str()?))
        } else {
            PyTypeError::new_err(format!("{text}, not {}", type_name(value)))
        });
    };
    let factor = |i: usize| {
        let factor = factors.get_item(i)?;
        number(&factor, &format!("{name}[{i}]"), NOT_NEGATIVE)
    };
    (0..3).map(factor).collect()
}

/// Numbers by key; by some words only, if there are any.
fn by_name(
    given: &Bound<'_, PyMapping>,
    name: &str,
    range: Range,
    words: Option<&[&str]>,
) -> PyResult<Vec<(String, f64)>> {
    let read = |pair: Bound<'_, PyAny>| {
        let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        let Ok(string) = key.cast::<PyString>() else {
            let found = type_name(&key);
            let text = format!("{name} must be by worker key, a str, not {found}");
            return Err(PyTypeError::new_err(text));
        };
        let plain = text(string, &format!("a key of {name}"))?;
        if let Some(words) = words.filter(|words| !words.contains(&plain)) {
            let (last, first) = words.split_last().unwrap_or((&"", &[]));
            let accepted = format!("{} or {last:?}", quoted(first));
            let text = format!("{name} must be of {accepted}, got {}", key.repr()?);
            return Err(PyValueError::new_err(text));
        }
        let number = number(&value, &format!("{name}[{plain:?}]"), range)?;
        Ok((plain.to_owned(), number))
    };
    given.items()?.iter().map(read).collect()
}

/// A policy, or the one of that name with its defaults.
fn policy(name: &str, value: &Bound<'_, PyAny>, by: ConfiguredBy) -> PyResult<Configured> {
    let by_name = value.is_instance_of::<PyString>();
    let policies = value.py().import(intern!(value.py(), "cachelb.policies"));
    let policy = if by_name {
        policies?.call_method1(intern!(value.py(), "make"), (value,))?
    } else {
        value.clone()
    };
    let Some(configured) = by(&policy) else {
        let found = type_name(&policy);
        return Err(PyTypeError::new_err(format!(
            "{name} must be a built-in policy or the name of one, not {found}"
        )));
    };
    Ok(Configured {
        by_name,
        ..configured
    })
}

/// A model, its bytes, or what lies at a path.
fn model(value: &Bound<'_, PyAny>) -> PyResult<Model> {
    if let Ok(model) = value.cast::<LearnedModel>() {
        return Ok(model.get().core.clone());
    }
    let bytes = match value.cast::<PyBytes>() {
        Ok(bytes) => bytes.clone(),
        Err(_) => read_file(value)?,
    };
    Model::from_bytes(bytes.as_bytes()).map_err(|error| to_python(&error))
}
