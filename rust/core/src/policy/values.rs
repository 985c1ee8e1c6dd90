//! Values of options: the kinds there are, and the types that they become.
//!
//! A binding reads a value of a [`Kind`] and names the option if it is not one; after that nothing can be wrong with it
//! alone.

use std::collections::HashMap;
use std::sync::Arc;

use crate::learned::Model;

use super::cache_aware::Threshold;
use super::credits::Credits;
use super::estimate::PrefillTime;
use super::gate::Margin;
use super::options::Configured;

/// A range of numbers, in words and as a test.
pub type Range = (&'static str, fn(f64) -> bool);

/// 0 to 1.
pub const FRACTION: Range = ("between 0 and 1", |v| (0.0..=1.0).contains(&v));
/// 0 or more.
pub const NOT_NEGATIVE: Range = ("a finite number, 0 or more", |v| v.is_finite() && v >= 0.0);
/// Above 0.
pub const ABOVE_ZERO: Range = ("a finite number above 0", |v| v.is_finite() && v > 0.0);
/// 1 or more.
pub const AT_LEAST_ONE: Range = ("a finite number, 1 or more", |v| v.is_finite() && v >= 1.0);
/// 0 or more, without limit.
pub const ANY_NUMBER: Range = ("a number, 0 or more", |v| v >= 0.0);

/// Over 30,000 years: no sum of two times overflows.
pub const LONGEST_S: f64 = 1e12;

/// Seconds that are positive and finite, in milliseconds: what is longer than [`LONGEST_S`] lasts that long.
#[must_use]
pub fn millis(seconds: f64) -> u64 {
    #[expect(clippy::cast_sign_loss, reason = "checked to be positive")]
    let millis = (seconds.min(LONGEST_S) * 1000.0).ceil() as u64;
    millis
}

/// What an option accepts.
#[derive(Debug, Clone)]
pub enum Kind {
    /// True or False.
    Flag,
    /// A whole number in a range.
    Integer(u64, u64),
    /// A number in a range.
    Number(Range),
    /// One of some words.
    Word(&'static [&'static str]),
    /// A word, or a number in a range.
    WordOrNumber(&'static str, Range),
    /// Nothing, or something else.
    Optional(Box<Kind>),
    /// Three numbers of 0 or more, which the text says more of.
    Three(&'static str),
    /// Whole numbers in a range.
    Integers(u64, u64),
    /// A number for all workers, or one by worker key.
    ByWorker(Range),
    /// Numbers by some words, each of which may be left out.
    ByWord(&'static [&'static str], Range),
    /// A policy, or the name of one.
    Policy,
    /// A learned model: an object, its bytes, or a path.
    Model,
}

/// A value that an option may have.
#[derive(Debug, Clone)]
pub enum Value {
    /// None.
    Nothing,
    /// Of [`Kind::Flag`].
    Flag(bool),
    /// A whole number.
    Integer(u64),
    /// A number.
    Number(f64),
    /// A word.
    Word(&'static str),
    /// Several numbers.
    Numbers(Vec<f64>),
    /// Several whole numbers.
    Integers(Vec<u64>),
    /// Numbers by name.
    Named(Vec<(String, f64)>),
    /// Name of a policy that a binding makes with its defaults.
    PolicyName(&'static str),
    /// A policy.
    Policy(Arc<Configured>),
    /// A model.
    Model(Arc<Model>),
}

/// The bound that a declaration gives.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    /// None: the type has its own.
    Any,
    /// Of a number.
    Range(Range),
    /// Of a whole number, both ends included.
    Span(u64, u64),
}

impl Bound {
    pub(super) fn or(self, bound: impl Into<Self>) -> Self {
        bound.into()
    }

    fn range(self) -> Range {
        match self {
            Self::Range(range) => range,
            Self::Any | Self::Span(..) => NOT_NEGATIVE,
        }
    }

    fn span(self, most: u64) -> Kind {
        match self {
            Self::Span(low, high) => Kind::Integer(low, high.min(most)),
            Self::Any | Self::Range(_) => Kind::Integer(0, most),
        }
    }
}

impl From<Range> for Bound {
    fn from(range: Range) -> Self {
        Self::Range(range)
    }
}

impl From<(u64, u64)> for Bound {
    fn from((low, high): (u64, u64)) -> Self {
        Self::Span(low, high)
    }
}

/// The type of an option.
pub trait Field: Sized {
    /// What it accepts within `bound`.
    fn kind(bound: Bound) -> Kind;
    /// A value of that kind; `None` if it is of another.
    fn from_value(value: Value) -> Option<Self>;
    /// The value that becomes this.
    fn to_value(&self) -> Value;
}

impl<F: Field> Field for Option<F> {
    fn kind(bound: Bound) -> Kind {
        Kind::Optional(Box::new(F::kind(bound)))
    }

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Nothing => Some(None),
            value => F::from_value(value).map(Some),
        }
    }

    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Nothing, F::to_value)
    }
}

