//! One request and its candidates: the choice among them.

use cachelb_core::block_tracker::Origin;
use cachelb_core::error::{Error, Result};
use cachelb_core::load::Known;
use cachelb_events::FeedState;
use cachelb_policy::{Active, Choice, Reason, Rng, Rule, View};

use crate::bookings::LoadBook;
use crate::bookings::ledger::WorkerState;
use crate::fleet::Fleet;
use crate::fleet::offers::Offers;
use crate::indexes::pool::Pool;
use crate::indexes::reusable::Usable;
use crate::indexes::rules::choose_pinned;
use crate::request::{Pick, Request, Wanted};
use crate::select::rows::Rows;
use crate::settings::Settings;

/// A decision that nothing was booked for yet.
#[derive(Debug, Clone)]
pub(crate) struct Decided {
    pub choice: Choice,
    pub pick: Pick,
    /// The generator after the choice.
    pub rng: Rng,
    /// Scores by which the rule ranked the rows, if it returned them.
    pub scores: Option<Vec<Known>>,
    /// State of the picked worker, if it is to be recorded.
    pub state: Option<WorkerState>,
}

/// A request, its candidates, and the rules' view of them.
pub(crate) struct Scene<'a> {
    pub fleet: &'a Fleet,
    pub pool: &'a Pool,
    pub rows: &'a Rows,
    pub offers: &'a Offers,
    pub request: &'a Request<'a>,
    pub view: View<'a>,
}

/// View of `rows` for the rules of `pool`, with the loads of `book`.
pub(crate) fn view<'a>(
    settings: &Settings,
    pool: &Pool,
    book: &'a LoadBook,
    rows: &'a Rows,
    offers: &'a Offers,
    request: &Request<'a>,
) -> View<'a> {
    let is_shared = |path| book.named.shares_any(request.pool.0, path);
    View {
        rows,
        best_overlap: rows.best_left.unwrap_or(rows.best_overlap),
        loads: book.loads.columns(),
        apart: book.loads.apart(),
        pace: book.pace,
        active: pool.counts_active.then(|| Active {
            named: &book.named,
            namespace: request.pool.0,
            is_shared: request.blocks.is_some_and(|(path, _)| is_shared(path)),
        }),
        media: &rows.media,
        names: offers,
        blocks: request.blocks.map(|(hashes, _)| hashes),
        content: request.content,
        identity: request.identity,
        boundaries: request.boundaries,
        block_size: pool.block_size,
        prompt_tokens: request.prompt_tokens,
        prompt_units: request.prompt_units,
        key: request.key,
        key_is_session: request.key_is_session,
        home: rows.home,
        is_child: request.family.is_some_and(|family| family.parent.is_some()),
        expected_output_tokens: request.expected_output_tokens,
        now: request.now,
        max_report_age_ms: settings.max_report_age_ms,
        scores: None,
    }
}

impl<'a> Scene<'a> {
    /// The rule that decides.
    pub fn rule(&self) -> &'a dyn Rule {
        self.pool.rules.get(self.request.wanted)
    }

    /// The choice of the rule, or the pinned one.
    pub fn decide(&self, rng: &Rng) -> Result<Decided> {
        if self.rows.is_empty() {
            return Err(Error::NoCandidate);
        }
        let mut rng = rng.clone();
        let choice = match self.request.pinned {
            Some(pinned) => choose_pinned(&self.view, pinned, &mut rng).ok_or(Error::Moved)?,
            None => match self.remembering() {
                Some(row) => Choice::pinned(row, Reason::Continuation),
                None => self.rule().choose(&self.view, &mut rng),
            },
        };
        if choice.refused {
            return Err(Error::Refused(choice.reason.name()));
        }
        Ok(Decided {
            scores: self.rows.scores.take(),
            ..self.decided(choice, rng)
        })
    }

    /// The row of the worker that keeps the part that the prompt of the request lacks.
    fn remembering(&self) -> Option<usize> {
        let continues = self.request.family.is_some_and(|family| family.continues);
        let continues = continues && self.request.wanted != Wanted::Prefill;
        let home = self.rows.home.filter(|_| continues)?;
        self.rows.iter().position(|row| row.order == home)
    }

    /// The decision that follows from a choice among the rows.
    pub fn decided(&self, mut choice: Choice, rng: Rng) -> Decided {
        let (row, rule) = (self.rows[choice.row], self.rule());
        if self.request.pinned.is_none() && rule.properties().goes_by_events {
            choice.reason = self.without_events(choice.reason, row.slot);
        }
        let usable = Usable::by_slot(self.fleet, self.pool, self.request)(row.slot);
        let best = self.rows.best_reusable;
        let matched_tokens = usable.tokens(self.rows.reached(choice.row));
        let pick = Pick {
            offer: row.offer as usize,
            wanted: self.request.wanted,
            pool: self.request.pool,
            higher_is_better: rule.properties().higher_is_better,
            reason: if self.rows.len() == 1 {
                Reason::OnlyOne
            } else {
                choice.reason
            },
            matched_tokens,
            shared_tokens: matched_tokens - usable.tokens(self.rows.own(choice.row)),
            held_tokens: usable.tokens(self.pool.held(&row)),
            best_matched_tokens: best.unwrap_or_else(|| usable.tokens(self.rows.best_overlap)),
            booking: None,
        };
        Decided {
            choice,
            pick,
            rng,
            scores: None,
            state: None,
        }
    }

    /// The reason of a pick by a rule that goes by events: another one if the worker has events and they did not decide.
    fn without_events(&self, by: Reason, slot: u32) -> Reason {
        let feed = self.fleet.feed_in(slot, self.request);
        match (by, self.request.blocks, feed) {
            (Reason::Prefix | Reason::Cold, Some((_, Origin::Text)), Some(_)) => Reason::TextOnly,
            (Reason::Prefix | Reason::Cold, _, Some(feed)) if feed.state == FeedState::Suspect => {
                Reason::StaleEvents
            }
            _ => by,
        }
    }

    /// Prompt tokens the picked worker must compute, by the index of the pool's own rules: an index that only a shadow
    /// uses moves no load.
    pub fn uncached(&self, pick: &Pick) -> u64 {
        let known = self.pool.knows_placements;
        self.request.prompt_tokens - if known { pick.matched_tokens } else { 0 }
    }
}
