//! In which media a worker holds a prompt.

use super::{BlockIndex, NONE, Overlaps};
use crate::forest::lanes::lane_of;
use crate::ids::Medium;

/// Where a worker holds a prompt: leading blocks in device memory, and elsewhere the segments that each continue the one
/// before. A block in two media belongs to the faster one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reach {
    /// Leading blocks in device memory.
    pub gpu: u32,
    /// From there on, the blocks `[start, end)` in host memory.
    pub cpu: (u32, u32),
    /// From the end of that on, the blocks `[start, end)` on disk.
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

impl Overlaps {
    /// The depth up to which the worker in `slot` holds the prompt in any of `media` from the depth `from` on.
    fn covered_from(&self, index: &BlockIndex, slot: u32, media: &[Medium], from: u32) -> u32 {
        let (known, block) = self.known();
        if known <= from {
            return from;
        }
        let mut reached = known;
        let nodes = &index.held.nodes;
        let mut run = index.held.shape.blocks.run(block);
        // Upwards, so that the shallowest place where coverage breaks is the last to be met.
        while run != NONE && nodes[run].end() > from {
            let r = &nodes[run];
            let entries = media.iter().map(|m| r.holders.get(lane_of(slot, *m)));
            let held = entries.flatten().map(|e| e.count).max().unwrap_or(0);
            if held < r.len && r.start + held < known {
                reached = from.max(r.start + held);
            }
            run = r.parent;
        }
        reached
    }
}

impl BlockIndex {
    /// Where the worker in `slot` holds the prompt that `answer` was made for, speculative blocks taken for blocks in
    /// device memory. O(1) for a worker without blocks in other media, else O(runs of the prompt). An answer from before
    /// the latest change knows device memory only.
    #[must_use]
    pub fn media(&self, answer: &Overlaps, slot: u32) -> Reach {
        let elsewhere = [Medium::Cpu, Medium::Disk];
        let lanes = &self.held.lanes;
        if elsewhere.iter().all(|m| lanes.count(slot, *m) == 0) {
            return Reach::on_device(answer.depth(slot));
        }
        if !answer.is_of(self.held.shape.version) {
            return Reach::on_device(answer.confirmed(slot));
        }
        let device = [Medium::Gpu, Medium::Speculative];
        let gpu = answer.covered_from(self, slot, &device, 0);
        let segment = |medium, from| (from, answer.covered_from(self, slot, &[medium], from));
        let cpu = segment(Medium::Cpu, gpu);
        let disk = segment(Medium::Disk, cpu.1);
        Reach { gpu, cpu, disk }
    }
}
