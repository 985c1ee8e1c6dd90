//! Several real selectors before one fleet that share their placements.

use std::time::Duration;

use cachelb::selector::{Access as _, Selector};

use super::routed::{Front, NAMES, families, rule};
use super::run::fleet;
use super::*;

const LAGS: [f64; 3] = [0.0, 0.005, 0.5];

/// Requests come to four gateways in turn, so that each meets every family.
fn outcomes(lag: Option<f64>, options: &Options) -> (Outcomes, Vec<Selector>) {
    let w = families();
    let mut workers = fleet(NAMES.len(), 128);
    for worker in &mut workers {
        // Its events would inform all of them.
        worker.engine.followed = false;
    }
    let of: Vec<u16> = (0..w.len() as u16).map(|id| id % 4).collect();
    let fronts: Vec<_> = (0..4).map(|_| Front::new(rule("cache-aware"))).collect();
    let routed = (1_u64..).zip(&fronts).map(|(origin, front)| {
        if lag.is_some() {
            front.selector.held(|selector| {
                let mut sharing = selector.sharing_mut();
                sharing.share(origin, &[77], 3_600_000, 1 << 24);
            });
        }
        front.routed(&w, &workers)
    });
    let mut gateway = Several::new(routed.collect(), &of, &|| Duration::ZERO, lag);
    let out = run(&w, &workers, &mut gateway, options, |_| true).unwrap();
    let selectors = fronts.into_iter().map(Front::into_selector);
    (out, selectors.collect())
}

fn predicted(outcomes: &Outcomes) -> u32 {
    outcomes.predicted_tokens.iter().sum()
}

#[test]
fn gateways_that_share_find_what_another_placed() {
    let (alone, _) = outcomes(None, &Options::default());
    for lag in LAGS {
        let (shared, selectors) = outcomes(Some(lag), &Options::default());
        // Alone, each gateway must meet every family once.
        let [shared, alone] = [&shared, &alone].map(predicted);
        assert!(shared > 4 * alone, "{lag}: {shared} of {alone}");
        for selector in &selectors {
            let told = selector.sharing().unwrap().counters();
            assert!(told.applied > 300 && told.blocks > 0, "{told:?}");
            assert_eq!((told.strangers, told.dropped), (0, 0));
        }
    }
}

#[test]
fn messages_that_arrive_after_the_run_bring_nothing() {
    let (alone, _) = outcomes(None, &Options::default());
    let (shared, selectors) = outcomes(Some(1e6), &Options::default());
    assert_eq!(format!("{alone:?}"), format!("{shared:?}"));
    assert_eq!(selectors[0].sharing().unwrap().counters().applied, 0);
}

#[test]
fn bookings_of_all_are_known_to_all_and_end_with_their_requests() {
    // The last of the ends is still under way when the run ends, and no more than that.
    let late = Options {
        incidents: vec![(50.0, 1, Incident::Crash), (60.0, 1, Incident::Join)],
        ..Options::default()
    };
    let (out, selectors) = outcomes(Some(0.005), &late);
    assert!(out.status.iter().all(|s| *s == Status::Finished));
    for selector in &selectors {
        let origins = selector.sharing().unwrap().origins();
        let open: usize = origins.iter().map(|(_, open)| open).sum();
        assert!(open <= 1, "{open}");
    }
    let (again, _) = outcomes(Some(0.005), &late);
    assert_eq!(format!("{out:?}"), format!("{again:?}"));
}
