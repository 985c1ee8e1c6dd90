//! One model: its rules, and the blocks that workers hold of it.

use cachelb_core::block_tracker::{Lookup, Store};
use cachelb_core::hashing::Scheme;
use cachelb_core::ids::{Medium, SequenceHash, WorkerId};
use cachelb_core::index::BlockIndex;
use cachelb_policy::{Candidate, Placements, Rule};

use crate::fleet::worker::Member;
use crate::indexes::blocks::Blocks;
use crate::indexes::peers::PeerGroup;
use crate::indexes::rules::Rules;
use crate::indexes::shared_cache::SharedCache;
use crate::request::Request;
use crate::settings::PoolSettings;

/// One model.
#[derive(Debug)]
pub struct Pool {
    /// The rules.
    pub(crate) rules: Rules,
    /// Tokens per block.
    pub(crate) block_size: u32,
    /// How placements are remembered.
    pub(crate) placements: Placements,
    /// Blocks that workers hold, if a rule has placements recorded.
    pub(crate) blocks: Option<Blocks>,
    /// Whether a worker's blocks were ever to be cut to whole ones of its engine. Few fleets have such workers, and
    /// the others need not ask for each.
    pub(crate) is_coarse: bool,
    /// Whether a rule counts the blocks that requests in flight share once.
    pub(crate) counts_active: bool,
    /// Whether a rule that picks has placements recorded.
    pub(crate) knows_placements: bool,
    /// The cache that workers of the model read.
    pub(crate) shared: Option<SharedCache>,
    /// The groups of workers that copy blocks of the model from each other.
    pub(crate) peers: Vec<PeerGroup>,
}

impl Pool {
    /// A model without blocks; shadows get generators of `seed`.
    pub(crate) fn new(settings: PoolSettings, seed: u64) -> Self {
        let (block_size, placements) = (settings.block_size, settings.placements);
        let rules = Rules::new(settings, seed);
        let is_recorded = rules.iter().any(|rule| rule.properties().records_placement);
        let blocks = is_recorded.then(|| Blocks::new(&placements));
        // A tree is queried with tokens, not blocks.
        let has_blocks = placements.scheme != Scheme::Units;
        let counts_active = has_blocks
            && rules
                .iter()
                .any(|rule| rule.properties().counts_active_blocks);
        let knows_placements = rules
            .picking()
            .any(|(_, rule)| rule.properties().records_placement);
        Self {
            rules,
            block_size,
            placements,
            blocks,
            is_coarse: false,
            counts_active,
            knows_placements,
            shared: None,
            peers: Vec::new(),
        }
    }

    /// The index, to read it.
    pub(crate) fn index(&self) -> Option<&Store> {
        self.blocks.as_ref().map(|blocks| &blocks.index)
    }

    /// The index, if it is an exact one.
    pub(crate) fn exact(&self) -> Option<&BlockIndex> {
        self.index()?.exact()
    }

    /// Asks the index how much of a prompt every worker can reuse.
    pub(crate) fn look_up(&mut self, request: &Request<'_>) {
        let most = request.length().reusable_blocks(self.block_size.into());
        if let Some(blocks) = &mut self.blocks {
            blocks.look_up(request.blocks, u32::try_from(most).unwrap_or(u32::MAX));
        }
    }

    /// Result of the latest lookup, `None` if there was nothing to look up.
    pub(crate) fn answer(&self) -> Option<Lookup<'_>> {
        self.blocks.as_ref()?.answer()
    }

    /// Leading blocks of the latest request that a candidate holds for its layers that attend to the whole prefix.
    pub(crate) fn held(&self, row: &Candidate) -> u32 {
        let held = self.answer().map(|answer| answer.held(row.slot));
        held.unwrap_or(0).max(row.overlap)
    }

    /// A worker serves this model. Returns how many blocks it may hold: as many as its engine, or as the pool allows.
    pub(crate) fn expect_worker(&mut self, member: &Member) -> u32 {
        let (sizes, gpu) = (member.sizes(), member.profile.gpu.as_deref());
        self.is_coarse |= sizes.per_block(self.block_size) > 1;
        self.rules.each(|own| own.describe(member.order, gpu));
        let capacity = sizes.capacity(self.block_size);
        capacity.unwrap_or(self.placements.max_blocks_per_worker)
    }

    /// The path up to a block, as far as it is known.
    #[must_use]
    pub fn path_to(&self, hash: SequenceHash) -> Vec<SequenceHash> {
        let path = self.exact().and_then(|index| index.chains().to(hash));
        path.unwrap_or_default()
    }

    /// Whether a worker holds a block in a medium.
    #[must_use]
    pub fn holds(&self, worker: WorkerId, hash: SequenceHash, medium: Medium) -> bool {
        let index = self.exact();
        index.is_some_and(|index| index.chains().holds(worker, hash, medium))
    }

    /// Parts whose picking rules keep prompts themselves, which is never published.
    pub(crate) fn keeps_prompts(&self) -> impl Iterator<Item = &'static str> {
        let tree = matches!(self.index(), Some(Store::Tree(_)));
        let keeps = move |rule: &dyn Rule| {
            rule.properties().keeps_prompts || tree && rule.properties().records_placement
        };
        let parts = self.rules.picking().filter(move |(_, rule)| keeps(*rule));
        parts.map(|(part, _)| part)
    }
}
