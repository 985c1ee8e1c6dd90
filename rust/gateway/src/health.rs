//! Health checks: `GET /health` of each worker, beside the signs that its requests give.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cachelb_serving::Host;
use hyper::HeaderMap;
use tokio::task::JoinSet;

use crate::models::read;
use crate::shared::Shared;

/// Checks in a row that a worker fails before it is not picked: one may meet an engine that is busy.
const FAILURES: u32 = 2;

/// Time that a check may take.
const LIMIT: Duration = Duration::from_secs(2);

/// Checks all workers, each at its time.
pub(crate) async fn check<H: Host>(shared: &Arc<Shared<H>>, every: Duration) {
    let mut failures: HashMap<Arc<str>, u32> = HashMap::new();
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let workers = shared.host.workers();
        failures.retain(|worker, _| workers.contains(worker));
        let mut checks = JoinSet::new();
        for worker in workers {
            let shared = Arc::clone(shared);
            checks.spawn(async move {
                let answer = read(&shared, &worker, "/health", &HeaderMap::new(), LIMIT).await;
                // An engine without the page answers that it has none.
                let is_healthy = answer.is_some_and(|(status, _)| !status.is_server_error());
                (worker, is_healthy)
            });
        }
        while let Some(Ok((worker, is_healthy))) = checks.join_next().await {
            let before = failures.get(&worker).copied().unwrap_or(0);
            let now = if is_healthy {
                0
            } else {
                before.saturating_add(1)
            };
            failures.insert(Arc::clone(&worker), now);
            if is_healthy && before >= FAILURES {
                shared.host.set_health(&worker, true);
            } else if now == FAILURES {
                shared.host.set_health(&worker, false);
            }
        }
    }
}
