//! One model: its rules, and what workers hold of it.

use crate::hashing::Scheme;
use crate::ids::{Medium, SequenceHash, WorkerId};
use crate::policy::Rule;
use crate::tracker::store::Store;

use super::blocks::Blocks;
use super::request::Wanted;
use super::rules::Rules;
use super::settings::PoolSettings;

/// One model.
#[derive(Debug)]
pub struct Pool {
    rules: Rules,
    blocks: Blocks,
    /// Whether a rule counts the blocks that requests in flight share once.
    counts_active: bool,
    /// Whether a rule that picks has placements recorded.
    knows_placements: bool,
}

impl Pool {
    /// A model without blocks; shadows get generators of `seed`.
    pub(super) fn new(settings: PoolSettings, seed: u64) -> Self {
        let (block_size, placements) = (settings.block_size, settings.placements);
        let rules = Rules::new(settings, seed);
        let is_recorded = rules.iter().any(<dyn Rule>::records_placement);
        let blocks = Blocks::new(block_size, placements, is_recorded);
        // What a tree is asked with are tokens, not blocks.
        let has_blocks = placements.scheme != Scheme::Units;
        let counts_active = has_blocks && rules.iter().any(<dyn Rule>::counts_active_blocks);
        let knows_placements = rules.picking().any(|(_, rule)| rule.records_placement());
        Self {
            rules,
            blocks,
            counts_active,
            knows_placements,
        }
    }

    /// The same without what is known.
    pub(super) fn fresh(&self, seed: u64) -> Self {
        let placements = *self.blocks.placements();
        let rule = self.rules.get(Wanted::Whole).fresh();
        let settings = PoolSettings::new(rule, self.blocks.block_size(), placements);
        Self::new(self.rules.fresh(settings), seed)
    }

    /// The rules.
    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The rules, to pass them news.
    pub(super) fn rules_mut(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// What workers hold.
    pub(super) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// The same, to change it.
    pub(super) fn blocks_mut(&mut self) -> &mut Blocks {
        &mut self.blocks
    }

    /// Whether a rule counts the blocks that requests in flight share once.
    pub(super) fn counts_active(&self) -> bool {
        self.counts_active
    }

    /// Whether a rule that picks has placements recorded.
    pub(super) fn knows_placements(&self) -> bool {
        self.knows_placements
    }

    /// The path up to a block, as far as it is known.
    #[must_use]
    pub fn path_to(&self, hash: SequenceHash) -> Vec<SequenceHash> {
        let path = self.blocks.index().and_then(|index| index.path_to(hash));
        path.unwrap_or_default()
    }

    /// Whether a worker holds a block in a medium.
    #[must_use]
    pub fn holds(&self, worker: WorkerId, hash: SequenceHash, medium: Medium) -> bool {
        let index = self.blocks.index();
        index.is_some_and(|index| index.holds(worker, hash, medium))
    }

    /// Hints that events are about to be applied of `blocks`, or of those that follow them.
    pub fn prefetch(&self, blocks: &[SequenceHash]) {
        if let Some(index) = self.blocks.index() {
            index.prefetch(blocks);
        }
    }

    /// For which parts the rules that pick know prompts themselves, which others are never told.
    pub(super) fn keeps_prompts(&self) -> impl Iterator<Item = &'static str> {
        let tree = matches!(self.blocks.index(), Some(Store::Tree(_)));
        let keeps = move |rule: &dyn Rule| rule.keeps_prompts() || tree && rule.records_placement();
        let parts = self.rules.picking().filter(move |(_, rule)| keeps(*rule));
        parts.map(|(part, _)| part)
    }
}
