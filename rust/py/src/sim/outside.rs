//! A gateway written in Python.

use cachelb_core::ids::Medium;
use cachelb_sim::{Attempt, Change, EngineLoad, Gateway, News, Notice, Pair, Placed};
use pyo3::call::PyCallArgs;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// An object with the methods of `cachelb_lab.sim.gateway.Gateway`.
#[derive(Debug)]
pub struct Outside {
    gateway: Py<PyAny>,
    /// Whether it holds requests.
    holds: bool,
}

impl Outside {
    pub fn new(gateway: Py<PyAny>) -> Self {
        let holds = Python::attach(|py| gateway.bind(py).hasattr(intern!(py, "held_until")));
        Self {
            gateway,
            holds: holds.unwrap_or(false),
        }
    }

    /// Calls a method of the gateway, and reads its answer.
    fn ask<R>(&self, method: &str, given: impl for<'py> PyCallArgs<'py>) -> PyResult<R>
    where
        R: for<'py> FromPyObjectOwned<'py>,
    {
        Python::attach(|py| {
            let answer = self.gateway.bind(py).call_method1(method, given)?;
            answer.extract().map_err(Into::into)
        })
    }

    /// Calls a method of the gateway that answers nothing.
    fn notify(&self, method: &str, given: impl for<'py> PyCallArgs<'py>) -> PyResult<()> {
        Python::attach(|py| self.gateway.call_method1(py, method, given).map(drop))
    }

    fn changed(&self, worker: u32, changes: &[Change], now: f64) -> PyResult<()> {
        Python::attach(|py| {
            let rows = PyList::empty(py);
            for change in changes {
                match *change {
                    // A gateway of one's own follows what the device holds.
                    Change::Stored { medium, .. } | Change::Removed { medium, .. }
                        if medium != Medium::Gpu => {}
                    Change::Stored { hash, parent, .. } => {
                        rows.append(("stored", hash.0, parent.map(|parent| parent.0)))?;
                    }
                    Change::Removed { hash, .. } => rows.append(("removed", hash.0))?,
                    Change::Marked { hash } => rows.append(("marked", hash.0))?,
                    Change::Unmarked { hash } => rows.append(("unmarked", hash.0))?,
                    Change::Cleared => rows.append(("cleared",))?,
                }
            }
            let name = intern!(py, "changed");
            self.gateway.call_method1(py, name, (worker, rows, now))?;
            Ok(())
        })
    }
}

/// A gateway's answer for one worker.
type Answer = (u32, u64, u32, u8);

fn placed((worker, ticket, predicted_tokens, reason): Answer) -> Placed {
    Placed {
        worker,
        ticket,
        predicted_tokens,
        reason,
        gateway: 0,
        source: None,
    }
}

impl Gateway for Outside {
    type Error = PyErr;

    fn select(&mut self, attempt: &Attempt<'_>) -> PyResult<Option<Placed>> {
        let given = (attempt.id, attempt.tried, attempt.now);
        Ok(self.ask::<Option<Answer>>("select", given)?.map(placed))
    }

    fn select_pair(&mut self, attempt: &Attempt<'_>) -> PyResult<Option<Pair>> {
        let given = (attempt.id, attempt.tried, attempt.now);
        let pair: Option<(Option<Answer>, Answer)> = self.ask("select_pair", given)?;
        Ok(pair.map(|(prefill, decode)| Pair {
            prefill: prefill.map(placed),
            decode: placed(decode),
        }))
    }

    fn held(&mut self, id: u32) -> PyResult<Option<f64>> {
        if !self.holds {
            return Ok(None);
        }
        self.ask("held_until", (id,))
    }

    fn called(&mut self, now: f64) -> PyResult<Vec<u32>> {
        if !self.holds {
            return Ok(Vec::new());
        }
        self.ask("called", (now,))
    }

    fn give_up(&mut self, id: u32) -> PyResult<()> {
        self.notify("give_up", (id,))
    }

    fn publish(&mut self) -> PyResult<Vec<Vec<u8>>> {
        self.ask("publish", ())
    }

    fn receive(&mut self, message: &[u8], now: f64) -> PyResult<()> {
        self.notify("receive", (message, now))
    }

    fn notice(&mut self, placed: Placed, notice: Notice, now: f64) -> PyResult<()> {
        let ticket = placed.ticket;
        match notice {
            Notice::FirstToken => self.notify("first_token", (ticket, now)),
            Notice::Tokens(n) => self.notify("tokens", (ticket, n, now)),
            Notice::Finished(cached) => self.notify("finished", (ticket, cached, now)),
            Notice::Failed => self.notify("failed", (ticket, now)),
            Notice::Cancelled => self.notify("cancelled", (ticket, now)),
        }
    }

    fn news(&mut self, news: News<'_>, now: f64) -> PyResult<()> {
        match news {
            News::Report(worker, load, at) => {
                let EngineLoad {
                    running, waiting, ..
                } = load;
                let load = (running, waiting, load.queued_tokens, load.kv_usage);
                self.notify("report", (worker, load, at, now))
            }
            News::Changed(worker, changes) => self.changed(worker, changes, now),
            News::Lost(worker) => self.changed(worker, &[Change::Cleared], now),
            News::Ready(worker, ready) => self.notify("set_ready", (worker, ready, now)),
            News::PoolChanged(_) | News::Feed(..) => Ok(()),
        }
    }
}
