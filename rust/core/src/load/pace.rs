//! How fast workers compute prompts, learned from first tokens.
//!
//! The first token of a request shows how long its worker took for all prompts that waited there when the request came,
//! its own included. So a long queue does not look like a slow worker. Waiting prompts are weighed as an engine
//! computes them: a token takes longer the more context it attends to, by a factor that is learned too, for the fleet.
//!
//! The time that first tokens take in any case, for the rest of the pass at work and the decodes of the next one, counts as
//! so many more tokens. Otherwise a worker where many short prompts wait looks faster the more of them there are.

/// Longer prompts count as this long where pairs are counted: their sum must fit. So do longer outputs, as a wrong count
/// must not spoil a mean for long.
pub(super) const MOST: u64 = 1 << 20;
/// First tokens of the fleet that the factor of the context is learned from, about.
const FLEET_MEMORY: f64 = 512.0;
/// So many of them outweigh the assumption that their time is proportional to the work.
const FIRST_TOKENS: f64 = 8.0;
/// Requests of a worker that its speeds are learned from, about.
const WORKER_MEMORY: f64 = 32.0;
/// A token takes at least this share of the time of first tokens per token.
const LEAST_SHARE: f64 = 0.05;
/// A token takes no longer than twice as long per so many tokens of context.
const LEAST_CONTEXT: f64 = 1_000.0;
/// Output tokens of a request before any has ended.
const FIRST_OUTPUT: f64 = 256.0;
/// Work per millisecond of a fleet before the first observation: less than most GPUs do.
pub(super) const FIRST_SPEED: f64 = 2.0;
/// Faster workers are not given less time for a prompt.
pub(super) const MOST_SPEED: f64 = 50.0;
/// Smaller differences of context are within the noise.
const LEAST_SPREAD: f64 = 100.0;

/// Prompts or parts of them that are to be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prefill {
    /// Uncached tokens.
    pub tokens: u64,
    /// Twice the pairs of tokens that attention compares.
    pub pairs: u64,
}

impl Prefill {
    /// The last `uncached` tokens of a prompt.
    #[must_use]
    pub fn of(prompt_tokens: u64, uncached: u64) -> Self {
        let (new, all) = (uncached.min(MOST), prompt_tokens.min(MOST));
        Self {
            tokens: uncached,
            pairs: new * (2 * all).saturating_sub(new),
        }
    }

    /// In tokens without context, where each takes longer by `per_context` per token of context.
    #[must_use]
    #[inline]
    pub fn work(self, per_context: f64) -> f64 {
        let [tokens, pairs] = [self.tokens, self.pairs].map(|count| count.cast_signed() as f64);
        tokens + per_context * pairs / 2.0
    }

    /// Tokens that each attends to, in the mean.
    fn context(self) -> f64 {
        self.pairs as f64 / 2.0 / self.tokens as f64
    }
}

impl std::ops::AddAssign for Prefill {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.pairs += other.pairs;
    }
}

/// The speed of a worker as a quotient of sums, in which large prompts weigh most.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Speed {
    /// Sum of work squared.
    pub squares: f64,
    /// Sum of work times milliseconds.
    pub products: f64,
}

impl Speed {
    /// Nothing observed.
    pub const UNKNOWN: Self = Self {
        squares: 0.0,
        products: 0.0,
    };

    /// Observes output tokens and the time they took.
    pub(super) fn observe_output(&mut self, tokens: u64, took_ms: u64) {
        if tokens > 0 && took_ms > 0 {
            self.observe(tokens.min(MOST) as f64, took_ms as f64);
        }
    }

    /// Observes work and the time it took.
    pub fn observe(&mut self, work: f64, ms: f64) {
        let keep = 1.0 - 1.0 / WORKER_MEMORY;
        self.squares = self.squares * keep + work * work;
        self.products = self.products * keep + work * ms;
    }

    /// Work per millisecond, `None` before the first observation.
    #[must_use]
    pub fn get(self) -> Option<f64> {
        (self.products > 0.0).then(|| self.squares / self.products)
    }
}

