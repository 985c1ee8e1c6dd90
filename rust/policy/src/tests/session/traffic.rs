//! Any traffic keeps the table's counts and orders true.

use cachelb_core::load::BookingId;
use proptest::prelude::*;

use crate::testing::Calls;

use super::{Desk, MANUAL, STICKY, at};
use crate::{Ended, Sessions};

#[derive(Debug, Clone)]
enum Step {
    Route(u8, Vec<u32>),
    Proven(prop::sample::Index),
    Ended(prop::sample::Index, bool),
    Forget(u32),
    Finish(u8),
    EndAll,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let workers = prop::sample::subsequence(vec![0, 1, 2, 3, 4], 1..=5);
    prop_oneof![
        6 => (0_u8..12, workers).prop_map(|(key, workers)| Step::Route(key, workers)),
        3 => any::<prop::sample::Index>().prop_map(Step::Proven),
        4 => any::<(prop::sample::Index, bool)>().prop_map(|(i, served)| Step::Ended(i, served)),
        1 => (0_u32..5).prop_map(Step::Forget),
        1 => (0_u8..12).prop_map(Step::Finish),
        1 => (0_u64..80).prop_map(Step::Wait),
        1 => Just(Step::EndAll),
    ]
}

proptest! {
    #[test]
    fn counts_and_orders_stay_true_under_any_traffic(
        steps in prop::collection::vec(step(), 1..200),
        manual: bool,
        hard: bool,
    ) {
        let mut desk = Desk::new(Sessions {
            hard,
            idle_ms: 100,
            max_sessions: 8,
            ..if manual { MANUAL } else { STICKY }
        });
        let (mut open, mut now): (Vec<BookingId>, u64) = (Vec::new(), 0);
        // Registration orders rise when a worker leaves and comes back.
        let mut orders: [u64; 5] = [0, 1, 2, 3, 4];
        for step in steps {
            match step {
                Step::Route(key, workers) => {
                    let mut scene = at(&key.to_string(), &workers, now);
                    for row in &mut scene.rows {
                        row.order = orders[row.offer as usize];
                    }
                    let choice = scene.pick(&desk.rule, 1);
                    prop_assert_eq!(choice, scene.pick(&desk.rule, 1));
                    prop_assert!(hard || !choice.refused);
                    if !choice.refused {
                        open.push(desk.route(&scene).booking);
                    }
                }
                Step::Proven(i) if !open.is_empty() => desk.rule.proven(*i.get(&open), None),
                Step::Ended(i, served) if !open.is_empty() => {
                    let booking = open.swap_remove(i.index(open.len()));
                    desk.rule.ended(booking, if served { Ended::Served } else { Ended::Failed });
                }
                Step::Forget(worker) => {
                    let worker = worker as usize;
                    desk.rule.forget(orders[worker]);
                    orders[worker] += 5;
                }
                Step::Finish(key) => {
                    desk.rule.finish_session(key.to_string().as_bytes());
                }
                Step::EndAll => {
                    desk.rule.ended_all();
                    open.clear();
                }
                Step::Wait(ms) => now += ms,
                Step::Proven(_) | Step::Ended(..) => {}
            }
            desk.validate();
        }
        for booking in open {
            desk.rule.ended(booking, Ended::Failed);
        }
        desk.validate();
        prop_assert_eq!(desk.rule.bindings().open(), 0);
    }
}
