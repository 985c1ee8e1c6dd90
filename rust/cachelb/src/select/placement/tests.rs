//! Workers with events: expected blocks, confirmed blocks, and the tokens a request saves there.

use crate::Selector;
use crate::selector::{
    Eligibility, Ending, Facts, Feed, Held, Pick, Placements, PoolSettings, Profile, Request, Seen,
    Settings, Usage,
};
use crate::tests::{offers, with_workers};
use cachelb_core::block_tracker::Origin;
use cachelb_core::ids::{Medium, Millis, SequenceHash, WorkerId};
use cachelb_core::load::BookingId;
use cachelb_events::{FeedState, Heard, Worth};
use cachelb_policy::{KvAware, OverlapCost, Reason, Rule, Seconds};

#[cfg(feature = "peers")]
mod links;
mod lossy;
#[cfg(feature = "peers")]
mod peers;
mod shared_cache;
mod shared_groups;

const RULE: KvAware = KvAware::DEFAULT;

const NAMES: [&str; 3] = ["a", "b", "c"];

struct Fleet {
    selector: Selector,
    ids: [WorkerId; 3],
}

fn prompt(from: u64, blocks: u64) -> Vec<SequenceHash> {
    (from..from + blocks)
        .map(|i| SequenceHash(i * 7 + 1))
        .collect()
}

fn request(blocks: (&[SequenceHash], Origin), prompt_tokens: u64, now: u64) -> Request<'_> {
    Request {
        blocks: Some(blocks),
        prompt_tokens,
        now: Millis(now),
        sends_source: true,
        ..Request::default()
    }
}

/// An engine with so many blocks of 16 tokens.
fn small(kv_blocks: u32) -> Profile {
    Profile {
        engine: Facts {
            kv_blocks: Some(kv_blocks),
            block_size: Some(16),
            ..Facts::default()
        },
        ..Profile::default()
    }
}

impl Fleet {
    fn new(rule: impl Rule + 'static) -> Self {
        let settings = Settings {
            registered: true,
            max_memory_bytes: Some(1 << 20),
            ..Settings::default()
        };
        let placements = Placements {
            max_blocks_per_worker: 10_000,
            ..Placements::default()
        };
        let pool = PoolSettings::new(Box::new(rule), 16, placements);
        let selector = with_workers(settings, pool, &NAMES);
        let ids = NAMES.map(|name| selector.fleet().find(name).unwrap());
        let mut fleet = Self { selector, ids };
        for worker in 0..3 {
            fleet.trust(worker, FeedState::Live, 16);
        }
        fleet
    }

