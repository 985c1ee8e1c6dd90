//! Credited tokens: what blocks outside device memory are worth.
//!
//! A prompt's prefix counts as its run in device memory plus one continuation in another medium, which must start no
//! later than where that run ends. Loading a block costs time, so a continuation counts by the credit of its medium.

use super::view::Media;

/// Which continuation counts if several media continue the device run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Continuation {
    /// The longest one, which is what engines load; among equals the one of the higher credit.
    #[default]
    Longest,
    /// The one worth most.
    BestCredit,
}

/// What one block is worth by where it lies, 1 for a block that costs nothing to use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Credits {
    /// In device memory.
    pub gpu: f64,
    /// In host memory.
    pub cpu: f64,
    /// In a store outside the worker.
    pub external: f64,
    /// On disk.
    pub disk: f64,
    /// Which continuation counts.
    pub continuation: Continuation,
}

impl Credits {
    /// What vllm-router counts.
    pub const DEFAULT: Self = Self {
        gpu: 1.0,
        cpu: 0.8,
        external: 0.6,
        disk: 0.3,
        continuation: Continuation::Longest,
    };

    /// Tokens of a prompt that a worker need not compute, always fewer than the prompt has: engines recompute at least
    /// the last token, and with it the block it lies in.
    #[must_use]
    pub fn matched(
        &self,
        media: &Media,
        total_blocks: u32,
        block_size: u32,
        prompt_tokens: u64,
    ) -> f64 {
        let Some(before_last) = prompt_tokens.checked_sub(1) else {
            return 0.0;
        };
        let whole = before_last / u64::from(block_size.max(1));
        let device = media.gpu.min(total_blocks);
        // Fits: at most `device`.
        let device = u64::from(device).min(whole) as u32;
        let reaching = [
            (media.cpu, self.cpu),
            (media.external, self.external),
            (media.disk, self.disk),
        ]
        .into_iter()
        .map(|((start, end), credit)| ((start, end.min(total_blocks)), credit))
        .filter(|((start, end), _)| (*start..*end).contains(&device))
        .map(|((_, end), credit)| (f64::from(end - device), credit));
        let (beyond, credit) = reaching
            .max_by(|(a, credit_a), (b, credit_b)| match self.continuation {
                Continuation::Longest => a.total_cmp(b).then(credit_a.total_cmp(credit_b)),
                Continuation::BestCredit => (a * credit_a).total_cmp(&(b * credit_b)),
            })
            .unwrap_or((0.0, 0.0));
        let blocks = f64::from(device) * self.gpu + beyond * credit;
        (blocks * f64::from(block_size)).min(before_last as f64)
    }
}

impl Default for Credits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credited(continuation: Continuation, media: Media, prompt_tokens: u64) -> (f64, u64) {
        let credits = Credits {
            continuation,
            ..Credits::DEFAULT
        };
        let total = (prompt_tokens / 16) as u32;
        let matched = credits.matched(&media, total, 16, prompt_tokens);
        #[expect(clippy::cast_sign_loss, reason = "less is matched than there is")]
        let uncached = (prompt_tokens as f64 - matched).ceil() as u64;
        (matched, uncached)
    }

    const NOWHERE: Media = Media {
        gpu: 0,
        cpu: (0, 0),
        external: (0, 0),
        disk: (0, 0),
        shared: 0,
    };

    #[test]
    fn a_device_run_and_one_continuation_count_by_their_credits() {
        let gpu = |gpu| Media { gpu, ..NOWHERE };
        let three = Media {
            cpu: (2, 8),
            disk: (2, 9),
            ..gpu(2)
        };
        let [mut late, mut host, mut external] = [gpu(4), NOWHERE, gpu(2)];
        (late.cpu, late.disk) = ((4, 10), (6, 12));
        (host.cpu, external.external) = ((0, 4), (1, 5));
        let cases = [
            ("gap freezes the run", gpu(2), 96, 32.0, 64),
            ("disk starts too late", late, 192, 140.8, 52),
            ("last token at a block edge", gpu(4), 64, 48.0, 16),
            ("last token past it", gpu(4), 65, 64.0, 1),
            ("host memory only", host, 64, 51.2, 13),
            ("longest", three, 160, 65.6, 95),
            ("external store", external, 160, 60.8, 100),
            ("nothing", NOWHERE, 160, 0.0, 160),
            ("one token", gpu(0), 1, 0.0, 1),
            ("no prompt", gpu(3), 0, 0.0, 0),
        ];
        for (name, media, tokens, matched, uncached) in cases {
            let (got, left) = credited(Continuation::Longest, media, tokens);
            assert!((got - matched).abs() < 1e-9, "{name}: {got} for {matched}");
            assert_eq!(left, uncached, "{name}");
        }
        let (best, left) = credited(Continuation::BestCredit, three, 160);
        assert!((best - 108.8).abs() < 1e-9, "{best}");
        assert_eq!(left, 52);
    }

    #[test]
    fn equally_long_continuations_count_by_the_higher_credit() {
        let media = Media {
            cpu: (1, 4),
            disk: (0, 4),
            external: (1, 4),
            gpu: 1,
            shared: 0,
        };
        let (matched, _) = credited(Continuation::Longest, media, 160);
        assert!((matched - (1.0 + 3.0 * 0.8) * 16.0).abs() < 1e-9);
    }

    #[test]
    fn at_least_one_token_is_always_left_to_compute() {
        for tokens in 1..200 {
            let everywhere = Media {
                gpu: 2,
                cpu: (0, 13),
                external: (0, 13),
                disk: (0, 13),
                shared: 0,
            };
            let credits = Credits {
                cpu: 1.0,
                ..Credits::DEFAULT
            };
            let total = (tokens / 16) as u32;
            let matched = credits.matched(&everywhere, total, 16, tokens);
            let most = (tokens - 1) as f64;
            assert!((0.0..=most).contains(&matched), "{tokens}: {matched}");
        }
    }
}
