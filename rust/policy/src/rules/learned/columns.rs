//! The input of a model: one row of numbers per worker.

use cachelb_core::rng::Rng;
use cachelb_learned::Row;

use crate::common::slots::ByOrder;
use crate::rule::view::{Candidate, View};

/// Names of devices known; more are taken for unknown.
const MAX_GPUS: usize = 64;

/// Which device every worker has.
#[derive(Debug, Clone, Default)]
pub(super) struct Gpus {
    /// In order of first report: a model names those it knows by position.
    pub names: Vec<String>,
    workers: ByOrder<u16>,
}

impl Gpus {
    pub fn new(names: &[String]) -> Self {
        Self {
            names: names.into(),
            workers: ByOrder::default(),
        }
    }

    pub fn describe(&mut self, order: u64, gpu: Option<&str>) {
        let Some(gpu) = gpu else {
            self.workers.remove(&order);
            return;
        };
        let known = self.names.iter().position(|name| name == gpu);
        let at = known.or_else(|| {
            (self.names.len() < MAX_GPUS).then(|| {
                self.names.push(gpu.into());
                self.names.len() - 1
            })
        });
        self.workers
            .insert(order, at.map_or(Row::NO_GPU, |at| at as u16));
    }

    pub fn forget(&mut self, order: u64) {
        self.workers.remove(&order);
    }

    fn of(&self, order: u64) -> u16 {
        self.workers.get(&order).copied().unwrap_or(Row::NO_GPU)
    }
}

/// The features of the request on a worker. Values that the worker does not report are 0; bookings made here are known
/// for every worker.
pub(super) fn row(view: &View<'_>, candidate: &Candidate, gpus: &Gpus) -> Row {
    let (load, report) = (view.load(candidate), view.report(candidate));
    let prompt = view.prompt_tokens as f64;
    let hit = if prompt > 0.0 {
        candidate.matched_tokens / prompt
    } else {
        0.0
    };
    let values = [
        hit,
        report.running.get().unwrap_or(0.0),
        report.waiting.get().unwrap_or(0.0),
        candidate.pending_prefill_tokens as f64,
        (load.decode_blocks * u64::from(view.block_size)) as f64,
        report.kv_usage.get().unwrap_or(0.0),
        prompt,
        view.uncached_tokens(candidate),
        f64::from(candidate.inflight),
    ];
    Row {
        values: values.map(|value| value as f32),
        gpu: gpus.of(candidate.order),
    }
}

/// Rows to be scored where there are too many to score all: those in `wanted`, those that hold most of the prompt, and a
/// sample of the others, `most` in all or as many as are wanted. Rising.
pub(super) fn narrow(view: &View<'_>, wanted: &[usize], most: usize, rng: &mut Rng) -> Vec<u32> {
    let n = view.rows.len();
    let mut taken = vec![false; n];
    let mut left = most;
    let mut take = |row: usize| {
        if !taken[row] && left > 0 {
            taken[row] = true;
            left -= 1;
        }
    };
    wanted.iter().copied().for_each(&mut take);
    let overlap = |row: &u32| view.rows[*row as usize].overlap;
    let mut holders: Vec<u32> = (0..n as u32).filter(|row| overlap(row) > 0).collect();
    let share = (most / 4).max(1);
    if holders.len() > share {
        holders.select_nth_unstable_by_key(share - 1, |row| std::cmp::Reverse(overlap(row)));
        holders.truncate(share);
    }
    for row in holders {
        take(row as usize);
    }
    let mut others: Vec<u32> = (0..n as u32).filter(|row| !taken[*row as usize]).collect();
    // A partial shuffle: `left` draws without replacement.
    for i in 0..left.min(others.len()) {
        let drawn = i + rng.below(others.len() - i);
        others.swap(i, drawn);
        taken[others[i] as usize] = true;
    }
    (0..n as u32).filter(|row| taken[*row as usize]).collect()
}

