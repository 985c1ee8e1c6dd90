//! Counters of KV events as plain Python values.

use cachelb::selector::Disagreement;
use cachelb_events::{DropReason, Fault, FeedStats, GroupStats, Received, Totals};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList};

use super::fleet::Fleet;
use crate::items::set_items;

fn dropped(py: Python<'_>, count: impl Fn(DropReason) -> u64) -> PyResult<Bound<'_, PyDict>> {
    let counts = DropReason::ALL.map(|reason| (reason.name(), count(reason)));
    let counts = counts.into_iter().filter(|(_, n)| *n > 0);
    counts.into_py_dict(py)
}

/// Adds the counts of unknown fields by name.
fn fields<'py>(counts: Bound<'py, PyDict>, seen: &FeedStats) -> PyResult<Bound<'py, PyDict>> {
    for (name, n) in &seen.unknown_fields {
        counts.set_item(format!("unknown-field:{name}"), n)?;
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

/// Cache groups as tuples, each the arguments of one.
fn groups<'py>(py: Python<'py>, groups: &[GroupStats]) -> PyResult<Bound<'py, PyList>> {
    let rows = groups.iter().map(|group| {
        let kind = (group.kind != "unsaid").then_some(&*group.kind);
        let size = (group.block_size > 0).then_some(group.block_size);
        (group.id, kind, size, group.window, group.blocks)
    });
    PyList::new(py, rows.collect::<Vec<_>>())
}

fn repairs(py: Python<'_>, counted: [u64; Fault::ALL.len()]) -> PyResult<Bound<'_, PyDict>> {
    let names = Fault::ALL.map(Fault::name).into_iter();
    names.zip(counted).into_py_dict(py)
}

fn row<'py>(
    py: Python<'py>,
    seen: &FeedStats,
    disagreement: Option<Disagreement>,
    (checked, found_less): (u64, u64),
    drafts: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    let refused = seen.refused.map(|refused| refused.to_string());
    let state = if refused.is_some() {
        "refused"
    } else {
        seen.state.name()
    };
    let (counted, tally) = (&seen.events, &seen.tally);
    set_items!(row, seen => engine_block_size, lag_s, memory_bytes);
    for (name, count) in counted.named().into_iter().chain(tally.named()) {
        row.set_item(name, count)?;
    }
    set_items!(
        row,
        state: state,
        fed: seen.fed && refused.is_none(),
        refused: refused,
        mismatch: disagreement.map(|disagreement| disagreement.to_string()),
        events: events(py, &seen.received)?,
        groups: groups(py, &seen.groups)?,
        checked: checked,
        found_less: found_less,
        drafts: drafts,
        repairs: repairs(py, seen.repairs)?,
        dropped: fields(dropped(py, |reason| counted.dropped(reason))?, seen)?,
    );
    Ok(row)
}

#[pymethods]
impl Fleet {
    /// Counters of every stream: key, rank or None, and a dictionary.
    fn event_rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = PyList::empty(py);
        for (key, worker) in self.registry.feeds.all() {
            // A stream that applies a replay keeps its lock for long.
            let stats = py.detach(|| worker.streams.stats());
            let known: Vec<_> = self.engine.locked(py, |selector| {
                let of = |&id| {
                    let feed = selector.feed(id);
                    feed.map_or_else(Default::default, |feed| {
                        (feed.disagreement(), feed.checked(), feed.drafts())
                    })
                };
                worker.ids.iter().map(of).collect()
            })?;
            let ranked = stats.len() > 1;
            for (rank, (stats, (disagreement, checked, drafts))) in
                stats.iter().zip(known).enumerate()
            {
                let row = row(py, stats, disagreement, checked, drafts)?;
                rows.append((&*key, ranked.then_some(rank), row))?;
            }
        }
        Ok(rows)
    }

    /// Sums over all streams, those that are gone too.
    fn event_totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let totals = py.detach(self.registry.feeds.totals());
        let sums = PyDict::new(py);
        let replays = Totals::REPLAYS.into_iter().zip(totals.replays);
        set_items!(sums, totals => gaps, resyncs, restarts);
        set_items!(
            sums,
            replays: replays.into_py_dict(py)?,
            repairs: repairs(py, totals.repairs)?,
            dropped: dropped(py, |reason| totals.dropped[reason as usize])?,
        );
        Ok(sums)
    }
}
