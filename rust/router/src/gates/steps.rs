//! A request that comes to a gate, tries again, goes; an event that may let one go.
//!
//! Nobody is picked for a request that waits: the one that is next is called, and selects as any request does, when it
//! has been woken. It keeps its turn until then, so that nobody else is called in its place.

use std::task::Waker;

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::Millis;

use super::gate::{Gate, Until, Waiting};
use super::room::{self, Room};
use crate::Selector;
use crate::admission::{Class, Entry, Full, GateId, Order, Passage, Ticket, why};
use crate::fleet::Fleet;
use crate::ledger::{Ending, Usage};
use crate::member::Eligibility;
use crate::offers::Offers;
use crate::pools::Pools;
use crate::request::Request;
use crate::select::Step;
use crate::settings::Veto;
use crate::usable::Usable;

/// A change that nobody tells is looked for at least so often, in milliseconds.
const LOOK_AGAIN_MS: u64 = 1000;

/// A request that may wait.
#[derive(Debug, Clone)]
pub struct Newcomer {
    /// Calls it when it is its turn.
    pub waker: Waker,
    /// What calls the requests of one event loop, or all that wait in threads.
    pub caller: u64,
    /// Until when it waits, and whether that is its own deadline.
    pub until: Option<(Millis, bool)>,
    /// Whether it waits too while no worker may be picked at all. Otherwise it is refused then, as nothing it waits for
    /// may ever come.
    pub for_workers: bool,
}

/// Whom to call, outside the lock.
#[derive(Debug, Default)]
#[must_use]
pub struct Calls {
    called: Vec<Waker>,
    /// What would have called those that left, which may run code of theirs as it is dropped.
    gone: Vec<Waker>,
}

impl Calls {
    /// Calls them.
    pub fn wake(self) {
        drop(self.gone);
        self.called.into_iter().for_each(Waker::wake);
    }
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Passed<T> {
    /// It is booked.
    Picked(T),
    /// It waits.
    Waits {
        /// By which it tries again.
        ticket: Ticket,
        /// It is to have the selector look again after so many milliseconds: something may change that nobody tells.
        again_ms: Option<u64>,
    },
}

/// Who waits before a request.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Before {
    /// Requests of its band and above.
    pub requests: usize,
    /// Their tokens.
    pub tokens: u64,
    /// How long all workers take for them, by how fast they computed before.
    pub wait_ms: f64,
}

