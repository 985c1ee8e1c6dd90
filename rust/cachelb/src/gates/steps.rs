//! A request that comes to a gate, tries again, goes; an event that may let one go.
//!
//! No worker is picked for a request that waits: the one that is next is called, and selects as any request does, once
//! it is awake. It keeps its turn until then, so that no other is called in its place.

use std::task::Waker;

use cachelb_core::error::{Error, Result};
use cachelb_core::ids::Millis;

use super::gate::{Gate, GateSettings, Waiting};
use super::room::{self, Room};
use crate::Selector;
use crate::admission::{Class, Entry, GateId, Order, Passage, Ticket, why};
use crate::bookings::ledger::{Ending, Usage};
use crate::fleet::Fleet;
use crate::fleet::offers::Offers;
use crate::fleet::worker::Eligibility;
use crate::indexes::Pools;
use crate::indexes::reusable::Usable;
use crate::request::Request;
use crate::select::Step;
use crate::settings::Veto;

/// Changes without an event are looked for at least so often, in milliseconds.
const LOOK_AGAIN_MS: u64 = 1000;

/// A request that may wait.
#[derive(Debug, Clone)]
pub struct Newcomer {
    /// Calls it when it is its turn.
    pub waker: Waker,
    /// Caller of the requests of one event loop, or of all that wait in threads.
    pub caller: u64,
    /// Until when it waits, and whether that is its own deadline.
    pub until: Option<(Millis, bool)>,
    /// Whether it waits too while no worker may be picked at all. Otherwise it is refused then, as nothing it waits for
    /// may ever come.
    pub for_workers: bool,
}

/// Callers to wake, outside the lock.
#[derive(Debug, Default)]
#[must_use]
pub struct Calls {
    called: Vec<Waker>,
    /// Wakers of requests that left; dropping one may run code of the caller.
    gone: Vec<Waker>,
}

impl Calls {
    /// Calls them.
    pub fn wake(self) {
        drop(self.gone);
        self.called.into_iter().for_each(Waker::wake);
    }
}

/// A request waits at its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// By which it tries again.
    pub ticket: Ticket,
    /// It is to have the selector look again after so many milliseconds: something may change without an event.
    pub again_ms: Option<u64>,
}

/// How a request comes to a gate, and what becomes of it if it cannot go.
#[derive(Debug, Clone)]
pub enum Way {
    /// The caller learns why, and nothing changes.
    Preview,
    /// It is refused.
    Now,
    /// It waits.
    Hold(Newcomer),
    /// It waited, and goes on, or not if this is the last time.
    Again(Ticket, bool),
}

impl Way {
    /// By which it waited.
    #[must_use]
    pub fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Again(ticket, _) => Some(*ticket),
            _ => None,
        }
    }
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

/// It is the turn of a request.
struct Turn {
    gate: GateId,
    ticket: Ticket,
    priority: i64,
    queued_ms: u64,
    /// Whether the request waits no longer in any case.
    is_last: bool,
}

