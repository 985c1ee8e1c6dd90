//! Keyword options of the policies -> rules, each checked and named in its error.
//!
//! Defaults live in the Python classes; every option a rule has must be present here.

mod boundary;
mod classic;
mod cost;
mod hash;
mod learned;
pub mod read;
mod tree;

use std::hash::{BuildHasher, RandomState};

use cachelb_core::hashing::{Hasher, NamespaceKey, Scheme};
use cachelb_core::index::Matcher;
use cachelb_core::policy::Rule;
use cachelb_core::router::Placements;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::call::MAX_TOKENS;

use self::read::{ABOVE_ZERO, Options, millis};
use crate::args::{number, ranged};

/// What a policy needs from the prompt of a request, beside its length.
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

    /// As much of the prompt's head as option `prefix_token_count` says.
    pub fn prefix(given: &Options<'_, '_>) -> PyResult<Self> {
        let count = given.integer("prefix_token_count", 1, u64::from(u32::MAX))? as usize;
        Ok(Self {
            prefix: Some(count),
            ..Self::LENGTH
        })
    }
}

impl Need {
    /// What both need.
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
    pub rule: Box<dyn Rule>,
    pub need: Need,
}

impl Ruled {
    pub fn new(rule: impl Rule + 'static, need: Need) -> Self {
        Self {
            rule: Box::new(rule),
            need,
        }
    }
}

/// The policy that places what another policy does not, from option `base`: None, or its rule and options.
#[derive(Debug)]
pub struct Base<'py> {
    pub rule: String,
    pub options: Bound<'py, PyDict>,
}

impl<'py> Base<'py> {
    /// That of the policy whose options are `given`, if it has one.
    pub fn of(given: &Options<'_, 'py>) -> PyResult<Option<Self>> {
        if !given.0.contains("base")? {
            return Ok(None);
        }
        let base = given.optional("base")?;
        base.map(|base| {
            let (rule, options): (_, Bound<'py, PyDict>) = base.extract()?;
            let options = options.copy()?;
            if let Some(replicas) = given.0.get_item("replicas")? {
                options.set_item("replicas", replicas)?;
            }
            Ok(Self { rule, options })
        })
        .transpose()
    }
}

/// Options that rules share with what runs them.
#[derive(Debug, Clone, Copy)]
pub struct Common {
    /// Seed of ties, samples and of rules that hash.
    pub seed: u64,
}

/// A policy's settings.
#[derive(Debug)]
pub struct Configured {
    pub ruled: Ruled,
    pub placements: Placements,
    pub hasher: Hasher,
    pub seed: u64,
    pub booking_ttl_ms: u64,
}

/// Reads `options` for the rule called `rule`.
pub fn configure(rule: &str, options: &Bound<'_, PyDict>) -> PyResult<Configured> {
    let given = Options(options);
    let blocks = given.integer("block_size", 1, 1024)?;
    let block_size = page_size(&given)?.unwrap_or(blocks);
    let seed = given
        .optional("seed")?
        .map(|value| ranged(&value, "seed", 0, u64::MAX))
        .transpose()?
        .unwrap_or_else(|| RandomState::new().hash_one(rule));
    let ruled = read_rule(rule, &given, Common { seed })?;
    let placements = if ruled.rule.records_placement() {
        placements(&given, block_size)?
    } else {
        Placements::default()
    };
    // A rule that hashes the prompt's head only has no hash seed of its own: routers with equal seeds agree.
    let base = Base::of(&given)?;
    let hash_seed = if ruled.need.blocks {
        let given = base.as_ref().map_or(given.0, |base| &base.options);
        Options(given).integer("hash_seed", 0, u64::MAX)?
    } else if ruled.need.prefix.is_some() {
        seed
    } else {
        cachelb_core::hashing::DEFAULT_SEED
    };
    Ok(Configured {
        hasher: Hasher::new(placements.scheme, block_size as usize, hash_seed)
            .map_err(|error| PyValueError::new_err(error.to_string()))?
            .keyed(Some(NamespaceKey::of_process())),
        ruled,
        placements,
        seed,
        booking_ttl_ms: millis(given.number("booking_ttl_s", ABOVE_ZERO)?),
    })
}

/// The rule called `rule` with its options.
pub fn read_rule(rule: &str, given: &Options<'_, '_>, common: Common) -> PyResult<Ruled> {
    for read in [
        classic::read,
        cost::read,
        hash::read,
        tree::read,
        boundary::read,
        learned::read,
    ] {
        if let Some(ruled) = read(rule, given, common)? {
            return Ok(ruled);
        }
    }
    Err(PyValueError::new_err(format!(
        "there is no native rule {rule:?}"
    )))
}

/// Tokens of a page, for rules whose index is a tree of them.
pub fn page_size(given: &Options<'_, '_>) -> PyResult<Option<u64>> {
    if let Some(base) = Base::of(given)? {
        return page_size(&Options(&base.options));
    }
    if !given.0.contains("index")? {
        return Ok(None);
    }
    let is_tree = given.choice("index", &[("blocks", false), ("radix", true)])?;
    let pages = given.integer("page_size", 1, 1024)?;
    Ok(is_tree.then_some(pages))
}

/// How the placements of a rule that matches prefixes are remembered; `hashing` and `matcher` are optional.
pub fn placements(given: &Options<'_, '_>, block_size: u64) -> PyResult<Placements> {
    if let Some(base) = Base::of(given)? {
        return placements(&Options(&base.options), block_size);
    }
    let most = if given.0.contains("max_tokens")? {
        let tokens = given.integer("max_tokens", 1, MAX_TOKENS)?;
        (tokens / block_size).clamp(1, u64::from(u32::MAX))
    } else {
        given.integer("max_blocks_per_worker", 1, u64::from(u32::MAX))?
    };
    let schemes = [
        ("chained", Scheme::Chained),
        ("positional", Scheme::Positional),
    ];
    let matchers = [
        ("kary", Matcher::Kary),
        ("binary", Matcher::Binary),
        ("linear", Matcher::Linear),
    ];
    let mut scheme = given.choice_or("hashing", &schemes, Scheme::Chained)?;
    if let Some(page) = page_size(given)? {
        if scheme == Scheme::Positional {
            return Err(PyValueError::new_err(
                "hashing=\"positional\" is of the block index; leave it out with index=\"radix\"",
            ));
        }
        // A tree of larger pages is a tree of blocks, and that is the block index.
        if page == 1 {
            scheme = Scheme::Units;
        }
    }
    let placements = Placements {
        scheme,
        matcher: given.choice_or("matcher", &matchers, Matcher::Kary)?,
        max_blocks_per_worker: most as u32,
        ttl_ms: given
            .optional("ttl_s")?
            .map(|v| number(&v, "ttl_s", ABOVE_ZERO))
            .transpose()?
            .map(millis),
    };
    if placements.scheme == Scheme::Positional && placements.ttl_ms.is_some() {
        return Err(PyValueError::new_err(
            "ttl_s needs hashing=\"chained\": positional blocks have no time to live",
        ));
    }
    Ok(placements)
}