impl Selector {
    /// Selects for a request that comes to the gate of its passage, by `select`; if it cannot go, it waits as `newcomer`
    /// says.
    ///
    /// # Errors
    /// As `select`; [`Error::Overloaded`] too if it may not wait, or the queue is full or closed.
    pub fn arrive<T>(
        &mut self,
        candidates: &mut Offers,
        request: &Request<'_>,
        newcomer: Option<&Newcomer>,
        select: impl FnOnce(&mut Self, &mut Offers, &Request<'_>) -> Result<T>,
    ) -> Result<Passed<T>> {
        let Some(passage) = request.passage else {
            return select(self, candidates, request).map(Passed::Picked);
        };
        let is_closed = |gate: &Gate| gate.is_closed;
        if self.gates.get(passage.gate).is_some_and(is_closed) {
            return self.refuse(
                &passage,
                Error::Overloaded {
                    wait_ms: LOOK_AGAIN_MS,
                    why: why::SHUTTING_DOWN,
                },
            );
        }
        self.end_silent(request.now);
        let error = match select(self, candidates, request) {
            Ok(found) => {
                self.tally(&passage, |tally| tally.admitted += 1);
                return Ok(Passed::Picked(found));
            }
            Err(error) => error,
        };
        let is_full = matches!(error, Error::Overloaded { .. });
        let may_wait = |newcomer: &&Newcomer| is_full || newcomer.for_workers && is_passing(&error);
        let Some(newcomer) = newcomer.filter(may_wait) else {
            return self.refuse(&passage, error);
        };
        let wait_ms = match error {
            Error::Overloaded { wait_ms, .. } => wait_ms,
            _ => LOOK_AGAIN_MS,
        };
        let terms = room::Usable::of(newcomer.caller, &self.fleet, candidates, request);
        let Some(gate) = self.gates.get_mut(passage.gate) else {
            return Err(error);
        };
        gate.is_declined = matches!(error, Error::Refused(_));
        let by_cache = matches!(gate.settings.order, Order::ShortestUncached { .. });
        let blocks = request.blocks.filter(|_| by_cache);
        let waiting = Waiting {
            waker: newcomer.waker.clone(),
            own_deadline: newcomer.until.is_some_and(|(_, own)| own),
            blocks: blocks.map(|(hashes, origin)| (request.pool, hashes.into(), origin)),
            units: request.prompt_units,
            tried: gate.round.wrapping_sub(1),
        };
        let entry = Entry {
            priority: passage.priority,
            tenant: passage.tenant,
            class: Class::default(),
            arrived: request.now,
            deadline: newcomer.until.map(|(until, _)| until),
            tokens: request.prompt_tokens,
        };
        match gate.push(entry, terms, waiting) {
            Ok(ticket) => {
                let again_ms = self.watch(passage.gate, ticket, request.now);
                Ok(Passed::Waits { ticket, again_ms })
            }
            Err(Full) => self.refuse(
                &passage,
                Error::Overloaded {
                    wait_ms,
                    why: why::QUEUE_FULL,
                },
            ),
        }
    }

    /// Selects for a request that waits, by `select`, if it was called. If it `is_last`, it waits no longer in any case.
    ///
    /// # Errors
    /// As `select`; [`Error::Overloaded`] too if it was displaced, or its deadline is over. It waits no longer then.
    pub fn try_again<T>(
        &mut self,
        candidates: &mut Offers,
        request: &Request<'_>,
        is_last: bool,
        select: impl FnOnce(&mut Self, &mut Offers, &Request<'_>) -> Result<T>,
    ) -> Result<Passed<T>> {
        let passage = request.passage.unwrap_or_default();
        let ticket = passage.ticket.unwrap_or_default();
        let found = self.gates.get_mut(passage.gate).and_then(|gate| {
            let (entry, waiting) = gate.queue.get(ticket)?;
            let until: Until = entry.deadline.map(|until| (until, waiting.own_deadline));
            Some((*entry, until, gate))
        });
        let Some((entry, until, gate)) = found else {
            let displaced = Error::Overloaded {
                wait_ms: LOOK_AGAIN_MS,
                why: why::QUEUE_FULL,
            };
            self.count(&displaced);
            return Err(self.behind(passage.gate, displaced));
        };
        let turns = gate.turns.len();
        gate.turns.retain(|_, called| *called != ticket);
        let was_called = gate.turns.len() < turns;
        let queued_ms = request.now.0.saturating_sub(entry.arrived.0);
        let request = &Request {
            queued_ms,
            ..*request
        };
        let over = until.filter(|(until, _)| is_last || *until <= request.now);
        let outcome = match over {
            Some((_, is_own)) => Err(self.overdue(candidates, request, is_own)),
            None if was_called || is_last => select(self, candidates, request),
            None => {
                let again_ms = self.watch(passage.gate, ticket, request.now);
                return Ok(Passed::Waits { ticket, again_ms });
            }
        };
        let Some(gate) = self.gates.get_mut(passage.gate) else {
            return outcome.map(Passed::Picked);
        };
        match outcome {
            Ok(found) => {
                gate.remove(ticket);
                let tally = gate.tally(entry.priority);
                tally.released += 1;
                tally.waited_ms += queued_ms;
                Ok(Passed::Picked(found))
            }
            Err(error) if over.is_none() && !is_last && is_passing(&error) => {
                gate.is_declined = matches!(error, Error::Refused(_));
                let round = gate.round;
                if let Some(waiting) = gate.queue.get_mut(ticket) {
                    waiting.tried = round;
                }
                let again_ms = self.watch(passage.gate, ticket, request.now);
                Ok(Passed::Waits { ticket, again_ms })
            }
            Err(error) => {
                gate.remove(ticket);
                gate.tally(entry.priority).expired += 1;
                self.count(&error);
                Err(self.behind(passage.gate, error))
            }
        }
    }

    /// A request is given up. Returns whether it waited.
    pub fn give_up(&mut self, gate: GateId, ticket: Ticket) -> bool {
        let gate = self.gates.get_mut(gate);
        gate.is_some_and(|gate| {
            let gone = gate.remove(ticket);
            gone.is_some_and(|entry| {
                gate.tally(entry.priority).cancelled += 1;
                true
            })
        })
    }

    /// Finds whom to call: those who are next for the room that there is, one for each caller, and those who were
    /// displaced. `is_event` says that something happened since everybody tried.
    pub fn call_next(&mut self, is_event: bool, now: Millis) -> Calls {
        let may_change = self.changes_at(now).is_some();
        let (mut called, mut gone) = (Vec::new(), Vec::new());
        for gate in self.gates.iter_mut() {
            called.append(&mut gate.displaced);
            gone.append(&mut gate.gone);
            gate.round += u64::from(is_event);
            if gate.waiting().0 == 0 {
                continue;
            }
            let sources = (&self.settings, &self.fleet, self.decisions.book());
            let bounds = gate.bounds(self.sharing.is_some(), now);
            let mut room = Room::find(gate.callable(), bounds, sources);
            while !room.is_empty() {
                let Some(ticket) = next(gate, &room, &mut self.pools, &self.fleet, now) else {
                    break;
                };
                called.extend(gate.call(ticket));
                room.retain(|class| gate.may_call(class));
            }
            if (may_change || gate.is_declined) && gate.watcher.is_none() {
                called.extend(gate.appoint());
            }
        }
        Calls { called, gone }
    }

    /// Who is to go before a request of a priority, and how long that takes.
    #[must_use]
    pub fn before(&self, gate: GateId, priority: i64) -> Before {
        let Some(gate) = self.gates.get(gate) else {
            return Before::default();
        };
        let (requests, tokens) = gate.queue.before(priority);
        Before {
            requests,
            tokens,
            wait_ms: self.drain_ms(gate, tokens),
        }
    }

    /// Milliseconds that all workers together take for so many tokens, as fast as they computed before.
    fn drain_ms(&self, gate: &Gate, tokens: u64) -> f64 {
        let workers = self.fleet.current().filter_map(|(id, member)| {
            let takes = member.condition() == Eligibility::Candidate;
            self.book().loads().get(id).filter(|_| takes)
        });
        let speeds = workers.map(|load| gate.settings.limits.tokens_per_s(load));
        1000.0 * tokens as f64 / speeds.sum::<f64>().max(1.0)
    }

    /// The error of a request whose deadline is over, its offers saying why it was not released.
    fn overdue(&mut self, candidates: &mut Offers, request: &Request<'_>, is_own: bool) -> Error {
        let looked = Step::new(self, candidates, request, true).look();
        let wait_ms = match looked {
            Err(Error::Overloaded { wait_ms, .. }) => wait_ms,
            Err(error) => return error,
            Ok(()) => LOOK_AGAIN_MS,
        };
        let why = if is_own {
            why::DEADLINE_PASSED
        } else {
            why::WAITED_TOO_LONG
        };
        Error::Overloaded { wait_ms, why }
    }

    /// Charges a request that waits with looking again, if that is needed and nobody else is.
    fn watch(&mut self, gate: GateId, ticket: Ticket, now: Millis) -> Option<u64> {
        let at = self.changes_at(now);
        let gate = self.gates.get_mut(gate)?;
        let at = at.or(gate.is_declined.then_some(LOOK_AGAIN_MS));
        if gate.watcher.is_some_and(|watcher| watcher != ticket) {
            return None;
        }
        gate.watcher = at.map(|_| ticket);
        at
    }

    /// In how many milliseconds a worker may be picked that now may not, if time alone decides that.
    fn changes_at(&self, now: Millis) -> Option<u64> {
        let reports = (self.settings.veto != Veto::default()).then_some(LOOK_AGAIN_MS);
        if !self.fleet.has_failures(now) {
            return reports;
        }
        let out = self.fleet.current().filter_map(|(_, member)| {
            let until = member.health().out_until();
            (now < until).then(|| until.0 - now.0)
        });
        out.chain(reports).min()
    }

    /// Ends bookings of which nothing was heard for long. Selections do that too, but none is made while all workers are
    /// full.
    fn end_silent(&mut self, now: Millis) {
        let Some(oldest) = now.0.checked_sub(self.settings.booking_ttl_ms) else {
            return;
        };
        for booking in self.decisions.book_mut().silent_since(Millis(oldest)) {
            self.close(booking, Ending::Expired, Usage::default(), now);
            self.gates.iter_mut().for_each(|gate| gate.round += 1);
        }
    }

    fn refuse<T>(&mut self, passage: &Passage, error: Error) -> Result<T> {
        if is_passing(&error) {
            self.tally(passage, |tally| tally.refused += 1);
            self.count(&error);
        }
        Err(self.behind(passage.gate, error))
    }

    /// The error of a request that would have been behind all that wait.
    fn behind(&self, gate: GateId, error: Error) -> Error {
        match (error, self.gates.get(gate)) {
            (Error::Overloaded { wait_ms, why }, Some(gate)) => {
                #[expect(clippy::cast_sign_loss, reason = "not below 0")]
                let drain_ms = self.drain_ms(gate, gate.queue.tokens()) as u64;
                let wait_ms = wait_ms.saturating_add(drain_ms);
                Error::Overloaded { wait_ms, why }
            }
            (error, _) => error,
        }
    }

    fn count(&mut self, error: &Error) {
        let ledger = self.decisions.ledger_mut();
        match error {
            Error::Overloaded { .. } => ledger.overloaded += 1,
            Error::NoCandidate | Error::Refused(_) => ledger.no_worker += 1,
            _ => {}
        }
    }

    fn tally(&mut self, passage: &Passage, change: impl FnOnce(&mut super::Tally)) {
        if let Some(gate) = self.gates.get_mut(passage.gate) {
            change(gate.tally(passage.priority));
        }
    }
}

/// The request that is next for the room there is.
fn next(
    gate: &mut Gate,
    room: &Room,
    pools: &mut Pools,
    fleet: &Fleet,
    now: Millis,
) -> Option<Ticket> {
    let round = gate.round;
    gate.queue.next(
        now,
        |class| room.of(class).is_some(),
        |entry, waiting| {
            let is_over = entry.deadline.is_some_and(|until| until <= now);
            if waiting.tried == round || is_over {
                return None;
            }
            let Some((pool, hashes, origin)) = &waiting.blocks else {
                return Some(entry.tokens);
            };
            let request = Request {
                pool: *pool,
                blocks: Some((hashes, *origin)),
                prompt_tokens: entry.tokens,
                prompt_units: waiting.units,
                ..Request::default()
            };
            pools[*pool].look_up(&request);
            let pool = &pools[*pool];
            let (usable, answer) = (Usable::by_slot(fleet, pool, &request), pool.answer());
            let cached = room.of(entry.class)?.iter().map(|id| {
                let usable = usable(id.slot);
                let held = answer.map_or(0, |answer| answer.overlap(id.slot));
                usable.tokens(usable.whole(held))
            });
            Some(entry.tokens.saturating_sub(cached.max().unwrap_or(0)))
        },
    )
}

/// Whether what stands in the way of a request may pass.
fn is_passing(error: &Error) -> bool {
    matches!(
        error,
        Error::NoCandidate | Error::Refused(_) | Error::Overloaded { .. }
    )
}
