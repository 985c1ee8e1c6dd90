//! One request and its candidates: the choice among them.

use cachelb_core::block_tracker::Origin;
use cachelb_core::error::{Error, Result};
use cachelb_events::FeedState;
use cachelb_policy::{Active, Choice, Reason, Rule, View};

use crate::bookings::LoadBook;
use crate::fleet::offers::Offers;
use crate::indexes::pool::Pool;
use crate::indexes::reusable::Usable;
use crate::indexes::rules::choose_pinned;
use crate::request::{Pick, Request, Wanted};
use crate::select::Step;
use crate::select::rows::Rows;
use crate::settings::Settings;

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
        apart: &book.loads.apart,
        pace: book.pace,
        active: pool.counts_active.then(|| Active {
            named: &book.named,
            namespace: request.pool.0,
            is_shared: request.blocks.is_some_and(|(path, _)| is_shared(path)),
        }),
        media: &rows.media,
        copies: &rows.copies,
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

impl Step<'_, '_> {
    /// The rules' view of the candidates as they are now, in which the one that decides leaves its scores.
    pub fn view(&self) -> View<'_> {
        let (s, request) = (&*self.selector, self.request);
        let (pool, rows) = (&s.pools[request.pool], &s.candidates.rows);
        View {
            scores: Some(&rows.scores),
            ..view(
                &s.settings,
                pool,
                &s.bookings.book,
                rows,
                self.offers,
                request,
            )
        }
    }

    /// Decides among the candidates: by the rule, or as pinned.
    pub fn decide(&mut self) -> Result<()> {
        #[cfg(feature = "peers")]
        self.find_copies();
        let choice = self.choose();
        let is_refused = matches!(choice, Err(Error::NoCandidate | Error::Refused(_)));
        // At a gate it may try again.
        if is_refused && !self.dry_run && self.request.passage.is_none() {
            self.selector.bookings.ledger.counters.no_worker += 1;
        }
        self.scores = self.selector.candidates.rows.scores.take();
        self.take(choice?);
        Ok(())
    }

    fn choose(&mut self) -> Result<Choice> {
        let mut rng = self.rng.clone();
        let view = self.view();
        if view.rows.is_empty() {
            return Err(Error::NoCandidate);
        }
        let choice = match self.request.pinned {
            Some(pinned) => choose_pinned(&view, pinned, &mut rng).ok_or(Error::Moved)?,
            None => match self.remembering() {
                Some(row) => Choice::pinned(row, Reason::Continuation),
                None => self.rule().choose(&view, &mut rng),
            },
        };
        if choice.refused {
            return Err(Error::Refused(choice.reason.name()));
        }
        self.rng = rng;
        Ok(choice)
    }

    /// The rule that decides.
    pub fn rule(&self) -> &dyn Rule {
        self.pool().rules.get(self.request.wanted)
    }

    /// The row of the worker that keeps the part that the prompt of the request lacks.
    pub fn remembering(&self) -> Option<usize> {
        let continues = self.request.family.is_some_and(|family| family.continues);
        let continues = continues && self.request.wanted != Wanted::Prefill;
        let home = self.rows().home.filter(|_| continues)?;
        self.rows().iter().position(|row| row.order == home)
    }

    /// Takes a choice among the rows.
    pub fn take(&mut self, mut choice: Choice) {
        let (s, request) = (&*self.selector, self.request);
        let (pool, rows, rule) = (self.pool(), self.rows(), self.rule());
        let row = rows[choice.row];
        if request.pinned.is_none() && rule.properties().goes_by_events {
            choice.reason = self.without_events(choice.reason, row.slot);
        }
        let usable = Usable::by_slot(&s.fleet, pool, request)(row.slot);
        let best = rows.best_reusable;
        let matched_tokens = usable.tokens(rows.reached(choice.row));
        self.pick = Pick {
            offer: row.offer as usize,
            wanted: request.wanted,
            pool: request.pool,
            higher_is_better: rule.properties().higher_is_better,
            reason: if rows.len() == 1 {
                Reason::OnlyOne
            } else {
                choice.reason
            },
            matched_tokens,
            shared_tokens: matched_tokens - usable.tokens(rows.own(choice.row)),
            held_tokens: usable.tokens(pool.held(&row)),
            best_matched_tokens: best.unwrap_or_else(|| usable.tokens(rows.best_overlap)),
            source: None,
            booking: None,
        };
        self.choice = choice;
        // Of a pair, the worker that computes the prompt copies.
        #[cfg(feature = "peers")]
        if request.wanted != Wanted::Decode {
            self.name_source();
        }
    }

    /// The reason of a pick by a rule that goes by events: another one if the worker has events and they did not decide.
    fn without_events(&self, by: Reason, slot: u32) -> Reason {
        let feed = self.selector.fleet.feed_in(slot, self.request);
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
    pub fn uncached(&self) -> u64 {
        let known = self.pool().knows_placements;
        let copied = self.pick.source.map_or(0, |source| source.tokens());
        let matched = self.pick.matched_tokens + copied;
        self.request.prompt_tokens - if known { matched } else { 0 }
    }
}
