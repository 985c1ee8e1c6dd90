//! Options of a policy, declared once, beside its rule.
//!
//! [`options!`] turns one declaration into a struct of values with defaults, and into the table from which bindings read
//! values, signatures and documentation. A new policy is a file with such a declaration, [`Configure`] for it, its rule,
//! and a line in [`super::POLICIES`].

use std::fmt::Debug;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::hashing::Scheme;
use crate::index::Matcher;

use super::placements::Placements;
use super::rule::Rule;
use super::values::{Kind, Seconds, Value};

/// Most tokens of a prompt.
pub(super) const MAX_TOKENS: u64 = 1 << 40;
/// Seed of rules that hash: routers that leave it alone agree.
pub const AGREED_SEED: u64 = 1337;

/// One option of a policy.
#[derive(Debug, Clone)]
pub struct Declared {
    /// Keyword.
    pub name: &'static str,
    /// What it accepts.
    pub kind: Kind,
    /// Its value unless given.
    pub default: Value,
    /// When to change it, in Markdown.
    pub text: &'static str,
}

/// A struct made by [`options!`].
pub trait Options: Debug + Sized {
    /// Its options in order.
    fn declared() -> Vec<Declared>;

    /// The struct from one value per option, in that order; `None` if a value is not of the option's kind.
    fn from_values(values: Vec<Value>) -> Option<Self>;
}

/// Declares options: `name: Type = default, bound;` with the text above it. Types are those of [`super::values::Field`].
macro_rules! options {
    ($(#[doc = $about:literal])* pub struct $name:ident {
        $($(#[doc = $text:literal])* $field:ident: $type:ty = $default:expr $(, $bound:expr)?;)*
    }) => {
        /// Values of the options.
        #[derive(Debug, Clone)]
        pub struct $name {
            $(pub $field: $type,)*
        }

        impl $name {
            /// What the declaration says of all of them.
            pub const ABOUT: &str = concat!($($about, "\n"),*);
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::policy::options::Options for $name {
            fn declared() -> Vec<$crate::policy::options::Declared> {
                use $crate::policy::values::{Bound, Field};
                let default = Self::default();
                let _ = &default;
                vec![$($crate::policy::options::Declared {
                    name: stringify!($field),
                    kind: <$type as Field>::kind(Bound::Any$(.or($bound))?),
                    default: Field::to_value(&default.$field),
                    text: concat!($($text, "\n"),*),
                }),*]
            }

            fn from_values(values: Vec<$crate::policy::values::Value>) -> Option<Self> {
                let mut values = values.into_iter();
                let read = Self { $($field: $crate::policy::values::Field::from_value(values.next()?)?,)* };
                values.next().is_none().then_some(read)
            }
        }
    };
}
pub(super) use options;

/// What a rule needs of a request's prompt, beside its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// The hash of the first tokens, at most this many, for requests without a session.
    pub prefix: Option<usize>,
    /// The hashes of all blocks.
    pub blocks: bool,
    /// The prompt itself.
    pub content: bool,
    /// Where the messages end.
    pub boundaries: bool,
}

impl Need {
    /// Nothing else.
    pub const LENGTH: Self = Self {
        prefix: None,
        blocks: false,
        content: false,
        boundaries: false,
    };
    /// The hashes of all blocks.
    pub const BLOCKS: Self = Self {
        blocks: true,
        ..Self::LENGTH
    };
    /// The hashes of all blocks, and the prompt itself.
    pub const CONTENT: Self = Self {
        content: true,
        ..Self::BLOCKS
    };
    /// The hashes of all blocks, and where the messages end.
    pub const BOUNDARIES: Self = Self {
        boundaries: true,
        ..Self::BLOCKS
    };

    /// The hash of the first `tokens`.
    #[must_use]
    pub fn prefix(tokens: u32) -> Self {
        Self {
            prefix: Some(tokens as usize),
            ..Self::LENGTH
        }
    }

    /// What both need.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            prefix: self.prefix.or(other.prefix),
            blocks: self.blocks || other.blocks,
            content: self.content || other.content,
            boundaries: self.boundaries || other.boundaries,
        }
    }
}

