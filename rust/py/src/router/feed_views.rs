//! Counters of KV events as plain Python values.

use cachelb_core::events::{DropReason, Fault, FeedStats, Received, Totals};
use cachelb_core::router::Disagreement;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::NativeRouter;

fn dropped(py: Python<'_>, count: impl Fn(DropReason) -> u64) -> PyResult<Bound<'_, PyDict>> {
    let counts = PyDict::new(py);
    for reason in DropReason::ALL {
        let n = count(reason);
        if n > 0 {
            counts.set_item(reason.name(), n)?;
        }
    }
    Ok(counts)
}

fn events<'py>(py: Python<'py>, received: &Received) -> PyResult<Bound<'py, PyDict>> {
    let counts = PyDict::new(py);
    for (kind, by_place) in [("store", received.stores), ("remove", received.removals)] {
        for (place, n) in Received::PLACES.iter().zip(by_place) {
            if n > 0 {
                counts.set_item((kind, *place), n)?;
            }
        }
    }
    if received.clears > 0 {
        counts.set_item(("clear", "any"), received.clears)?;
    }
    Ok(counts)
}

fn repairs(py: Python<'_>, counted: [u64; Fault::ALL.len()]) -> PyResult<Bound<'_, PyDict>> {
    let counts = PyDict::new(py);
    for (fault, n) in Fault::ALL.into_iter().zip(counted) {
        counts.set_item(fault.name(), n)?;
    }
    Ok(counts)
}

fn row<'py>(
    py: Python<'py>,
    seen: &FeedStats,
    disagreement: Option<Disagreement>,
    (checked, found_less): (u64, u64),
) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    let refused = seen.refused.map(|refused| refused.to_string());
    let state = if refused.is_some() {
        "refused"
    } else {
        seen.state.name()
    };
    let (counted, tally) = (&seen.events, &seen.tally);
    row.set_item("state", state)?;
    row.set_item("fed", seen.fed && refused.is_none())?;
    row.set_item("refused", refused)?;
    row.set_item("engine_block_size", seen.engine_block_size)?;
    let mismatch = disagreement.map(|disagreement| disagreement.to_string());
    row.set_item("mismatch", mismatch)?;
    row.set_item("lag_s", seen.lag_s)?;
    row.set_item("messages", counted.messages)?;
    row.set_item("duplicates", tally.duplicates)?;
    row.set_item("events", events(py, &seen.received)?)?;
    row.set_item("stored_blocks", counted.stored_blocks)?;
    row.set_item("removed_blocks", counted.removed_blocks)?;
    row.set_item("unknown_removals", counted.unknown_removals)?;
    row.set_item("reannounced", counted.reannounced)?;
    row.set_item("parked", counted.parked)?;
    row.set_item("doubted_blocks", counted.doubted_blocks)?;
    row.set_item("settled_blocks", counted.settled_blocks)?;
    row.set_item("gaps", tally.gaps)?;
    row.set_item("resyncs", tally.resyncs)?;
    row.set_item("restarts", tally.restarts)?;
    row.set_item("checked", checked)?;
    row.set_item("found_less", found_less)?;
    row.set_item("repairs", repairs(py, seen.repairs)?)?;
    row.set_item("dropped", dropped(py, |reason| counted.dropped(reason))?)?;
    row.set_item("memory_bytes", seen.memory_bytes)?;
    Ok(row)
}

#[pymethods]
impl NativeRouter {
    /// What every stream counted: key, rank or None, and a dictionary.
    fn _kv_rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = PyList::empty(py);
        for (key, worker) in self.feeds.all() {
            // A stream that applies a replay keeps its lock for long.
            let stats = py.detach(|| worker.streams.stats());
            let known: Vec<_> = self.engine.locked(py, |selector| {
                let of = |&id| (selector.disagreement(id), selector.checked(id));
                worker.ids.iter().map(of).collect()
            })?;
            let ranked = stats.len() > 1;
            for (rank, (stats, (disagreement, checked))) in stats.iter().zip(known).enumerate() {
                let row = row(py, stats, disagreement, checked)?;
                rows.append((&*key, ranked.then_some(rank), row))?;
            }
        }
        Ok(rows)
    }

    /// Sums over all streams, those that are gone too.
    fn _kv_totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut totals = self.feeds.retired();
        let all = self.feeds.all();
        py.detach(|| {
            for (_, worker) in &all {
                worker.streams.add_to(&mut totals);
            }
        });
        let sums = PyDict::new(py);
        let replays = PyDict::new(py);
        for (result, n) in Totals::REPLAYS.iter().zip(totals.replays) {
            replays.set_item(result, n)?;
        }
        sums.set_item("gaps", totals.gaps)?;
        sums.set_item("replays", replays)?;
        sums.set_item("resyncs", totals.resyncs)?;
        sums.set_item("restarts", totals.restarts)?;
        sums.set_item("repairs", repairs(py, totals.repairs)?)?;
        sums.set_item(
            "dropped",
            dropped(py, |reason| totals.dropped[reason as usize])?,
        )?;
        Ok(sums)
    }
}
