//! The media in which a worker holds a prompt.

use super::{BlockIndex, NONE, Overlaps, Resumes};
use crate::epoch_lru::lanes::{lane_of, medium_of, slot_of};
use crate::ids::Medium;
use crate::prefix_tree::nodes::Entry;

/// The ranks of marks that count up to device memory, host memory and disk.
const RANKS: [Medium; 3] = [Medium::Speculative, Medium::Cpu, Medium::Disk];

/// Where a worker holds a prompt: leading blocks in device memory, and the segments that continue them elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reach {
    /// Leading blocks in device memory.
    pub gpu: u32,
    /// From there on, the blocks `[start, end)` in host memory.
    pub cpu: (u32, u32),
    /// From there on, the blocks `[start, end)` on disk.
    pub disk: (u32, u32),
}

impl Reach {
    pub(crate) fn on_device(gpu: u32) -> Self {
        Self::to([gpu; 3])
    }

    /// To these ends in device memory, host memory and on disk.
    fn to([gpu, cpu, disk]: [u32; 3]) -> Self {
        Self {
            gpu,
            cpu: (gpu, cpu),
            disk: (cpu, disk),
        }
    }
}

/// Blocks `[start, end)` of a prompt that a worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stretch {
    /// The worker.
    pub slot: u32,
    /// The first of them.
    pub start: u32,
    /// The one after the last.
    pub end: u32,
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
        // Upwards, so that the shallowest place where coverage breaks comes last.
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
    /// Where the worker in `slot` holds the prompt that `answer` was made for, in any medium: rising segments
    /// `[start, end)`, those behind gaps too. O(runs of the prompt). Empty for an answer from before the latest change.
    #[must_use]
    pub fn segments(&self, answer: &Overlaps, slot: u32) -> Vec<(u32, u32)> {
        let mut segments: Vec<(u32, u32)> = Vec::new();
        let ((known, block), nodes) = (answer.known(), &self.held.nodes);
        if known == 0 || !answer.is_of(self.held.shape.version) {
            return segments;
        }
        let mut run = self.held.shape.blocks.run(block);
        while run != NONE {
            let r = &nodes[run];
            let entries = Medium::ALL.map(|m| r.holders.get(lane_of(slot, m)));
            let held = entries.into_iter().flatten().map(|e| e.count).max();
            let end = known.min(r.start + held.unwrap_or(0));
            match segments.last_mut() {
                Some(below) if below.0 == end => below.0 = r.start,
                _ if end > r.start => segments.push((r.start, end)),
                _ => {}
            }
            run = r.parent;
        }
        segments.reverse();
        segments
    }

    /// Where the worker in `slot` holds the prompt that `answer` was made for, as far as it can resume; speculative blocks
    /// are taken for blocks in device memory, and a block in two media counts for the faster. O(1) for a worker without
    /// blocks in other media that resumes from any block, else O(runs of the prompt). An answer from before the latest
    /// change covers device memory only.
    #[must_use]
    pub fn media(&self, answer: &Overlaps, slot: u32) -> Reach {
        let ends = self.ends(answer, slot);
        let Resumes { marked_only, above } = self.resumes(slot);
        let mut before = 0;
        Reach::to([0, 1, 2].map(|at| {
            let (end, upto) = (ends[at], RANKS[at]);
            let mut last = end.min(answer.depth(slot).saturating_add(above));
            if marked_only {
                last = self.deepest_mark(answer, slot, last, upto);
            }
            before = last.saturating_sub(above).max(before);
            before
        }))
    }

    /// Where the worker in `slot` holds the prompt for its layers that attend to the whole prefix, whether it can resume
    /// there or not; otherwise as [`Self::media`].
    #[must_use]
    pub fn held_media(&self, answer: &Overlaps, slot: u32) -> Reach {
        Reach::to(self.ends(answer, slot))
    }

    /// The depth up to which the worker in `slot` holds the prompt in any of `media` from the depth `from` on; `from` by an
    /// answer from before the latest change.
    #[must_use]
    pub fn held_from(&self, answer: &Overlaps, slot: u32, media: &[Medium], from: u32) -> u32 {
        if !answer.is_of(self.held.shape.version) {
            return from;
        }
        answer.covered_from(self, slot, media, from)
    }

    /// Where workers hold the prompt that `answer` was made for, in any of `media`, those behind gaps too. O(runs of the
    /// prompt and their holders). Empty for an answer from before the latest change.
    #[must_use]
    pub fn stretches(&self, answer: &Overlaps, media: &[Medium]) -> Vec<Stretch> {
        let (mut found, mut open) = (Vec::<Stretch>::new(), Vec::new());
        let ((known, block), nodes) = (answer.known(), &self.held.nodes);
        if known == 0 || !answer.is_of(self.held.shape.version) {
            return found;
        }
        let mut run = self.held.shape.blocks.run(block);
        while run != NONE {
            let r = &nodes[run];
            let (mut next, mut new) = (0, Vec::new());
            let holders = r.holders.as_slice();
            for entries in holders.chunk_by(|a, b| slot_of(a.lane) == slot_of(b.lane)) {
                let in_media = |e: &&Entry| media.contains(&Medium::ALL[medium_of(e.lane)]);
                let count = entries.iter().filter(in_media).map(|e| e.count).max();
                let slot = slot_of(entries[0].lane);
                let end = known.min(r.start + count.unwrap_or(0));
                if end <= r.start {
                    continue;
                }
                while open
                    .get(next)
                    .is_some_and(|&at: &usize| found[at].slot < slot)
                {
                    next += 1;
                }
                let continued = |&at: &usize| found[at].slot == slot && found[at].start == end;
                let below = open.get(next).copied().filter(continued);
                new.push(below.unwrap_or(found.len()));
                match below {
                    Some(at) => found[at].start = r.start,
                    None => found.push(Stretch {
                        slot,
                        start: r.start,
                        end,
                    }),
                }
            }
            // Those that begin where the parent ends, by slot.
            open = new;
            run = r.parent;
        }
        found
    }

    /// How the worker in `slot` resumes prompts.
    #[must_use]
    pub fn resumes(&self, slot: u32) -> Resumes {
        self.held.shape.marks.resumes(slot)
    }

    /// Where full attention ends in device memory, from there in host memory, and from there on disk.
    fn ends(&self, answer: &Overlaps, slot: u32) -> [u32; 3] {
        let elsewhere = [Medium::Cpu, Medium::Disk];
        let lanes = &self.held.lanes;
        if elsewhere.iter().all(|m| lanes.count(slot, *m) == 0) {
            return [answer.held(slot); 3];
        }
        if !answer.is_of(self.held.shape.version) {
            return [answer.confirmed(slot); 3];
        }
        let device = [Medium::Gpu, Medium::Speculative];
        let gpu = answer.covered_from(self, slot, &device, 0);
        let cpu = answer.covered_from(self, slot, &[Medium::Cpu], gpu);
        [
            gpu,
            cpu,
            answer.covered_from(self, slot, &[Medium::Disk], cpu),
        ]
    }
}
