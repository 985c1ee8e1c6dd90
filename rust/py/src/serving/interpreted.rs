//! Selections by the interpreter: of routers with a policy, a renderer or a clock in Python.

use std::collections::HashMap;
use std::sync::Arc;

use cachelb::selector::Eligibility;
use cachelb_serving::{Asked, Query, RETRY_AFTER_S, Refusal, Selected, Selecting};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use super::load::{Chosen, Load, inflight};
use super::native::failed;
use crate::arguments::Call;
use crate::decision::{Attempt, Owner as _};
use crate::error::classes::{BodyError, NoWorkerAvailable};
use crate::router::NativeRouter;

/// One request, as the arguments of `Router.select_worker`.
pub struct Interpreted<'py> {
    router: Bound<'py, NativeRouter>,
    call: Call,
}

impl<'py> Interpreted<'py> {
    pub fn new(router: Bound<'py, NativeRouter>, asked: &Asked) -> PyResult<Self> {
        let py = router.py();
        let text = |text: &str| PyString::new(py, text).unbind();
        let headers = PyList::new(py, asked.headers.iter())?;
        let body = asked.body.as_ref();
        let call = Call {
            body: body.map(|body| PyBytes::new(py, body).into_any().unbind()),
            path: Some(text(asked.path())),
            headers: Some(headers.into_any().unbind()),
            tenant: asked.tenant.as_deref().map(text),
            model: asked.model.as_deref().map(text),
            priority: asked.priority.unwrap_or(0),
            by_load: true,
            ..Call::default()
        };
        Ok(Self { router, call })
    }
}

impl Selecting for Interpreted<'_> {
    type Load = Load;

    fn select(&mut self, query: Query<'_>) -> Selected<Chosen> {
        let py = self.router.py();
        let keys = |keys: &mut dyn Iterator<Item = &Arc<str>>| {
            let keys: Vec<&str> = keys.map(|key| &**key).collect();
            PyList::new(py, keys).map(|keys| keys.into_any().unbind())
        };
        let selected = (|| {
            let call = Call {
                among: query
                    .among
                    .map(|among| keys(&mut among.iter()))
                    .transpose()?,
                exclude: Some(keys(&mut query.exclude.iter())?),
                ..self.call.clone_ref(py)
            };
            self.router
                .as_unbound()
                .select(py, call, Vec::new(), query.dry_run)
        })();
        let decision = selected.map_err(|error| refusal(py, &error))?;
        let (pick, rank, fleet) = (
            decision.pick,
            decision.dp_rank,
            self.router.get().fleet.get(),
        );
        let Attempt { lease, key, .. } = decision.attempt;
        Ok(Some(Chosen {
            model: fleet.model(pick.pool).unwrap_or_default(),
            key,
            rank,
            load: (!query.dry_run).then_some(Load {
                lease,
                reason: pick.reason,
                matched_tokens: pick.matched_tokens,
            }),
        }))
    }

    fn set_model(&mut self, model: &str) {
        self.call.model = Some(PyString::new(self.router.py(), model).unbind());
    }

    fn models(&self) -> Vec<String> {
        self.router.get().fleet.get().models()
    }

    fn inflight(&self, chosen: &Chosen) -> u64 {
        inflight(self.router.get(), chosen)
    }
}

/// Refusal that the client gets for an exception.
fn refusal(py: Python<'_>, error: &PyErr) -> Refusal {
    if error.is_instance_of::<NoWorkerAvailable>(py) {
        let reasons = error.value(py).getattr(intern!(py, "reasons"));
        let reasons = reasons.and_then(|reasons| reasons.extract::<HashMap<String, String>>());
        let lacks = |reason: &String| reason == Eligibility::OtherModel.describe();
        if reasons.is_ok_and(|reasons| !reasons.is_empty() && reasons.values().all(lacks)) {
            return Refusal::no_model();
        }
        return Refusal::no_worker(Some(RETRY_AFTER_S));
    }
    if error.is_instance_of::<BodyError>(py) {
        return Refusal::bad_body(error.value(py).to_string());
    }
    failed(error)
}