/// A type whose kind is `$kind` and that is `$from` of a value and `$to` a value.
macro_rules! field {
    ($type:ty, |$bound:pat_param| $kind:expr, $pattern:pat => $from:expr, |$field:pat_param| $to:expr) => {
        impl Field for $type {
            fn kind($bound: Bound) -> Kind {
                $kind
            }

            fn from_value(value: Value) -> Option<Self> {
                match value {
                    $pattern => $from,
                    _ => None,
                }
            }

            fn to_value(&self) -> Value {
                let $field = self;
                $to
            }
        }
    };
}

field!(bool, |_| Kind::Flag, Value::Flag(flag) => Some(flag), |flag| Value::Flag(*flag));
field!(f64, |bound| Kind::Number(bound.range()), Value::Number(v) => Some(v), |v| Value::Number(*v));
field!(u64, |bound| bound.span(u64::MAX), Value::Integer(v) => Some(v), |v| Value::Integer(*v));
field!(u32, |bound| bound.span(u32::MAX.into()), Value::Integer(v) => v.try_into().ok(), |v| Value::Integer((*v).into()));
field!(usize, |bound| bound.span(usize::MAX as u64), Value::Integer(v) => v.try_into().ok(), |v| Value::Integer(*v as u64));
field!(Vec<u64>, |bound| match bound.span(u64::MAX) {
    Kind::Integer(low, high) => Kind::Integers(low, high),
    kind => kind,
}, Value::Integers(v) => Some(v), |v| Value::Integers(v.clone()));
field!(Threshold, |_| Kind::Number(FRACTION), Value::Number(v) => Some(Self::new(v)), |v| Value::Number(v.fraction()));
field!(Seconds, |_| Kind::Number(ABOVE_ZERO), Value::Number(v) => Some(Self(v)), |v| Value::Number(v.0));
field!(Arc<Model>, |_| Kind::Model, Value::Model(model) => Some(model), |model| Value::Model(Self::clone(model)));
field!(PrefillTime, |_| Kind::Three("milliseconds per token squared, per token and per request"),
    Value::Numbers(v) => <[f64; 3]>::try_from(v).ok().map(|[square, linear, constant]| Self { square, linear, constant }),
    |v| Value::Numbers(vec![v.square, v.linear, v.constant]));

/// A time of more than 0 seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seconds(f64);

impl Seconds {
    /// Whole seconds.
    #[must_use]
    pub fn of(seconds: u32) -> Self {
        Self(seconds.into())
    }

    /// In milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        millis(self.0)
    }

    /// In milliseconds, `None` being for ever.
    pub(super) fn or_for_ever(seconds: Option<Self>) -> u64 {
        seconds.map_or(u64::MAX, Self::millis)
    }
}

impl Field for Margin {
    fn kind(_: Bound) -> Kind {
        Kind::WordOrNumber("auto", NOT_NEGATIVE)
    }

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Word(_) => Some(Self::Auto),
            Value::Number(requests) => Some(Self::Fixed(requests)),
            _ => None,
        }
    }

    fn to_value(&self) -> Value {
        match self {
            Self::Auto | Self::AutoAmong(_) => Value::Word("auto"),
            Self::Fixed(requests) => Value::Number(*requests),
        }
    }
}

