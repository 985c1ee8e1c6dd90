//! Random fleets, workloads and faults; everything is recounted after every event.

use proptest::prelude::*;

use super::pairs::split;
use super::peers::share;
use super::run::{done, fleet, workload};
use super::*;

proptest! {
    /// Every request ends once, and the same run is the same.
    #[test]
    fn every_request_ends_once_and_runs_repeat(
        rows in prop::collection::vec((0.0_f64..40.0, 1_u32..200, 1_u32..20, 0_u64..5), 1..40),
        patience in prop::collection::vec(prop::option::of(0.0_f64..30.0), 40),
        follow in prop::collection::vec(prop::option::weighted(0.3, 0_i64..40), 40),
        (decode, prefill) in (1_usize..5, 0_usize..3),
        kv_blocks in 16_u32..64,
        max_num_seqs in 1_usize..9,
        incidents in prop::collection::vec((0.0_f64..60.0, 0_u32..7, 0_u8..3), 0..6),
        lag in 0.0_f64..2.0,
        event_loss in prop::sample::select(vec![0.0, 0.1, 0.6]),
        replay_delay in prop::option::of(0.0_f64..3.0),
        step_end in any::<bool>(),
        first_token_delay in prop::sample::select(vec![0.0, 0.5, 7.0]),
        decision in prop::sample::select(vec![0.0, 0.5]),
        tier_blocks in prop::option::of(1_u32..64),
    ) {
        let mut w = workload(&rows);
        let n = w.len();
        w.abort = patience[..n].iter().map(|p| p.unwrap_or(f64::NAN)).collect();
        for (i, at) in (0..n).zip(0_i64..) {
            let parent = follow[i];
            if let Some(parent) = parent.filter(|parent| *parent < at) {
                (w.arrival[i], w.parent[i], w.think[i]) = (f64::NAN, parent, 0.5);
            }
        }
        let mut workers = if prefill > 0 {
            split(decode, prefill, kv_blocks)
        } else {
            fleet(decode, kv_blocks)
        };
        for worker in &mut workers {
            worker.engine.max_num_seqs = max_num_seqs;
            worker.engine.commit = if step_end { Commit::StepEnd } else { Commit::Schedule };
            worker.slowdown = vec![(10.0, 3.0), (20.0, 1.0)];
            if let Some(blocks) = tier_blocks {
                share(worker, blocks);
            }
        }
        let what = |n: u8| [Incident::Crash, Incident::Join, Incident::Drain][usize::from(n)];
        let incidents = incidents.into_iter().filter(|(_, at, _)| (*at as usize) < workers.len());
        let options = Options {
            event_lag: lag,
            net_delay: lag / 10.0,
            event_loss,
            replay_delay,
            first_token_delay,
            decision,
            incidents: incidents.map(|(at, worker, n)| (at, worker, what(n))).collect(),
            ..Options::default()
        };
        let (first, _) = done(&w, &workers, &options);
        let (second, _) = done(&w, &workers, &options);
        prop_assert!(first.status.iter().all(|status| *status != Status::Unfinished));
        for i in 0..n {
            match first.status[i] {
                Status::Finished => {
                    prop_assert!(first.arrival[i] <= first.first_token[i]);
                    prop_assert!(first.first_token[i] <= first.finish[i]);
                }
                Status::Aborted => prop_assert!((first.finish[i] - first.arrival[i] - w.abort[i]).abs() < 1e-9),
                _ => {}
            }
            prop_assert!(first.cached_tokens[i] < w.prompt_tokens[i]);
        }
        prop_assert_eq!(format!("{first:?}"), format!("{second:?}"));
    }
}
