//! The selection step over a fleet: eligibility, rule, booking and record as one.
//!
//! | file | holds |
//! |---|---|
//! | `settings` | what a selector and its pools are built from |
//! | `request` | one request, and the pick that answers it |
//! | `offers` | the workers one request may use |
//! | `naming` | what a worker is called in every output |
//! | `common_name` | which of the undeclared models the engines serve |
//! | `fleet` | who the workers are, what they serve, whether they take requests now |
//! | `fed` | workers whose engines say what they hold |
//! | `sizes` | engines whose blocks are not of the router's size |
//! | `health` | which workers failed lately |
//! | `budget` | the bytes that all block indexes may take together |
//! | `pool` | what belongs to one model: block index, rules, unproven placements |
//! | `placement` | what a routed request leaves in the index |
//! | `reach` | what candidates whose engines publish events hold |
//! | `checks` | whether those engines find cached what their events promised |
//! | `leases` | placements on workers whose events will tell |
//! | `gather` | request and fleet -> the rows a rule sees |
//! | `rows` | those rows, kept from one request to the next |
//! | `selector` | the step itself |
//! | `lifecycle` | what happens to a booking after it |
//! | `workers` | workers come, change and go |
//! | `introspect` | counts, bytes, previews, the recount of everything |
//! | `sight` | what a decision saw, written down as it is made |
//! | `pair` | the step for a prefill and a decode worker together |
//! | `batch` | the step for several requests at once |
//! | `survey` | what a policy outside sees of the candidates |
//! | `trail` | what the latest decisions saw, for explanations |
//! | `ledger` | what became of them, for counters and records |
//! | `sharing` | what other routers and this one tell each other |
//! | `timing` | how long selections took |

mod batch;
mod budget;
mod checks;
mod common_name;
mod fed;
mod fleet;
mod gather;
mod health;
mod introspect;
mod leases;
mod ledger;
mod lifecycle;
mod naming;
mod offers;
mod pair;
mod placement;
mod pool;
mod reach;
mod request;
mod rows;
mod selector;
mod settings;
mod sharing;
mod sight;
mod sizes;
mod survey;
mod timing;
mod trail;
mod workers;

pub use crate::policy::Placements;
pub use batch::BatchTerms;
pub use common_name::CommonName;
pub use fed::Fed;
pub use fleet::{Profile, Role, Standing};
pub use health::Breaker;
pub use ledger::{
    Ending, Funnel, Ledger, Lost, Record, ShadowPick, ShadowTally, Usage, WorkerState,
};
pub use naming::{Name, TagKey, whole};
pub use offers::{Offer, Offers};
pub use pair::PairTerms;
pub use request::{Pick, PoolId, Request, Wanted};
pub use selector::Selector;
pub use settings::{PoolSettings, Settings, Veto};
pub use sharing::{Heard, Keeper, Kept, Restoring, RoutesTold, Told, Walk};
pub use sizes::{Disagreement, Facts};
pub use survey::{Column, Survey};
pub use timing::Timing;
pub use trail::{Held, Seen, Sight};

#[cfg(test)]
mod tests;
