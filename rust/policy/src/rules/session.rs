//! A session stays on one worker.
//!
//! ```text
//! no key                                          -> the base policy, else cold spread (no-key)
//! hash:   the worker that draws highest           -> hash
//! else:   the first worker of the key's binding   -> session
//!         none of them is among the rows          -> a new worker (session-moved); refused if hard
//!         a new key                               -> a new worker, with the reason of its placement
//! soft:   that worker is over the spill gate      -> least loaded, for this request only (spill)
//! ```
//!
//! The base policy picks a new worker. Without one, `sticky` takes the worker with the fewest sessions, ties by
//! rendezvous, and `manual` follows its assignment. `sticky` binds a moved session to its new worker; `manual` keeps
//! two, and the older one serves again when it is back.

mod options;

use cachelb_core::error::Result;
use cachelb_core::ids::Millis;
use cachelb_core::load::Known;
use cachelb_core::rng::Rng;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) use self::options::POLICY;
use crate::common::bindings::{Bindings, Key, Limits};
use crate::rule::choice::Choice;
use crate::rule::gate::SpillGate;
use crate::rule::memo::{Memory, Memos};
use crate::rule::parts::{Ended, State, state};
use crate::rule::reason::Reason;
use crate::rule::view::{Candidate, View, cold_spread, draw, lowest};
use crate::rule::{Properties, Rule, each_score};
use crate::rules::rendezvous::Rendezvous;

/// How a session is bound to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionMode {
    /// Nothing: every request draws by rendezvous.
    Hash,
    /// The worker that served it last.
    Sticky,
    /// Up to two workers that served it, the older one first.
    Manual(Assignment),
}

/// How `manual` places a new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignment {
    /// A draw by weight.
    Random,
    /// The fewest requests in flight.
    MinLoad,
    /// The fewest sessions.
    MinGroup,
}

/// Settings of the rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sessions {
    /// How a session is bound.
    pub mode: SessionMode,
    /// Never serve a session elsewhere while its worker is registered.
    pub hard: bool,
    /// When a session's worker is too loaded for a request.
    pub gate: SpillGate,
    /// Unused for longer than this, a session is forgotten.
    pub idle_ms: u64,
    /// Sessions remembered.
    pub max_sessions: usize,
    /// Seed of the hashes.
    pub seed: u64,
}

/// The rule, its bindings and the policy that places new sessions.
#[derive(Debug)]
pub struct Session {
    settings: Sessions,
    bindings: Bindings,
    base: Option<Box<dyn Rule>>,
}

/// The binding of a request's session.
enum Bound {
    New,
    /// Bound to the worker of that row.
    Here(usize),
    /// Bound, and no worker of the binding is among the rows.
    Away {
        firm: bool,
    },
}

/// How the workers of a new session are ranked.
enum Placing<'a> {
    /// A draw by rendezvous.
    Draw,
    Base(&'a dyn Rule),
    /// How many sessions they have.
    Sessions,
}

impl Session {
    /// A rule that has seen no session.
    #[must_use]
    pub fn new(settings: Sessions, base: Option<Box<dyn Rule>>) -> Self {
        let limits = Limits {
            sessions: settings.max_sessions,
            idle_ms: settings.idle_ms,
            workers: match settings.mode {
                SessionMode::Manual(_) => 2,
                SessionMode::Hash | SessionMode::Sticky => 1,
            },
        };
        Self {
            settings,
            bindings: Bindings::new(limits),
            base,
        }
    }

    /// The bindings it remembers.
    #[cfg(test)]
    pub(crate) fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    fn hash(&self, key: &[u8]) -> Key {
        xxh3_64_with_seed(key, self.settings.seed)
    }

    fn rendezvous(&self) -> Rendezvous {
        Rendezvous {
            seed: self.settings.seed,
            epsilon: None,
        }
    }

    fn placing(&self) -> Placing<'_> {
        match &self.base {
            _ if self.settings.mode == SessionMode::Hash => Placing::Draw,
            Some(base) => Placing::Base(&**base),
            None => Placing::Sessions,
        }
    }

    fn find(&self, view: &View<'_>, key: Key) -> Bound {
        let Some(known) = self.bindings.find(key, view.now) else {
            return Bound::New;
        };
        let row_of = |order: u64| view.rows.iter().position(|row| row.order == order);
        match known.preferred.into_iter().flatten().find_map(row_of) {
            Some(row) => Bound::Here(row),
            None => Bound::Away { firm: known.firm },
        }
    }

    fn sessions(&self, row: &Candidate) -> f64 {
        f64::from(self.bindings.sessions(row.order)) / row.weight
    }

    fn place(&self, view: &View<'_>, key: &[u8], rng: &mut Rng) -> Choice {
        if let Some(base) = &self.base {
            return base.choose(view, rng);
        }
        let rows = view.rows;
        let sessions = |row: &Candidate| self.sessions(row);
        let assignment = match self.settings.mode {
            SessionMode::Manual(assignment) => assignment,
            SessionMode::Hash | SessionMode::Sticky => {
                let fewest = rows.iter().map(sessions).fold(f64::INFINITY, f64::min);
                let tied = |row: &Candidate| sessions(row) <= fewest;
                let row = self.rendezvous().highest(view, key, tied);
                return Choice::warm(row.unwrap_or(0), Reason::LeastLoaded);
            }
        };
        let row = match assignment {
            Assignment::Random => {
                return Choice::warm(draw(rows, rng, |row| row.weight), Reason::Random);
            }
            Assignment::MinLoad => lowest(rows, rng, |_| true, Candidate::load),
            Assignment::MinGroup => lowest(rows, rng, |_| true, sessions),
        };
        Choice::warm(row.unwrap_or(0), Reason::LeastLoaded)
    }

    /// Row `row` for `reason`, unless the gate spills it.
    fn keep(&self, view: &View<'_>, row: usize, reason: Reason, rng: &mut Rng) -> Choice {
        let gate = &self.settings.gate;
        let spilled = (!self.settings.hard).then(|| gate.spill(view.rows, row, rng));
        Choice::warm(row, reason).or_spilled(spilled.flatten())
    }
}

