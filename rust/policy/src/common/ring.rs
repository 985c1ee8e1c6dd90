//! A hash ring over worker names: every worker owns the arcs that end at its points.
//!
//! The ring holds every worker seen and not forgotten. One that is not among the rows is skipped, and its arcs are intact
//! when it returns, so readiness never rebuilds the ring: the result of a walk depends on the rows alone.
//! A key is found in O(log points); a rebuild is O(points * log points) and happens when a name or a weight changes.

use std::borrow::Cow;
use std::collections::HashSet;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::common::slots::Slots;
use crate::rule::parts::State;
use crate::rule::view::{Candidate, View};

/// Most points of a worker on a ring.
pub(crate) const MAX_VNODES: u64 = 10_000;

/// Weights of everyday size: the heaviest worker of a fleet lies in here, and nothing is scaled.
const EVERYDAY: std::ops::RangeInclusive<f64> = 1.0 / 16.0..=16.0;

#[derive(Debug, Clone)]
struct Member {
    name: Box<str>,
    order: u64,
    slot: u32,
    weight: f64,
    points: u32,
}

/// Points of every worker seen.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    seed: u64,
    /// Points of a worker of weight 1.
    vnodes: u32,
    /// Sorted by name, so that the smaller name wins where two points meet.
    members: Vec<Member>,
    /// Indices in `members`.
    slots: Slots,
    /// Position and index in `members`, sorted.
    points: Vec<(u64, u32)>,
}

/// Points of a worker of weight 1, unless a policy has an option for it.
pub(crate) const VNODES: u32 = 150;

const UNOWNED: u32 = u32::MAX;

impl Ring {
    pub fn new(vnodes: u32, seed: u64) -> Self {
        Self {
            seed,
            vnodes,
            members: Vec::new(),
            slots: Slots::default(),
            points: Vec::new(),
        }
    }

    /// This ring, or one that also has the workers of `view` it lacks.
    pub fn covering(&self, view: &View<'_>) -> Cow<'_, Self> {
        if self.covers(view.rows) {
            return Cow::Borrowed(self);
        }
        let mut ring = self.clone();
        ring.add(view);
        Cow::Owned(ring)
    }

    /// Remembers the workers of `view`.
    pub fn settle(&mut self, view: &View<'_>) {
        if !self.covers(view.rows) {
            self.add(view);
        }
    }

    fn covers(&self, rows: &[Candidate]) -> bool {
        let scale = self.scale();
        rows.iter().all(|row| {
            self.slots.find(row).is_some_and(|at| {
                let member = &self.members[at];
                // A weight that grows bit by bit only counts once it is worth a point.
                member.weight.total_cmp(&row.weight).is_eq()
                    || member.points == self.share(row.weight, scale)
            })
        })
    }

    /// The power of two that weights are divided by, so that a fleet of any weights has enough points and not too many.
    /// It is 1 unless all weights are tiny or one is huge, so workers that come and go do not change it.
    fn scale(&self) -> f64 {
        let heaviest = self.members.iter().map(|m| m.weight).fold(0.0, f64::max);
        if EVERYDAY.contains(&heaviest) {
            1.0
        } else {
            heaviest.max(f64::MIN_POSITIVE).log2().floor().exp2()
        }
    }

    fn share(&self, weight: f64, scale: f64) -> u32 {
        let points = (f64::from(self.vnodes) * weight / scale).round();
        #[expect(clippy::cast_sign_loss, reason = "weights are above 0")]
        let points = points.max(1.0) as u32;
        points
    }

    fn add(&mut self, view: &View<'_>) {
        let name = |row: &Candidate| view.names.name(row.offer);
        let names: HashSet<&str> = view.rows.iter().map(name).collect();
        let orders: HashSet<u64> = view.rows.iter().map(|row| row.order).collect();
        self.members
            .retain(|m| !names.contains(&*m.name) && !orders.contains(&m.order));
        self.members.extend(view.rows.iter().map(|row| Member {
            name: name(row).into(),
            order: row.order,
            slot: row.slot,
            weight: row.weight,
            points: 0,
        }));
        self.rebuild();
    }

    fn rebuild(&mut self) {
        let scale = self.scale();
        self.members.sort_by(|a, b| a.name.cmp(&b.name));
        self.slots.clear();
        self.points.clear();
        let mut text = Vec::new();
        for at in 0..self.members.len() {
            let points = self.share(self.members[at].weight, scale);
            let member = &mut self.members[at];
            member.points = points;
            self.slots.set(member.slot, member.order, at);
            text.clear();
            text.extend_from_slice(member.name.as_bytes());
            text.push(0);
            let head = text.len();
            for point in 0..points {
                text.truncate(head);
                text.extend_from_slice(&point.to_le_bytes());
                self.points
                    .push((xxh3_64_with_seed(&text, self.seed), at as u32));
            }
        }
        self.points.sort_unstable();
    }

    /// Where the members sit among `rows`, for [`Ring::walk`].
    pub fn seats(&self, rows: &[Candidate]) -> Seats {
        let mut seats = vec![UNOWNED; self.members.len()];
        for (i, row) in rows.iter().enumerate() {
            let same = |member: &Member| member.order == row.order;
            let at = self
                .slots
                .find(row)
                .or_else(|| self.members.iter().position(same));
            if let Some(at) = at {
                seats[at] = i as u32;
            }
        }
        Seats(seats)
    }

    /// Rows clockwise from `key`, each as often as it has points.
    pub fn walk<'a>(&'a self, seats: &'a Seats, key: &[u8]) -> impl Iterator<Item = usize> + 'a {
        let position = xxh3_64_with_seed(key, self.seed);
        let start = self.points.partition_point(|&(at, _)| at < position);
        let (before, after) = self.points.split_at(start);
        after.iter().chain(before).filter_map(|&(_, member)| {
            let row = seats.0[member as usize];
            (row != UNOWNED).then_some(row as usize)
        })
    }
}

impl State for Ring {
    /// Forgets the worker registered as `order`.
    fn forget(&mut self, order: u64) {
        let known = self.members.len();
        self.members.retain(|member| member.order != order);
        if self.members.len() < known {
            self.rebuild();
        }
    }
}

/// Row of every member of a ring, for those that have one.
#[derive(Debug)]
pub(crate) struct Seats(Vec<u32>);
