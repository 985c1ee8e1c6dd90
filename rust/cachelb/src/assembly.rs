//! Parts of a router that follow from its policy: the rule, how placements are remembered, and how prompts are read.

use cachelb_core::hashing::{DEFAULT_SEED, Hasher, NamespaceKey};
use cachelb_policy::{Configured, Placements, Policy, Setup, named};

use crate::error::{Error, Result};
use crate::request::prompt::PromptReader;
use crate::settings::PoolSettings;

/// The parts of a router that a policy on its own decides on.
#[derive(Debug)]
pub struct Assembly {
    /// Its only pool.
    pub pool: PoolSettings,
    /// Reads its prompts.
    pub reader: PromptReader,
}

impl Assembly {
    /// The parts of `policy`, of which `replicas` routers serve the fleet. `seed` is that of ties and samples, `key` that of
    /// namespaces.
    ///
    /// # Errors
    /// Options that do not go together, by name.
    pub fn of(
        policy: &Configured,
        seed: u64,
        replicas: f64,
        key: NamespaceKey,
    ) -> cachelb_core::Result<Self> {
        let block_size = policy.block_size();
        let ruled = policy.ruled(&Setup {
            own_seed: policy.shared.seed,
            seed,
            replicas,
            block_size,
        })?;
        let placements = if ruled.rule.properties().records_placement {
            policy.placements(block_size)?
        } else {
            Placements::default()
        };
        // A rule that hashes the prompt's head only has no hash seed of its own: routers with equal seeds agree.
        let hash_seed = match ruled.need {
            need if need.blocks => policy.hash_seed(),
            need if need.prefix.is_some() => seed,
            _ => DEFAULT_SEED,
        };
        let hasher = Hasher::new(placements.scheme, block_size as usize, hash_seed)?;
        Ok(Self {
            pool: PoolSettings::new(ruled.rule, block_size, placements),
            reader: PromptReader::new(hasher.keyed(Some(key)), ruled.need),
        })
    }
}

/// The policy called `name`, unless its rule is the caller's.
pub(crate) fn native(name: &str) -> Option<&'static Policy> {
    (name != "custom").then(|| named(name))?
}

/// The parts of a [`Selector`](crate::selector::Selector) under the policy called `name` with its defaults. `seed` is that
/// of ties and samples, `key` keeps adapters and salts apart.
///
/// # Errors
/// [`Error::Options`] if there is no such policy.
pub fn assemble(name: &str, seed: u64, key: NamespaceKey) -> Result<Assembly> {
    let configured = native(name).and_then(Policy::by_name);
    let configured =
        configured.ok_or_else(|| Error::options(format!("there is no policy {name:?}")))?;
    Ok(Assembly::of(&configured, seed, 1.0, key)?)
}