    fn feed(&mut self, worker: usize) -> Feed<'_> {
        self.selector.feed(self.ids[worker]).unwrap()
    }

    fn trust(&mut self, worker: usize, state: FeedState, engine_block_size: u32) {
        self.feed(worker).set_trust(Worth::Believed {
            state,
            engine_block_size: Some(engine_block_size),
        });
    }

    fn select(&mut self, blocks: &[SequenceHash], now: u64) -> Pick {
        self.choose((blocks, Origin::Tokens), now, false)
    }

    fn select_text(&mut self, blocks: &[SequenceHash], now: u64) -> Pick {
        self.choose((blocks, Origin::Text), now, false)
    }

    fn look(&mut self, blocks: &[SequenceHash], now: u64) -> Pick {
        self.choose((blocks, Origin::Tokens), now, true)
    }

    fn choose(&mut self, prompt: (&[SequenceHash], Origin), now: u64, dry_run: bool) -> Pick {
        let tokens = prompt.0.len() as u64 * 16 + 1;
        let request = request(prompt, tokens, now);
        let pick = if dry_run {
            self.preview(&request).0
        } else {
            self.selector.select(&mut offers(&NAMES), &request).unwrap()
        };
        self.selector.validate().unwrap();
        pick
    }

    fn preview(&mut self, request: &Request<'_>) -> (Pick, Vec<Seen>) {
        self.selector.preview(&mut offers(&NAMES), request).unwrap()
    }

    /// An event: stored in `medium` is what of `path` is behind its first `from` blocks.
    fn announce(
        &mut self,
        worker: usize,
        path: &[SequenceHash],
        from: usize,
        medium: Medium,
        now: u64,
    ) {
        let parent = from.checked_sub(1).map(|at| path[at]);
        let mut feed = self.feed(worker);
        feed.announce(parent, &path[from..], medium, Millis(now));
        self.selector.validate().unwrap();
    }

    /// An event: stored in device memory is all of `path`.
    fn store(&mut self, worker: usize, path: &[SequenceHash], now: u64) {
        self.announce(worker, path, 0, Medium::Gpu, now);
    }

    fn end(&mut self, booking: BookingId, ending: Ending, now: u64) {
        self.selector
            .end(booking, ending, Usage::default(), Millis(now));
        self.selector.validate().unwrap();
    }

    fn held(&mut self, worker: usize, blocks: &[SequenceHash], now: u64) -> ([u32; 3], u32) {
        let held = self.seen(worker, blocks, now);
        (held.confirmed, held.speculative)
    }

    fn doubtful(&mut self, worker: usize, blocks: &[SequenceHash], now: u64) -> [u32; 3] {
        self.seen(worker, blocks, now).doubtful
    }

    fn seen(&mut self, worker: usize, blocks: &[SequenceHash], now: u64) -> Held {
        let tokens = blocks.len() as u64 * 16 + 1;
        let request = request((blocks, Origin::Tokens), tokens, now);
        self.preview(&request).1[worker].held
    }

    fn matched(&mut self, blocks: &[SequenceHash], now: u64) -> u64 {
        self.look(blocks, now).best_matched_tokens / 16
    }
}

#[test]
fn host_memory_holds_more_than_the_device() {
    let mut fleet = Fleet::new(RULE);
    let mut workers = fleet.selector.workers_mut();
    workers.add("a", small(10), Millis(0));
    let prompts: Vec<_> = (0..8).map(|number| prompt(1_000 * number, 5)).collect();
    for path in &prompts {
        fleet.store(0, path, 0);
        fleet.announce(0, path, 0, Medium::Cpu, 0);
    }
    let held = prompts.iter().map(|path| fleet.matched(path, 0));
    assert_eq!(held.collect::<Vec<_>>(), [5; 8]);
}

#[test]
fn the_block_with_the_last_token_of_a_prompt_is_computed_again() {
    let (mut fleet, path) = (Fleet::new(RULE), prompt(0, 4));
    fleet.store(0, &path, 1);
    for (tokens, matched) in [(65, 64.0), (64, 48.0)] {
        let request = request((&path, Origin::Tokens), tokens, 2);
        let seen = fleet.preview(&request).1;
        let got = seen[0].matched_tokens;
        assert!((got - matched).abs() < 1e-9, "{tokens}: {got}");
    }
}

#[test]
fn a_listed_worker_that_left_meanwhile_is_draining() {
    let mut fleet = Fleet::new(RULE);
    let mut list = offers(&["gone", "a"]);
    let pick = fleet.selector.select(&mut list, &Request::default());
    assert_eq!(pick.unwrap().offer, 1);
    assert_eq!(list[0].eligibility, Eligibility::Draining);
}

/// Completes a request, lets the stream pass that time, and returns how many were compared and how many found less.
fn found(fleet: &mut Fleet, pick: Pick, cached_tokens: u64, now: u64) -> (u64, u64) {
    let usage = Usage {
        cached_tokens: Some(cached_tokens),
        ..Usage::default()
    };
    let (booking, completed) = (pick.booking.unwrap(), Ending::Completed);
    fleet.selector.end(booking, completed, usage, Millis(now));
    let heard = Heard {
        until: Millis(now + 1_000),
        device_tokens: 0,
        is_exact: true,
    };
    assert_eq!(fleet.feed(pick.offer).applied(heard).fault, None);
    fleet.feed(pick.offer).checked()
}

