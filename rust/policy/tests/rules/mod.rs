//! Every rule there is, with settings that let it do what it does.

use std::collections::HashMap;

use cachelb_learned::{Fitting, Kind, Replay, Reward, Schedule, Training};
use cachelb_policy::{
    Adaptive, Affinity, Assignment, BoundaryLearning, BoundaryLearningOptions, CacheAware, Compare,
    ConsistentHash, Credits, Custom, EstimatedTtft, EstimatedTtftOptions, ExploitExplore,
    Exploiting, Forgetting, KvAware, Learned, Learning, LeastExpectedWait, LeastLoaded,
    LengthBucket, LengthBucketOptions, LoadUnit, Margin, Objective, Outside, OverlapCost,
    PowerOfTwo, PrefillTime, PrefillTimesBatch, PrefixAffinity, PrefixCache, PrefixCacheAndLoad,
    PrefixHash, PrefixHashOptions, QueueOverThroughput, Random, Rendezvous, RoundRobin, Rule,
    Scope, Scoring, Seconds, Session, SessionMode, Sessions, SpillGate, StickyUntilSaturated,
    StickyUntilSaturatedOptions, Threshold, Tie,
};

const GATE: SpillGate = SpillGate {
    load_factor: 1.25,
    margin: Margin::Auto,
};
const PREFILL: PrefillTime = PrefillTime {
    square: 0.0,
    linear: 0.1,
    constant: 5.0,
};

pub fn sessions(mode: SessionMode) -> Sessions {
    Sessions {
        mode,
        hard: false,
        gate: GATE,
        idle_ms: 7_200_000,
        max_sessions: 1 << 20,
        seed: 1337,
    }
}

pub fn learning() -> Learning {
    Learning {
        epsilon: 0.0,
        delta: 0.1,
        tie: Tie::Random,
        crowding: 1.0,
        k: 2,
        k_slack: None,
        tau_sat: 0.8,
        tau_ben: 100.0,
        prefix_tokens: 128,
        max_scored: 256,
        outside: Outside::Worker,
        guards: true,
        timeout: None,
        max_model_age_ms: None,
        reward: Reward::Ttft,
        clip_s: 15.0,
        schedule: Schedule {
            n_min: 1_000_000,
            theta: 1_000_000,
            fifo: 5_000,
            replay: 5_000,
            how: Replay::None,
            freeze_after: None,
            fitting: Fitting {
                kind: Kind::Linear,
                ..Fitting::default()
            },
            training: Training::Inline,
            seed: 1,
        },
        model: None,
        seed: 7,
    }
}

fn boundary_learning() -> BoundaryLearning {
    BoundaryLearning::new(BoundaryLearningOptions::default(), 1.0, 1337)
}

fn hashing() -> Vec<(&'static str, Box<dyn Rule>)> {
    let prefix_hash = PrefixHashOptions {
        balance_abs_threshold: 2.0,
        cache_boundaries: vec![64, 128],
        ..PrefixHashOptions::default()
    };
    vec![
        (
            "consistent-hash",
            Box::new(ConsistentHash::new(100, Some(0.25), 1337)),
        ),
        ("prefix-hash", Box::new(PrefixHash::new(prefix_hash, 1337))),
        (
            "rendezvous",
            Box::new(Rendezvous {
                seed: 1337,
                epsilon: None,
            }),
        ),
        (
            "session-hash",
            Box::new(Session::new(sessions(SessionMode::Hash), None)),
        ),
        (
            "session-sticky",
            Box::new(Session::new(sessions(SessionMode::Sticky), None)),
        ),
        (
            "session-manual",
            Box::new(Session::new(
                sessions(SessionMode::Manual(Assignment::MinGroup)),
                None,
            )),
        ),
        ("boundary-learning", Box::new(boundary_learning())),
    ]
}

