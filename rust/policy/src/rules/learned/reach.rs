//! Loads that no model has seen yet.

use cachelb_learned::{Model, Row};

/// Positions of the load features in [`cachelb_learned::FEATURES`].
const LOADS: [usize; 6] = [1, 2, 3, 4, 5, 8];
/// A worker may be so many times as loaded as any in the training data: the model has learned that more load costs
/// more. Left to the fallback at the first request beyond, the holders of a prefix would be avoided when they are
/// busiest, and their prefixes computed again elsewhere.
const REACH: f32 = 2.0;

/// The features of the request on the same worker when idle; as idle as the idlest in the training data.
pub(super) fn at_rest(row: &Row, model: &Model) -> Row {
    let (low, _) = model.bounds();
    let mut rest = *row;
    for at in LOADS {
        rest.values[at] = low.get(at).copied().unwrap_or(0.0).max(0.0);
    }
    rest
}

/// The row, with loads that a model can tell of although it has not seen them in the place of those that it has.
pub(super) fn within_reach(row: &Row, model: &Model) -> Row {
    let (low, high) = model.bounds();
    let mut near = *row;
    for at in LOADS {
        if let (Some(low), Some(high)) = (low.get(at), high.get(at)) {
            let value = &mut near.values[at];
            *value = value.max(*low);
            if *value <= REACH * *high {
                *value = value.min(*high);
            }
        }
    }
    near
}

/// Whether a worker is more loaded than a model can tell of.
pub(super) fn is_overloaded(row: &Row, model: &Model) -> bool {
    let (_, high) = model.bounds();
    let beyond = |at: &usize| {
        high.get(*at)
            .is_some_and(|high| row.values[*at] > REACH * high)
    };
    LOADS.iter().any(beyond)
}