#[test]
fn an_answer_may_be_one_block_of_the_engine_less_than_promised() {
    let path = prompt(0, 12);
    for (size, cached, mismatches) in [
        (16, 176, 0),
        (16, 175, 1),
        (64, 128, 0),
        (64, 112, 1),
        (4, 176, 0),
    ] {
        let mut fleet = Fleet::new(RULE);
        fleet.trust(1, FeedState::Live, size);
        fleet.store(1, &path, 0);
        let pick = fleet.select(&path, 1);
        assert_eq!(found(&mut fleet, pick, 192, 2), (1, 0));
        let pick = fleet.select(&path, 3);
        let counted = found(&mut fleet, pick, cached, 4);
        assert_eq!(counted, (2, mismatches), "{size} {cached}");
    }
}

#[test]
fn only_what_events_confirmed_in_device_memory_was_promised() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 12);
    fleet.store(1, &path[..2], 0);
    fleet.announce(1, &path[..8], 0, Medium::Cpu, 0);
    let pick = fleet.select(&path, 1);
    assert_eq!(found(&mut fleet, pick, 32, 2), (1, 0));
    fleet.announce(1, &path[..6], 2, Medium::Gpu, 3);
    let pick = fleet.select(&path, 4);
    fleet.announce(1, &path, 6, Medium::Gpu, 5);
    assert_eq!(found(&mut fleet, pick, 80, 6), (2, 0), "and no later store");
}

#[test]
fn what_was_asked_while_messages_were_missing_is_not_compared() {
    let path = prompt(0, 12);
    for (before, after) in [
        (FeedState::Suspect, FeedState::Live),
        (FeedState::Live, FeedState::Suspect),
        (FeedState::Starting, FeedState::Starting),
        (FeedState::Degraded, FeedState::Degraded),
    ] {
        let mut fleet = Fleet::new(RULE);
        fleet.store(1, &path, 0);
        fleet.trust(1, before, 16);
        let pick = fleet.select(&path, 1);
        fleet.trust(1, after, 16);
        let counted = u64::from(before == FeedState::Degraded);
        assert_eq!(found(&mut fleet, pick, 192, 2), (counted, 0), "{before:?}");
    }
}

#[test]
fn a_block_that_is_missing_ends_the_credit() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 6);
    fleet.store(1, &path[..4], 0);
    fleet.feed(1).withdraw(&path[2..3], Medium::Gpu);
    let pick = fleet.look(&path, 1);
    assert_eq!((pick.offer, pick.matched_tokens), (1, 32));
}

#[test]
fn an_equal_prompt_follows_before_any_event() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 10);
    let first = fleet.select(&path, 0);
    let second = fleet.select(&path, 10);
    assert_eq!(first.reason, Reason::Cold);
    assert_eq!((second.reason, second.offer), (Reason::Prefix, first.offer));
    assert_eq!(second.matched_tokens, 160);
}

#[test]
fn without_an_event_it_is_cold_a_time_to_live_after_the_first_token() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 10);
    let booking = fleet.select(&path, 0).booking.unwrap();
    fleet.selector.first_token(booking, Millis(1_500));
    assert_eq!(fleet.matched(&path, 3_499), 10);
    assert_eq!(fleet.matched(&path, 3_501), 0);
}

