//! Blocks that a routed request leaves in the index.
//!
//! On a worker without events its blocks are recorded as held. On one with events they are expected: they count from now
//! on, apart from confirmed blocks, and with a deadline that follows the request (`leases`). Where events are lost for
//! good the confirmation may be among them, so they count as long as on a worker without. Blocks of text are expected
//! too, but for as long as placements without events count: no event ever reports them.
//!
//! A prompt that a worker's memory is known to be too small for leaves nothing: it would push everything else out of the
//! index, while its engine refuses it.

use cachelb_core::block_tracker::Lookup;
use cachelb_core::error::Result;
use cachelb_core::groups::Resuming;
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_core::load::BookingId;

use crate::bookings::checks::Sizes;
use crate::bookings::leases::Terms;
use crate::bookings::{Booking, LoadBook};
use crate::fleet::worker::{FeedStatus, Member};
use crate::indexes::pool::Pool;
use crate::indexes::reusable::Usable;
use crate::request::{Request, Wanted};
use crate::select::Step;
use crate::{LocalChange, Selector};

/// How long an unconfirmed placement counts, unless the rule sets another time.
const TTL_MS: u64 = 2_000;
/// An owner that does not answer is waited for as long as its prefill may take, times this.
const PATIENCE: f64 = 4.0;
/// Prompt tokens per second of an engine that does not report them.
const PREFILL_TPS: f64 = 1_000.0;

/// A request that was booked on a worker, and the blocks of it that its engine can keep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed<'r> {
    pub worker: WorkerId,
    pub booking: BookingId,
    pub path: &'r [SequenceHash],
}

impl Selector {
    /// The answer of a booking is known: `request` has the blocks of the prompt, and of the tokens that were generated and
    /// computed behind it. An engine without events is assumed to hold them now; others announce them.
    ///
    /// # Errors
    ///
    /// See [`cachelb_core::index::BlockIndex::record`].
    pub fn answered(&mut self, booking: BookingId, request: &Request<'_>) -> Result<()> {
        let id = request.pool;
        let own = |booked: &(_, &Booking)| booked.1.pool == id && !booked.1.is_remote;
        let Some((worker, _)) = self.bookings.book.bookings.find(booking).filter(own) else {
            return Ok(());
        };
        let (Some(member), Some((hashes, _))) = (self.fleet.member(worker), request.blocks) else {
            return Ok(());
        };
        let path = kept(&self.pools[id], Some(member), request, hashes);
        let (Some(last), None) = (path.last(), member.feed_in(id)) else {
            return Ok(());
        };
        let rule = member.resuming(id);
        self.pools[id].look_up(request);
        let Some(answer) = self.pools[id].answer() else {
            return Ok(());
        };
        let held = answer.held(worker.slot) as usize;
        let until = request.believed_until(&self.pools[id].placements);
        self.pools.record(id, worker, path, until)?;
        if rule.is_some_and(Resuming::needs_marks)
            && let Some(blocks) = self.pools[id].blocks.as_mut()
        {
            blocks.known_ends.add(worker.slot, *last);
        }
        let placed = Placed {
            worker,
            booking,
            path,
        };
        self.publish(LocalChange::Placed(id, placed, held));
        Ok(())
    }
}