/// A rule and what it needs.
#[derive(Debug)]
pub struct Ruled {
    /// The rule.
    pub rule: Box<dyn Rule>,
    /// What it needs of a prompt.
    pub need: Need,
}

impl Ruled {
    /// A rule with its need.
    pub fn new(rule: impl Rule + 'static, need: Need) -> Self {
        Self {
            rule: Box::new(rule),
            need,
        }
    }
}

/// What a rule is made with, beside its own options.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Seed given to the policy itself, which counts for what routers need not agree on.
    pub own_seed: Option<u64>,
    /// Seed of ties, samples and of rules that hash.
    pub seed: u64,
    /// Routers that share the fleet: each sees its part of the load, so absolute margins are divided by it.
    pub replicas: f64,
    /// Tokens per block.
    pub block_size: u32,
}

/// Which of the options that policies share one takes; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Seed and life of a booking.
    Plain,
    /// Tokens per block.
    Keyed,
    /// The seed of block hashes.
    Hashed,
    /// How placements are remembered.
    Placed,
}

/// What a policy is called and what it takes.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Name in configurations.
    pub name: &'static str,
    /// Name of its class.
    pub class: &'static str,
    /// Arguments of a selection without which it falls back to load.
    pub needs: &'static [&'static str],
    /// Shared options that it takes.
    pub level: Level,
    /// Seed unless given; `None` draws one.
    pub seed: Option<u64>,
    /// Other spellings of options: the spelling, and the option.
    pub aliases: &'static [(&'static str, &'static str)],
}

impl About {
    /// A policy of prompts whose placements are remembered.
    pub(super) const fn placed(name: &'static str, class: &'static str) -> Self {
        Self {
            name,
            class,
            needs: &["tokens"],
            level: Level::Placed,
            seed: None,
            aliases: &[],
        }
    }

    /// A policy of loads alone.
    pub(super) const fn plain(name: &'static str, class: &'static str) -> Self {
        Self {
            needs: &[],
            level: Level::Plain,
            ..Self::placed(name, class)
        }
    }

    /// A policy that divides requests by their session, in the same way on every router.
    pub(super) const fn keyed(name: &'static str, class: &'static str) -> Self {
        Self {
            needs: &["session"],
            level: Level::Keyed,
            seed: Some(AGREED_SEED),
            ..Self::placed(name, class)
        }
    }
}

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

    /// How placements are remembered, from what was given.
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
    pub(super) const fn of<O: Options + Configure + 'static>(
        about: About,
        text: &'static str,
    ) -> Self {
        Self {
            about,
            text,
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
        hash_seed: u64 = AGREED_SEED, (0, u64::MAX);
        /// Blocks one worker's cache holds; the least recently used leave first.
        max_blocks_per_worker: u32 = 100_000, (1, u64::from(u32::MAX));
        /// Seconds a placement is believed, None until evicted.
        ttl_s: Option<Seconds> = None;
    }
}

/// A policy with the values of its options.
#[derive(Debug, Clone)]
pub struct Configured {
    /// Which.
    pub policy: &'static Policy,
    /// Its own options.
    pub options: Arc<dyn Configure>,
    /// Those it shares; what it does not take has the default.
    pub shared: Shared,
    /// It was given by name, so that what it stands in for knows better what they share.
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
    pub(super) fn ruled_within(&self, setup: &Setup) -> Result<Ruled> {
        let own_seed = self.shared.seed;
        let seed = own_seed.unwrap_or(setup.seed);
        self.ruled(&Setup {
            seed,
            own_seed,
            ..*setup
        })
    }
}

/// An option whose value does not go with others.
pub(super) fn invalid(name: &'static str, expected: &'static str, got: impl ToString) -> Error {
    Error::InvalidSetting {
        name,
        expected,
        got: got.to_string(),
    }
}
