//! Why a worker was picked: a closed set, one name per rule outcome and per fallback.

cachelb_core::named! {
    /// Why a worker was picked. Fallbacks are never silent: each has its own name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    #[non_exhaustive]
    Reason {
        /// The worker holds the longest useful prefix.
        Prefix = "prefix",
        /// The holder was overloaded; the least loaded worker becomes a holder too.
        Spill = "spill",
        /// No worker holds enough of the prompt.
        Cold = "cold",
        /// The least loaded worker, by the policy's own rule.
        LeastLoaded = "least-loaded",
        /// The request carries nothing to match or hash: least loaded.
        NoKey = "no-key",
        /// The prompt does not fill one block: least loaded.
        ShortPrompt = "short-prompt",
        /// The session's worker.
        Session = "session",
        /// The session's worker was not available.
        SessionMoved = "session-moved",
        /// The worker that stored the response that the request continues.
        Continuation = "continuation",
        /// Chosen by hash of the key.
        Hash = "hash",
        /// The hashed worker was over its bound; the next one was taken.
        HashBounded = "hash-bounded",
        /// Kept on the worker of the prefix.
        Sticky = "sticky",
        /// Left the worker of the prefix because it is saturated.
        StickyBroken = "sticky-broken",
        /// The fleet is out of balance: least loaded.
        Imbalance = "imbalance",
        /// The learned worker is too busy; served elsewhere.
        Diverted = "diverted",
        /// A random pick, to learn from.
        Explore = "explore",
        /// Best prediction of the model.
        Learned = "learned",
        /// Drawn among predictions too close to tell apart.
        LearnedTie = "learned-tie",
        /// The model chose within the restricted set.
        KFilter = "k-filter",
        /// The model has too few samples.
        ColdStart = "cold-start",
        /// The request lies outside the model's training data.
        Ood = "ood",
        /// The model failed.
        ModelError = "model-error",
        /// The model took too long.
        ModelTimeout = "model-timeout",
        /// The model is too old.
        ModelStale = "model-stale",
        /// The model no longer fits the traffic.
        ModelDrift = "model-drift",
        /// The model's normaliser belongs to another model.
        NormaliserMismatch = "normaliser-mismatch",
        /// The event stream is behind: by confirmed blocks alone.
        StaleEvents = "stale-events",
        /// Only text came, which events do not cover: by the router's own placements.
        TextOnly = "text-only",
        /// The load reports are too old.
        StaleLoad = "stale-load",
        /// The caller named the worker.
        Pinned = "pinned",
        /// There was one candidate.
        #[default]
        OnlyOne = "only-one",
        /// No worker can meet the objective.
        SloUnattainable = "slo-unattainable",
        /// Every worker has as many requests waiting as it may; none is picked.
        Full = "full",
        /// Decoded where the prompt is cached, without a prefill worker.
        LocalDecode = "local-decode",
        /// Drawn at random, by the policy's own rule.
        Random = "random",
        /// The next in turn.
        RoundRobin = "round-robin",
        /// The worker of the prompt's length.
        LengthBucket = "length-bucket",
        /// The caller's own policy.
        Custom = "custom",
        /// The caller's own policy failed: least loaded.
        PolicyError = "policy-error",
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_hyphenated() {
        let names: HashSet<&str> = Reason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        assert!(
            names
                .iter()
                .all(|n| n.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
        );
    }
}
