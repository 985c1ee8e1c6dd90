//! Types of options beside numbers and flags.

use std::collections::HashMap;
use std::sync::Arc;

#[cfg(feature = "learned")]
use cachelb_learned::Model;

use crate::rule::credits::Credits;
use crate::rule::gate::Margin;
use crate::rule::options::{
    ABOVE_ZERO, Bound, Configured, FRACTION, Field, Kind, NOT_NEGATIVE, Value,
};

/// A type whose kind is `$kind` and that is `$from` of a value and `$to` a value.
macro_rules! field {
    ($type:ty, |$bound:pat_param| $kind:expr, $($pattern:pat_param => $from:expr),+, |$field:pat_param| $to:expr) => {
        impl $crate::rule::options::Field for $type {
            fn kind($bound: $crate::rule::options::Bound) -> $crate::rule::options::Kind {
                $kind
            }

            fn from_value(value: $crate::rule::options::Value) -> Option<Self> {
                match value {
                    $($pattern => $from,)+
                    _ => None,
                }
            }

            fn to_value(&self) -> $crate::rule::options::Value {
                let $field = self;
                $to
            }
        }
    };
}
pub(crate) use field;

field!(bool, |_| Kind::Flag, Value::Flag(flag) => Some(flag), |flag| Value::Flag(*flag));
field!(f64, |bound| Kind::Number(bound.range()), Value::Number(v) => Some(v), |v| Value::Number(*v));
field!(u64, |bound| bound.span(u64::MAX), Value::Integer(v) => Some(v), |v| Value::Integer(*v));
field!(u32, |bound| bound.span(u32::MAX.into()), Value::Integer(v) => v.try_into().ok(), |v| Value::Integer((*v).into()));
field!(usize, |bound| bound.span(usize::MAX as u64), Value::Integer(v) => v.try_into().ok(), |v| Value::Integer(*v as u64));
field!(Vec<u64>, |bound| match bound.span(u64::MAX) {
    Kind::Integer(low, high) => Kind::Integers(low, high),
    kind => kind,
}, Value::Integers(v) => Some(v), |v| Value::Integers(v.clone()));
#[cfg(feature = "learned")]
field!(Arc<Model>, |_| Kind::Model, Value::Model(model) => Some(model), |model| Value::Model(Self::clone(model)));

field!(Margin, |_| Kind::WordOrNumber("auto", NOT_NEGATIVE),
Value::Word(_) => Some(Self::Auto), Value::Number(requests) => Some(Self::Fixed(requests)),
|margin| match margin {
    Self::Auto | Self::AutoAmong(_) => Value::Word("auto"),
    Self::Fixed(requests) => Value::Number(*requests),
});

/// Prefill throughput: measured on each worker, or one number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Peak {
    /// The throughput observed on each worker.
    Observed,
    /// Tokens per second of every worker.
    Fixed(f64),
}

field!(Peak, |_| Kind::WordOrNumber("observed", ABOVE_ZERO),
Value::Word(_) => Some(Self::Observed), Value::Number(tps) => Some(Self::Fixed(tps)),
|peak| match peak {
    Self::Observed => Value::Word("observed"),
    Self::Fixed(tps) => Value::Number(*tps),
});

/// A number for all workers, or one by worker key.
#[derive(Debug, Clone, PartialEq)]
pub enum ByWorker {
    /// For all.
    All(f64),
    /// By key.
    Each(HashMap<String, f64>),
}

field!(ByWorker, |_| Kind::ByWorker(ABOVE_ZERO),
Value::Number(all) => Some(Self::All(all)),
Value::Named(each) => Some(Self::Each(each.into_iter().collect())),
|throughput| match throughput {
    Self::All(all) => Value::Number(*all),
    Self::Each(each) => Value::Named(each.iter().map(|(key, v)| (key.clone(), *v)).collect()),
});

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
        let named = [
            ("gpu", gpu),
            ("cpu", cpu),
            ("external", external),
            ("disk", disk),
        ];
        Value::Named(named.map(|(name, v)| (name.to_owned(), v)).into())
    }
}

/// Milliseconds by medium beside device memory; those left out are not known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TierTimes {
    /// Milliseconds for host memory.
    pub cpu: Option<f64>,
    /// Milliseconds for disk.
    pub disk: Option<f64>,
}

impl Field for TierTimes {
    fn kind(_: Bound) -> Kind {
        Kind::ByWord(&["cpu", "disk"], NOT_NEGATIVE)
    }

    fn from_value(value: Value) -> Option<Self> {
        let Value::Named(given) = value else {
            return None;
        };
        let of = |medium: &str| given.iter().find(|(name, _)| name == medium);
        Some(Self {
            cpu: of("cpu").map(|(_, ms)| *ms),
            disk: of("disk").map(|(_, ms)| *ms),
        })
    }

    fn to_value(&self) -> Value {
        let known = [("cpu", self.cpu), ("disk", self.disk)].into_iter();
        let named = known.filter_map(|(name, ms)| Some((name.to_owned(), ms?)));
        Value::Named(named.collect())
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
    pub(crate) fn policy(&self) -> Option<&Configured> {
        match self {
            Self::Name(_) => None,
            Self::Policy(policy) => Some(policy),
        }
    }
}

field!(Within, |_| Kind::Policy,
Value::PolicyName(name) => Some(Self::Name(name)), Value::Policy(policy) => Some(Self::Policy(policy)),
|within| match within {
    Self::Name(name) => Value::PolicyName(name),
    Self::Policy(policy) => Value::Policy(Arc::clone(policy)),
});

/// Gives an enum the words that stand for its variants.
macro_rules! words {
    ($type:ty { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $crate::rule::options::Field for $type {
            fn kind(_: $crate::rule::options::Bound) -> $crate::rule::options::Kind {
                $crate::rule::options::Kind::Word(&[$($word),+])
            }

            fn from_value(value: $crate::rule::options::Value) -> Option<Self> {
                match value {
                    $($crate::rule::options::Value::Word($word) => Some(Self::$variant),)+
                    _ => None,
                }
            }

            fn to_value(&self) -> $crate::rule::options::Value {
                $crate::rule::options::Value::Word(match self {
                    $(Self::$variant => $word,)+
                })
            }
        }
    };
}
pub(crate) use words;
