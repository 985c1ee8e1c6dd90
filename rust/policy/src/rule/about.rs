//! The name of a policy, the options it takes, and the needs of its rule.

use cachelb_core::hashing::DEFAULT_SEED;

use crate::rule::Rule;
use crate::rule::gate::{Margin, SpillGate};

/// The data of a request's prompt that a rule needs, beside its length.
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

    /// The union of both needs.
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

/// A rule and its needs.
#[derive(Debug)]
pub struct Ruled {
    /// The rule.
    pub rule: Box<dyn Rule>,
    /// The data of a prompt that it needs.
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

/// The settings that a rule is built with, beside its own options.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Seed given to the policy itself, for draws on which routers need not agree.
    pub own_seed: Option<u64>,
    /// Seed of ties, samples and of rules that hash.
    pub seed: u64,
    /// Routers that share the fleet: each sees its part of the load, so absolute margins are divided by it.
    pub replicas: f64,
    /// Tokens per block.
    pub block_size: u32,
}

impl Setup {
    /// The spill gate of options `load_factor` and `balance_abs_threshold`.
    pub(crate) fn gate(&self, load_factor: f64, balance_abs_threshold: Margin) -> SpillGate {
        let margin = match balance_abs_threshold {
            Margin::Auto | Margin::AutoAmong(_) => Margin::AutoAmong(self.replicas),
            Margin::Fixed(requests) => Margin::Fixed(requests / self.replicas),
        };
        SpillGate {
            load_factor,
            margin,
        }
    }

    /// That of policies without such options.
    #[cfg(feature = "published")]
    pub(crate) fn default_gate(&self) -> SpillGate {
        self.gate(SpillGate::DEFAULT.load_factor, SpillGate::DEFAULT.margin)
    }
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

/// The name of a policy and the options it takes.
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
    pub(crate) const fn placed(name: &'static str, class: &'static str) -> Self {
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
    pub(crate) const fn plain(name: &'static str, class: &'static str) -> Self {
        Self {
            needs: &[],
            level: Level::Plain,
            ..Self::placed(name, class)
        }
    }

    /// A policy that divides requests by their session, and in the same way on routers that leave the seed alone.
    pub(crate) const fn keyed(name: &'static str, class: &'static str) -> Self {
        Self {
            needs: &["session"],
            level: Level::Keyed,
            seed: Some(DEFAULT_SEED),
            ..Self::placed(name, class)
        }
    }
}