impl Step<'_, '_> {
    /// Records that the worker will hold the request's blocks, as far as its engine keeps them.
    pub(crate) fn place(&mut self, worker: WorkerId, booking: BookingId) -> Result<()> {
        let (s, request) = (&mut *self.selector, self.request);
        let pool = &s.pools[request.pool];
        let (Some(answer), Some((hashes, _))) = (pool.answer(), request.blocks) else {
            return Ok(());
        };
        let member = s.fleet.member(worker);
        let size = pool.block_size;
        let path = kept(pool, member, request, hashes);
        let Some(last) = path.last() else {
            return Ok(());
        };
        let placed = Placed {
            worker,
            booking,
            path,
        };
        let feed = member.and_then(|member| member.feed_in(request.pool));
        let hides_groups = member.is_some_and(Member::hides_groups);
        let rule = member.and_then(|member| member.resuming(request.pool));
        let rule = rule.filter(|rule| rule.needs_marks());
        let rule = rule.map(|rule| of_blocks(rule, request, size));
        let has_events = feed.is_some();
        let kept = rule.map(|rule| {
            let is_complete = has_events || is_known_end(pool, answer, worker.slot, hashes);
            places(rule, request, answer, (worker.slot, is_complete), size)
        });
        let kept = kept.unwrap_or_default();
        let media = member.map_or(&[][..], |member| member.marks(request.pool));
        let guessed = rule.filter(|_| hides_groups || !has_events);
        if let Some(feed) = feed.filter(|_| !request.is_text()) {
            let confirmed = answer.confirmed(worker.slot) as usize;
            match guessed {
                Some(rule) => self.predict(placed, rule),
                None => self.promise(placed, feed, confirmed),
            }
            (self.selector).publish(LocalChange::Placed(request.pool, placed, confirmed));
            self.expect(placed, feed, confirmed)?;
            self.mark(placed, &kept, media);
            return Ok(());
        }
        let held = answer.held(worker.slot) as usize;
        let until = request.believed_until(&pool.placements);
        if let Some(rule) = guessed {
            self.predict(placed, rule);
        }
        let pools = &mut self.selector.pools;
        if rule.is_some()
            && let Some(blocks) = pools[request.pool].blocks.as_mut()
        {
            // Until the answer is known.
            blocks.known_ends.remove(worker.slot, *last);
        }
        if feed.is_some() {
            let rule = pools[request.pool].rules.get(request.wanted);
            if rule.properties().placement_ttl_ms == Some(0) {
                return Ok(());
            }
            self.expect_from(placed, 0, until)?;
        } else {
            pools.record(request.pool, worker, path, until)?;
        }
        (self.selector).publish(LocalChange::Placed(request.pool, placed, held));
        if let Some(blocks) = self.selector.pools[request.pool].blocks.as_mut() {
            let bookings = &mut self.selector.bookings.book.bookings;
            if let Some(booking) = bookings.payload_mut(booking) {
                blocks.placed(worker, path, held, &mut booking.placed);
            }
        }
        self.mark(placed, &kept, media);
        Ok(())
    }

    /// Keeps the cached tokens that the engine of a worker should find, to compare them with its report.
    fn promise(&mut self, placed: Placed<'_>, feed: FeedStatus, confirmed: usize) {
        let (s, request) = (&mut *self.selector, self.request);
        let member = s.fleet.member(placed.worker);
        // A decode worker is sent the whole prompt, and reports all of it as cached.
        let is_checked = feed.is_caught_up() && request.wanted != Wanted::Decode;
        let Some(member) = member.filter(|_| is_checked) else {
            return;
        };
        let pool = &s.pools[request.pool];
        let usable = Usable::by_slot(&s.fleet, pool, request)(placed.worker.slot);
        let blocks = usable.blocks(usable.whole(confirmed as u32)) as usize;
        let block_size = pool.block_size;
        let resumes = member.resumes(request.pool, block_size);
        let above = resumes.above as usize;
        let length = placed.path.len().min(blocks + above);
        let own = u64::from(block_size);
        let align = member.resuming(request.pool).map_or(0, |rule| rule.align);
        let sizes = Sizes {
            own,
            slack: (own * u64::from(member.sizes().per_block(block_size))).max(align.into()),
            above,
            marked: resumes.marked_only,
        };
        let Placed {
            worker,
            booking,
            path,
        } = placed;
        s.bookings.promise(
            worker,
            booking,
            (path, length),
            request.prompt_tokens,
            sizes,
        );
    }

    /// Records that events should confirm the blocks behind the first `confirmed`.
    fn expect(&mut self, placed: Placed<'_>, feed: FeedStatus, confirmed: usize) -> Result<()> {
        let (s, request) = (&mut *self.selector, self.request);
        let pool = &s.pools[request.pool];
        let ttl_ms = pool.rules.get(request.wanted).properties().placement_ttl_ms;
        let ttl_ms = ttl_ms.unwrap_or(TTL_MS);
        if ttl_ms == 0 || confirmed >= placed.path.len() {
            return Ok(());
        }
        let (now, worker) = (request.now, placed.worker);
        let (believed_ms, held) = if feed.has_lost() {
            let answer = pool.answer();
            let held = answer.map_or(0, |answer| answer.overlap(worker.slot) as usize);
            (pool.placements.ttl_ms, held)
        } else {
            (Some(ttl_ms), confirmed)
        };
        let terms = Terms {
            ttl_ms,
            patience_ms: patience_ms(&s.bookings.book, worker).max(ttl_ms),
        };
        let until = believed_ms.map(|ms| Millis(now.0.saturating_add(ms)));
        self.expect_from(placed, confirmed, until)?;
        let pools = &mut self.selector.pools;
        if let Some(blocks) = pools[request.pool].blocks.as_mut() {
            blocks.expect_expiry();
            self.selector
                .bookings
                .expect(worker, placed.booking, placed.path, held, now, terms);
        }
        let pools = &mut self.selector.pools;
        if feed.has_lost() {
            pools.change(request.pool, |blocks| blocks.fit_doubtful(worker));
        }
        Ok(())
    }

