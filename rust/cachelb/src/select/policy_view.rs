//! Candidates for a policy outside the selector: columns, copied out, so that nothing is locked while it decides. Its
//! pick comes back as [`Request::pinned`](crate::selector::Request::pinned).
//!
//! Every cell is 8 bytes wide and the columns lie one after another, so that a column is a plain array.

use cachelb_core::error::{Error, Result};
use cachelb_policy::{Candidate, View};

use crate::Selector;
use crate::fleet::offers::Offers;
use crate::request::Request;
use crate::select::Step;

cachelb_core::named! {
    /// One column. Values that a worker has not reported, or not lately, are NaN.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    Column {
        /// Leading blocks of the request the worker holds.
        OverlapBlocks = "overlap_blocks",
        /// Prompt tokens it need not compute.
        MatchedTokens = "matched_tokens",
        /// Prompt tokens it has to compute.
        UncachedTokens = "uncached_tokens",
        /// Requests booked and not finished.
        Inflight = "inflight",
        /// Uncached prompt tokens of those without a first token.
        PendingPrefillTokens = "pending_prefill_tokens",
        /// Blocks of those past their first token.
        DecodeBlocks = "decode_blocks",
        /// Uncached prompt tokens booked since the latest report.
        DispatchedTokens = "dispatched_tokens",
        /// Relative capacity, slow start included.
        Weight = "weight",
        /// Logical time of the last pick with reason `cold`, 0 for never.
        LastColdPick = "last_cold_pick",
        /// Requests it computes, by its report.
        Running = "running",
        /// Requests that wait, by its report.
        Waiting = "waiting",
        /// Prompt tokens that wait, by its report.
        QueuedTokens = "queued_tokens",
        /// Part of its KV cache in use, by its report.
        KvUsage = "kv_usage",
        /// Prompt tokens per second, by its report.
        PrefillTps = "prefill_tps",
        /// Output tokens per second, by its report.
        GenTps = "gen_tps",
        /// Age of its latest report, however old, in seconds.
        ReportAgeS = "report_age_s",
        /// Prompt tokens per second, as seen from here.
        ObservedPrefillTps = "observed_prefill_tps",
        /// Data-parallel rank, -1 for a worker that has one.
        DpRank = "dp_rank",
    }
}

impl Column {
    /// Whether the cells are `i64`; the others are `f64`.
    #[must_use]
    pub fn is_whole(self) -> bool {
        matches!(
            self,
            Self::OverlapBlocks
                | Self::Inflight
                | Self::PendingPrefillTokens
                | Self::DecodeBlocks
                | Self::DispatchedTokens
                | Self::LastColdPick
                | Self::DpRank
        )
    }

    /// The bits of one cell.
    fn cell(self, view: &View<'_>, row: &Candidate, rank: Option<u32>) -> u64 {
        let (load, report) = (view.load(row), view.report(row));
        let known = |value: Option<f64>| value.unwrap_or(f64::NAN).to_bits();
        match self {
            Self::OverlapBlocks => row.overlap.into(),
            Self::MatchedTokens => row.matched_tokens.to_bits(),
            Self::UncachedTokens => view.uncached_tokens(row).to_bits(),
            Self::Inflight => row.inflight.into(),
            Self::PendingPrefillTokens => row.pending_prefill_tokens,
            Self::DecodeBlocks => load.decode_blocks,
            Self::DispatchedTokens => load.dispatched_tokens,
            Self::Weight => row.weight.to_bits(),
            Self::LastColdPick => row.last_cold_pick,
            Self::Running => known(report.running.get()),
            Self::Waiting => known(report.waiting.get()),
            Self::QueuedTokens => known(report.queued_tokens.get()),
            Self::KvUsage => known(report.kv_usage.get()),
            Self::PrefillTps => known(report.prefill_tps.get()),
            Self::GenTps => known(report.gen_tps.get()),
            Self::ReportAgeS => {
                let age = view.now.0.saturating_sub(load.report.at.0) as f64 / 1000.0;
                known(load.report.is_known().then_some(age))
            }
            Self::ObservedPrefillTps => known(load.observed_prefill_tps.get()),
            Self::DpRank => rank.map_or(-1, i64::from).cast_unsigned(),
        }
    }
}

/// The candidates of one request as of one moment.
#[derive(Debug)]
pub struct Survey {
    /// Offer of each row.
    pub offers: Box<[u32]>,
    /// All columns, one after another in the order of [`Column::ALL`], each as long as there are rows.
    pub cells: Box<[u64]>,
    /// Seeds the outside decision's generator.
    pub seed: u64,
    /// As `seed`, for each policy that decides beside the first.
    pub shadow_seeds: Box<[u64]>,
}

impl Survey {
    /// Copies out the columns of the candidates of `request`. Changes nothing that a later call could notice.
    ///
    /// # Errors
    /// [`Error::DuplicateWorker`], and [`Error::NoCandidate`], which is not counted: the selection that follows is.
    pub fn of(selector: &mut Selector, offers: &mut Offers, request: &Request<'_>) -> Result<Self> {
        let mut step = Step::new(selector, offers, request, true);
        step.look()?;
        let (rows, view) = (step.rows(), step.view());
        if rows.is_empty() {
            return Err(Error::NoCandidate);
        }
        let mut cells = Vec::with_capacity(Column::ALL.len() * rows.len());
        for column in Column::ALL {
            let rank = |row: &Candidate| step.offers[row.offer as usize].rank;
            let cell = |row| column.cell(&view, row, rank(row));
            cells.extend(rows.iter().map(cell));
        }
        Ok(Self {
            offers: rows.iter().map(|row| row.offer).collect(),
            cells: cells.into(),
            seed: step.rng.clone().bits(),
            shadow_seeds: step.pool().rules.shadow_seeds(),
        })
    }
}

