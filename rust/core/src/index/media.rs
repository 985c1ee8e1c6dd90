//! In which media a worker holds a prompt.

use super::{BlockIndex, NONE, Overlaps};
use crate::forest::lanes::lane_of;
use crate::ids::{Medium, SequenceHash, WorkerId};

/// Where a worker holds a prompt: leading blocks in device memory, and the segments that continue them elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reach {
    /// Leading blocks in device memory.
    pub gpu: u32,
    /// From there on, the blocks `[start, end)` in host memory.
    pub cpu: (u32, u32),
    /// From there on, or else from the end of that in host memory on, the blocks `[start, end)` on disk.
    pub disk: (u32, u32),
}

impl Reach {
    pub(crate) fn on_device(gpu: u32) -> Self {
        let nowhere = (gpu, gpu);
        Self {
            gpu,
            cpu: nowhere,
            disk: nowhere,
        }
    }
}

impl BlockIndex {
    /// Where the worker in `slot` holds the prompt that `answer` was made for, speculative blocks taken for blocks in
    /// device memory. O(1) for a worker without blocks in other media, else O(runs of the prompt). An answer from before
    /// the latest change knows device memory only.
    #[must_use]
    pub fn media(&self, answer: &Overlaps, slot: u32) -> Reach {
        let device = [Medium::Gpu, Medium::Speculative];
        self.reach(answer, slot, &device, answer.depth(slot))
    }

    /// [`Self::media`] without speculative blocks.
    #[must_use]
    pub fn confirmed_media(&self, answer: &Overlaps, slot: u32) -> Reach {
        self.reach(answer, slot, &[Medium::Gpu], answer.confirmed(slot))
    }

    fn reach(&self, answer: &Overlaps, slot: u32, device: &[Medium], leading: u32) -> Reach {
        let elsewhere = [Medium::Cpu, Medium::Disk];
        if elsewhere
            .iter()
            .all(|m| self.held.lanes.count(slot, *m) == 0)
        {
            return Reach::on_device(leading);
        }
        if !answer.is_of(self.held.shape.version) {
            return Reach::on_device(answer.confirmed(slot));
        }
        let gpu = self.covered_from(answer, slot, device, 0);
        let segment = |medium, from| (from, self.covered_from(answer, slot, &[medium], from));
        let cpu = segment(Medium::Cpu, gpu);
        let disk = segment(Medium::Disk, gpu);
        let is_empty = disk.1 == disk.0;
        Reach {
            gpu,
            cpu,
            disk: if is_empty {
                segment(Medium::Disk, cpu.1)
            } else {
                disk
            },
        }
    }

    /// The depth up to which the worker holds the prompt in any of `media` from the depth `from` on.
    fn covered_from(&self, answer: &Overlaps, slot: u32, media: &[Medium], from: u32) -> u32 {
        let (known, block) = answer.known();
        if known <= from {
            return from;
        }
        let mut reached = known;
        let mut run = self.held.shape.blocks.run(block);
        // Upwards, so that the shallowest place where coverage breaks is the last to be met.
        while run != NONE && self.held.nodes[run].end() > from {
            let r = &self.held.nodes[run];
            let entries = media.iter().map(|m| r.holders.get(lane_of(slot, *m)));
            let held = entries.flatten().map(|e| e.count).max().unwrap_or(0);
            if held < r.len && r.start + held < known {
                reached = from.max(r.start + held);
            }
            run = r.parent;
        }
        reached
    }

    /// How many blocks come before a known one on its path, `None` for one that nobody knows.
    #[must_use]
    pub fn depth_of(&self, hash: SequenceHash) -> Option<u32> {
        let block = self.held.shape.table.find(hash, &self.held.shape.blocks)?;
        Some(self.depth(block))
    }

    /// The path that ends with a known block, `None` for an unknown one.
    #[must_use]
    pub fn path_to(&self, hash: SequenceHash) -> Option<Vec<SequenceHash>> {
        let mut block = self.held.shape.table.find(hash, &self.held.shape.blocks)?;
        let mut path = Vec::with_capacity(self.depth(block) as usize + 1);
        while block != NONE {
            path.push(self.held.shape.blocks.hash(block));
            block = self.block_before(block);
        }
        path.reverse();
        Some(path)
    }

    /// Whether the worker holds a block in a medium.
    #[must_use]
    pub fn holds(&self, worker: WorkerId, hash: SequenceHash, medium: Medium) -> bool {
        if self.worker(worker).is_err() || self.held.lanes.count(worker.slot, medium) == 0 {
            return false;
        }
        let Some(block) = self.held.shape.table.find(hash, &self.held.shape.blocks) else {
            return false;
        };
        let run = &self.held.nodes[self.held.shape.blocks.run(block)];
        let entry = run.holders.get(lane_of(worker.slot, medium));
        entry.is_some_and(|e| e.count > block - run.own.base)
    }
}
