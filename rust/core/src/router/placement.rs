//! What a routed request leaves in the index.
//!
//! On a worker without events its blocks are recorded as held. On one whose events will tell they are expected: they
//! count from now on, apart from what is confirmed, and with a deadline that follows the request (`leases`). Where events
//! are lost for good the one that tells may be among them, so they count as long as on a worker without. Blocks of
//! text are expected too, but as long as placements without events are believed: no event will ever speak of them.

use crate::error::Result;
use crate::ids::{Millis, WorkerId};
use crate::load::BookingId;
use crate::tracker::Origin;
use crate::tracker::store::Store;

use super::checks::Sizes;
use super::fed::Fed;
use super::fleet::Member;
use super::leases::Terms;
use super::reach::usable;
use super::request::{Request, Wanted};
use super::selector::Selector;

/// How long a placement is believed without any sign of it, unless the rule says otherwise.
const TTL_MS: u64 = 2_000;
/// An owner that does not answer is waited for as long as its prefill may take, times this.
const PATIENCE: f64 = 4.0;
/// Prompt tokens per second of an engine that does not say.
const PREFILL_TPS: f64 = 1_000.0;

impl Selector {
    /// Records that the worker will hold the request's blocks, as far as its engine keeps them.
    pub(super) fn place(
        &mut self,
        worker: WorkerId,
        booking: BookingId,
        request: &Request<'_>,
    ) -> Result<()> {
        let at = request.pool.0 as usize;
        let request = &self.whole(worker, request);
        let Some((hashes, origin)) = request.blocks.filter(|(hashes, _)| !hashes.is_empty()) else {
            return Ok(());
        };
        let Some(index) = &self.pools[at].index else {
            return Ok(());
        };
        let fed = self.is_fed(worker, request.pool);
        if fed && origin != Origin::Text {
            let confirmed = self.pools[at].overlaps.confirmed(index, worker.slot);
            self.promise(worker, booking, request);
            self.say_placed(booking, worker, request.pool, hashes, confirmed as usize);
            return self.expect(worker, booking, request);
        }
        let names_paths = !matches!(index, Store::Positional(_));
        let held = self.pools[at].overlaps.of(index, worker.slot) as usize;
        if fed {
            let pool = &self.pools[at];
            if pool.rule(request.wanted).placement_ttl_ms() == Some(0) {
                return Ok(());
            }
            let ttl_ms = pool.placements.ttl_ms;
            let until = ttl_ms.map(|ttl| Millis(request.now.0.saturating_add(ttl)));
            self.budget
                .expect(&mut self.pools, at, worker, hashes, 0, until)?;
        } else {
            self.budget
                .record(&mut self.pools, at, worker, hashes, request.now)?;
        }
        if names_paths {
            self.say_placed(booking, worker, request.pool, hashes, held);
            let unproven = &mut self.pools[at].unproven;
            unproven.placed(worker, booking, (0, hashes), held);
        }
        Ok(())
    }

    /// Whether events tell what the worker holds in a pool.
    pub(super) fn is_fed(&self, worker: WorkerId, pool: super::PoolId) -> bool {
        let member = self.fleet.member(worker);
        member.is_some_and(|member| member.fed_in(pool).is_some())
    }

    /// Remembers what the engine of a worker should find cached, to compare it with what it says it found.
    fn promise(&mut self, worker: WorkerId, booking: BookingId, request: &Request<'_>) {
        let pool = &self.pools[request.pool.0 as usize];
        let caught_up = |member: &&Member| {
            let fed = member.fed_in(request.pool);
            fed.is_some_and(Fed::is_caught_up)
        };
        let member = self.fleet.member(worker).filter(caught_up);
        // A decode worker is sent the whole prompt, and says that it found it.
        let member = member.filter(|_| request.wanted != Wanted::Decode);
        let (Some((path, _)), Some(index), Some(member)) = (request.blocks, &pool.index, member)
        else {
            return;
        };
        let per_block = member.per_block(pool.block_size);
        let confirmed = pool.overlaps.confirmed(index, worker.slot);
        let usable = usable(&self.fleet, pool, request)(worker.slot);
        let blocks = usable.blocks(usable.whole(confirmed));
        let own = u64::from(pool.block_size);
        let sizes = Sizes {
            own,
            slack: own * u64::from(per_block),
        };
        let path = &path[..path.len().min(blocks as usize)];
        let prompt_tokens = request.prompt_tokens;
        self.checks
            .promised(worker, booking, path, prompt_tokens, sizes);
    }

    fn expect(
        &mut self,
        worker: WorkerId,
        booking: BookingId,
        request: &Request<'_>,
    ) -> Result<()> {
        let at = request.pool.0 as usize;
        let rule = self.pools[at].rule(request.wanted);
        let ttl_ms = rule.placement_ttl_ms().unwrap_or(TTL_MS);
        let (Some((path, _)), Some(index)) = (request.blocks, &self.pools[at].index) else {
            return Ok(());
        };
        let confirmed = self.pools[at].overlaps.confirmed(index, worker.slot) as usize;
        if ttl_ms == 0 || confirmed >= path.len() {
            return Ok(());
        }
        let now = request.now;
        let lossy = self
            .fleet
            .member(worker)
            .and_then(|m| m.fed_in(request.pool));
        let lossy = lossy.is_some_and(Fed::has_lost);
        let (believed_ms, held) = if lossy {
            let held = self.pools[at].overlaps.of(index, worker.slot) as usize;
            (self.pools[at].placements.ttl_ms, held)
        } else {
            (Some(ttl_ms), confirmed)
        };
        let until = believed_ms.map(|ms| Millis(now.0.saturating_add(ms)));
        let patience_ms = self.patience_ms(worker).max(ttl_ms);
        self.budget
            .expect(&mut self.pools, at, worker, path, confirmed, until)?;
        let terms = Terms {
            ttl_ms,
            patience_ms,
        };
        let leases = &mut self.pools[at].leases;
        leases.placed(worker, booking, path, held, now, terms);
        self.fit_doubts(worker, request.pool);
        Ok(())
    }

    /// How long what waits on a worker may take to be computed, generously.
    fn patience_ms(&self, worker: WorkerId) -> u64 {
        let Some(load) = self.book.load(worker) else {
            return 0;
        };
        let tps = load.report.prefill_tps.get().unwrap_or(PREFILL_TPS);
        #[expect(clippy::cast_sign_loss, reason = "tokens and their rate are positive")]
        let ms = (PATIENCE * 1e3 * load.pending_prefill_tokens as f64 / tps) as u64;
        ms
    }
}

#[cfg(test)]
mod tests;
