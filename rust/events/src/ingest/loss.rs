//! What is known after a message is lost.
//!
//! It may have held removals, stores and a clear, so no copy counted before is there for sure. What names stand for is
//! still known, since they are hashes of content within one life of an engine. So the names of device memory become
//! doubtful, and the events that follow settle them one by one. Until the engine says that it dropped everything, names
//! that are not known may be held too: a store from the root is taken for a report then, whatever it names.

use cachelb_core::ids::Medium;

use super::super::batch::Name;
use super::super::holdings::Holdings;
use super::super::incoming::Incoming;
use super::super::stats::DropReason;
use super::Ingest;

impl Ingest {
    /// A message is lost for good: what it may concern is doubtful, and dropped where doubt is not kept: in other media
    /// than device memory, and of stores whose parent is not known.
    pub fn lost(&mut self, to: &mut dyn Holdings) {
        self.gone.flush(to);
        let waiting = self.orphans.clear();
        self.stats.drop(DropReason::Orphan, u64::from(waiting));
        self.stats.doubted_blocks += to.doubt();
        for lane in &mut self.lanes {
            lane.count(std::iter::empty());
        }
        let holdings: &dyn Holdings = to;
        for space in &mut self.spaces {
            if space.medium == Medium::Gpu {
                let keeps = |block| holdings.holds(block, Medium::Speculative);
                space.make_doubtful(keeps, &mut self.namespaces);
            } else {
                space.forget_names(&mut self.namespaces);
            }
        }
        self.lossy = true;
    }

    /// Whether a store follows a doubtful block that the holdings gave up meanwhile, as if its parent were not known.
    pub(super) fn follows_nothing(&self, store: &Incoming<'_>, to: &dyn Holdings) -> bool {
        let space = self.find_space(store.group, Medium::Gpu);
        let parent = space.zip(store.parent).filter(|_| self.lossy);
        let end = parent.and_then(|(at, parent)| self.spaces[at].doubtful_end(parent));
        end.is_some_and(|end| to.path_to(end).is_empty())
    }

    /// A block follows the one called `parent`, so that one is there and so are all before it: engines compute and keep what
    /// a request reuses as long as it runs.
    pub(super) fn settle_path(&mut self, at: usize, parent: Name, to: &mut dyn Holdings) {
        let space = &mut self.spaces[at];
        let medium = space.medium;
        let Some(end) = space.doubtful_end(parent) else {
            return;
        };
        self.gone.flush(to);
        let orphans = &mut self.orphans;
        let group = space.group;
        let settled = space.settle_path(parent, &mut self.lanes[medium as usize], |name| {
            // The copy that is found may be the one that waits for its parent.
            orphans.cancel(name, |other, its| other == medium && its == group);
        });
        let path = to.path_to(end);
        let (above, settled) = path.split_at(path.len().saturating_sub(settled));
        to.store(above.last().copied(), settled, medium);
    }

    /// Forgets the doubtful names, to make room.
    pub(super) fn forget_doubtful(&mut self) -> bool {
        let mut forgotten = false;
        for space in &mut self.spaces {
            forgotten |= space.forget_doubtful(&mut self.namespaces);
        }
        forgotten
    }
}
