//! Measured speeds against stated ones.

use cachelb_core::ids::{Millis, WorkerId};
use cachelb_core::load::Work;
use cachelb_policy::RoundRobin;
use proptest::prelude::*;

use crate::Selector;
use crate::fleet::worker::Profile;
use crate::selector::{News, Placements, PoolSettings, Settings};
use crate::tests::with_workers;

/// Workers of one label that compute so many tokens per millisecond.
struct Bench {
    selector: Selector,
    workers: Vec<(WorkerId, f64)>,
    now: u64,
}

fn labelled(gpu: &str) -> Profile {
    Profile {
        gpu: Some(gpu.into()),
        ..Profile::default()
    }
}

impl Bench {
    fn new(speeds: &[f64]) -> Self {
        let settings = Settings {
            registered: true,
            max_report_age_ms: 2_000,
            ..Settings::default()
        };
        let rule = Box::new(RoundRobin::new(true));
        let pool = PoolSettings::new(rule, 16, Placements::default());
        let mut selector = with_workers(settings, pool, &[]);
        let mut add = |(at, speed): (usize, &f64)| {
            let profile = labelled("h100");
            let id = (selector.workers_mut()).add(&at.to_string(), profile, Millis(0));
            (id, *speed)
        };
        let workers = speeds.iter().enumerate().map(&mut add).collect();
        Self {
            selector,
            workers,
            now: 0,
        }
    }

    /// A prompt to each worker.
    #[expect(clippy::cast_sign_loss, reason = "speeds are positive")]
    fn prompts(&mut self, tokens: u64) {
        for (id, speed) in self.workers.clone() {
            let work = Work {
                prompt_tokens: tokens,
                prefill_tokens: tokens,
                estimate_ms: 0.0,
                block_size: 16,
            };
            let book = &mut self.selector.bookings.book;
            let booking = book.book(id, work, Millis(self.now)).unwrap();
            let at = Millis(self.now + (tokens as f64 / speed) as u64);
            book.first_token(booking, at);
            book.close(booking);
            self.selector.check_speed(id);
            self.now += 10_000;
        }
    }

    fn learned(&self, at: usize) -> Vec<(&'static str, f64)> {
        self.selector.contradictions(self.workers[at].0).collect()
    }

    fn kind(&self, at: usize) -> u32 {
        self.selector
            .fleet
            .member(self.workers[at].0)
            .unwrap()
            .kind()
    }
}

#[test]
fn a_worker_of_another_speed_than_its_device_is_of_a_kind_of_its_own_until_it_is_not() {
    let mut bench = Bench::new(&[10.0, 10.0, 4.0, 10.0, 25.0]);
    (0..127).for_each(|_| bench.prompts(2_000));
    assert!((0..5).all(|at| bench.learned(at).is_empty()));
    bench.prompts(2_000);
    let found: Vec<_> = [2, 4].map(|at| bench.learned(at)[0]).to_vec();
    assert!(found.iter().all(|(fact, _)| *fact == "gpu"));
    assert!((found[0].1 - 0.4).abs() < 0.01 && (found[1].1 - 2.5).abs() < 0.05);
    assert_eq!(bench.kind(0), bench.kind(1));
    assert!(bench.kind(2) != bench.kind(0) && bench.kind(4) != bench.kind(0));
    assert!(bench.kind(2) != bench.kind(4));
    let mut news = bench.selector.take_news();
    assert_eq!(news.len(), 2);
    assert_eq!(
        news.remove(0),
        ("2".into(), News::Contradiction("gpu", 1.0, found[0].1))
    );
    (0..400).for_each(|_| bench.prompts(2_000));
    assert_eq!(bench.selector.take_news(), []);

    bench.workers[2].1 = 10.0;
    (0..400).for_each(|_| bench.prompts(2_000));
    assert_eq!(bench.learned(2), []);
    assert_eq!(bench.kind(2), bench.kind(0));
    let mut workers = bench.selector.workers_mut();
    workers.add("4", labelled("h200"), Millis(bench.now));
    assert_eq!(bench.learned(4), []);
}

#[test]
fn of_two_workers_either_may_be_the_wrong_one() {
    let mut bench = Bench::new(&[10.0, 4.0]);
    (0..400).for_each(|_| bench.prompts(2_000));
    assert!((0..2).all(|at| bench.learned(at).is_empty()));
}

proptest! {
    /// Whatever the prompts: workers within 1.3 times of each other are never found wrong, and one that is 3 times off is.
    #[test]
    fn one_that_is_far_off_is_found_and_no_other(
        jitter in prop::collection::vec(1.0_f64..1.3, 3..8),
        far in prop_oneof![Just(1.0), Just(3.0), Just(1.0 / 3.0)],
        lengths in prop::collection::vec(500_u64..40_000, 300..400),
    ) {
        let mut speeds: Vec<f64> = jitter.iter().map(|jitter| 8.0 * jitter).collect();
        speeds[0] *= far;
        let mut bench = Bench::new(&speeds);
        for length in lengths {
            bench.prompts(length);
        }
        for at in 0..speeds.len() {
            let is_wrong = at == 0 && (far - 1.0).abs() > 0.1;
            let learned = bench.learned(at).len();
            prop_assert_eq!(learned, usize::from(is_wrong), "{} of {:?}", at, speeds);
        }
        bench.selector.validate().unwrap();
    }
}
