//! Counters as JSON.

use crate::selector::{Access as _, Ending, Registered, Selector, Wanted};
use cachelb_core::ids::Millis;
use cachelb_events::{DropReason, Totals};
use cachelb_policy::Reason;
use serde_json::{Map, Value as Json, json};

use super::Router;

fn counts<'a>(named: impl IntoIterator<Item = (&'a str, u64)>) -> Json {
    let counts = named.into_iter().filter(|(_, count)| *count > 0);
    Json::Object(
        counts
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect(),
    )
}

impl Router {
    /// Options, workers and counters as a JSON object.
    ///
    /// ```
    /// let router = cachelb::Router::new("{}")?;
    /// router.add_worker("gpu0", 0)?;
    /// let stats = router.stats_json(1);
    /// assert!(stats.starts_with('{') && stats.contains(r#""in_flight":0"#));
    /// # Ok::<(), cachelb::Error>(())
    /// ```
    #[must_use]
    pub fn stats_json(&self, now_ms: u64) -> String {
        let totals = self.registry.feeds.totals()();
        let registered = self.registry.roster.now();
        self.held(|selector| self.stats(&registered, &totals, selector, now_ms))
    }

    fn stats(
        &self,
        registered: &Registered<()>,
        totals: &Totals,
        selector: &Selector,
        now_ms: u64,
    ) -> String {
        let loads = &selector.book().loads;
        let workers: Map<String, Json> = registered
            .workers()
            .filter_map(|worker| {
                let key = &worker.key;
                let id = selector.fleet().find(key)?;
                let (_, eligibility) = selector.condition(id, Millis(now_ms))?;
                let about = json!({
                    "state": eligibility.name(),
                    "in_flight": loads.inflight(id),
                    "blocks": selector.pools().block_count(Some(id)),
                    "has_events": selector.fleet().feed(id).is_some(),
                });
                Some((key.to_string(), about))
            })
            .collect();
        let ledger = selector.ledger();
        let decisions = &ledger.counters.decisions[Wanted::Whole as usize];
        let reasons = Reason::ALL.iter().map(|reason| reason.name());
        let stats = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "policy": self.policy,
            "settings": self.own,
            "workers": workers,
            "in_flight": selector.book().bookings.len(),
            "decisions": counts(reasons.zip(decisions.iter().copied())),
            "endings": counts(Ending::ALL.map(Ending::name).into_iter().zip(ledger.counters.endings)),
            "no_worker": ledger.counters.no_worker,
            "funnel": counts(ledger.counters.funnel.named()),
            "events": events(totals),
            "blocks": selector.pools().block_count(None),
            "memory_bytes": selector.memory_bytes(),
        });
        stats.to_string()
    }
}

fn events(totals: &Totals) -> Json {
    json!({
        "gaps": totals.gaps,
        "resyncs": totals.resyncs,
        "restarts": totals.restarts,
        "dropped": counts(DropReason::ALL.map(DropReason::name).into_iter().zip(totals.dropped)),
    })
}
