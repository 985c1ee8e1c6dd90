//! Which cache groups of a hybrid model may be indexed: those that attend to the whole prefix.

use super::batch::Attention;

/// Groups whose kind is remembered. Models have fewer than ten.
const MAX_GROUPS: usize = 64;

/// What the stores of each group said, for stores and removals that do not say it.
#[derive(Debug, Default)]
pub(super) struct Groups {
    whole_prefix: Vec<(u32, bool)>,
}

impl Groups {
    /// Whether a store of this group may be indexed.
    pub(super) fn admit(&mut self, group: Option<u32>, attention: Attention) -> bool {
        let said = match attention {
            Attention::Full => true,
            Attention::Partial => false,
            Attention::Unsaid => {
                return self.known(group).unwrap_or(matches!(group, None | Some(0)));
            }
        };
        let Some(group) = group else {
            return said;
        };
        let known = self
            .whole_prefix
            .iter()
            .position(|(known, _)| *known == group);
        match known {
            Some(at) => self.whole_prefix[at].1 = said,
            None if self.whole_prefix.len() < MAX_GROUPS => self.whole_prefix.push((group, said)),
            None => return false,
        }
        said
    }

    /// Whether the group attends to the whole prefix, if its stores said so.
    pub(super) fn known(&self, group: Option<u32>) -> Option<bool> {
        let entry = |group| self.whole_prefix.iter().find(|(known, _)| *known == group);
        group.and_then(entry).map(|(_, whole)| *whole)
    }

    pub(super) fn clear(&mut self) {
        self.whole_prefix.clear();
    }
}
