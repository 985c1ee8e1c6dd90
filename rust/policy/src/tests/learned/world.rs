//! Eight workers with a queue each, in steps of time: enough of an engine that a wrong pick costs something.

use std::collections::VecDeque;
use std::sync::Arc;

use cachelb_core::ids::Millis;
use cachelb_core::rng::Rng;
use cachelb_learned::{COLUMNS, Model, Row, Sample};

use crate::testing::Calls;

use super::{GPU, booking, known, schedule};
use crate::testing::{Scene, row};
use crate::{Ended, Learned, Reason, Rule};

const WORKERS: usize = 8;
/// A request takes a worker that long, times its slowness.
const SERVICE_MS: u64 = 100;
/// Time between two requests: the workers are busy three quarters of the time.
const EVERY_MS: u64 = 17;

/// Parts of the decisions of a run.
#[derive(Debug, Clone, Copy)]
pub struct Shares {
    pub learned: f64,
    pub drift: f64,
}

/// The workers, the rule between them and the requests.
#[derive(Debug)]
pub struct World {
    rule: Learned,
    rng: Rng,
    now: u64,
    requests: u32,
    /// Times at which requests will be answered.
    queues: Vec<VecDeque<(u64, u32)>>,
    service_ms: u64,
}

/// A model of the cost by queue length, passed through `change`.
pub fn model(change: fn(f32) -> f32) -> Arc<Model> {
    let mut rng = Rng::new(3);
    let samples: Vec<Sample> = (0..4_000)
        .map(|_| {
            let queue = rng.below(60);
            let mut values = [0.0; COLUMNS];
            values[2] = queue as f32;
            values[6] = 320.0;
            values[7] = 320.0;
            values[8] = queue as f32;
            let cost = (queue as f32 + 0.5 + rng.unit() as f32) * SERVICE_MS as f32 / 1e3;
            Sample {
                row: Row { values, gpu: 0 },
                cost: change(cost),
            }
        })
        .collect();
    let gpus = [GPU.to_owned()];
    let fitted = Model::fit(&samples, &gpus, &schedule().fitting, 1, 1, &false.into());
    Arc::new(fitted.unwrap().unwrap())
}

impl World {
    pub fn new(rule: Learned, seed: u64) -> Self {
        Self {
            rule,
            rng: Rng::new(seed),
            now: 0,
            requests: 0,
            queues: vec![VecDeque::new(); WORKERS],
            service_ms: SERVICE_MS,
        }
    }

    /// From now on every request takes so many times as long, and half of the workers are gone for that.
    pub fn slow_down(&mut self, times: u64) {
        self.service_ms *= times;
    }

    fn answer(&mut self) {
        for queue in &mut self.queues {
            while queue.front().is_some_and(|(at, _)| *at <= self.now) {
                let Some((at, request)) = queue.pop_front() else {
                    break;
                };
                self.rule.proven(booking(request), Some(Millis(at)));
                self.rule.ended(booking(request), Ended::Served);
            }
        }
    }

    fn scene(&self) -> Scene {
        let queue = |i: usize| self.queues[i].len() as u32;
        let rows = (0..WORKERS).map(|i| row(i as u32, 0, queue(i))).collect();
        let mut scene = Scene::of(rows).blocks(Some(20));
        for (i, load) in scene.loads.iter_mut().enumerate() {
            load.report.waiting = known(f64::from(queue(i)));
            load.report.at = Millis(self.now);
        }
        scene.now = Millis(self.now);
        scene
    }

    /// Routes so many requests.
    pub fn run(&mut self, requests: u32) -> Shares {
        let (mut learned, mut drift) = (0_u32, 0_u32);
        for _ in 0..requests {
            // Slower workers get fewer requests, so that their queues stay.
            self.now += EVERY_MS * self.service_ms / SERVICE_MS;
            self.answer();
            let scene = self.scene();
            let view = scene.view();
            let choice = self.rule.choose(&view, &mut self.rng);
            self.requests += 1;
            self.rule.settle(&view, choice, booking(self.requests));
            let queue = &mut self.queues[choice.row];
            let begin = queue.back().map_or(self.now, |(at, _)| (*at).max(self.now));
            let jitter = 0.5 + self.rng.unit();
            #[expect(clippy::cast_sign_loss, reason = "half of it, or more")]
            let took = (self.service_ms as f64 * jitter) as u64;
            queue.push_back((begin + took, self.requests));
            learned += u32::from(matches!(
                choice.reason,
                Reason::Learned | Reason::LearnedTie | Reason::KFilter
            ));
            drift += u32::from(choice.reason == Reason::ModelDrift);
        }
        let share = |count: u32| f64::from(count) / f64::from(requests);
        Shares {
            learned: share(learned),
            drift: share(drift),
        }
    }
}