/// Sums of a weighted regression of `y` on `x`, in which observations fade.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Sums {
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Sums {
    fn observe(&mut self, weight: f64, x: f64, y: f64) {
        let keep = 1.0 - 1.0 / FLEET_MEMORY;
        for (sum, value) in [
            (&mut self.weight, 1.0),
            (&mut self.x, x),
            (&mut self.y, y),
            (&mut self.xx, x * x),
            (&mut self.xy, x * y),
        ] {
            *sum = *sum * keep + weight * value;
        }
    }
}

/// Time to first tokens, learned from all workers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pace {
    /// Milliseconds per token by context: by how much a token takes longer per token of it.
    per_token: Sums,
    /// Milliseconds by work.
    first_tokens: Sums,
    /// Output tokens of the requests that ended, in the mean; 0 before the first.
    output_tokens: f64,
    /// Milliseconds that requests took whose first token was not reported, in the mean; 0 before the first.
    pub answer_ms: f64,
}

impl Pace {
    /// A request was answered whose first token was not reported.
    pub(super) fn observe_answer(&mut self, took_ms: u64) {
        let share = if self.answer_ms > 0.0 {
            1.0 / WORKER_MEMORY
        } else {
            1.0
        };
        self.answer_ms += share * (took_ms as f64 - self.answer_ms);
    }

    /// Work per millisecond of the fleet, all of their time included; `None` before the first token.
    #[must_use]
    pub fn speed(&self) -> Option<f64> {
        let Sums { xx, xy, .. } = self.first_tokens;
        (xy > 0.0).then(|| xx / xy)
    }

    /// A request ended after so many output tokens.
    pub(super) fn observe_output(&mut self, tokens: u64) {
        let share = if self.output_tokens > 0.0 {
            1.0 / FLEET_MEMORY
        } else {
            1.0
        };
        self.output_tokens += share * (tokens.min(MOST) as f64 - self.output_tokens);
    }

    /// Output tokens that a request will have, by those that ended; 256 before the first.
    #[must_use]
    pub fn output_tokens(&self) -> f64 {
        if self.output_tokens > 0.0 {
            self.output_tokens
        } else {
            FIRST_OUTPUT
        }
    }

    /// Learns from a first token that came after `took_ms`, when `ahead` was all there was to compute.
    pub(super) fn observe(&mut self, speed: &mut Speed, ahead: Prefill, took_ms: u64) {
        if ahead.tokens == 0 || took_ms == 0 {
            return;
        }
        let (weight, context) = (ahead.tokens as f64, ahead.context());
        let took_ms = took_ms as f64;
        self.per_token.observe(weight, context, took_ms / weight);
        let work = ahead.work(self.per_context());
        self.first_tokens.observe(1.0, work, took_ms);
        speed.observe(work + self.fixed_work(), took_ms);
    }

    /// The work that takes as long as what first tokens take in any case.
    pub(super) fn fixed_work(&self) -> f64 {
        let Sums {
            weight: count,
            x: work,
            y: ms,
            xx: squares,
            xy: products,
        } = self.first_tokens;
        if products <= 0.0 {
            return 0.0;
        }
        // A line through 0 is assumed until the work of first tokens differs.
        let proportional = products / squares;
        let doubt = FIRST_TOKENS * squares;
        let spread = (count * squares - work * work).max(0.0);
        let together = count * products - work * ms;
        let slope = (together + doubt * proportional) / (spread + doubt);
        let slope = slope.max(LEAST_SHARE * proportional);
        ((ms / slope - work) / count).max(0.0)
    }