impl Selector {
    /// Selects for a request by `select`. One with a passage comes to its gate, which is open from then on, by the
    /// settings and in the way of `gate`; if it cannot go, it waits by the terms of the [`Newcomer`].
    ///
    /// # Errors
    /// As `select`; [`Error::Overloaded`] too if it may not wait, or the queue is full or closed. One that waited waits
    /// no longer then, unless that is [`Error::Moved`]; it is overloaded too if it was displaced, or its deadline is
    /// over.
    pub fn pass<T>(
        &mut self,
        gate: Option<(&GateSettings, &Way)>,
        candidates: &mut Offers,
        request: &Request<'_>,
        select: impl FnOnce(&mut Self, &mut Offers, &Request<'_>) -> Result<T>,
    ) -> Result<std::result::Result<T, Waits>> {
        let at_gate = gate.zip(request.passage);
        if let Some(((settings, _), passage)) = at_gate {
            self.gates.open(passage.gate, settings);
        }
        let at_gate = at_gate.filter(|((_, way), _)| !matches!(way, Way::Preview));
        let Some(((_, way), passage)) = at_gate else {
            return select(self, candidates, request).map(Ok);
        };
        let turn = if let Way::Again(_, is_last) = *way {
            match self.turn(candidates, request, is_last)? {
                Ok(turn) => Some(turn),
                Err(waits) => return Ok(Err(waits)),
            }
        } else {
            self.check_open(&passage)?;
            self.end_silent(request.now);
            None
        };
        let queued_ms = turn
            .as_ref()
            .map_or(request.queued_ms, |turn| turn.queued_ms);
        let request = Request {
            queued_ms,
            ..*request
        };
        let waits = match (select(self, candidates, &request), turn) {
            (Ok(found), turn) => {
                match turn {
                    Some(turn) => self.released(&turn),
                    None => self.tally(&passage, |tally| tally.admitted += 1),
                }
                return Ok(Ok(found));
            }
            (Err(error), Some(turn)) => self.not_released(&turn, request.now, error)?,
            (Err(error), None) => self.hold(candidates, &request, way, error)?,
        };
        Ok(Err(waits))
    }

    fn check_open(&mut self, passage: &Passage) -> Result<()> {
        let gate = self.gates.get(passage.gate);
        if gate.is_none_or(|gate| !gate.is_closed) {
            return Ok(());
        }
        let (wait_ms, why) = (LOOK_AGAIN_MS, why::SHUTTING_DOWN);
        Err(self.refuse(passage, Error::Overloaded { wait_ms, why }))
    }

    /// A request that came cannot go, for `error`: it waits, or is refused.
    fn hold(
        &mut self,
        candidates: &Offers,
        request: &Request<'_>,
        way: &Way,
        error: Error,
    ) -> Result<Waits> {
        let passage = request.passage.unwrap_or_default();
        let is_full = matches!(error, Error::Overloaded { .. });
        let newcomer = match way {
            Way::Hold(newcomer) if is_full || newcomer.for_workers && is_passing(&error) => {
                newcomer
            }
            _ => return Err(self.refuse(&passage, error)),
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
        let Ok(ticket) = gate.push(entry, terms, waiting) else {
            let why = why::QUEUE_FULL;
            return Err(self.refuse(&passage, Error::Overloaded { wait_ms, why }));
        };
        Ok(self.watch(passage.gate, ticket, request.now))
    }

    /// Whether it is the turn of a request that waits.
    fn turn(
        &mut self,
        candidates: &mut Offers,
        request: &Request<'_>,
        is_last: bool,
    ) -> Result<std::result::Result<Turn, Waits>> {
        let passage = request.passage.unwrap_or_default();
        let ticket = passage.ticket.unwrap_or_default();
        let gate = self.gates.get_mut(passage.gate);
        let Some((entry, waiting)) = gate.as_ref().and_then(|gate| gate.queue.get(ticket)) else {
            let (wait_ms, why) = (LOOK_AGAIN_MS, why::QUEUE_FULL);
            let displaced = Error::Overloaded { wait_ms, why };
            self.count(&displaced);
            return Err(self.behind(passage.gate, displaced));
        };
        let turn = Turn {
            gate: passage.gate,
            ticket,
            priority: entry.priority,
            queued_ms: request.now.0.saturating_sub(entry.arrived.0),
            is_last,
        };
        let is_over = |until: &Millis| is_last || *until <= request.now;
        let over = entry.deadline.filter(is_over).map(|_| waiting.own_deadline);
        let was_called =
            gate.is_some_and(|gate| gate.turns.values().any(|called| *called == ticket));
        if let Some(is_own) = over {
            let error = self.overdue(candidates, request, is_own);
            return Err(self.expire(&turn, error));
        }
        if was_called || is_last {
            return Ok(Ok(turn));
        }
        Ok(Err(self.watch(passage.gate, ticket, request.now)))
    }

    /// A request that waited went to a worker.
    fn released(&mut self, turn: &Turn) {
        if let Some(gate) = self.gates.get_mut(turn.gate) {
            gate.remove(turn.ticket);
            let tally = gate.tally(turn.priority);
            tally.released += 1;
            tally.waited_ms += turn.queued_ms;
        }
    }

    /// A request whose turn it was cannot go, for `error`: it waits on, or no longer.
    fn not_released(&mut self, turn: &Turn, now: Millis, error: Error) -> Result<Waits> {
        if matches!(error, Error::Moved) {
            // It is asked for again at once.
            return Err(error);
        }
        let Some(gate) = self.gates.get_mut(turn.gate) else {
            return Err(error);
        };
        if turn.is_last || !is_passing(&error) {
            return Err(self.expire(turn, error));
        }
        gate.is_declined = matches!(error, Error::Refused(_));
        gate.turns.retain(|_, called| *called != turn.ticket);
        let round = gate.round;
        if let Some(waiting) = gate.queue.get_mut(turn.ticket) {
            waiting.tried = round;
        }
        Ok(self.watch(turn.gate, turn.ticket, now))
    }

    /// A request waits no longer, and gets the `error`.
    fn expire(&mut self, turn: &Turn, error: Error) -> Error {
        if let Some(gate) = self.gates.get_mut(turn.gate) {
            gate.remove(turn.ticket);
            gate.tally(turn.priority).expired += 1;
        }
        self.count(&error);
        self.behind(turn.gate, error)
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

    /// Finds the requests to call: those that are next for the room there is, one for each caller, and those that were
    /// displaced. `is_event`: something happened since all of them tried.
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
            let sources = (&self.settings, &self.fleet, &self.bookings.book);
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
            self.book().loads.get(id).filter(|_| takes)
        });
        let speeds = workers.map(|load| gate.settings.limits.tokens_per_s(load));
        1000.0 * tokens as f64 / speeds.sum::<f64>().max(1.0)
    }

