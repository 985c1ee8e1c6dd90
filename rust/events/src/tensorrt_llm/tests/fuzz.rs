//! Damaged answers: nothing panics, published messages can be read, and kept state stays bounded.

use cachelb_core::rng::Rng;

use super::*;
use crate::tensorrt_llm::MOST_PARTIAL;

fn answers() -> usize {
    std::env::var("CACHELB_FUZZ_MESSAGES").map_or(20_000, |text| text.parse().expect("a number"))
}

fn samples() -> Vec<String> {
    let salted = block(
        "\"00ff\"",
        &[1, 2],
        r#", "cache_salt": "\u0041\n", "mm_keys": [{"hash": "id", "start_offset": 1}]"#,
    );
    let moved =
        r#"{"type": "updated", "block_hash": 3, "cache_level": {"old_value": 0, "new_value": 1}}"#;
    vec![
        format!(
            "[{}, {}]",
            v1(0, 4096, &chain()),
            v1(1, 128, &removed(&[NEXT, TAIL]))
        ),
        format!(
            "[{}, {}]",
            v2(0, 4096, 1, CREATED),
            v2(1, 4096, 0, &stored("null", &[salted]))
        ),
        format!("[{}]", v2(4, 64, 2, moved)),
    ]
}

#[test]
fn damaged_answers_are_refused_or_harmless() {
    let mut random = Rng::new(7);
    let samples = samples();
    let signs = br#"{}[]",:0129-.eE\unltf "#;
    let mut polled = with(2, None, true);
    let mut taken = 0;
    for round in 0..answers() {
        let mut bytes = samples[round % samples.len()].clone().into_bytes();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len());
            match random.below(5) {
                0 => bytes[at] = signs[random.below(signs.len())],
                1 => bytes[at] ^= 1 << random.below(8),
                2 => {
                    bytes.remove(at);
                }
                3 => bytes.insert(at, signs[random.below(signs.len())]),
                _ => {
                    let end = (at + random.below(60)).min(bytes.len());
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
            }
        }
        match polled.take(&bytes, round as f64) {
            Ok(messages) => {
                taken += 1;
                for message in &messages {
                    read(message);
                }
            }
            Err(why) => assert!(why.at <= bytes.len() && !why.what.is_empty()),
        }
        assert!(polled.waiting.len() <= MOST_WAITING + 8);
        assert!(
            polled
                .streams
                .iter()
                .all(|stream| stream.partial.len() <= MOST_PARTIAL)
        );
        if round % 500 == 499 {
            polled = with(2, None, true);
        }
    }
    assert!(taken * 20 > answers(), "{taken} were taken");
}