#[test]
fn placements_of_a_request_that_completed_are_followed_with_and_without_a_first_token() {
    for is_streamed in [true, false] {
        let mut fleet = Fleet::new(RULE);
        let path = prompt(0, 10);
        let pick = fleet.select(&path, 0);
        let booking = pick.booking.unwrap();
        if is_streamed {
            fleet.selector.first_token(booking, Millis(1_000));
        }
        fleet.end(booking, Ending::Completed, 1_000);
        // Each event moves the deadline of the rest.
        fleet.store(pick.offer, &path[..4], 2_500);
        assert_eq!(fleet.held(pick.offer, &path, 4_000), ([4, 0, 0], 6));
        assert_eq!(fleet.held(pick.offer, &path, 4_501), ([4, 0, 0], 0));
        // Nor does any stand while messages are missing.
        let other = prompt(100, 10);
        let pick = fleet.select(&other, 5_000);
        if is_streamed {
            fleet
                .selector
                .first_token(pick.booking.unwrap(), Millis(5_001));
        }
        fleet.end(pick.booking.unwrap(), Ending::Completed, 5_001);
        fleet.trust(pick.offer, FeedState::Suspect, 16);
        assert_eq!(fleet.matched(&other, 100_000), 10);
    }
}

#[test]
fn what_an_event_confirmed_stays() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 10);
    let pick = fleet.select(&path, 0);
    fleet.store(pick.offer, &path, 500);
    fleet.end(pick.booking.unwrap(), Ending::Completed, 600);
    assert_eq!(fleet.matched(&path, 10_000), 10);
}

#[test]
fn a_failure_before_the_first_token_takes_back_what_nobody_confirmed() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 10);
    let pick = fleet.select(&path, 0);
    fleet.store(pick.offer, &path[..3], 50);
    fleet.end(pick.booking.unwrap(), Ending::Failed, 100);
    assert_eq!(fleet.matched(&path, 101), 3);
}

#[test]
fn what_an_event_gives_up_is_not_expected_again() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 1_024);
    let at = fleet.select(&path, 0).offer;
    fleet.feed(at).withdraw(&path[600..601], Medium::Gpu);
    assert_eq!(fleet.matched(&path, 1), 600);
    // The owner still waits, so the rest is renewed.
    assert_eq!(fleet.matched(&path, 3_000), 600);
}

#[test]
fn a_long_prompt_is_not_forgotten_before_its_last_chunk() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 1_024);
    let pick = fleet.select(&path, 0);
    // 16k tokens in eight chunks over 3.7 s, as an engine sent them; no answer comes before the end.
    for (chunk, at) in [109, 400, 800, 1_300, 1_800, 2_400, 3_000, 3_729]
        .into_iter()
        .enumerate()
    {
        assert_eq!(fleet.matched(&path, at), 1_024, "at {at} ms");
        let end = (chunk + 1) * 128;
        fleet.announce(pick.offer, &path[..end], chunk * 128, Medium::Gpu, at);
    }
    fleet.end(pick.booking.unwrap(), Ending::Completed, 3_800);
    assert_eq!(fleet.matched(&path, 60_000), 1_024);
}

#[test]
fn a_queued_request_is_waited_for_as_long_as_its_prefill_may_take() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 1_024);
    fleet.select(&path, 0);
    // 16,385 tokens at an assumed thousand a second, four times.
    for at in (1_000..65_000).step_by(1_000) {
        assert_eq!(fleet.matched(&path, at), 1_024, "at {at} ms");
    }
    assert_eq!(fleet.matched(&path, 70_000), 0);
}

#[test]
fn what_was_confirmed_is_doubtful_while_a_stream_is_suspect_and_placements_count() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 10);
    let at = fleet.select(&path, 0).offer;
    fleet.store(at, &path[..4], 1);
    assert_eq!(fleet.matched(&path, 2), 10);
    fleet.trust(at, FeedState::Suspect, 16);
    assert_eq!(fleet.matched(&path, 3), 10);
    assert_eq!(fleet.held(at, &path, 3), ([0; 3], 6));
    assert_eq!(fleet.doubtful(at, &path, 3), [4, 0, 0]);
    assert_eq!(fleet.matched(&path, 100_000), 10, "no event can confirm it");
    fleet.trust(at, FeedState::Live, 16);
    assert_eq!(fleet.held(at, &path, 100_001), ([4, 0, 0], 6));
    assert_eq!(fleet.doubtful(at, &path, 100_001), [0; 3]);
    fleet.matched(&path, 103_000);
    assert_eq!(fleet.matched(&path, 106_000), 4);
}