    /// The error of a request whose deadline is over, with the reasons in its offers.
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

    /// Charges a request that waits with looking again, if that is needed and no other is charged.
    fn watch(&mut self, gate: GateId, ticket: Ticket, now: Millis) -> Waits {
        let at = self.changes_at(now);
        let mut again_ms = None;
        if let Some(gate) = self.gates.get_mut(gate)
            && gate.watcher.is_none_or(|watcher| watcher == ticket)
        {
            again_ms = at.or(gate.is_declined.then_some(LOOK_AGAIN_MS));
            gate.watcher = again_ms.map(|_| ticket);
        }
        Waits { ticket, again_ms }
    }

    /// In how many milliseconds a worker may be picked that now may not, if time alone decides that.
    fn changes_at(&self, now: Millis) -> Option<u64> {
        let reports = (self.settings.veto != Veto::default()).then_some(LOOK_AGAIN_MS);
        if !self.fleet.has_failures(now) {
            return reports;
        }
        let out = self.fleet.current().filter_map(|(_, member)| {
            let until = member.health.out_until;
            (now < until).then(|| until.0 - now.0)
        });
        out.chain(reports).min()
    }

    /// Ends bookings without a sign of life for long. Selections do that too, but none is made while all workers are
    /// full.
    fn end_silent(&mut self, now: Millis) {
        let Some(oldest) = now.0.checked_sub(self.settings.booking_ttl_ms) else {
            return;
        };
        for booking in self.bookings.book.silent_since(Millis(oldest)) {
            self.end(booking, Ending::Expired, Usage::default(), now);
            self.gates.iter_mut().for_each(|gate| gate.round += 1);
        }
    }

    fn refuse(&mut self, passage: &Passage, error: Error) -> Error {
        if is_passing(&error) {
            self.tally(passage, |tally| tally.refused += 1);
            self.count(&error);
        }
        self.behind(passage.gate, error)
    }

    /// The error of a request that would have been behind all that wait.
    fn behind(&self, gate: GateId, error: Error) -> Error {
        match (error, self.gates.get(gate)) {
            (Error::Overloaded { wait_ms, why }, Some(gate)) => {
                #[expect(clippy::cast_sign_loss, reason = "not below 0")]
                let drain_ms = self.drain_ms(gate, gate.queue.tokens) as u64;
                let wait_ms = wait_ms.saturating_add(drain_ms);
                Error::Overloaded { wait_ms, why }
            }
            (error, _) => error,
        }
    }

    fn count(&mut self, error: &Error) {
        let ledger = &mut self.bookings.ledger;
        match error {
            Error::Overloaded { .. } => ledger.counters.overloaded += 1,
            Error::NoCandidate | Error::Refused(_) => ledger.counters.no_worker += 1,
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
