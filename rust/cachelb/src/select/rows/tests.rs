//! Kept rows against rows made from scratch: two selectors live through the same, and only one of them may keep rows.

use cachelb_core::block_tracker::Origin;
use cachelb_core::ids::{Millis, SequenceHash};
use cachelb_core::load::{BookingId, Report};
use cachelb_policy::{CacheAware, Margin, Reason, Rule, SpillGate, Threshold};
use proptest::prelude::*;

use crate::selector::*;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

#[derive(Debug, Clone)]
enum Step {
    /// A prompt, the pool, the part wanted, the excluded worker, and whether it is a dry run.
    Select(u64, u32, usize, Option<usize>, bool),
    Pair(u64),
    Pass(u64),
    Rewind,
    FirstToken(usize),
    End(usize, Ending),
    Ready(usize, bool),
    Add(usize, Role, u64, Option<u32>),
    Weigh(usize, f64),
    Report(usize, u32, u64),
    Reset(usize),
    Drain(usize),
    Remove(usize),
    /// The list is another: the names from one on.
    List(usize),
    /// A copy of the list that no selection has seen.
    Copy,
}

fn step() -> impl Strategy<Value = Step> {
    let worker = || 0..NAMES.len();
    let role = prop::sample::select(vec![Role::Both, Role::Prefill, Role::Decode]);
    let ending = prop::sample::select(Ending::ALL.to_vec());
    let excluded = prop_oneof![3 => Just(None), 1 => worker().prop_map(Some)];
    let wanted = prop_oneof![4 => Just(0_usize), 1 => 1_usize..3];
    let pool = prop_oneof![4 => Just(0_u32), 1 => Just(1_u32)];
    let select = (0_u64..4, pool, wanted, excluded, any::<bool>());
    let select = select.prop_map(|(prompt, pool, wanted, excluded, dry_run)| {
        Step::Select(prompt, pool, wanted, excluded, dry_run)
    });
    let add = (worker(), role, 0_u64..60, prop::option::of(0_u32..2));
    prop_oneof![
        12 => select,
        4 => (0_u64..4).prop_map(Step::Pair),
        3 => (0_u64..40).prop_map(Step::Pass),
        1 => Just(Step::Rewind),
        2 => (0_usize..64).prop_map(Step::FirstToken),
        4 => (0_usize..64, ending).prop_map(|(at, ending)| Step::End(at, ending)),
        1 => (worker(), any::<bool>()).prop_map(|(at, ready)| Step::Ready(at, ready)),
        2 => add.prop_map(|(at, role, ms, pool)| Step::Add(at, role, ms, pool)),
        1 => (worker(), 0.5..4.0).prop_map(|(at, weight)| Step::Weigh(at, weight)),
        2 => (worker(), 0_u32..9, 0_u64..30).prop_map(|(at, live, age)| Step::Report(at, live, age)),
        1 => worker().prop_map(Step::Reset),
        1 => worker().prop_map(Step::Drain),
        1 => worker().prop_map(Step::Remove),
        1 => worker().prop_map(Step::List),
        1 => Just(Step::Copy),
    ]
}

fn cache_aware() -> Box<dyn Rule> {
    Box::new(CacheAware {
        cache_threshold: Threshold::new(0.3),
        min_matched_tokens: None,
        gate: SpillGate {
            load_factor: 1.25,
            margin: Margin::Fixed(1.0),
        },
    })
}

fn pick(
    selector: &mut Selector,
    offers: &mut Offers,
    request: &Request<'_>,
    dry_run: bool,
) -> cachelb_core::error::Result<Pick> {
    if dry_run {
        return selector.preview(offers, request).map(|(pick, _)| pick);
    }
    selector.select(offers, request)
}

fn selector(veto: Option<f64>, registered: bool) -> Selector {
    let placements = Placements {
        max_blocks_per_worker: 12,
        ttl_ms: Some(70),
        ..Placements::default()
    };
    let settings = Settings {
        seed: 5,
        booking_ttl_ms: 200,
        max_report_age_ms: 20,
        reconcile_grace_ms: Some(5),
        registered,
        veto: Veto {
            kv_usage: None,
            waiting: veto,
        },
        breaker: Some(Breaker {
            failures: 2,
            cooldown_ms: 15,
            backpressure_ms: 5,
        }),
        records: 4,
        ..Settings::default()
    };
    let pool = || PoolSettings::new(cache_aware(), 16, placements);
    let mut selector = crate::tests::with_workers(settings, pool(), &NAMES);
    selector.add_pool(pool());
    selector
}

/// One of the two, with the list that it is offered.
struct Side {
    selector: Selector,
    offers: Offers,
    bookings: Vec<BookingId>,
}

impl Side {
    fn list(&mut self, from: usize, version: Option<u64>) {
        let list = NAMES[from..].iter().map(|&name| Offer::new(name)).collect();
        self.offers = match version {
            Some(version) => Offers::versioned(list, version),
            None => Offers::new(list),
        };
    }