#[cfg(test)]
mod tests {
    use cachelb_core::ids::Millis;
    use cachelb_core::load::Report;
    use cachelb_policy::{Custom, Random, Reason};

    use super::*;
    use crate::selector::{Ending, Placements, PoolSettings, Settings, Usage};
    use crate::tests;

    fn selector(shadow: bool) -> Selector {
        let rule = Box::new(Custom { tokens: false });
        let mut pool = PoolSettings::new(rule, 16, Placements::default());
        if shadow {
            pool.shadows.push(Box::new(Random));
        }
        let settings = Settings {
            seed: 3,
            max_report_age_ms: 1000,
            registered: true,
            records: 8,
            ..Settings::default()
        };
        tests::with_workers(settings, pool, &["a", "b", "c"])
    }

    fn offers() -> Offers {
        tests::offers(&["a", "b", "c"])
    }

    impl Survey {
        fn column(&self, column: Column) -> &[u64] {
            let rows = self.offers.len();
            &self.cells[column as usize * rows..][..rows]
        }
    }

    fn floats(survey: &Survey, column: Column) -> Vec<f64> {
        let cells = survey.column(column).iter();
        cells.map(|cell| f64::from_bits(*cell)).collect()
    }

    #[test]
    fn columns_hold_what_is_known_and_nan_for_the_rest() {
        let mut s = selector(false);
        let report = |kv_usage: f64, at| Report {
            kv_usage: Some(kv_usage).into(),
            at: Millis(at),
            ..Report::NONE
        };
        for (name, report) in [("a", report(0.25, 4_500)), ("b", report(0.5, 1_000))] {
            s.workers_mut()
                .set_report(&[name.into()], &report, Millis(5_000))
                .unwrap();
        }
        s.workers_mut().set_weight("c", 2.0).unwrap();
        let request = Request {
            prompt_tokens: 40,
            now: Millis(5_000),
            ..Request::default()
        };
        let pinned = Request {
            pinned: Some((1, Reason::Custom)),
            ..request
        };
        s.select(&mut offers(), &pinned).unwrap();
        let survey = Survey::of(&mut s, &mut offers(), &request).unwrap();
        assert_eq!(*survey.offers, [0, 1, 2]);
        assert_eq!(survey.column(Column::Inflight), [0, 1, 0]);
        assert_eq!(survey.column(Column::PendingPrefillTokens), [0, 40, 0]);
        assert_eq!(survey.column(Column::DpRank), [u64::MAX; 3]);
        assert_eq!(floats(&survey, Column::Weight), [1.0, 1.0, 2.0]);
        assert_eq!(floats(&survey, Column::UncachedTokens), [40.0; 3]);
        let columns = [Column::KvUsage, Column::ReportAgeS];
        let [usage, age] = columns.map(|column| floats(&survey, column));
        // The report of b is too old to be used, as its age shows.
        assert_eq!(usage[..1], [0.25]);
        assert!(usage[1].is_nan() && usage[2].is_nan());
        assert_eq!(age[..2], [0.5, 4.0]);
        assert!(age[2].is_nan());
        for column in Column::ALL {
            assert_eq!(Column::named(column.name()), Some(column));
            assert_eq!(survey.column(column).len(), 3);
        }
    }

    #[test]
    fn surveys_change_nothing_and_pinned_picks_move_the_generator() {
        let mut s = selector(true);
        let request = Request::default();
        let first = Survey::of(&mut s, &mut offers(), &request).unwrap();
        let again = Survey::of(&mut s, &mut offers(), &request).unwrap();
        assert_eq!(first.seed, again.seed);
        assert_eq!(first.shadow_seeds, again.shadow_seeds);
        let picks = [Some((2, Reason::Custom))];
        let pinned = Request {
            pinned: Some((1, Reason::Cold)),
            shadow_picks: &picks,
            ..request
        };
        let pick = s.select(&mut offers(), &pinned).unwrap();
        assert_eq!((pick.offer, pick.reason), (1, Reason::Cold));
        let next = Survey::of(&mut s, &mut offers(), &request).unwrap();
        assert_ne!(next.seed, first.seed);
        assert_ne!(next.shadow_seeds, first.shadow_seeds);
        assert_eq!(next.column(Column::LastColdPick), [0, 1, 0]);
        let (id, completed) = (pick.booking.unwrap(), Ending::Completed);
        s.end(id, completed, Usage::default(), Millis(0));
        let (records, _, _) = s.ledger().since(0, 8);
        assert_eq!(&*records[0].shadows[0].key, "c");
    }

    #[test]
    fn a_pick_that_is_gone_is_told_and_without_one_the_least_loaded_serves() {
        let mut s = selector(false);
        let pinned = Request {
            pinned: Some((0, Reason::Custom)),
            ..Request::default()
        };
        s.workers_mut().set_ready("a", false);
        assert_eq!(s.select(&mut offers(), &pinned), Err(Error::Moved));
        assert!(s.book().bookings.is_empty());
        let pick = s.select(&mut offers(), &Request::default()).unwrap();
        assert_eq!(pick.reason, Reason::PolicyError);
        for name in ["b", "c"] {
            s.workers_mut().set_ready(name, false);
        }
        let nobody = Survey::of(&mut s, &mut offers(), &Request::default());
        assert_eq!(nobody.unwrap_err(), Error::NoCandidate);
        assert_eq!(s.ledger().counters.no_worker, 0);
    }
}
