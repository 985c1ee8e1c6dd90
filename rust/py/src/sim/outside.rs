//! A gateway written in Python.

use cachelb_sim::{Attempt, Change, EngineLoad, Gateway, Pair, Placed};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// An object with the methods of `cachelb.sim.gateway.Gateway`.
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
}

/// What a gateway answers for one worker.
type Answer = (u32, u64, u32, u8);

fn placed((worker, ticket, predicted_tokens, reason): Answer) -> Placed {
    Placed {
        worker,
        ticket,
        predicted_tokens,
        reason,
        gateway: 0,
    }
}

impl Gateway for Outside {
    type Error = PyErr;

    fn select(&mut self, attempt: &Attempt<'_>) -> PyResult<Option<Placed>> {
        Python::attach(|py| {
            let gateway = self.gateway.bind(py);
            let given = (attempt.id, attempt.tried, attempt.now);
            let answer = gateway.call_method1(intern!(py, "select"), given)?;
            Ok(answer.extract::<Option<Answer>>()?.map(placed))
        })
    }

    fn select_pair(&mut self, attempt: &Attempt<'_>) -> PyResult<Option<Pair>> {
        Python::attach(|py| {
            let gateway = self.gateway.bind(py);
            let given = (attempt.id, attempt.tried, attempt.now);
            let answer = gateway.call_method1(intern!(py, "select_pair"), given)?;
            let pair: Option<(Option<Answer>, Answer)> = answer.extract()?;
            Ok(pair.map(|(prefill, decode)| Pair {
                prefill: prefill.map(placed),
                decode: placed(decode),
            }))
        })
    }

    fn held(&mut self, id: u32) -> PyResult<Option<f64>> {
        if !self.holds {
            return Ok(None);
        }
        Python::attach(|py| {
            let until = self
                .gateway
                .call_method1(py, intern!(py, "held_until"), (id,))?;
            until.extract(py)
        })
    }

    fn called(&mut self, now: f64) -> PyResult<Vec<u32>> {
        if !self.holds {
            return Ok(Vec::new());
        }
        Python::attach(|py| {
            let called = self
                .gateway
                .call_method1(py, intern!(py, "called"), (now,))?;
            called.extract(py)
        })
    }

    fn give_up(&mut self, id: u32) -> PyResult<()> {
        Python::attach(|py| {
            self.gateway
                .call_method1(py, intern!(py, "give_up"), (id,))?;
            Ok(())
        })
    }

    fn publish(&mut self) -> PyResult<Vec<Vec<u8>>> {
        Python::attach(|py| {
            let name = intern!(py, "publish");
            self.gateway.call_method0(py, name)?.extract(py)
        })
    }

    fn receive(&mut self, message: &[u8], now: f64) -> PyResult<()> {
        Python::attach(|py| {
            let name = intern!(py, "receive");
            let message = PyBytes::new(py, message);
            self.gateway.call_method1(py, name, (message, now))?;
            Ok(())
        })
    }

    fn first_token(&mut self, placed: Placed, now: f64) -> PyResult<()> {
        Python::attach(|py| {
            let name = intern!(py, "first_token");
            self.gateway.call_method1(py, name, (placed.ticket, now))?;
            Ok(())
        })
    }

    fn tokens(&mut self, placed: Placed, n: u32, now: f64) -> PyResult<()> {
        Python::attach(|py| {
            let name = intern!(py, "tokens");
            self.gateway
                .call_method1(py, name, (placed.ticket, n, now))?;
            Ok(())
        })
    }

    fn finished(&mut self, placed: Placed, cached_tokens: Option<u32>, now: f64) -> PyResult<()> {
        Python::attach(|py| {
            let name = intern!(py, "finished");
            self.gateway
                .call_method1(py, name, (placed.ticket, cached_tokens, now))?;
            Ok(())
        })
    }

    fn failed(&mut self, placed: Placed, now: f64) -> PyResult<()> {
        Python::attach(|py| {
            let name = intern!(py, "failed");
            self.gateway.call_method1(py, name, (placed.ticket, now))?;
            Ok(())
        })
    }

    fn cancelled(&mut self, placed: Placed, now: f64) -> PyResult<()> {
        Python::attach(|py| {
            let name = intern!(py, "cancelled");
            self.gateway.call_method1(py, name, (placed.ticket, now))?;
            Ok(())
        })
    }

    fn report(&mut self, worker: u32, load: EngineLoad, at: f64, now: f64) -> PyResult<()> {
        Python::attach(|py| {
            let name = intern!(py, "report");
            let load = (
                load.running,
                load.waiting,
                load.queued_tokens,
                load.kv_usage,
            );
            self.gateway
                .call_method1(py, name, (worker, load, at, now))?;
            Ok(())
        })
    }

    fn changed(&mut self, worker: u32, changes: &[Change], now: f64) -> PyResult<()> {
        Python::attach(|py| {
            let rows = PyList::empty(py);
            for change in changes {
                match *change {
                    Change::Stored { hash, parent } => {
                        rows.append(("stored", hash.0, parent.map(|parent| parent.0)))?;
                    }
                    Change::Removed { hash } => rows.append(("removed", hash.0))?,
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

    fn set_ready(&mut self, worker: u32, ready: bool, now: f64) -> PyResult<()> {
        Python::attach(|py| {
            let name = intern!(py, "set_ready");
            self.gateway.call_method1(py, name, (worker, ready, now))?;
            Ok(())
        })
    }
}