    /// Everything that the step shows.
    fn run(&mut self, step: &Step, now: Millis, number: u64) -> String {
        let (s, offers) = (&mut self.selector, &mut self.offers);
        let name = |at: usize| NAMES[at];
        match *step {
            Step::Select(prompt, pool, wanted, excluded, dry_run) => {
                let hashes: Vec<_> = (1..4).map(|i| SequenceHash(prompt * 8 + i)).collect();
                let request = Request {
                    pool: PoolId(pool),
                    wanted: Wanted::ALL[wanted],
                    blocks: Some((&hashes, Origin::Caller)),
                    prompt_tokens: 50,
                    number,
                    now,
                    ..Request::default()
                };
                offers.reset();
                if let Some(at) = excluded.filter(|&at| at < offers.len()) {
                    offers.set_eligibility(at, Eligibility::Excluded);
                }
                let before = offers.ruled_out();
                let survey = Survey::of(s, offers, &request);
                let shown = survey.map(|survey| (survey.offers.to_vec(), survey.cells.to_vec()));
                offers.restore(&before);
                let seen = s.preview(offers, &request);
                offers.restore(&before);
                let pick = pick(s, offers, &request, dry_run);
                self.bookings
                    .extend(pick.iter().filter_map(|pick| pick.booking));
                let eligibilities: Vec<Eligibility> =
                    offers.iter().map(|offer| offer.eligibility).collect();
                format!(
                    "{shown:?} {seen:?} {pick:?} {eligibilities:?} {:?}",
                    s.trace().get(number)
                )
            }
            Step::Pair(prompt) => {
                let hashes = [SequenceHash(prompt * 8 + 1)];
                let request = Request {
                    blocks: Some((&hashes, Origin::Caller)),
                    prompt_tokens: 20,
                    number,
                    now,
                    ..Request::default()
                };
                offers.reset();
                let picks =
                    s.select_pair(offers, &request, number + 1, PairTerms::default(), false);
                if let Ok((prefill, decode)) = &picks {
                    let both = prefill.iter().chain([decode]);
                    self.bookings.extend(both.filter_map(|pick| pick.booking));
                }
                format!("{picks:?}")
            }
            Step::FirstToken(at) if !self.bookings.is_empty() => {
                let booking = self.bookings[at % self.bookings.len()];
                format!("{:?}", s.first_token(booking, now))
            }
            Step::End(at, ending) if !self.bookings.is_empty() => {
                let booking = self.bookings.swap_remove(at % self.bookings.len());
                format!("{:?}", s.end(booking, ending, Usage::default(), now))
            }
            Step::Ready(at, ready) => {
                s.workers_mut().set_ready(name(at), ready);
                String::new()
            }
            Step::Add(at, role, slow_start_ms, pool) => {
                let profile = Profile {
                    role,
                    slow_start_ms,
                    pools: pool.map(|pool| Box::from([PoolId(pool)])),
                    ..Profile::default()
                };
                format!("{:?}", s.workers_mut().add(name(at), profile, now))
            }
            Step::Weigh(at, weight) => {
                format!("{:?}", s.workers_mut().set_weight(name(at), weight))
            }
            Step::Report(at, live, age) => {
                let report = Report {
                    running: Some(f64::from(live)).into(),
                    waiting: Some(f64::from(live)).into(),
                    at: Millis(now.0.saturating_sub(age)),
                    ..Report::NONE
                };
                format!(
                    "{:?}",
                    s.workers_mut().set_report(&[name(at).into()], &report, now)
                )
            }
            Step::Reset(at) => format!("{:?}", s.workers_mut().reset_cache(name(at), now)),
            Step::Drain(at) => format!("{:?}", s.workers_mut().drain(name(at))),
            Step::Remove(at) => format!("{:?}", s.workers_mut().remove(name(at))),
            _ => String::new(),
        }
    }
}

proptest! {
    #[test]
    fn kept_rows_are_those_made_anew(
        steps in prop::collection::vec(step(), 1..120),
        veto in prop::option::of(Just(6.0)),
        registered in any::<bool>(),
    ) {
        let side = || Side {
            selector: selector(veto, registered),
            offers: Offers::default(),
            bookings: Vec::new(),
        };
        let (mut keeping, mut anew) = (side(), side());
        let (mut now, mut list, mut version) = (1_000_u64, 0, 1);
        keeping.list(list, Some(version));
        anew.list(list, None);
        for (number, step) in (0..).step_by(2).zip(&steps) {
            match *step {
                Step::Pass(ms) => now += ms,
                Step::Rewind => now -= 10,
                Step::List(from) => {
                    (list, version) = (from, version + 1);
                    keeping.list(list, Some(version));
                    anew.list(list, None);
                }
                Step::Copy => keeping.list(list, Some(version)),
                _ => {}
            }
            let shown = keeping.run(step, Millis(now), number);
            prop_assert_eq!(shown, anew.run(step, Millis(now), number), "{:?}", step);
            keeping.selector.validate().unwrap();
            anew.selector.validate().unwrap();
        }
    }
}

