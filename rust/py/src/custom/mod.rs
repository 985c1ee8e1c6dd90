//! Policies of the caller's own: asked while nothing is locked, their picks then booked as any other.
//!
//! A selection with such a policy is three steps: copy the candidates out under the lock, ask, and book the pick under the
//! lock. A pick that is no candidate any more by then is asked for again, a few times. Whatever the policy does wrong, the
//! request is served: the rule in its place takes the least loaded worker.

mod answer;
mod memory;
mod views;

use std::sync::Arc;

use cachelb::selector::{Survey, Wanted};
use cachelb_policy::Reason;
use pyo3::exceptions::PyException;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use self::answer::read_answer;
pub use self::views::{FleetView, RequestView};
use crate::workers::Registered;

/// How often a policy is asked for one request whose picks vanish.
pub const TRIES: usize = 3;

/// A pick as the selector takes it: offer and reason.
pub type Pinned = Option<(u32, Reason)>;

/// A policy of the caller's and the `Watched` that reports its failures.
#[derive(Debug)]
struct Custom {
    policy: Py<PyAny>,
    watched: Py<PyAny>,
}

impl Custom {
    fn read(watched: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if watched.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            policy: watched.getattr("policy")?.unbind(),
            watched: watched.clone().unbind(),
        }))
    }

    /// Asks the policy. `None` if it failed; an interrupt or exit is raised to the caller.
    fn ask(
        &self,
        py: Python<'_>,
        request: RequestView,
        survey: &Arc<Survey>,
        registered: &Arc<Registered>,
    ) -> PyResult<Pinned> {
        let fleet = FleetView::new(Arc::clone(survey), Arc::clone(registered));
        let rows = survey.offers.len();
        let answer = self
            .policy
            .call_method1(py, intern!(py, "choose"), (request, fleet))
            .and_then(|answer| read_answer(answer.bind(py), rows));
        match answer {
            Ok((row, reason)) => Ok(Some((survey.offers[row], reason))),
            Err(error) if error.is_instance_of::<PyException>(py) => {
                let error = error.into_value(py);
                self.watched
                    .call_method1(py, intern!(py, "failed"), (error,))?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// The policies of one router that are the caller's.
#[derive(Debug, Default)]
pub struct Customs {
    /// Those that decide, by [`Wanted`].
    deciding: [Option<Custom>; Wanted::ALL.len()],
    /// By position among all shadows.
    shadows: Vec<Option<Custom>>,
}

/// Picks of the caller's policies for one selection.
#[derive(Debug, Default)]
pub struct Picks {
    pub pinned: Pinned,
    pub pinned_prefill: Pinned,
    pub shadows: Vec<Pinned>,
}

impl Customs {
    /// Reads `{"whole", "prefill", "decode", "shadows"}`; None stands for native rules.
    pub fn read(given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut customs = Self::default();
        for (custom, wanted) in customs.deciding.iter_mut().zip(Wanted::ALL) {
            if let Some(watched) = given.get_item(wanted.name())? {
                *custom = Custom::read(&watched)?;
            }
        }
        if let Some(given) = given.get_item("shadows")? {
            for watched in given.try_iter()? {
                customs.shadows.push(Custom::read(&watched?)?);
            }
        }
        Ok(customs)
    }

    /// Whether all policies are native.
    pub fn is_empty(&self) -> bool {
        let mut customs = self.deciding.iter().chain(&self.shadows);
        customs.all(Option::is_none)
    }

    fn of(&self, wanted: Wanted) -> Option<&Custom> {
        self.deciding[wanted as usize].as_ref()
    }

    fn shadows(&self, wanted: Wanted, dry_run: bool) -> &[Option<Custom>] {
        if wanted == Wanted::Whole && !dry_run && self.shadows.iter().any(Option::is_some) {
            &self.shadows
        } else {
            &[]
        }
    }

    /// Whether a policy of the caller's is the one that decides.
    pub fn decides(&self, wanted: Wanted) -> bool {
        self.of(wanted).is_some()
    }

    /// Whether a policy outside the selector must be asked.
    pub fn are_asked(&self, wanted: Wanted, dry_run: bool) -> bool {
        self.of(wanted).is_some() || !self.shadows(wanted, dry_run).is_empty()
    }

    /// Asks the policies that `turn` concerns; `request` makes the view for a seed.
    pub fn ask(
        &self,
        py: Python<'_>,
        (wanted, dry_run): (Wanted, bool),
        survey: &Arc<Survey>,
        registered: &Arc<Registered>,
        request: impl Fn(u64) -> RequestView,
        picks: &mut Picks,
    ) -> PyResult<()> {
        if let Some(policy) = self.of(wanted) {
            let pick = policy.ask(py, request(survey.seed), survey, registered)?;
            match wanted {
                Wanted::Prefill => picks.pinned_prefill = pick,
                Wanted::Whole | Wanted::Decode => picks.pinned = pick,
            }
        }
        picks.shadows.clear();
        let shadows = self.shadows(wanted, dry_run).iter();
        for (shadow, seed) in shadows.zip(&survey.shadow_seeds) {
            picks.shadows.push(match shadow {
                Some(policy) => policy.ask(py, request(*seed), survey, registered)?,
                None => None,
            });
        }
        Ok(())
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for custom in self.deciding.iter().chain(&self.shadows).flatten() {
            visit.call(&custom.policy)?;
            visit.call(&custom.watched)?;
        }
        Ok(())
    }
}