#[test]
fn only_whole_engine_blocks_count() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 8);
    fleet.trust(0, FeedState::Live, 64);
    fleet.store(0, &path[..4], 0);
    let mut other = path[..3].to_vec();
    other.extend(prompt(500, 5));
    assert_eq!(fleet.matched(&path, 1), 4);
    assert_eq!(fleet.matched(&other, 1), 0, "48 of 64 tokens");
}

#[test]
fn the_engine_block_of_the_last_token_is_computed_again() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 8);
    fleet.trust(0, FeedState::Live, 64);
    fleet.store(0, &path, 0);
    for (prompt_tokens, matched) in [(128, 64), (129, 128), (130, 128)] {
        let request = request((&path, Origin::Tokens), prompt_tokens, 1);
        let pick = fleet.preview(&request).0;
        assert_eq!(pick.matched_tokens, matched, "of {prompt_tokens}");
    }
}

#[test]
fn blocks_in_other_media_count_by_their_credit() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 12);
    fleet.store(2, &path[..4], 0);
    fleet.announce(2, &path[..10], 4, Medium::Cpu, 0);
    fleet.announce(2, &path[..12], 6, Medium::Disk, 0);
    let (pick, seen) = fleet.preview(&request((&path, Origin::Tokens), 192, 1));
    assert_eq!(pick.offer, 2);
    let held = seen[2].held;
    assert_eq!((held.confirmed, held.speculative), ([4, 6, 2], 0));
    // Credits are for the one continuation of device memory.
    let matched = seen[2].matched_tokens;
    assert!((matched - 140.8).abs() < 1e-9, "{matched}");
}

/// The host tier behind the device, and disk behind that: Dynamo's cost follows all three.
#[test]
fn disk_that_begins_where_host_memory_ends_is_credited() {
    let cost = |disk: bool| {
        let mut fleet = Fleet::new(OverlapCost::default());
        let path = prompt(0, 16);
        fleet.store(0, &path[..4], 0);
        fleet.announce(0, &path[..8], 4, Medium::Cpu, 0);
        if disk {
            fleet.announce(0, &path[..12], 8, Medium::Disk, 0);
        }
        let (_, seen) = fleet.preview(&request((&path, Origin::Tokens), 256, 0));
        (seen[0].score.get().unwrap(), seen[0].overlap_blocks)
    };
    // 16 blocks less 4 on the device, 4 in host memory by 0.75 and 4 on disk by 0.25.
    assert_eq!((cost(false), cost(true)), ((9.0, 8), (8.0, 12)));
}

/// Though disk holds what host memory or the device does: of 197 / 16 blocks, Dynamo's cost credits 8.
#[test]
fn media_are_chained_and_a_block_in_two_belongs_to_the_faster() {
    for disk_from in [8, 6, 4, 0] {
        let mut fleet = Fleet::new(OverlapCost::default());
        let path = prompt(0, 12);
        fleet.store(0, &path[..4], 0);
        fleet.announce(0, &path[..8], 4, Medium::Cpu, 0);
        fleet.announce(0, &path, disk_from, Medium::Disk, 0);
        let (_, seen) = fleet.preview(&request((&path, Origin::Tokens), 197, 0));
        let score = seen[0].score.get().unwrap();
        assert!((score - 4.3125).abs() < 1e-9, "{disk_from}: {score}");
        assert_eq!(seen[0].held.confirmed, [4, 4, 4], "{disk_from}");
    }
}

