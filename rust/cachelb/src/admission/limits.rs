//! Admission: whether a request may go to a worker now, by the load that this router has pending there.
//!
//! Reports are not used here: they come too late, and requests released meanwhile would pile up in one engine.

use cachelb_core::load::Load;

/// Assumed speed of a worker of weight 1, in tokens per second, before any first token is reported.
const FIRST_TOKENS_PER_S: f64 = 4096.0;

/// Bounds of what may be pending on a worker, per unit of its weight: requests without a first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingLimits {
    /// Requests, `None` for any number.
    pub requests: Option<u32>,
    /// Their uncached tokens, `None` for any number.
    pub tokens: Option<u64>,
}

impl PendingLimits {
    /// Those of each of so many routers that serve the same workers and know nothing of each other.
    #[must_use]
    pub fn divided(self, routers: u32) -> Self {
        let routers = routers.max(1);
        Self {
            requests: self.requests.map(|most| (most / routers).max(1)),
            tokens: self.tokens.map(|most| (most / u64::from(routers)).max(1)),
        }
    }

    /// Prompt tokens that a worker computes in a second, as before.
    #[must_use]
    pub fn tokens_per_s(&self, load: &Load) -> f64 {
        let tps = load.observed_prefill_tps.get();
        tps.unwrap_or(FIRST_TOKENS_PER_S * load.weight)
    }

    /// Tokens that a worker must compute before it has room, 0 if it has: if neither bound is reached, or nothing is
    /// pending, so that a prompt of any length gets an idle worker. `computed` are requests and tokens that it is likely
    /// to have computed, and that are pending here still.
    #[must_use]
    pub fn excess_tokens(&self, load: &Load, computed: (f64, f64)) -> f64 {
        if load.pending == 0 {
            return 0.0;
        }
        let (pending, tokens) = (f64::from(load.pending), load.pending_prefill_tokens as f64);
        // Requests are taken to be of mean length.
        let mean = (tokens / pending).max(1.0);
        // Down to below the bound, and not below nothing.
        let over = |value: f64, most: f64, computed: f64| {
            let bound = most * load.weight + computed;
            let over = (value - bound + 1.0).min(value);
            if value < bound { 0.0 } else { over }
        };
        let requests = self
            .requests
            .map_or(0.0, |most| over(pending, f64::from(most), computed.0));
        let by_tokens = self
            .tokens
            .map_or(0.0, |most| over(tokens, most as f64, computed.1));
        by_tokens.max(requests * mean)
    }
}

#[cfg(test)]
mod tests {
    use cachelb_core::ids::{Millis, WorkerId};
    use cachelb_core::load::{Load, LoadBook, Work};
    use proptest::prelude::*;

    use super::PendingLimits;

    const WORKER: WorkerId = WorkerId {
        slot: 0,
        generation: 0,
    };

    fn book(prompts: &[u64], weight: f64) -> LoadBook {
        let mut book = LoadBook::default();
        book.add_worker(WORKER);
        book.loads.set_weight(WORKER, weight).expect("in range");
        for &tokens in prompts {
            let work = Work {
                prompt_tokens: tokens,
                prefill_tokens: tokens,
                block_size: 16,
                ..Work::default()
            };
            book.book(WORKER, work, Millis(0)).expect("registered");
        }
        book
    }

    fn load(book: &LoadBook) -> Load {
        *book.loads.get(WORKER).expect("registered")
    }

    proptest! {
        /// Both bounds hold per unit of weight, and an idle worker always has room.
        #[test]
        fn room_is_what_the_bounds_say(
            prompts in proptest::collection::vec(0_u64..5_000, 0..12),
            weight in prop_oneof![Just(0.5), Just(1.0), Just(2.0)],
            requests in proptest::option::of(1_u32..8),
            tokens in proptest::option::of(1_u64..20_000),
        ) {
            let sum: u64 = prompts.iter().sum();
            let few = requests.is_none_or(|most| (prompts.len() as f64) < f64::from(most) * weight);
            let short = tokens.is_none_or(|most| (sum as f64) < most as f64 * weight);
            let limits = PendingLimits { requests, tokens };
            let load = load(&book(&prompts, weight));
            let expected = prompts.is_empty() || few && short;
            prop_assert_eq!(limits.excess_tokens(&load, (0.0, 0.0)) > 0.0, !expected);
            // Only pending load can be waited for.
            let most = sum.max(prompts.len() as u64) as f64;
            prop_assert!(limits.excess_tokens(&load, (0.0, 0.0)) <= most + 1e-6);
        }
    }
}
