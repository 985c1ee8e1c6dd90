//! Options of a policy, declared once, beside its rule.
//!
//! A binding reads a [`Value`] of an option's [`Kind`] and names the option if it is not one; after that nothing can be
//! wrong with it alone. [`options!`] turns one declaration into a struct of values with defaults, and into the table
//! from which bindings read values, signatures and documentation. A new policy is a file with such a declaration,
//! [`Configure`] for it, its rule, and a line in [`crate::POLICIES`].

use std::fmt::Debug;
use std::sync::Arc;

use cachelb_core::error::{Error, Result};
use cachelb_core::hashing::{DEFAULT_SEED, Scheme};
use cachelb_core::index::Matcher;
#[cfg(feature = "learned")]
use cachelb_learned::Model;

use crate::rule::about::{About, Level, Ruled, Setup};
use crate::rule::placements::Placements;

/// Most tokens of a prompt.
pub(crate) const MAX_TOKENS: u64 = 1 << 40;
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

/// Seconds that are positive and finite, in milliseconds, at most [`LONGEST_S`].
#[must_use]
pub fn millis(seconds: f64) -> u64 {
    #[expect(clippy::cast_sign_loss, reason = "checked to be positive")]
    let millis = (seconds.min(LONGEST_S) * 1000.0).ceil() as u64;
    millis
}

/// The values that an option accepts.
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
    /// Three numbers of 0 or more, described by the text.
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
    #[cfg(feature = "learned")]
    Model,
}

/// A value that an option may have.
#[derive(Debug, Clone)]
pub enum Value {
    /// None.
    Nothing,
    /// A value of [`Kind::Flag`].
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
    #[cfg(feature = "learned")]
    Model(Arc<Model>),
}

/// The bound that a declaration gives.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    /// None: the type has its own.
    Any,
    /// The range of a number.
    Range(Range),
    /// The range of a whole number, both ends included.
    Span(u64, u64),
}

impl Bound {
    pub(crate) fn range(self) -> Range {
        match self {
            Self::Range(range) => range,
            Self::Any | Self::Span(..) => NOT_NEGATIVE,
        }
    }

    pub(crate) fn span(self, most: u64) -> Kind {
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
    /// The values that it accepts within `bound`.
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
    pub(crate) fn or_for_ever(seconds: Option<Self>) -> u64 {
        seconds.map_or(u64::MAX, Self::millis)
    }
}

impl Field for Seconds {
    fn kind(_: Bound) -> Kind {
        Kind::Number(ABOVE_ZERO)
    }

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Number(seconds) => Some(Self(seconds)),
            _ => None,
        }
    }

    fn to_value(&self) -> Value {
        Value::Number(self.0)
    }
}

/// One option of a policy.
#[derive(Debug, Clone)]
pub struct Declared {
    /// Keyword.
    pub name: &'static str,
    /// The values that it accepts.
    pub kind: Kind,
    /// Its value unless given.
    pub default: Value,
    /// When to change it, in Markdown.
    pub text: &'static str,
}

/// A struct made by `options!`.
pub trait Options: Debug + Sized {
    /// The properties that the declaration gives all of them.
    const ABOUT: &str;

    /// Its options in order.
    fn declared() -> Vec<Declared>;

    /// The struct from one value per option, in that order; `None` if a value is not of the option's kind.
    fn from_values(values: Vec<Value>) -> Option<Self>;
}

/// The bound given, or none.
macro_rules! bound {
    () => {
        $crate::rule::options::Bound::Any
    };
    ($bound:expr) => {
        $crate::rule::options::Bound::from($bound)
    };
}
pub(crate) use bound;