impl Rule for Session {
    fn choose(&self, view: &View<'_>, rng: &mut Rng) -> Choice {
        let Some(key) = view.key else {
            return match &self.base {
                Some(base) if self.settings.mode == SessionMode::Hash => {
                    base.choose(&view.unscored(), rng)
                }
                Some(base) => base.choose(view, rng),
                None => Choice::cold(cold_spread(view.rows, rng), Reason::NoKey),
            };
        };
        if self.settings.mode == SessionMode::Hash {
            let row = self.rendezvous().highest(view, key, |_| true).unwrap_or(0);
            return self.keep(view, row, Reason::Hash, rng);
        }
        match self.find(view, self.hash(key)) {
            Bound::Here(row) => self.keep(view, row, Reason::Session, rng),
            Bound::New => self.place(view, key, rng),
            Bound::Away { firm } => Choice {
                reason: Reason::SessionMoved,
                refused: firm && self.settings.hard,
                ..self.place(view, key, rng)
            },
        }
    }

    fn settled(&mut self, view: &View<'_>, choice: Choice, served: usize, memos: &mut Memos<'_>) {
        let mut placed = true;
        if let Some(key) = view.key {
            if self.settings.mode == SessionMode::Hash {
                return;
            }
            let key = self.hash(key);
            placed = !matches!(self.find(view, key), Bound::Here(_));
            let order = view.rows[choice.row].order;
            let used = self.bindings.used(key, order, placed, view.now);
            memos.keep(Memory::Session(used));
        }
        if let Some(base) = self.base.as_mut().filter(|_| placed) {
            base.settled(view, choice, served, &mut memos.inner());
        }
    }

    /// Sessions per weight, or the score by which new sessions are placed.
    fn score(&self, view: &View<'_>, row: usize) -> Option<f64> {
        match self.placing() {
            Placing::Draw => self.rendezvous().score(view, row),
            Placing::Base(base) => base.score(view, row),
            Placing::Sessions => Some(self.sessions(&view.rows[row])),
        }
    }

    fn scores(&self, view: &View<'_>) -> Vec<Known> {
        match self.placing() {
            Placing::Base(base) => base.scores(view),
            Placing::Draw | Placing::Sessions => each_score(self, view),
        }
    }

    fn properties(&self) -> Properties {
        let base = self.base.as_ref().map(|base| base.properties());
        let base = base.unwrap_or(Properties::PLAIN);
        let draws = matches!(self.placing(), Placing::Draw);
        Properties {
            higher_is_better: draws || base.higher_is_better,
            scored_in_passing: !draws && base.scored_in_passing,
            weighs_pairs: false,
            ..base
        }
    }

    fn terms(&self, view: &View<'_>) -> Vec<Vec<(&'static str, f64)>> {
        match self.placing() {
            Placing::Base(base) => base.terms(view),
            Placing::Draw | Placing::Sessions => Vec::new(),
        }
    }

    fn inner(&self) -> Option<&dyn Rule> {
        self.base.as_deref()
    }

    fn inner_mut(&mut self) -> Option<&mut Box<dyn Rule>> {
        self.base.as_mut()
    }

    state!(own => *own);
}

impl State for Session {
    fn forget(&mut self, order: u64) {
        self.bindings.forget(order);
    }

    fn finish_session(&mut self, key: &[u8]) -> bool {
        self.bindings.finish(self.hash(key))
    }

    fn memory_bytes(&self) -> usize {
        self.bindings.memory_bytes()
    }

    fn validate(&self) -> Result<()> {
        self.bindings.validate()
    }

    fn proven(&mut self, memory: &mut Memory, _first_token: Option<Millis>) {
        if let Memory::Session(used) = memory {
            self.bindings.proven(used);
        }
    }

    fn ended(&mut self, memory: &mut Memory, ended: Ended) {
        if let Memory::Session(used) = memory {
            self.bindings.ended(*used, ended);
        }
    }
}
