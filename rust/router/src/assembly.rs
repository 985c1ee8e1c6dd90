//! What one policy makes of a router: its rule, how placements are remembered, and how prompts are read.

use cachelb_core::error::Result;
use cachelb_core::hashing::{DEFAULT_SEED, Hasher, NamespaceKey};
use cachelb_policy::{Configured, Placements, Setup};

use super::prompt::PromptReader;
use super::settings::PoolSettings;

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
    pub fn of(policy: &Configured, seed: u64, replicas: f64, key: NamespaceKey) -> Result<Self> {
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
