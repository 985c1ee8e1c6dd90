//! Whatever grows with traffic is reported: reported bytes beside allocated ones, for every rule.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail loudly"
)]

#[path = "../../../benches/core/counting.rs"]
mod counting;
#[path = "../../policy/tests/rules/mod.rs"]
mod rules;

use cachelb::selector::{
    Ending, Offer, Offers, Placements, PoolSettings, Profile, Request, Selector, Settings, Usage,
};
use cachelb_core::block_tracker::Origin;
use cachelb_core::ids::{Millis, SequenceHash};
use cachelb_policy::{Content, Learned, Rule, Session, SessionMode};

use counting::{Counting, live_bytes};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// So many that the table of blocks is about as full as it is on average.
const REQUESTS: u64 = 36_000;
/// Requests in flight at a time, half of them without a first token.
const OPEN: usize = 2_000;
const WORKERS: usize = 16;

fn selector(rule: Box<dyn Rule>) -> Selector {
    let settings = Settings {
        registered: true,
        booking_ttl_ms: u64::MAX,
        ..Settings::default()
    };
    let placements = Placements {
        max_blocks_per_worker: 20_000,
        ..Placements::default()
    };
    let pool = PoolSettings::new(rule, 16, placements);
    let mut selector = Selector::new(settings, pool);
    for at in 0..WORKERS {
        selector.workers_mut().add(
            &format!("http://worker-{at}:8000"),
            Profile::default(),
            Millis(0),
        );
    }
    selector
}

/// Requests that have little in common: prompts, sessions, lengths and workers all differ.
fn fill(selector: &mut Selector, from: u64) {
    let names = (0..WORKERS).map(|at| Offer::new(format!("http://worker-{at}:8000")));
    let mut offers = Offers::new(names.collect());
    let mut open = std::collections::VecDeque::with_capacity(OPEN + 1);
    let mut blocks = Vec::new();
    let mut tokens = Vec::new();
    for i in from..from + REQUESTS {
        let length = 4 + i % 7;
        blocks.clear();
        blocks.extend(
            (0..length).map(|at| SequenceHash(((i << 8) + at).wrapping_mul(0x9e37_79b9_7f4a_7c15))),
        );
        tokens.clear();
        tokens.extend((0..length as u32 * 16).map(|at| i as u32 ^ at.wrapping_mul(2_654_435_761)));
        let key = format!("session-{i}");
        let request = Request {
            blocks: Some((&blocks, Origin::Tokens)),
            content: Content::Tokens(&tokens),
            prompt_tokens: tokens.len() as u64,
            key: Some(key.as_bytes()),
            key_is_session: true,
            expected_output_tokens: Some(i % 300),
            number: i,
            now: Millis(i),
            ..Request::default()
        };
        offers.reset();
        let pick = selector.select(&mut offers, &request).unwrap();
        let booking = pick.booking.unwrap();
        if i % 2 == 0 {
            selector.first_token(booking, Millis(i));
        }
        open.push_back(booking);
        if open.len() > OPEN
            && let Some(oldest) = open.pop_front()
        {
            selector.end(oldest, Ending::Completed, Usage::default(), Millis(i));
        }
    }
}

/// Allocated and reported growth while a selector is filled.
fn growth(rule: Box<dyn Rule>) -> (usize, usize) {
    let mut selector = selector(rule);
    let (before, said) = (live_bytes(), selector.memory_bytes());
    fill(&mut selector, 1);
    (
        live_bytes().saturating_sub(before),
        selector.memory_bytes().saturating_sub(said),
    )
}

fn wrapped() -> Vec<(&'static str, Box<dyn Rule>)> {
    let base = |name: &str| {
        let mut all = rules::every_rule().into_iter();
        all.find(|(other, _)| *other == name).unwrap().1
    };
    let sticky = rules::sessions(SessionMode::Sticky);
    vec![
        (
            "session over prefix-affinity",
            Box::new(Session::new(sticky, Some(base("prefix-affinity")))),
        ),
        (
            "learned over exploit-explore",
            Box::new(Learned::new(rules::learning(), base("exploit-explore"))),
        ),
    ]
}

#[test]
fn memory_that_grows_is_reported() {
    let mut off = Vec::new();
    for (name, rule) in rules::every_rule().into_iter().chain(wrapped()) {
        let (allocated, reported) = growth(rule);
        let ratio = reported as f64 / allocated as f64;
        println!("{name}: {allocated} bytes allocated, {reported} reported, {ratio:.2}");
        // Open requests, rows of decisions and samples have counts that bound them: some megabytes that are not reported.
        if reported > allocated + allocated / 8 || allocated > reported + REQUESTS as usize * 150 {
            off.push(format!(
                "{name}: {allocated} allocated, {reported} reported"
            ));
        }
    }
    assert!(off.is_empty(), "{off:#?}");
}