/// Prefill throughput: measured on each worker, or one number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Peak {
    /// What each worker was seen to do.
    Observed,
    /// Tokens per second of every worker.
    Fixed(f64),
}

impl Field for Peak {
    fn kind(_: Bound) -> Kind {
        Kind::WordOrNumber("observed", ABOVE_ZERO)
    }

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Word(_) => Some(Self::Observed),
            Value::Number(tps) => Some(Self::Fixed(tps)),
            _ => None,
        }
    }

    fn to_value(&self) -> Value {
        match self {
            Self::Observed => Value::Word("observed"),
            Self::Fixed(tps) => Value::Number(*tps),
        }
    }
}

/// A number for all workers, or one by worker key.
#[derive(Debug, Clone, PartialEq)]
pub enum ByWorker {
    /// For all.
    All(f64),
    /// By key.
    Each(HashMap<String, f64>),
}

impl Field for ByWorker {
    fn kind(_: Bound) -> Kind {
        Kind::ByWorker(ABOVE_ZERO)
    }

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Number(all) => Some(Self::All(all)),
            Value::Named(each) => Some(Self::Each(each.into_iter().collect())),
            _ => None,
        }
    }

    fn to_value(&self) -> Value {
        match self {
            Self::All(all) => Value::Number(*all),
            Self::Each(each) => {
                Value::Named(each.iter().map(|(key, v)| (key.clone(), *v)).collect())
            }
        }
    }
}

/// Credits by medium; those left out keep their default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MediumCredits(pub Credits);

impl Field for MediumCredits {
    fn kind(_: Bound) -> Kind {
        Kind::ByWord(&["gpu", "cpu", "external", "disk"], FRACTION)
    }

    fn from_value(value: Value) -> Option<Self> {
        let Value::Named(given) = value else {
            return None;
        };
        let mut credits = Credits::DEFAULT;
        for (medium, credit) in given {
            match &*medium {
                "gpu" => credits.gpu = credit,
                "cpu" => credits.cpu = credit,
                "external" => credits.external = credit,
                _ => credits.disk = credit,
            }
        }
        Some(Self(credits))
    }

    fn to_value(&self) -> Value {
        let Credits {
            gpu,
            cpu,
            external,
            disk,
            ..
        } = self.0;
        let named = [("gpu", gpu), ("cpu", cpu), ("external", external), ("disk", disk)];
        Value::Named(named.map(|(name, v)| (name.to_owned(), v)).into())
    }
}

/// A policy within another: a name until a binding has made it.
#[derive(Debug, Clone)]
pub enum Within {
    /// Its name.
    Name(&'static str),
    /// The policy.
    Policy(Arc<Configured>),
}

impl Within {
    /// The policy; a binding makes one of every name.
    pub(super) fn policy(&self) -> Option<&Configured> {
        match self {
            Self::Name(_) => None,
            Self::Policy(policy) => Some(policy),
        }
    }
}

impl Field for Within {
    fn kind(_: Bound) -> Kind {
        Kind::Policy
    }

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::PolicyName(name) => Some(Self::Name(name)),
            Value::Policy(policy) => Some(Self::Policy(policy)),
            _ => None,
        }
    }

    fn to_value(&self) -> Value {
        match self {
            Self::Name(name) => Value::PolicyName(name),
            Self::Policy(policy) => Value::Policy(Arc::clone(policy)),
        }
    }
}

/// Gives an enum the words that stand for its variants.
macro_rules! words {
    ($type:ty { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $crate::policy::values::Field for $type {
            fn kind(_: $crate::policy::values::Bound) -> $crate::policy::values::Kind {
                $crate::policy::values::Kind::Word(&[$($word),+])
            }

            fn from_value(value: $crate::policy::values::Value) -> Option<Self> {
                match value {
                    $($crate::policy::values::Value::Word($word) => Some(Self::$variant),)+
                    _ => None,
                }
            }

            fn to_value(&self) -> $crate::policy::values::Value {
                $crate::policy::values::Value::Word(match self {
                    $(Self::$variant => $word,)+
                })
            }
        }
    };
}
pub(super) use words;
