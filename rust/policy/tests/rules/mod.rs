//! Every rule there is, with settings that let it do what it does.

use cachelb_learned::{Fitting, Kind, Replay, Reward, Schedule, Training};
use cachelb_policy::{
    Assignment, Learned, Learning, Outside, POLICIES, Rule, Session, SessionMode, Sessions, Setup,
    SpillGate, Tie, Value, named,
};

pub fn sessions(mode: SessionMode) -> Sessions {
    Sessions {
        mode,
        hard: false,
        gate: SpillGate::DEFAULT,
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

/// The rule of a policy with its defaults, but for some options.
fn ruled(name: &str, changes: &[(&str, Value)]) -> Box<dyn Rule> {
    let policy = named(name).unwrap();
    let mut options = (policy.declared)();
    for (option, value) in changes {
        let declared = options.iter_mut().find(|found| found.name == *option);
        declared.unwrap().default = value.clone();
    }
    let values = options.into_iter().map(|option| option.default).collect();
    let setup = Setup {
        own_seed: None,
        seed: 1337,
        replicas: 1.0,
        block_size: 16,
    };
    (policy.read)(values).unwrap().ruled(&setup).unwrap().rule
}

/// Options that differ from the defaults.
fn changes(name: &str) -> Vec<(&'static str, Value)> {
    match name {
        "custom" => vec![("tokens", Value::Flag(true))],
        "kv-aware" => vec![
            ("scoring", Value::Word("cost")),
            ("credits", Value::Named(vec![("cpu".to_owned(), 0.5)])),
            ("speculative_ttl_ms", Value::Integer(1_234)),
        ],
        "adaptive" => vec![(
            "load_ms_per_token",
            Value::Named(vec![("disk".to_owned(), 0.01)]),
        )],
        "least-loaded" => vec![("load", Value::Word("tokens"))],
        "length-bucket" => vec![("balance_rel_threshold", Value::Number(2.0))],
        "prefill-times-batch" => vec![("crowding", Value::Number(1.0))],
        "prefix-affinity" => vec![
            ("eviction_threshold_chars", Value::Integer(40_000_000)),
            ("gate", Value::Flag(false)),
        ],
        "prefix-hash" => vec![
            ("balance_abs_threshold", Value::Number(2.0)),
            ("cache_boundaries", Value::Integers(vec![64, 128])),
        ],
        "queue-over-throughput" => {
            let named = vec![("b".to_owned(), 2.0)];
            vec![("throughput", Value::Named(named))]
        }
        "sticky-until-saturated" => vec![("exploration_probability", Value::Number(0.01))],
        "estimated-ttft" => vec![("transfer_ms_per_token", Value::Number(0.008))],
        _ => vec![],
    }
}

/// Every rule by the name of its policy.
pub fn every_rule() -> Vec<(&'static str, Box<dyn Rule>)> {
    let names = POLICIES.iter().map(|policy| policy.about.name);
    let plain = names.filter(|name| !["learned", "session"].contains(name));
    let mut all: Vec<(&'static str, Box<dyn Rule>)> = Vec::new();
    all.extend(
        plain
            .chain(["custom"])
            .map(|name| (name, ruled(name, &changes(name)))),
    );
    for (name, mode) in [
        ("session-hash", SessionMode::Hash),
        ("session-sticky", SessionMode::Sticky),
        ("session-manual", SessionMode::Manual(Assignment::MinGroup)),
    ] {
        all.push((name, Box::new(Session::new(sessions(mode), None))));
    }
    let learned = Learned::new(learning(), ruled("prefix-cache", &[]));
    all.push(("learned", Box::new(learned)));
    all
}
