//! What belongs to one model: block index, rules, placements no worker confirmed yet.

use crate::error::Result;
use crate::hashing::Scheme;
use crate::ids::{Medium, Millis, SequenceHash, WorkerId};
use crate::index::BlockIndex;
use crate::load::BookingId;
use crate::owners::{Orphaned, Owners};
use crate::policy::{Ended, Placements, Rng, Rule};
use crate::positional::PositionalIndex;
use crate::radix::RadixTree;
use crate::tracker::store::{Depths, Store};

use super::checks::Checks;
use super::fleet::Member;
use super::leases::Leases;
use super::request::Wanted;
use super::settings::PoolSettings;

/// A rule that decides beside the first one, with a generator of its own.
#[derive(Debug)]
pub(super) struct Shadow {
    pub rule: Box<dyn Rule>,
    pub rng: Rng,
}

/// One model.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is true without the others"
)]
pub(super) struct Pool {
    pub block_size: u32,
    /// Whether a worker's blocks were ever to be cut to whole ones of its engine. Few fleets have such workers, and
    /// the others need not ask for each.
    pub coarse: bool,
    /// Whether a rule counts the blocks that requests in flight share once.
    pub counts_active: bool,
    pub placements: Placements,
    rule: Box<dyn Rule>,
    prefill: Option<Box<dyn Rule>>,
    decode: Option<Box<dyn Rule>>,
    pub shadows: Vec<Shadow>,
    pub index: Option<Store>,
    /// The answer to the latest lookup.
    pub overlaps: Depths,
    /// Who waits for placements on workers without events.
    pub unproven: Owners<SequenceHash>,
    /// Placements on workers whose events will tell.
    pub leases: Leases,
    /// Whether another router ever placed anything, which is believed for a time.
    pub hearsay: bool,
    /// Whether a lost message ever left blocks in doubt, which are believed for a time.
    pub doubts: bool,
}

fn store_of(placements: &Placements) -> Store {
    match placements.scheme {
        Scheme::Chained | Scheme::Eagle => {
            Store::Exact(Box::new(BlockIndex::new(placements.matcher)))
        }
        Scheme::Positional => Store::Positional(PositionalIndex::default()),
        Scheme::Units => Store::Tree(Box::new(
            RadixTree::new(1, None).expect("pages of one token are in range"),
        )),
    }
}

impl Pool {
    /// An empty pool; shadows get generators of `seed`.
    pub fn new(settings: PoolSettings, seed: u64) -> Self {
        let PoolSettings {
            block_size,
            placements,
            rule,
            prefill,
            decode,
            shadows,
        } = settings;
        let mut seeds = Rng::new(seed);
        let mut pool = Self {
            block_size,
            coarse: false,
            counts_active: false,
            placements,
            rule,
            prefill,
            decode,
            shadows: shadows
                .into_iter()
                .map(|rule| Shadow {
                    rule,
                    // Each its own, or rules that draw would all draw alike.
                    rng: Rng::new(seeds.bits()),
                })
                .collect(),
            index: None,
            overlaps: Depths::default(),
            unproven: Owners::new(placements.max_blocks_per_worker as usize),
            leases: Leases::default(),
            hearsay: false,
            doubts: false,
        };
        // What a tree is asked with are tokens, not blocks.
        let blocks = placements.scheme != Scheme::Units;
        pool.counts_active = blocks && pool.rules().any(<dyn Rule>::counts_active_blocks);
        if pool.rules().any(<dyn Rule>::records_placement) {
            pool.index = Some(store_of(&placements));
        }
        pool
    }

    /// The rules that pick, which shadows do not.
    fn own_rules(&self) -> impl Iterator<Item = &dyn Rule> {
        let halves = [self.prefill.as_ref(), self.decode.as_ref()];
        let halves = halves.into_iter().flatten();
        std::iter::once(&self.rule)
            .chain(halves)
            .map(|rule| &**rule)
    }

