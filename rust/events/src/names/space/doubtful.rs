//! Names whose copies a lost message may have removed.
//!
//! The blocks of such a name are still known, so stores may follow it, and a later event can settle it: a store that
//! names it shows that it is there, a removal that it is not. Its own blocks are not referred to in the lane, which
//! counts only certain copies.

use cachelb_core::ids::SequenceHash;

use super::{Layout, Space};
use crate::batch::Name;
use crate::names::Held;
use crate::names::references::Uses;

impl Space {
    /// A message is lost: every name is doubtful, but those that `keeps` does not want by their last own block are
    /// forgotten. Nothing is referred to in the lane.
    pub(crate) fn make_doubtful(
        &mut self,
        keeps: impl Fn(SequenceHash) -> bool,
        uses: &mut Uses<'_>,
    ) {
        let entries: Vec<(Name, Held)> = self.names.entries().collect();
        if let Some(pages) = self.layout.as_mut().and_then(Layout::pages_mut) {
            pages.doubt();
        }
        for (name, held) in entries {
            let Some(layout) = &mut self.layout else {
                return;
            };
            // A page within a block has no end.
            let kept = layout.last_block(held).is_none_or(&keeps);
            if !kept {
                layout.release(held.doubtful(), uses);
            }
            let after = if kept { held.doubtful() } else { Held::VACANT };
            self.names.change(name, |_| after);
        }
    }

    /// The last own block of a doubtful name.
    pub(crate) fn doubtful_end(&self, name: Name) -> Option<SequenceHash> {
        let held = self.names.get(name).filter(|held| held.is_doubtful())?;
        self.layout.as_ref()?.last_block(held)
    }
}
