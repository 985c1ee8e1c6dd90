//! Credited tokens: the credit of blocks outside device memory.
//!
//! A prompt's prefix counts as its run in device memory plus one continuation in another medium, which must start no
//! later than where that run ends. Loading a block costs time, so a continuation counts by the credit of its medium. A
//! block in several media is listed for the fastest alone, so a slower medium that goes on where a faster one ends counts
//! as if it held the blocks before: a further copy never lowers the credit.

use crate::rule::view::Media;

/// Which continuation counts if several media continue the device run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Continuation {
    /// The longest one, which engines load; among equals the one of the higher credit.
    #[default]
    Longest,
    /// The one worth most.
    BestCredit,
}

/// The credit of one block by its medium, 1 for a block that costs nothing to use.
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
    /// The credits of vllm-router.
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
        let longest = reaching
            .max_by(|(a, credit_a), (b, credit_b)| match self.continuation {
                Continuation::Longest => a.total_cmp(b).then(credit_a.total_cmp(credit_b)),
                Continuation::BestCredit => (a * credit_a).total_cmp(&(b * credit_b)),
            })
            .map_or(0.0, |(beyond, credit)| beyond * credit);
        let beyond = longest.max(self.behind_others(media, device, total_blocks));
        let blocks = f64::from(device) * self.gpu + beyond;
        (blocks * f64::from(block_size)).min(before_last as f64)
    }
}

impl Credits {
    /// The credit of continuations that start where a faster one ends, from the device run on.
    fn behind_others(&self, media: &Media, device: u32, total_blocks: u32) -> f64 {
        let mut reached = device;
        let mut best = 0.0_f64;
        let least = self.cpu.min(self.disk).min(self.external);
        let all = [
            (media.cpu, self.cpu, u32::MAX),
            (media.disk, self.disk, u32::MAX),
            (media.external, self.external, media.shared),
        ];
        for ((start, end), credit, most) in all {
            let end = end.min(total_blocks);
            // How many blocks a shared store has is known, even if all of them lie in other media too.
            let goes_on = end > reached || most < u32::MAX && end == reached && end > device;
            if start > device && start <= reached && goes_on {
                let (own, blocks) = (most.max(end - start), end - device);
                let own = own.min(blocks);
                best = best.max(f64::from(own) * credit + f64::from(blocks - own) * least);
            }
            if start <= reached {
                reached = reached.max(end);
            }
        }
        best
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

    /// Worker states as the index lists them: each block for the fastest medium that has it.
    #[test]
    fn a_further_copy_never_lowers_the_credit() {
        let listed = |gpu: u32, cpu: u32, disk: u32, external: u32| {
            let cpu = cpu.max(gpu);
            let disk_end = disk.max(cpu);
            Media {
                gpu,
                cpu: (gpu, cpu),
                disk: (cpu, disk_end),
                external: (disk_end, external.max(disk_end)),
                shared: external.saturating_sub(gpu),
            }
        };
        let worth = |continuation, media| credited(continuation, media, 16 * 13).0 / 16.0;
        for continuation in [Continuation::Longest, Continuation::BestCredit] {
            assert!((worth(continuation, listed(4, 0, 12, 0)) - 6.4).abs() < 1e-9);
            assert!((worth(continuation, listed(4, 6, 12, 0)) - 6.4).abs() < 1e-9);
            for code in 0..13_u32.pow(4) {
                let ends = [0, 1, 2, 3].map(|at| code / 13_u32.pow(at) % 13);
                let [gpu, cpu, disk, external] = ends;
                let before = worth(continuation, listed(gpu, cpu, disk, external));
                for at in (0..4).filter(|at| ends[*at] < 12) {
                    let mut more = ends;
                    more[at] += 1;
                    let after = worth(continuation, listed(more[0], more[1], more[2], more[3]));
                    assert!(
                        after > before - 1e-9,
                        "{ends:?} {before} to {more:?} {after}"
                    );
                }
            }
        }
    }

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