    pub fn rules(&self) -> impl Iterator<Item = &dyn Rule> {
        let shadows = self.shadows.iter().map(|shadow| &*shadow.rule);
        self.own_rules().chain(shadows)
    }

    /// The rules, and what each decides.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, &dyn Rule)> {
        let picking = [
            (Wanted::Whole, Some(&self.rule)),
            (Wanted::Prefill, self.prefill.as_ref()),
            (Wanted::Decode, self.decode.as_ref()),
        ];
        let picking = picking
            .into_iter()
            .filter_map(|(wanted, rule)| Some((wanted.name(), &**rule?)));
        let shadows = self.shadows.iter();
        picking.chain(shadows.map(|shadow| ("shadow", &*shadow.rule)))
    }

    /// Whether one of the rules that pick has placements recorded.
    pub fn knows_placements(&self) -> bool {
        self.own_rules().any(<dyn Rule>::records_placement)
    }

    /// The rules by number, the same at all routers of these settings.
    pub fn numbered(&self) -> impl Iterator<Item = (u32, &dyn Rule)> {
        let picking = [
            Some(&self.rule),
            self.prefill.as_ref(),
            self.decode.as_ref(),
        ];
        let shadows = self.shadows.iter().map(|shadow| Some(&shadow.rule));
        let all = (0..).zip(picking.into_iter().chain(shadows));
        all.filter_map(|(number, rule)| Some((number, &**rule?)))
    }

    /// The rule of a number.
    pub fn rule_numbered(&mut self, number: u32) -> Option<&mut dyn Rule> {
        let rule = match number {
            0 => &mut self.rule,
            1 => self.prefill.as_mut()?,
            2 => self.decode.as_mut()?,
            more => &mut self.shadows.get_mut(more as usize - 3)?.rule,
        };
        Some(&mut **rule)
    }

    /// Whether blocks have hashes that name the prefix they end.
    pub fn tells_routes(&self) -> bool {
        matches!(self.placements.scheme, Scheme::Chained | Scheme::Eagle)
    }

    /// Whether what the rules that pick know of prompts can be told to others: not if it is the prompts.
    pub fn keeps_prompts(&self) -> impl Iterator<Item = &'static str> {
        let tree = matches!(self.index, Some(Store::Tree(_)));
        let keeps = move |rule: &dyn Rule| rule.keeps_prompts() || tree && rule.records_placement();
        let picks = self.parts().filter(|(part, _)| *part != "shadow");
        let parts = picks.filter(move |(_, rule)| keeps(*rule));
        parts.map(|(part, _)| part)
    }

    /// Calls `each` with every rule.
    pub fn each_rule(&mut self, mut each: impl FnMut(&mut dyn Rule)) {
        each(&mut *self.rule);
        for rule in [&mut self.prefill, &mut self.decode].into_iter().flatten() {
            each(&mut **rule);
        }
        for shadow in &mut self.shadows {
            each(&mut *shadow.rule);
        }
    }

    /// The rule that decides both halves of a pair at once, if neither has one of its own.
    pub fn pair_rule(&self) -> Option<&dyn Rule> {
        let halves = self.prefill.is_some() || self.decode.is_some();
        Some(&*self.rule).filter(|rule| !halves && rule.weighs_pairs())
    }

    /// The rule that decides.
    pub fn rule(&self, wanted: Wanted) -> &dyn Rule {
        let special = match wanted {
            Wanted::Whole => None,
            Wanted::Prefill => self.prefill.as_deref(),
            Wanted::Decode => self.decode.as_deref(),
        };
        special.unwrap_or(&*self.rule)
    }

    /// The same, to tell it what came of it.
    pub fn rule_mut(&mut self, wanted: Wanted) -> &mut dyn Rule {
        let special = match wanted {
            Wanted::Whole => None,
            Wanted::Prefill => self.prefill.as_mut(),
            Wanted::Decode => self.decode.as_mut(),
        };
        &mut **special.unwrap_or(&mut self.rule)
    }

    /// Opens the lanes of a worker that may hold as many blocks as its engine, or as the pool allows; or changes how many.
    pub fn add_worker(&mut self, worker: WorkerId, member: &Member) {
        self.coarse |= member.per_block(self.block_size) > 1;
        let capacity = member.capacity(self.block_size);
        let capacity = capacity.unwrap_or(self.placements.max_blocks_per_worker);
        if let Some(index) = &mut self.index {
            index.add_worker(worker, capacity);
        }
        let gpu = member.profile.gpu.as_deref();
        self.each_rule(|rule| rule.describe(member.order, gpu));
    }

    /// Forgets a worker registered as `order`. Returns the blocks it held.
    pub fn remove_worker(&mut self, worker: WorkerId, order: u64) -> u64 {
        self.each_rule(|rule| rule.forget(order));
        self.withdraw(worker)
    }

    /// The worker serves this model no longer. Returns the blocks it held.
    pub fn withdraw(&mut self, worker: WorkerId) -> u64 {
        self.unproven.forget(worker.slot);
        self.leases.forget(worker.slot);
        // A worker that does not serve this pool is not in its index.
        let index = self.index.as_mut();
        index.map_or(0, |index| index.remove_worker(worker).unwrap_or(0))
    }

    /// Drops what a worker holds. Returns the blocks.
    pub fn clear(&mut self, worker: WorkerId) -> u64 {
        self.unproven.forget(worker.slot);
        self.leases.forget(worker.slot);
        let index = self.index.as_mut();
        index.map_or(0, |index| index.clear(worker).unwrap_or(0))
    }

    /// A message of the worker's engine is lost: what it announced, and what it was sent and did not announce, is believed
    /// until `until`. Returns the blocks that were confirmed.
    pub fn doubt(&mut self, worker: WorkerId, until: Option<Millis>) -> u64 {
        let Some(index) = &mut self.index else {
            return 0;
        };
        self.doubts = true;
        // A worker that is not in the index holds nothing there.
        let doubted = index.doubt(worker, until).unwrap_or(0);
        self.leases.each(worker, |path, confirmed| {
            let _ = index.expect(worker, path, confirmed as u32, None, until);
        });
        let _ = index.fit_speculative(worker);
        doubted
    }

    /// Drops what was believed long enough.
    pub fn expire(&mut self, now: Millis) {
        if let Some(index) = &mut self.index {
            self.leases.lapse(now, &mut renewing(index));
            index.expire(now);
        }
    }

    /// An event of the worker announced a chain that ends with `last`.
    pub fn confirmed(&mut self, worker: WorkerId, last: SequenceHash, now: Millis) {
        if self.leases.is_empty() {
            return;
        }
        if let Some(index) = &mut self.index
            && let Some(depth) = index.depth_of(last)
        {
            let renew = &mut renewing(index);
            self.leases
                .confirmed(worker, depth as usize, last, now, renew);
        }
    }

    /// An event of the worker gave up `hashes`: nobody waits for them, or is promised them, any more.
    pub fn given_up(&mut self, worker: WorkerId, hashes: &[SequenceHash], checks: &mut Checks) {
        let concerns = !self.leases.is_empty() || checks.follows(worker);
        let Some(index) = self.index.as_ref().filter(|_| concerns) else {
            return;
        };
        for &hash in hashes {
            if let Some(depth) = index.depth_of(hash) {
                self.leases.given_up(worker, depth as usize, hash);
                checks.given_up(worker, depth as usize, hash);
            }
        }
    }

    /// Whether [`Self::expire`] has something to do.
    pub fn is_due(&self, now: Millis) -> bool {
        let expires =
            self.placements.ttl_ms.is_some() || self.leases.used() || self.hearsay || self.doubts;
        let index = self.index.as_ref().filter(|_| expires);
        index.is_some_and(|index| index.next_expiry().is_some_and(|due| due <= now))
    }

    /// Records that the worker will hold the blocks, as far as there is room; returns whether there was.
    pub fn record(
        &mut self,
        worker: WorkerId,
        hashes: &[SequenceHash],
        now: Millis,
    ) -> Result<bool> {
        let ttl = self.placements.ttl_ms;
        let expires = ttl.map(|ttl| Millis(now.0.saturating_add(ttl)));
        let Some(index) = &mut self.index else {
            return Ok(true);
        };
        index.record(worker, hashes, Some(&self.overlaps), expires)?;
        Ok(index.cut().is_none())
    }

    /// Records that the worker is expected to hold the path from its depth `from` on until `until` (`None`: until it is
    /// evicted), as far as there is room; returns whether there was.
    pub fn expect(
        &mut self,
        worker: WorkerId,
        path: &[SequenceHash],
        from: usize,
        until: Option<Millis>,
    ) -> Result<bool> {
        let Some(index) = &mut self.index else {
            return Ok(true);
        };
        let hint = Some(&self.overlaps);
        index.expect(worker, path, from as u32, hint, until)?;
        Ok(index.cut().is_none())
    }

    /// Bytes of the block index.
    pub fn index_bytes(&self) -> usize {
        self.index.as_ref().map_or(0, Store::memory_bytes)
    }

    /// The worker of a booking answered; `first_token` unless only its end was told.
    pub fn proven(
        &mut self,
        worker: WorkerId,
        booking: BookingId,
        first_token: Option<Millis>,
        now: Millis,
    ) {
        self.unproven.proven(booking);
        if let Some(index) = &mut self.index {
            let renew = &mut renewing(index);
            self.leases.answered(worker, booking, now, renew);
        }
        self.each_rule(|rule| rule.proven(booking, first_token));
    }

    /// A booking closed. Blocks that it alone brought are taken back if it failed before its first token; returns them.
    pub fn ended(
        &mut self,
        worker: WorkerId,
        booking: BookingId,
        ended: Ended,
        unproven: bool,
    ) -> u64 {
        self.each_rule(|rule| rule.ended(booking, ended));
        if !unproven {
            return 0;
        }
        let expected = self.leases.take(worker, booking);
        if ended == Ended::Served {
            self.unproven.proven(booking);
            return 0;
        }
        let recorded = self.unproven.failed(booking);
        let Some(index) = &mut self.index else {
            return 0;
        };
        let mut gone = 0;
        if let Some(Orphaned { path, keep, .. }) = recorded {
            gone += index.take_back(worker, &path, keep).unwrap_or(0);
        }
        if !expected.is_empty() {
            let expected = index.remove(worker, &expected, Some(Medium::Speculative));
            gone += expected.unwrap_or(0);
        }
        u64::from(gone)
    }

    /// A pool of the same settings that knows nothing.
    pub fn fresh(&self, seed: u64) -> Self {
        let copy = |rule: &Option<Box<dyn Rule>>| rule.as_ref().map(|rule| rule.fresh());
        Self::new(
            PoolSettings {
                block_size: self.block_size,
                placements: self.placements,
                rule: self.rule.fresh(),
                prefill: copy(&self.prefill),
                decode: copy(&self.decode),
                shadows: self.shadows.iter().map(|s| s.rule.fresh()).collect(),
            },
            seed,
        )
    }

    pub fn memory_bytes(&self) -> usize {
        let rules = self.rules().map(<dyn Rule>::memory_bytes).sum::<usize>();
        rules + self.unproven.memory_bytes() + self.leases.memory_bytes() + self.index_bytes()
    }
}

/// Moves deadlines in the index. What there is no room for keeps its own.
fn renewing(index: &mut Store) -> impl FnMut(WorkerId, &[SequenceHash], usize, Millis) {
    |worker, path, from, until| {
        // A worker that is not in the index is expected to hold nothing there.
        let _ = index.expect(worker, path, from as u32, None, Some(until));
    }
}