#[cfg(test)]
mod tests {
    use cachelb_core::load::{Known, Report};

    use super::*;
    use crate::testing::Scene;

    #[test]
    fn a_row_is_the_report_and_the_book() {
        let mut scene = Scene::new(&[(3, 2), (0, 0)]).blocks(Some(10));
        scene.rows[0].pending_prefill_tokens = 77;
        scene.loads[0].decode_blocks = 5;
        let known = |value| Known::from(Some(value));
        scene.loads[0].report = Report {
            running: known(4.0),
            waiting: known(1.0),
            kv_usage: known(0.5),
            ..Report::NONE
        };
        let mut gpus = Gpus::default();
        gpus.describe(0, Some("a30"));
        let expected = [0.3, 4.0, 1.0, 77.0, 80.0, 0.5, 160.0, 112.0, 2.0];
        let got = row(&scene.view(), &scene.rows[0], &gpus);
        assert_eq!((got.values, got.gpu), (expected, 0));
        let other = row(&scene.view(), &scene.rows[1], &gpus);
        let expected = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 160.0, 160.0, 0.0];
        assert_eq!((other.values, other.gpu), (expected, Row::NO_GPU));
    }

    #[test]
    fn reports_that_are_too_old_say_nothing() {
        let mut scene = Scene::new(&[(0, 0)]).blocks(Some(1));
        scene.loads[0].report.running = Known::from(Some(4.0));
        scene.now = cachelb_core::ids::Millis(2_001);
        let got = row(&scene.view(), &scene.rows[0], &Gpus::default());
        assert!(got.values[1].abs() < f32::EPSILON);
    }

    #[test]
    fn devices_are_named_by_the_order_they_were_heard_of() {
        let mut gpus = Gpus::new(&["l20".into()]);
        for (order, gpu) in [(1, "a30"), (2, "l20"), (3, "a30")] {
            gpus.describe(order, Some(gpu));
        }
        let of = |gpus: &Gpus| [1, 2, 3, 4].map(|order| gpus.of(order));
        assert_eq!(of(&gpus), [1, 0, 1, Row::NO_GPU]);
        gpus.describe(1, None);
        gpus.forget(2);
        let none = Row::NO_GPU;
        assert_eq!(of(&gpus), [none, none, 1, none]);
        for i in 0..1_000 {
            gpus.describe(i, Some(&format!("gpu{i}")));
        }
        assert_eq!((gpus.names.len(), gpus.of(999)), (MAX_GPUS, Row::NO_GPU));
    }

    #[test]
    fn of_many_rows_holders_and_wanted_ones_are_scored_and_a_sample_of_the_others() {
        let mut pairs = vec![(0, 0); 1_000];
        pairs[500] = (9, 0);
        pairs[501] = (8, 0);
        let scene = Scene::new(&pairs).blocks(Some(10));
        let mut hits = vec![0_u32; 1_000];
        let mut rng = Rng::new(1);
        for _ in 0..200 {
            let rows = narrow(&scene.view(), &[7, 7, 3], 40, &mut rng);
            assert_eq!(rows.len(), 40);
            assert!(rows.is_sorted_by(|a, b| a < b));
            for row in rows {
                hits[row as usize] += 1;
            }
        }
        assert_eq!([3, 7, 500, 501].map(|row| hits[row]), [200; 4]);
        assert!(hits.iter().filter(|hit| **hit > 0).count() > 990);
    }

    #[test]
    fn holders_of_most_come_before_other_holders() {
        let pairs: Vec<(u32, u32)> = (0..300).map(|i| (i % 100, 0)).collect();
        let scene = Scene::new(&pairs).blocks(Some(100));
        let rows = narrow(&scene.view(), &[], 12, &mut Rng::new(1));
        assert_eq!(rows.len(), 12);
        assert!([99, 199, 299].iter().all(|row| rows.contains(row)));
    }
}
