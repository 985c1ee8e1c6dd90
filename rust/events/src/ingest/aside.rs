//! Cache groups beside those that attend to the whole prefix.

use cachelb_core::groups::Resuming;
use cachelb_core::ids::Millis;

use super::Ingest;
use crate::batch::{Batch, Event};
use crate::holdings::Holdings;
use crate::hybrid::groups::Role;
use crate::ingest::incoming::Incoming;
use crate::stats::{DropReason, GroupStats};

impl Ingest {
    /// Learns of the groups in a message before it is applied, since stores of side groups may come before those of
    /// their prefixes.
    pub(super) fn learn(&mut self, batch: &Batch, to: &mut dyn Holdings) {
        let mut is_news = false;
        for event in &batch.events {
            if let Event::Store(store) = event {
                is_news |= self.sender.groups.learn(batch, store);
            }
        }
        if is_news {
            self.regroup(to);
        }
    }

    /// Follows the groups that are known now.
    #[cold]
    pub(super) fn regroup(&mut self, to: &mut dyn Holdings) {
        let groups = &self.sender.groups;
        let dropped = self.mirror.regroup(groups, &self.settings, to);
        self.stats.side_unresolved += dropped;
        let unknown = &mut self.stats.unknown_kinds;
        *unknown = groups.unknown_kinds().max(*unknown);
        let rule = groups.resuming(self.settings.eagle);
        self.set_resumes(rule, to);
    }

    /// Sets whether the engine drafts with EAGLE or MTP.
    pub(crate) fn set_eagle(&mut self, eagle: bool, to: &mut dyn Holdings) {
        if self.settings.eagle != eagle {
            self.settings.eagle = eagle;
            self.regroup(to);
        }
    }

    /// Whether prompts resume exactly where the holdings and their marks show.
    pub(super) fn is_exact(&self) -> bool {
        let groups = &self.sender.groups;
        let links = self.mirror.links.as_ref();
        !groups.are_several() || groups.are_known() && links.is_some_and(|links| links.are_sound())
    }

    /// Passes on how the engine resumes, if that changed.
    pub(super) fn set_resumes(&mut self, rule: Option<Resuming>, to: &mut dyn Holdings) {
        let mut above = 0;
        if self.settings.eagle {
            let aside = self.mirror.links.as_ref().map(|links| links.above());
            above = aside.or(self.engine_block_size()).unwrap_or(0);
        }
        let resumes = (self.sender.groups.is_hybrid(), above, rule);
        if resumes != self.resumes {
            self.resumes = resumes;
            to.set_resumes(resumes.0, resumes.1, resumes.2);
        }
    }

    /// Whether every store adds copies. Engines with several groups compute blocks of full attention again
    /// wherever another group cannot resume, from the root on most often; those that draft do so for a block at least.
    pub(super) fn counts_copies(&self) -> bool {
        let has_sides = self.sender.groups.sides().next().is_some();
        !self.settings.reports || self.settings.eagle || has_sides
    }

    /// Whether removals of a group are ignored.
    pub(super) fn is_dropped(&self, group: Option<u32>) -> bool {
        match self.sender.groups.role(group) {
            None | Some(Role::Prefix) => false,
            Some(Role::Ignored) => true,
            Some(Role::Side) => self.side(group).is_none(),
        }
    }

    fn side(&self, group: Option<u32>) -> Option<usize> {
        self.mirror.links.as_ref()?.side(group)
    }

    /// Blocks of a side group, found by their names: the tokens may be those of more blocks.
    pub(super) fn store_aside(
        &mut self,
        store: &Incoming<'_>,
        to: &mut dyn Holdings,
    ) -> Result<u32, DropReason> {
        if store.tokens.is_empty() && store.names.is_empty() {
            return Err(DropReason::MalformedEvent);
        }
        let announced = store.names.len() as u64 * u64::from(store.size);
        if !store.tokens.is_empty() && (store.size == 0 || announced > store.tokens.len() as u64) {
            return Err(DropReason::TokenCount);
        }
        let side = self.side(store.group).ok_or(DropReason::AttentionGroup)?;
        // A repeated block of a report is no copy.
        let is_report = store.parent.is_none() && !self.counts_copies();
        let once = store.tokens.is_empty() || is_report;
        if let Some(links) = &mut self.mirror.links {
            for name in store.names {
                links.store(*name, side, store.medium, once, to);
            }
        }
        self.stats.side_stores += 1;
        Ok(1)
    }

    /// A message is over: blocks whose names stand for nothing yet wait from now on.
    pub(super) fn settle(&mut self, now: Millis, to: &mut dyn Holdings) {
        if let Some(links) = &mut self.mirror.links {
            let (parked, unresolved) = links.settle(now);
            self.stats.side_parked += parked;
            self.stats.side_unresolved += unresolved;
        }
        if self.settings.eagle {
            self.set_resumes(self.resumes.2, to);
        }
    }

    /// The cache groups known so far, in the order they came.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupStats> {
        let links = self.mirror.links.as_ref();
        let groups = self.sender.groups.all().iter();
        groups
            .map(|group| {
                let spaces = self.mirror.spaces.all.iter();
                let named = spaces.filter(|space| space.group == group.id);
                let named: usize = named.map(|space| space.names.len()).sum();
                let aside = links.map_or(0, |links| links.blocks_of(group.id));
                GroupStats {
                    id: group.id,
                    kind: group.kind().to_owned(),
                    window: group.window,
                    block_size: group.size,
                    blocks: named as u64 + aside,
                }
            })
            .collect()
    }
}
