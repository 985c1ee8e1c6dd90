//! How many leading units every worker holds, filled from the deepest part of a path upwards.

use super::NONE;
use super::nodes::Node;
use super::sets::{LaneSets, ones};
use crate::epoch_lru::lanes::{is_device, slot_of};

/// Leading blocks by slot; valid where the member bit is set.
#[derive(Debug, Default, Clone)]
pub(crate) struct Leading {
    depth: Vec<u32>,
    members: Vec<u64>,
}

impl Leading {
    /// Depth of a slot, 0 for no member.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> u32 {
        if self.has(slot) {
            self.depth[slot as usize]
        } else {
            0
        }
    }

    #[inline]
    pub(crate) fn has(&self, slot: u32) -> bool {
        let word = self.members.get(slot as usize / 64).copied().unwrap_or(0);
        word >> (slot % 64) & 1 == 1
    }

    /// Members with their depths, ascending by slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        ones(&self.members).map(|slot| (slot, self.depth[slot as usize]))
    }

    /// Sets the depth of a member that may be deeper already.
    #[inline]
    pub(crate) fn raise(&mut self, slot: u32, depth: u32) {
        let held = &mut self.depth[slot as usize];
        *held = depth.max(*held);
    }

    /// Sets the depth of a slot, which is no member with depth 0.
    #[inline]
    pub(crate) fn cut(&mut self, slot: u32, depth: u32) {
        if depth > 0 {
            self.set(slot, depth);
        } else if let Some(word) = self.members.get_mut(slot as usize / 64) {
            *word &= !(1 << (slot % 64));
        }
    }

    /// Depths of the slots from a word of them on, valid for members.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> &[u32] {
        self.depth.get(at * 64..).unwrap_or_default()
    }

    /// Sets the depth of many slots of a word at once, if none of it has one and all of `held` are as deep.
    #[inline]
    pub(crate) fn set_all(&mut self, at: usize, slots: u64, depth: u32, held: &[u32]) -> bool {
        let held = &held[..held.len().min(64)];
        let least = || held.iter().copied().fold(u32::MAX, u32::min);
        if self.members[at] != 0 || least() < depth {
            return false;
        }
        let depths = self.depth.get_mut(at * 64..).unwrap_or_default();
        let slots_here = depths.len().min(64);
        depths[..slots_here].fill(depth);
        self.members[at] = slots;
        true
    }

    /// Sets the depth of the one slot of `bits` in a word if it reaches so far in `held`; returns it then.
    #[inline]
    pub(crate) fn set_one(&mut self, at: usize, bits: u64, depth: u32, held: &Self) -> u64 {
        let slot = at * 64 + bits.trailing_zeros() as usize;
        if held.depth.get(slot).is_some_and(|held| depth <= *held) {
            self.depth[slot] = depth;
            self.members[at] |= bits;
            return bits;
        }
        0
    }

    /// Sets the depth of those slots of a word that `depth_of` gives one, by their place in it; returns them.
    #[inline]
    pub(crate) fn set_some(
        &mut self,
        at: usize,
        slots: u64,
        depth_of: impl Fn(usize) -> Option<u32>,
    ) -> u64 {
        let (mut rest, mut admitted) = (slots, 0);
        let depths = self.depth.get_mut(at * 64..).unwrap_or_default();
        while rest != 0 {
            let bit = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            if let Some(depth) = depth_of(bit)
                && let Some(held) = depths.get_mut(bit)
            {
                *held = depth;
                admitted |= 1 << bit;
            }
        }
        self.members[at] |= admitted;
        admitted
    }

    /// Copies another one without the members among `slots`, which go to `left`.
    pub(crate) fn split(&mut self, other: &Self, slots: &[u64], left: &mut Vec<u64>) {
        self.reset(other.depth.len(), 0);
        left.clear();
        for (at, members) in other.members.iter().enumerate() {
            let gone = members & slots.get(at).copied().unwrap_or(0);
            let mut rest = members ^ gone;
            left.push(gone);
            self.members.push(rest);
            while rest != 0 {
                let slot = at * 64 + rest.trailing_zeros() as usize;
                rest &= rest - 1;
                self.depth[slot] = other.depth[slot];
            }
        }
    }

    /// Copies another one.
    pub(crate) fn copy(&mut self, other: &Self) {
        self.depth.clone_from(&other.depth);
        self.members.clone_from(&other.members);
    }

    pub(crate) fn reset(&mut self, slots: usize, words: usize) {
        if self.depth.len() < slots {
            self.depth.resize(slots, 0);
        }
        self.members.clear();
        self.members.resize(words, 0);
    }

    #[inline]
    pub(crate) fn set(&mut self, slot: u32, depth: u32) {
        self.depth[slot as usize] = depth;
        self.members[slot as usize / 64] |= 1 << (slot % 64);
    }

    /// Goes up into a node, of which the query covers the depths up to `end`: held means held in any lane. Calls
    /// `device` with the part of it that is held in device memory.
    #[inline]
    pub(crate) fn climb_lanes<X>(
        &mut self,
        sets: &LaneSets,
        node: &Node<X>,
        end: u32,
        mut device: impl FnMut(u32, u32),
    ) {
        let (full, words) = (sets.members(node.full), sets.words());
        let in_any = |at| full[at..].iter().step_by(words).fold(0, |all, w| all | w);
        self.climb((0..words).map(in_any), end);
        if node.partial == 0 {
            return;
        }
        let mut longest = NONE;
        for entry in node.partials() {
            let slot = slot_of(entry.lane);
            let depth = end.min(node.start + entry.count);
            if is_device(entry.lane) {
                device(slot, depth);
            }
            if slot == longest {
                // Lanes of a worker are neighbours.
                self.raise(slot, depth);
            } else if !self.has(slot) {
                // Another of its lanes holds the whole node if the bit is set.
                self.set(slot, depth);
                longest = slot;
            }
        }
    }

    /// Goes up into a node where all coverage is in device memory.
    #[inline]
    pub(crate) fn climb_device<X>(&mut self, sets: &LaneSets, node: &Node<X>, end: u32) {
        self.climb(sets.members(node.full).iter().copied(), end);
        if node.partial > 0 {
            for entry in node.partials() {
                let depth = end.min(node.start + entry.count);
                self.set(slot_of(entry.lane), depth);
            }
        }
    }

    /// Goes up into a run that is held in full by `full`, a bitmap word by word, and asked for up to the depth `end`.
    #[inline]
    pub(crate) fn climb(&mut self, full: impl Iterator<Item = u64>, end: u32) {
        let members = self.members.iter_mut();
        for (at, (members, full)) in members.zip(full).enumerate() {
            // These hold the run, but not the first block below it.
            let mut rest = full & !*members;
            while rest != 0 {
                self.depth[at * 64 + rest.trailing_zeros() as usize] = end;
                rest &= rest - 1;
            }
            *members = full;
        }
    }

    /// Leaves only those that reach `depth`.
    pub(crate) fn keep(&mut self, depth: u32) {
        let Self {
            depth: held,
            members,
        } = self;
        for (at, word) in members.iter_mut().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                if held[at * 64 + bit as usize] < depth {
                    *word &= !(1 << bit);
                }
            }
        }
    }
}
