//! Notices of answers and loads to gateways, late or in part, and decisions that take time.

use std::time::Duration;

use super::run::{InTurn, delayed, done, fleet, workload};
use super::*;

#[test]
fn late_notices_of_first_tokens_hold_up_those_behind_them_and_no_client() {
    let w = workload(&[(0.0, 32, 40, 1)]);
    let late = Options {
        first_token_delay: 20.0,
        ..delayed(0.25)
    };
    let (before, told) = done(&w, &fleet(1, 64), &delayed(0.25));
    let expected = [
        ("first token", 1.5),
        ("tokens", 17.5),
        ("tokens", 33.5),
        ("tokens", 40.5),
        ("finished", 40.5),
    ];
    assert_eq!(told.heard, expected);
    let (after, told) = done(&w, &fleet(1, 64), &late);
    let expected = expected.map(|(what, at)| (what, at.max(21.5)));
    assert_eq!(told.heard, expected);
    assert_eq!(after.first_token, before.first_token);
    assert_eq!(after.finish, before.finish);
}

#[test]
fn an_end_that_is_heard_late_is_heard_after_the_client_has_it() {
    let w = workload(&[(0.0, 32, 3, 1)]);
    let options = Options {
        first_token_delay: 9.0,
        ..delayed(0.25)
    };
    let (out, told) = done(&w, &fleet(1, 64), &options);
    assert_eq!((out.first_token[0], out.finish[0]), (1.5, 3.5));
    let expected = ["first token", "tokens", "finished"].map(|what| (what, 10.5));
    assert_eq!(told.heard, expected);
}

#[test]
fn reports_and_answers_leave_out_what_engines_do_not_say() {
    let w = workload(&[(0.0, 32, 3, 1)]);
    for known in [true, false] {
        let queued = Options {
            report_queued_tokens: known,
            ..Options::default()
        };
        let cached = Options {
            report_cached_tokens: known,
            ..Options::default()
        };
        let (_, told) = done(&w, &fleet(1, 64), &queued);
        assert_eq!(told.known, [[known].into(), [true].into()]);
        let (out, told) = done(&w, &fleet(1, 64), &cached);
        assert_eq!(told.known, [[true].into(), [known].into()]);
        assert_eq!(out.status, [Status::Finished]);
    }
}

#[test]
fn decisions_of_one_gateway_queue() {
    let w = workload(&[(0.0, 16, 1, 1), (0.0, 16, 1, 2), (9.0, 16, 1, 3)]);
    let options = Options {
        decision: 2.0,
        ..delayed(0.0)
    };
    let (out, _) = done(&w, &fleet(3, 64), &options);
    assert_eq!(out.first_token, [3.0, 5.0, 12.0]);
    assert_eq!(out.arrival, [0.0, 0.0, 9.0]);
}

#[test]
fn two_gateways_decide_at_the_same_time() {
    let w = workload(&[(0.0, 16, 1, 1), (0.0, 16, 1, 2), (0.0, 16, 1, 3)]);
    let options = Options {
        decision: 2.0,
        ..delayed(0.0)
    };
    let gateways = vec![InTurn::new(3), InTurn::new(3)];
    let mut gateway = Several::new(gateways, &[0, 1, 0], &|| Duration::ZERO, None);
    let out = run(&w, &fleet(3, 64), &mut gateway, &options, |_| true).unwrap();
    assert_eq!(out.first_token[0].to_bits(), 3.0_f64.to_bits());
    assert_eq!(out.first_token[2].to_bits(), 5.0_f64.to_bits());
    assert!(out.first_token[1] < 5.0, "{:?}", out.first_token);
}
