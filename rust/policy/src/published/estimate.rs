//! How long a prompt takes to compute, and how long the ones before it still will.

use cachelb_core::ids::Millis;
use cachelb_core::load::Load;

use crate::rule::options::{Kind, Value};
use crate::rule::values::field;

/// Milliseconds of prefill by tokens to compute: a parabola, since attention grows with the square.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillTime {
    /// Per token squared.
    pub square: f64,
    /// Per token.
    pub linear: f64,
    /// Per request.
    pub constant: f64,
}

field!(PrefillTime, |_| Kind::Three("milliseconds per token squared, per token and per request"),
    Value::Numbers(v) => <[f64; 3]>::try_from(v).ok().map(|[square, linear, constant]| Self { square, linear, constant }),
    |v| Value::Numbers(vec![v.square, v.linear, v.constant]));

impl PrefillTime {
    /// An 8B model on one A100, as the simulator of Dynamo has it.
    pub const DEFAULT: Self = Self {
        square: 4.209_989e-7,
        linear: 1.518_344e-2,
        constant: 16.501_42,
    };

    /// Milliseconds for `tokens` on a worker of weight 1.
    #[must_use]
    pub fn ms(&self, tokens: f64) -> f64 {
        (self.square * tokens + self.linear) * tokens + self.constant
    }
}

/// Milliseconds until the prefill queue of a worker is done, by the estimates of its bookings; the one at the head has
/// been computing since `head_since`.
pub(super) fn queue_ms(load: &Load, now: Millis) -> f64 {
    let computing = now.0.saturating_sub(load.head_since.0);
    (load.pending_ms - computing as f64).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefill_grows_faster_than_the_prompt() {
        for (tokens, expected) in [(0.0, 16.5), (1_000.0, 32.1), (8_000.0, 164.9)] {
            let ms = PrefillTime::DEFAULT.ms(tokens);
            assert!((ms - expected).abs() < 0.05, "{tokens}: {ms}");
        }
    }

    #[test]
    fn a_queue_shrinks_while_its_head_computes_and_never_below_zero() {
        let mut load = Load::VACANT;
        load.pending_ms = 300.0;
        load.head_since = Millis(1_000);
        for (now, expected) in [(900, 300.0), (1_000, 300.0), (1_100, 200.0), (9_000, 0.0)] {
            let ms = queue_ms(&load, Millis(now));
            assert!((ms - expected).abs() < 1e-9, "{now}: {ms}");
        }
    }
}