#[test]
fn nothing_is_expected_where_speculation_is_off() {
    let mut fleet = Fleet::new(KvAware {
        speculative_ttl_ms: None,
        ..RULE
    });
    let path = prompt(0, 10);
    fleet.select(&path, 0);
    assert_eq!(fleet.matched(&path, 1), 0);
}

/// As Dynamo does it: to credit what waits draws the turns of a session to one queue.
#[test]
fn dynamos_cost_credits_placements_before_their_events_only_if_told_to() {
    let path = prompt(0, 10);
    for (ttl_s, matched) in [(None, 0), (Some(2), 10)] {
        let mut fleet = Fleet::new(OverlapCost {
            router_predicted_ttl_secs: ttl_s.map(Seconds::of),
            ..OverlapCost::default()
        });
        let pick = fleet.select(&path, 0);
        assert_eq!(fleet.matched(&path, 1), matched);
        fleet.store(pick.offer, &path, 2);
        assert_eq!(fleet.matched(&path, 3), 10);
    }
}

#[test]
fn text_is_believed_as_if_there_were_no_events_and_said_so() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 10);
    let pick = fleet.select_text(&path, 0);
    assert_eq!(pick.reason, Reason::TextOnly);
    fleet.end(pick.booking.unwrap(), Ending::Completed, 100);
    let later = fleet.select_text(&path, 60_000);
    assert_eq!((later.offer, later.matched_tokens), (pick.offer, 160));
    assert_eq!(later.reason, Reason::TextOnly);
    let other = prompt(500, 10);
    let failed = fleet.select_text(&other, 60_001);
    fleet.end(failed.booking.unwrap(), Ending::Failed, 60_002);
    assert_eq!(fleet.matched(&other, 60_003), 0);
    fleet.feed(pick.offer).withdraw_all();
    assert_eq!(fleet.matched(&path, 60_004), 0, "the cache was dropped");
}

#[test]
fn a_pick_on_a_suspect_stream_says_so() {
    let mut fleet = Fleet::new(RULE);
    let path = prompt(0, 10);
    fleet.store(0, &path, 0);
    fleet.store(1, &path[..2], 0);
    assert_eq!(fleet.look(&path, 1).reason, Reason::Prefix);
    fleet.trust(1, FeedState::Suspect, 16);
    assert_eq!(fleet.look(&path, 2).reason, Reason::Prefix, "not its own");
    fleet.trust(0, FeedState::Suspect, 16);
    let pick = fleet.look(&path, 3);
    assert_eq!((pick.offer, pick.reason), (0, Reason::StaleEvents));
    fleet.trust(2, FeedState::Suspect, 16);
    assert_eq!(fleet.look(&prompt(500, 4), 4).reason, Reason::StaleEvents);
}

#[test]
fn a_prompt_beyond_the_memory_of_its_engine_pushes_nothing_out() {
    for events in [true, false] {
        let mut fleet = Fleet::new(RULE);
        for (worker, name) in NAMES.into_iter().enumerate() {
            fleet.selector.workers_mut().add(name, small(20), Millis(0));
            if !events {
                fleet.feed(worker).set_trust(Worth::Refused);
            }
        }
        let kept: Vec<_> = (0..3).map(|i| prompt(100 * i, 15)).collect();
        let picks: Vec<_> = kept.iter().map(|path| fleet.select(path, 1)).collect();
        let (large, largest) = (prompt(1_000, 19), prompt(2_000, 20));
        for _ in 0..3 {
            let pick = fleet.select(&largest, 2);
            assert_eq!(pick.matched_tokens, 0);
            fleet.end(pick.booking.unwrap(), Ending::Failed, 3);
        }
        for (path, pick) in kept.iter().zip(&picks) {
            let again = fleet.look(path, 4);
            let again = (again.offer, again.matched_tokens);
            assert_eq!(again, (pick.offer, 240), "{events}");
        }
        fleet.select(&large, 5);
        assert_eq!(fleet.look(&large, 6).matched_tokens, 304, "{events}");
    }
}
