//! Where workers can resume: a set of marks, and depths by looking at every mark.

use cachelb_core::ids::{Medium, WorkerId};
use cachelb_core::index::{Reach, Resumes};
use proptest::prelude::*;

use super::driver::{Driver, Outcome};
use super::naive::Naive;

/// The media of which one must hold a block with such a mark; of their ranks, a block has the lowest only.
fn kin(rank: Medium) -> &'static [Medium] {
    if rank == Medium::Speculative {
        &[Medium::Speculative]
    } else {
        &Medium::ANNOUNCED
    }
}

impl Naive {
    pub fn set_resumes(&mut self, id: WorkerId, resumes: Resumes) -> Option<()> {
        self.block_count(id)?;
        self.resumes.insert(id, resumes);
        Some(())
    }

    fn may_mark(&self, id: WorkerId, hash: u64, rank: Medium) -> bool {
        kin(rank).iter().any(|m| self.holds(id, hash, *m))
    }

    pub fn mark(&mut self, id: WorkerId, hash: u64, rank: Medium) -> Option<bool> {
        self.block_count(id)?;
        if !self.may_mark(id, hash, rank) {
            return Some(false);
        }
        let marks = kin(rank).iter().map(|m| (id, hash, *m));
        let marked: Vec<_> = marks.filter(|mark| self.marks.remove(mark)).collect();
        let lowest = marked.iter().map(|mark| mark.2).chain([rank]).min()?;
        self.marks.insert((id, hash, lowest));
        Some(true)
    }

    pub fn unmark(&mut self, id: WorkerId, hash: u64) -> Option<bool> {
        self.block_count(id)?;
        let marked = self.is_marked(id, hash);
        self.marks.retain(|mark| (mark.0, mark.1) != (id, hash));
        Some(marked)
    }

    pub fn is_marked(&self, id: WorkerId, hash: u64) -> bool {
        let mut ranks = Medium::ALL.into_iter();
        ranks.any(|rank| self.marks.contains(&(id, hash, rank)))
    }

    pub fn marks(&self, id: WorkerId) -> Option<u64> {
        self.block_count(id)?;
        Some(self.marks.iter().filter(|mark| mark.0 == id).count() as u64)
    }

    /// Ends every change.
    pub fn drop_marks(&mut self) {
        let mut marks = std::mem::take(&mut self.marks);
        marks.retain(|&(id, hash, rank)| self.may_mark(id, hash, rank));
        self.marks = marks;
    }

    /// Marks in device memory become speculative as the blocks do.
    pub fn doubt_marks(&mut self, id: WorkerId) {
        let sure = |mark: &&(WorkerId, u64, Medium)| mark.0 == id && mark.2 == Medium::Gpu;
        let marks: Vec<_> = self.marks.iter().filter(sure).copied().collect();
        for (_, hash, _) in marks {
            if self.holds(id, hash, Medium::Gpu) {
                self.marks.insert((id, hash, Medium::Speculative));
            }
        }
    }

    /// The deepest depth within `end` that the worker can resume at with marks up to a rank: the definition.
    fn resumable_at(&self, id: WorkerId, hashes: &[u64], end: u32, most: u32, upto: Medium) -> u32 {
        let resumes = self.resumes.get(&id).copied().unwrap_or_default();
        let end = end.saturating_sub(resumes.above).min(most);
        let accepts = |depth: &u32| {
            let hash = hashes[(*depth + resumes.above) as usize - 1];
            let mut ranks = Medium::ALL.into_iter().filter(|rank| *rank <= upto);
            !resumes.marked_only || ranks.any(|rank| self.marks.contains(&(id, hash, rank)))
        };
        (1..=end).rev().find(accepts).unwrap_or(0)
    }

    /// Whether the worker holds a block behind a path.
    pub fn goes_on(&self, id: WorkerId, path: &[u64]) -> bool {
        let behind = |hash: &u64| self.parent(*hash) == path.last().copied();
        let mut media = Medium::ALL.into_iter();
        !path.is_empty() && media.any(|m| self.held_in(id, m).iter().any(behind))
    }

    /// Where the worker holds a prompt, as far as it can resume at depths up to `most`: a block in two media counts for
    /// the faster.
    pub fn reach(&self, id: WorkerId, hashes: &[u64], most: u32) -> Reach {
        let (mut end, mut deepest) = (0, 0);
        let mut upto = |media: &[Medium], rank| {
            end = self.covered(id, hashes, media, end);
            deepest = self.resumable_at(id, hashes, end, most, rank).max(deepest);
            deepest
        };
        let gpu = upto(&[Medium::Gpu, Medium::Speculative], Medium::Speculative);
        let cpu = upto(&[Medium::Cpu], Medium::Cpu);
        let disk = upto(&[Medium::Disk], Medium::Disk);
        Reach {
            gpu,
            cpu: (gpu, cpu),
            disk: (cpu, disk),
        }
    }
}

impl Driver {
    /// The refined answer to the latest search, for the known path `hashes`.
    pub(super) fn compare_resume(&mut self, hashes: &[u64], most: u32) -> Outcome {
        self.index.resume(most, &mut self.out);
        let mut expected = Vec::new();
        for slot in 0..self.shape.workers {
            let id = self.id(slot);
            let held = self.naive.covered(id, hashes, &Medium::ALL, 0);
            let gpu = self.naive.covered(id, hashes, &[Medium::Gpu], 0);
            let resumes = self.naive.resumes.get(&id).copied();
            let refined = resumes.unwrap_or_default() != Resumes::default();
            let at = |end, upto| self.naive.resumable_at(id, hashes, end, most, upto);
            let depths = if refined {
                (at(held, Medium::Disk), at(gpu, Medium::Gpu))
            } else {
                (held, gpu)
            };
            let got = (self.out.depth(slot), self.out.confirmed(slot));
            prop_assert_eq!(got, depths, "slot {} of {:?}", slot, resumes);
            prop_assert_eq!(self.out.held(slot), held, "slot {}", slot);
            if depths.0 > 0 {
                expected.push((slot, depths.0));
            }
            let most = if refined { most } else { u32::MAX };
            let reach = self.naive.reach(id, hashes, most);
            prop_assert_eq!(self.index.media(&self.out, slot), reach, "slot {}", slot);
            let goes_on = self.naive.goes_on(id, &hashes[..held as usize]);
            prop_assert_eq!(self.index.goes_on(&self.out, slot, held), goes_on);
            let mut end = 0;
            let device = [Medium::Gpu, Medium::Speculative];
            let ends = [&device[..], &[Medium::Cpu], &[Medium::Disk]].map(|media| {
                end = self.naive.covered(id, hashes, media, end);
                end
            });
            let full = self.index.held_media(&self.out, slot);
            prop_assert_eq!([full.gpu, full.cpu.1, full.disk.1], ends, "slot {}", slot);
            for rank in Medium::ALL {
                let within = held.min(most);
                let mark = |depth: &u32| {
                    let hash = hashes[*depth as usize - 1];
                    let mut ranks = Medium::ALL.into_iter().filter(|m| *m <= rank);
                    ranks.any(|m| self.naive.marks.contains(&(id, hash, m)))
                };
                let deepest = (1..=within).rev().find(mark).unwrap_or(0);
                let got = self.index.deepest_mark(&self.out, slot, within, rank);
                prop_assert_eq!(got, deepest, "slot {} up to {:?}", slot, rank);
            }
        }
        prop_assert_eq!(self.out.iter().collect::<Vec<_>>(), expected);
        Ok(())
    }
}
