//! The real router in simulated time.

use std::sync::Mutex;
use std::thread;

use cachelb::selector::{
    Facts, Millis, NamespaceKey, Placements, PoolSettings, Selector, Settings, assemble,
};
use cachelb::{About, Edit, Registration, Registry};
use cachelb_policy::{Rule, Setup, named};

use super::pairs::{at_once, split};
use super::run::{fleet, workload};
use super::*;

pub const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A router of four workers.
pub struct Front {
    pub registry: Registry<()>,
    pub selector: Mutex<Selector>,
}

impl Front {
    pub fn new(rule: Box<dyn Rule>) -> Self {
        Self::of(rule, 16, NAMES.map(|_| About::default()), Facts::default())
    }

    /// Workers as they are registered, whose engines state `facts`, and an index with blocks of so many tokens.
    pub fn of(rule: Box<dyn Rule>, block_size: u32, about: [About; 4], facts: Facts) -> Self {
        let settings = Settings {
            registered: true,
            seed: 3,
            ..Settings::default()
        };
        let pool = PoolSettings::new(rule, block_size, Placements::default());
        let parts = assemble("kv-aware", 3, NamespaceKey::of_process()).unwrap();
        let front = Self {
            registry: Registry::new(vec![parts.reader], Vec::new()),
            selector: Mutex::new(Selector::new(settings, pool)),
        };
        for (name, about) in NAMES.into_iter().zip(about) {
            let mut edit = front.edit();
            let worker = Registration {
                object: (),
                key: name.into(),
                raw: name.into(),
                is_key: true,
                about,
            };
            edit.register(worker).unwrap();
            edit.learn(name, facts).unwrap();
        }
        front
    }

    pub fn edit(&self) -> Edit<'_, (), Mutex<Selector>> {
        (self.registry).edit(&self.selector, Millis(0), thread::yield_now)
    }

    pub fn routed<'a>(
        &'a self,
        workload: &'a Workload,
        workers: &[WorkerSettings],
    ) -> Routed<'a, (), Mutex<Selector>> {
        let fleet = (&NAMES[..workers.len()], workers);
        let router = (&self.registry, &self.selector);
        Routed::new(router, workload, fleet, Keys::default()).unwrap()
    }

    /// The selector behind it, recounted.
    pub fn into_selector(self) -> Selector {
        let selector = self.selector.into_inner().unwrap();
        selector.validate().unwrap();
        selector
    }
}

/// The rule of a policy with its defaults.
pub fn rule(name: &str) -> Box<dyn Rule> {
    rule_of(name, 16)
}

/// As `rule`, for an index with blocks of `block_size` tokens.
pub fn rule_of(name: &str, block_size: u32) -> Box<dyn Rule> {
    let policy = named(name).unwrap();
    let options = (policy.declared)().into_iter().map(|option| option.default);
    let setup = Setup {
        own_seed: None,
        seed: 3,
        replicas: 1.0,
        block_size,
    };
    let options = (policy.read)(options.collect()).unwrap();
    options.ruled(&setup).unwrap().rule
}

/// Prompts of forty-one families in turn, two seconds apart: going round meets another worker each time.
pub fn families() -> Workload {
    let rows = (0..200_u32).map(|i| (f64::from(i) * 2.0, 128, 4, u64::from(i % 41)));
    workload(&rows.collect::<Vec<_>>())
}

fn outcomes(name: &str, options: &Options) -> (Outcomes, Selector) {
    let w = families();
    let front = Front::new(rule(name));
    let workers = fleet(NAMES.len(), 128);
    let mut gateway = front.routed(&w, &workers);
    let outcomes = run(&w, &workers, &mut gateway, options, |_| true).unwrap();
    (outcomes, front.into_selector())
}

fn cached(outcomes: &Outcomes) -> u32 {
    outcomes.cached_tokens.iter().sum()
}

#[test]
fn the_real_policies_route_and_leave_nothing_behind() {
    let (round, _) = outcomes("round-robin", &Options::default());
    for name in ["cache-aware", "kv-aware"] {
        let (aware, selector) = outcomes(name, &Options::default());
        let [aware, round] = [&aware, &round].map(cached);
        assert!(aware > 3 * round / 2, "{aware} of {round}");
        for (_, id) in selector.fleet().ids() {
            assert_eq!(selector.book().loads.inflight(id), 0);
        }
    }
}

#[test]
fn with_events_at_once_what_is_predicted_is_what_is_cached() {
    let (out, _) = outcomes("kv-aware", &at_once());
    assert_eq!(out.predicted_tokens, out.cached_tokens);
    assert!(cached(&out) > 0);
}

#[test]
fn pairs_leave_nothing_behind_whatever_fails() {
    let mut w = families();
    let patience = [2.5, f64::NAN, f64::NAN].into_iter().cycle();
    w.abort = patience.take(w.len()).collect();
    let workers = split(2, 2, 128);
    let about = [0, 1, 2, 3].map(|at: usize| About {
        role: workers[at].role as u8,
        ..About::default()
    });
    let front = Front::of(rule("kv-aware"), 16, about, Facts::default());
    let mut gateway = front.routed(&w, &workers);
    let faults = [
        (50.0, 1, Incident::Crash),
        (60.0, 1, Incident::Join),
        (90.5, 2, Incident::Crash),
        (99.0, 2, Incident::Join),
    ];
    let options = Options {
        event_loss: 0.2,
        incidents: faults.to_vec(),
        ..Options::default()
    };
    let out = run(&w, &workers, &mut gateway, &options, |_| true).unwrap();
    let selector = front.into_selector();
    for (_, id) in selector.fleet().ids() {
        assert_eq!(selector.book().loads.inflight(id), 0);
    }
    let count = |wanted| out.status.iter().filter(|s| **s == wanted).count();
    let (finished, aborted) = (count(Status::Finished), count(Status::Aborted));
    assert!(finished > 100 && aborted > 50, "{finished}, {aborted}");
    assert!(finished + aborted > 190);
    let halves = out.worker.iter().zip(&out.prefill_worker);
    assert!({ halves }.all(|(decode, prefill)| *decode < 2 && *prefill >= 2));
    assert!(cached(&out) > 0);
}

#[test]
fn a_worker_that_is_not_registered_is_named() {
    let w = families();
    let front = Front::new(rule("cache-aware"));
    let before = (&["z"][..], &fleet(1, 128)[..]);
    let router = (&front.registry, &front.selector);
    let error = Routed::new(router, &w, before, Keys::default()).unwrap_err();
    assert_eq!(error, cachelb::Error::UnknownWorker("z".to_owned()));
}