    /// By what share of its time without context a token takes longer per token of context; 0 before anything is known.
    #[must_use]
    pub fn per_context(&self) -> f64 {
        let sums = &self.per_token;
        if sums.weight <= 0.0 {
            return 0.0;
        }
        let mean = |sum: f64| sum / sums.weight;
        let (context, ms) = (mean(sums.x), mean(sums.y));
        let spread = mean(sums.xx) - context * context;
        // Where contexts hardly differ, their effect is assumed to be small.
        let doubt = (0.1 * context).powi(2) + LEAST_SPREAD * LEAST_SPREAD;
        let together = mean(sums.xy) - context * ms;
        let slope = (together / (spread.max(0.0) + doubt)).max(0.0);
        let without_context = (ms - slope * context).max(0.1 * ms);
        (slope / without_context).min(1.0 / LEAST_CONTEXT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pairs_are_those_of_a_triangle_beside_what_is_cached() {
        assert_eq!(Prefill::of(10, 10).pairs, 100);
        assert_eq!(Prefill::of(10, 4).pairs, 4 * (6 + 10));
        assert_eq!(Prefill::of(0, 7).pairs, 0);
        assert_eq!(Prefill::of(u64::MAX, u64::MAX).pairs, MOST * MOST);
    }

    proptest! {
        #[test]
        #[expect(clippy::cast_sign_loss, reason = "none is below 0")]
        fn workers_of_one_law_are_told_apart_by_their_speed(
            fast in 2.0_f64..50.0,
            per_context in prop_oneof![Just(0.0), 1e-5..5e-4],
            prompts in prop::collection::vec((1_000_u64..100_000, 0.05_f64..1.0), 200..400),
        ) {
            let (mut pace, mut speeds) = (Pace::default(), [Speed::UNKNOWN; 2]);
            // Both get the same prompts, one three times as fast: any estimate of the effect of context cancels out.
            for (prompt, share) in &prompts {
                let prefill = Prefill::of(*prompt, (*prompt as f64 * share) as u64 + 1);
                for (speed, rate) in speeds.iter_mut().zip([fast, fast / 3.0]) {
                    let ms = (prefill.work(per_context) / rate).round() as u64;
                    pace.observe(speed, prefill, ms.max(1));
                }
            }
            let ratio = speeds[0].get().unwrap() / speeds[1].get().unwrap();
            prop_assert!((2.5..3.5).contains(&ratio), "{ratio}");
            let learned = pace.per_context();
            prop_assert!((0.0..=1.0 / LEAST_CONTEXT).contains(&learned));
        }
    }

    #[test]
    fn what_first_tokens_take_in_any_case_is_no_part_of_a_speed() {
        // 10 tokens a millisecond, beside a fixed time.
        let cases: [(u64, &[u64], _); 4] = [
            (0, &[100, 1_000, 4_000], 9.9..10.1),
            (200, &[100, 1_000, 4_000], 9.0..10.1),
            (200, &[1_000], 3.3..3.4),         // nothing shows it
            (4_000, &[10, 20, 30], 0.01..0.2), // as if a token took 5 % of the time
        ];
        for (fixed, prompts, speed_range) in cases {
            let (mut pace, mut speed) = (Pace::default(), Speed::UNKNOWN);
            for tokens in prompts.iter().cycle().take(300) {
                pace.observe(
                    &mut speed,
                    Prefill::of(*tokens, *tokens),
                    fixed + tokens / 10,
                );
            }
            let learned = speed.get().unwrap();
            assert!(
                speed_range.contains(&learned),
                "{fixed} {prompts:?}: {learned}"
            );
        }
    }

    #[test]
    fn a_worker_where_many_short_prompts_wait_is_no_faster() {
        let (mut pace, mut crowded, mut calm) = (Pace::default(), Speed::UNKNOWN, Speed::UNKNOWN);
        for at in 0..400 {
            let waiting = 100 + 90 * (at % 100);
            let prefill = |tokens| Prefill { tokens, pairs: 0 };
            pace.observe(&mut crowded, prefill(waiting), 50 + waiting / 30);
            pace.observe(
                &mut calm,
                prefill(100 + at % 100),
                50 + (100 + at % 100) / 30,
            );
        }
        let ratio = crowded.get().unwrap() / calm.get().unwrap();
        assert!((0.9..1.2).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_queue_is_not_taken_for_slowness() {
        let (mut pace, mut idle, mut busy) = (Pace::default(), Speed::UNKNOWN, Speed::UNKNOWN);
        for _ in 0..50 {
            pace.observe(&mut idle, Prefill::of(1_000, 1_000), 100);
            pace.observe(
                &mut busy,
                Prefill {
                    tokens: 9_000,
                    pairs: 9_000_000,
                },
                900,
            );
        }
        let ratio = idle.get().unwrap() / busy.get().unwrap();
        assert!((ratio - 1.0).abs() < 0.05, "{ratio}");
    }
}