    /// Records that the states which the engine keeps to resume end behind `kept` leading blocks once the request is
    /// computed, by the first of `media` that the block may be in.
    fn mark(&mut self, placed: Placed<'_>, kept: &[u32], media: &[Medium]) {
        if kept.is_empty() {
            return;
        }
        let Placed { worker, path, .. } = placed;
        let (s, id) = (&mut *self.selector, self.request.pool);
        let ends = kept
            .iter()
            .filter_map(|depth| path.get(*depth as usize - 1));
        let ends: Vec<SequenceHash> = ends.copied().collect();
        s.pools.change(id, |blocks| {
            for &end in &ends {
                blocks.mark_first(worker, end, media);
            }
        });
        s.publish(LocalChange::Resumed(worker, id, &ends));
    }

    /// Records that the worker is expected to hold the path from its depth `from` on until `until` (`None`: until it is
    /// evicted).
    fn expect_from(
        &mut self,
        placed: Placed<'_>,
        from: usize,
        until: Option<Millis>,
    ) -> Result<()> {
        let (pools, Placed { worker, path, .. }) = (&mut self.selector.pools, placed);
        pools.grow(self.request.pool, |index, hint| {
            let exact = index.exact_mut()?;
            exact.expect(worker, path, from as u32, Some(hint.exact()), until)?;
            Ok(())
        })
    }
}

/// The leading blocks of a request that a worker's engine keeps once it has computed it.
fn kept<'r>(
    pool: &Pool,
    member: Option<&Member>,
    request: &Request<'_>,
    hashes: &'r [SequenceHash],
) -> &'r [SequenceHash] {
    let size = pool.block_size;
    // How many tokens a text has is an estimate.
    let counted = member.filter(|_| !request.is_text());
    if counted.is_some_and(|m| !m.sizes().have_room(request.prompt_tokens, size)) {
        // It refuses a prompt that its memory cannot hold, and keeps its blocks.
        return &[];
    }
    let coarse = member.filter(|_| pool.is_coarse);
    let per_block = coarse.map_or(1, |m| m.sizes().per_block(size));
    &hashes[..hashes.len() - hashes.len() % per_block as usize]
}

/// Whether all is known that the worker in `slot` computed behind its blocks of a path.
fn is_known_end(pool: &Pool, answer: Lookup<'_>, slot: u32, hashes: &[SequenceHash]) -> bool {
    let last = (answer.held(slot) as usize).checked_sub(1);
    let ends = pool.blocks.as_ref().map(|blocks| &blocks.known_ends);
    ends.zip(last)
        .is_some_and(|(ends, at)| ends.has(slot, hashes[at]))
}

/// A rule as it applies to the blocks of a request, of `size` tokens.
fn of_blocks(rule: Resuming, request: &Request<'_>, size: u32) -> Resuming {
    // Blocks of text are none of the engine's: each stands for those that it is made of. So do blocks here for the small
    // ones of an engine that is only guessed at.
    let is_coarse = rule.is_hidden && rule.align < size;
    if request.is_text() || is_coarse {
        rule.aligned_to(size)
    } else {
        rule.in_blocks_of(size)
    }
}

/// The numbers of leading blocks at which an engine keeps a state to resume from once it has computed a request.
fn places(
    rule: Resuming,
    request: &Request<'_>,
    answer: Lookup<'_>,
    (slot, is_complete): (u32, bool),
    size: u32,
) -> Vec<u32> {
    let size = u64::from(size);
    let (units, blocks) = (request.length().units(), answer.held(slot));
    let held = u64::from(blocks) * size;
    let known = |most: u64| u64::from(answer.mark(slot, (most.min(held) / size) as u32)) * size;
    let mut places = Vec::new();
    // A prompt that ends what is known may go on with an answer, which the engine holds and the router never saw.
    let is_sure = is_complete || units.saturating_sub(held) < size || answer.goes_on(slot, blocks);
    rule.places(units, Some(held).filter(|_| is_sure), known, &mut places);
    places.retain(|at| at % size == 0);
    places.into_iter().map(|at| (at / size) as u32).collect()
}

/// How long what waits on a worker may take to be computed, generously.
fn patience_ms(book: &LoadBook, worker: WorkerId) -> u64 {
    let Some(load) = book.loads.get(worker) else {
        return 0;
    };
    let tps = load.report.prefill_tps.get().unwrap_or(PREFILL_TPS);
    #[expect(clippy::cast_sign_loss, reason = "tokens and their rate are positive")]
    let ms = (PATIENCE * 1e3 * load.pending_prefill_tokens as f64 / tps) as u64;
    ms
}

#[cfg(test)]
mod tests;