#[test]
fn rows_of_a_list_that_comes_again_are_kept() {
    let mut selector = selector(None, true);
    let list = NAMES.map(Offer::new).to_vec();
    let mut offers = Offers::versioned(list, 1);
    let request = Request::default();
    selector.select(&mut offers, &request).unwrap();
    let made = selector.fleet.calls();
    selector.select(&mut offers, &request).unwrap();
    assert_eq!(selector.fleet.calls(), made, "no survey");
    selector.workers_mut().set_ready("a", false);
    selector.select(&mut offers, &request).unwrap();
    assert_eq!(
        (selector.fleet.calls(), selector.candidates.rows.len()),
        (made + 1, 5)
    );
    offers.reset();
    selector.workers_mut().set_weight("b", 3.0).unwrap();
    selector.select(&mut offers, &request).unwrap();
    assert_eq!(
        (selector.fleet.calls(), selector.candidates.rows[0].weight),
        (made + 1, 3.0)
    );
}

#[test]
fn a_clock_that_goes_back_goes_back_in_a_slow_start() {
    let mut selector = selector(None, true);
    let profile = Profile {
        slow_start_ms: 100,
        ..Profile::default()
    };
    selector.workers_mut().remove("a");
    selector.workers_mut().add("a", profile, Millis(1_000));
    let mut offers = Offers::versioned(NAMES.map(Offer::new).to_vec(), 1);
    let weights = [1_200, 1_200, 1_050].map(|now| {
        let request = Request {
            now: Millis(now),
            ..Request::default()
        };
        selector.preview(&mut offers, &request).unwrap();
        &selector.candidates.rows[0].weight * 1000.0
    });
    assert_eq!(
        weights.map(|weight| weight.to_string()),
        ["1000", "1000", "625"]
    );
}

#[test]
fn workers_whose_rows_are_kept_stay_and_those_no_longer_offered_go() {
    let mut selector = selector(None, false);
    let offer = |names: &[String], version| {
        let list = names.iter().map(|name| Offer::new(name.as_str())).collect();
        let mut offers = Offers::versioned(list, version);
        let mut calls = 0;
        move |selector: &mut Selector| {
            offers.reset();
            let request = Request {
                now: Millis(calls * 300),
                ..Request::default()
            };
            let pick = selector.select(&mut offers, &request).unwrap();
            selector.end(
                pick.booking.unwrap(),
                Ending::Completed,
                Usage::default(),
                request.now,
            );
            calls += 1;
        }
    };
    let gone: Vec<String> = (0..200).map(|n| format!("gone{n}")).collect();
    offer(&gone, 1)(&mut selector);
    assert_eq!(selector.fleet().ids().len(), 200 + NAMES.len());
    let here: Vec<String> = (0..3).map(|n| format!("here{n}")).collect();
    let mut select = offer(&here, 2);
    let mut until = 0;
    while selector.fleet().ids().len() > 100 {
        select(&mut selector);
        until += 1;
    }
    assert!((960..=1_152).contains(&until), "after {until} calls");
    for _ in 0..2_000 {
        select(&mut selector);
    }
    let known = selector.fleet().ids();
    let known = |name: &String| known.iter().any(|(known, _)| **known == **name);
    assert!(here.iter().all(known), "offered in every call");
    selector.validate().unwrap();
}

#[test]
fn the_best_overlap_is_that_of_the_workers_that_are_left() {
    let mut selector = selector(Some(3.0), true);
    let hashes: Vec<_> = (1..=8).map(SequenceHash).collect();
    let mut select = |names: &[&str], blocks: usize, waiting: f64| {
        let report = Report {
            waiting: Some(waiting).into(),
            at: Millis(1),
            ..Report::NONE
        };
        let mut workers = selector.workers_mut();
        workers
            .set_report(&["a".into()], &report, Millis(1))
            .unwrap();
        let mut offers = Offers::new(names.iter().copied().map(Offer::new).collect());
        let request = Request {
            blocks: Some((&hashes[..blocks], Origin::Caller)),
            prompt_tokens: blocks as u64 * 16 + 1,
            now: Millis(1),
            ..Request::default()
        };
        let pick = selector.select(&mut offers, &request).unwrap();
        (names[pick.offer].to_owned(), pick.reason)
    };
    select(&["a"], 8, 0.0);
    select(&["b"], 4, 0.0);
    let picked = select(&["c", "a", "b"], 8, 9.0);
    assert_eq!(picked, ("b".to_owned(), Reason::Prefix));
}