/// Declares options: `name: Type = default, bound;` with the text above it. Types are those of [`Field`].
macro_rules! options {
    ($(#[doc = $about:literal])* pub struct $name:ident {
        $($(#[doc = $text:literal])* $field:ident: $type:ty = $default:expr $(, $bound:expr)?;)*
    }) => {
        /// Values of the options.
        #[derive(Debug, Clone)]
        pub struct $name {
            $($(#[doc = $text])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::rule::options::Options for $name {
            const ABOUT: &str = concat!($($about, "\n"),*);

            fn declared() -> Vec<$crate::rule::options::Declared> {
                #[allow(unused_imports, reason = "a policy may have no options")]
                use $crate::rule::options::{Field, bound};
                let default = Self::default();
                let _ = &default;
                vec![$($crate::rule::options::Declared {
                    name: stringify!($field),
                    kind: <$type as Field>::kind(bound!($($bound)?)),
                    default: Field::to_value(&default.$field),
                    text: concat!($($text, "\n"),*),
                }),*]
            }

            fn from_values(values: Vec<$crate::rule::options::Value>) -> Option<Self> {
                let mut values = values.into_iter();
                let read = Self { $($field: $crate::rule::options::Field::from_value(values.next()?)?,)* };
                values.next().is_none().then_some(read)
            }
        }
    };
}
pub(crate) use options;

/// Options of a policy, ready to make its rule.
pub trait Configure: Debug + Send + Sync {
    /// The rule.
    ///
    /// # Errors
    /// Options that do not go together, by name.
    fn ruled(&self, setup: &Setup) -> Result<Ruled>;

    /// The policy whose placements, hashes and blocks are used instead.
    fn base(&self) -> Option<&Configured> {
        None
    }

    /// Tokens per block, where they are not those given.
    fn block_size(&self) -> Option<u32> {
        None
    }

    /// How placements are remembered, from the given options.
    ///
    /// # Errors
    /// Options that do not go together, by name.
    fn placements(&self, given: Placements, block_size: u32) -> Result<Placements> {
        let _ = block_size;
        Ok(given)
    }
}

/// A policy that ships with the library.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Its names.
    pub about: About,
    /// Its documentation, in Markdown with a doctest of its Python class.
    pub text: &'static str,
    /// Its own options.
    pub declared: fn() -> Vec<Declared>,
    /// The options from one value each, in that order.
    pub read: fn(Vec<Value>) -> Option<Arc<dyn Configure>>,
}

impl Policy {
    pub(crate) const fn of<O: Options + Configure + 'static>(about: About) -> Self {
        Self {
            about,
            text: O::ABOUT,
            declared: O::declared,
            read: |values| Some(Arc::new(O::from_values(values)?)),
        }
    }

    /// The shared options that it takes, with its defaults.
    #[must_use]
    pub fn shared(&self) -> Vec<Declared> {
        let mut shared = Shared::declared();
        shared[0].default = self.about.seed.map_or(Value::Nothing, Value::Integer);
        shared.truncate(match self.about.level {
            Level::Plain => 2,
            Level::Keyed => 3,
            Level::Hashed => 4,
            Level::Placed => 6,
        });
        shared
    }
}

options! {
    /// Options that policies share, ordered by [`Level`].
    pub struct Shared {
        /// Seed of ties, samples and hashes: the same seed and the same calls give the same picks. None draws one; policies
        /// that divide requests by a hash have one on which all routers agree.
        seed: Option<u64> = None, (0, u64::MAX);
        /// Seconds without a sign of life after which a booking no longer counts as load.
        booking_ttl_s: Seconds = Seconds::of(3600);
        /// Tokens per block, as the engines have it; a prompt is known by whole blocks.
        block_size: u32 = 16, (1, 1024);
        /// Seed of the block hashes. Hashes given as `blocks=` must have been made with the same one.
        hash_seed: u64 = DEFAULT_SEED, (0, u64::MAX);
        /// Blocks one worker's cache holds; the least recently used leave first.
        max_blocks_per_worker: u32 = 100_000, (1, u64::from(u32::MAX));
        /// Seconds a placement counts as cached, None until evicted.
        ttl_s: Option<Seconds> = None;
    }
}

options! {
    /// Options of a router for hosts in other languages, whatever its policy.
    pub struct HostOptions {
        /// Megabytes that all indexes may take, None for no bound.
        max_memory_mb: Option<f64> = Some(256.0), AT_LEAST_ONE;
        /// Failures in a row after which a worker is passed over, 0 for never.
        breaker_failures: u32 = 5;
        /// Seconds for which it is passed over.
        breaker_cooldown_s: Seconds = Seconds::of(5);
        /// Routers that serve the same fleet.
        replicas: u32 = 1, (1, u64::from(u32::MAX));
    }
}

/// A policy with the values of its options.
#[derive(Debug, Clone)]
pub struct Configured {
    /// Which.
    pub policy: &'static Policy,
    /// Its own options.
    pub options: Arc<dyn Configure>,
    /// Shared options; those that it does not take have the default.
    pub shared: Shared,
    /// It was given by name, so that it inherits the shared options of the policy around it.
    pub by_name: bool,
}

impl Configured {
    fn based(&self) -> &Self {
        self.options.base().map_or(self, Self::based)
    }

    /// Tokens per block of a policy on its own.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        let base = self.based();
        let own = if base.by_name { self } else { base };
        base.page_size().unwrap_or(own.shared.block_size)
    }

    /// Tokens per page, of a policy whose index is a tree of them.
    #[must_use]
    pub fn page_size(&self) -> Option<u32> {
        self.based().options.block_size()
    }

    /// Seed of block hashes of a policy on its own.
    #[must_use]
    pub fn hash_seed(&self) -> u64 {
        self.based().shared.hash_seed
    }

    /// How placements are remembered.
    ///
    /// # Errors
    /// Options that do not go together, by name.
    pub fn placements(&self, block_size: u32) -> Result<Placements> {
        let base = self.based();
        let given = Placements {
            scheme: Scheme::Chained,
            matcher: Matcher::Kary,
            max_blocks_per_worker: base.shared.max_blocks_per_worker,
            ttl_ms: base.shared.ttl_s.map(Seconds::millis),
        };
        base.options.placements(given, block_size)
    }

    /// The rule.
    ///
    /// # Errors
    /// Options that do not go together, by name.
    pub fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        self.options.ruled(setup)
    }

    /// The rule as part of another policy, by the seed of its own if it has one.
    pub(crate) fn ruled_within(&self, setup: &Setup) -> Result<Ruled> {
        let own_seed = self.shared.seed;
        let seed = own_seed.unwrap_or(setup.seed);
        self.ruled(&Setup {
            own_seed,
            seed,
            ..*setup
        })
    }
}

/// Options that do not go together.
pub(crate) fn conflict(text: impl Into<String>) -> Error {
    Error::BadOptions(text.into())
}