fn plain() -> Vec<(&'static str, Box<dyn Rule>)> {
    let bucketing = LengthBucketOptions {
        l_max: 8_192,
        balance_abs_threshold: 20_000.0,
        balance_rel_threshold: 2.0,
        bucket_adjust_interval_secs: Seconds::of(60),
    };
    vec![
        ("custom", Box::new(Custom { tokens: true })),
        (
            "least-loaded",
            Box::new(LeastLoaded {
                load: LoadUnit::Tokens,
            }),
        ),
        ("length-bucket", Box::new(LengthBucket::new(bucketing))),
        (
            "power-of-two",
            Box::new(PowerOfTwo {
                choices: 2,
                load: Compare::Inflight,
            }),
        ),
        (
            "queue-over-throughput",
            Box::new(QueueOverThroughput {
                throughput: HashMap::from([("b".to_owned(), 2.0)]),
                default_throughput: 1.0,
            }),
        ),
        ("random", Box::new(Random)),
        ("round-robin", Box::new(RoundRobin::new(false))),
    ]
}

fn by_cache() -> Vec<(&'static str, Box<dyn Rule>)> {
    let affinity = Affinity {
        imbalanced_threshold: 10.0,
        match_rate_threshold: 0.1,
        forgetting: Some(Forgetting {
            threshold: 40_000_000,
            target: 36_000_000,
            interval_ms: 10_000,
        }),
        gate: None,
    };
    vec![
        (
            "cache-aware",
            Box::new(CacheAware {
                cache_threshold: Threshold::new(0.3),
                min_matched_tokens: None,
                gate: GATE,
            }),
        ),
        (
            "kv-aware",
            Box::new(KvAware {
                scoring: Scoring::Cost,
                credits: Credits {
                    cpu: 0.5,
                    ..Credits::DEFAULT
                },
                gate: GATE,
                router_temperature: 0.0,
                speculative_ttl_ms: Some(1_234),
            }),
        ),
        ("prefix-affinity", Box::new(PrefixAffinity::new(affinity))),
        (
            "prefix-cache",
            Box::new(PrefixCache {
                tau: Threshold::new(0.5),
                gate: None,
            }),
        ),
        (
            "prefix-cache-and-load",
            Box::new(PrefixCacheAndLoad {
                k: 1.0,
                scope: Scope::Fleet(8.0),
            }),
        ),
    ]
}

fn by_cost() -> Vec<(&'static str, Box<dyn Rule>)> {
    let exploiting = Exploiting {
        tpot_s: 0.15,
        min_requests_per_worker: 50,
        prefill: PREFILL,
        gate: None,
    };
    let estimated = EstimatedTtft {
        options: EstimatedTtftOptions {
            prefill: Some(PREFILL),
            transfer_ms_per_token: Some(0.008),
            ..EstimatedTtftOptions::default()
        },
        gate: None,
    };
    vec![
        ("adaptive", Box::new(Adaptive::new(Objective::Balanced))),
        ("estimated-ttft", Box::new(estimated)),
        ("exploit-explore", Box::new(ExploitExplore::new(exploiting))),
        (
            "least-expected-wait",
            Box::new(LeastExpectedWait {
                kv_pressure_weight: 1.0,
                cache_aware: true,
                max_waiting_requests: 0,
            }),
        ),
        ("overlap-cost", Box::new(OverlapCost::default())),
        ("prefill-times-batch", Box::new(PrefillTimesBatch::new(1.0))),
        (
            "sticky-until-saturated",
            Box::new(StickyUntilSaturated {
                options: StickyUntilSaturatedOptions {
                    affinity_threshold: Threshold::new(0.5),
                    exploration_probability: 0.01,
                    max_ttft_penalty_ms: 5_000.0,
                    ..StickyUntilSaturatedOptions::default()
                },
                gate: None,
            }),
        ),
    ]
}

/// Every rule by the name of its policy.
pub fn every_rule() -> Vec<(&'static str, Box<dyn Rule>)> {
    let fallback = Box::new(PrefixCache {
        tau: Threshold::new(0.5),
        gate: None,
    });
    let learned: Box<dyn Rule> = Box::new(Learned::new(learning(), fallback));
    let groups = [hashing(), plain(), by_cache(), by_cost()];
    let mut all: Vec<_> = groups.into_iter().flatten().collect();
    all.push(("learned", learned));
    all
}
