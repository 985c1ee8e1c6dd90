//! The interface between requests and engines: the router under test.

use cachelb_events::FeedState;

use crate::engine::EngineLoad;
use crate::engine::change::Change;

/// Where a gateway sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Position of the worker.
    pub worker: u32,
    /// Names the placement in later calls.
    pub ticket: u64,
    /// Prompt tokens it takes to be cached there.
    pub predicted_tokens: u32,
    /// Why, by a code of its own.
    pub reason: u8,
    /// Position of the gateway, if there are several.
    pub gateway: u16,
    /// Position of the worker to take cached blocks from.
    pub source: Option<u32>,
}

/// Where a gateway sends the halves of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// The half that computes the prompt, `None` if the other does it too.
    pub prefill: Option<Placed>,
    /// The half that generates.
    pub decode: Placed,
}

/// One attempt to place a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attempt<'a> {
    /// The request.
    pub id: u32,
    /// How often it was tried before.
    pub attempt: u32,
    /// Workers it was tried on.
    pub tried: &'a [u32],
    /// Seconds.
    pub now: f64,
}

/// Progress of a request.
#[derive(Debug, Clone, Copy)]
pub enum Notice {
    /// Its first token arrived.
    FirstToken,
    /// So many more tokens arrived.
    Tokens(u32),
    /// It is complete; the engine counts so many prompt tokens as cached, unless it does not report that or had the
    /// prompt computed elsewhere.
    Finished(Option<u32>),
    /// Its worker failed it.
    Failed,
    /// It is given up: its client went away, or the other half of its pair failed.
    Cancelled,
}

/// Facts about workers, by their positions.
#[derive(Debug, Clone, Copy)]
pub enum News<'a> {
    /// A load report, as of the time behind it.
    Report(u32, EngineLoad, f64),
    /// Changes of a worker's cache, in order.
    Changed(u32, &'a [Change]),
    /// Changes of the pool that workers share, in order.
    PoolChanged(&'a [Change]),
    /// Changes of a worker's cache are lost for good: its contents are unknown.
    Lost(u32),
    /// How far later changes of a worker can be trusted.
    Feed(u32, FeedState),
    /// A worker is found to be there, or not.
    Ready(u32, bool),
}

/// A router. Times are seconds and never go back.
pub trait Gateway {
    /// An error from outside the simulation.
    type Error;

    /// Places a request, or `None` if no worker may be picked.
    ///
    /// # Errors
    /// An error ends the run.
    fn select(&mut self, attempt: &Attempt<'_>) -> Result<Option<Placed>, Self::Error>;

    /// Places a request in a fleet with workers for prefill alone. A gateway that knows no pairs sends it whole.
    ///
    /// # Errors
    /// An error ends the run.
    fn select_pair(&mut self, attempt: &Attempt<'_>) -> Result<Option<Pair>, Self::Error> {
        let placed = self.select(attempt)?;
        Ok(placed.map(|decode| Pair {
            prefill: None,
            decode,
        }))
    }

    /// Until when a request is held that was just not placed, `None` if it is refused. It is asked for again when it is
    /// called, and then.
    ///
    /// # Errors
    /// An error ends the run.
    fn held(&mut self, id: u32) -> Result<Option<f64>, Self::Error> {
        let _ = id;
        Ok(None)
    }

    /// Requests that were held and are to be asked for again now.
    ///
    /// # Errors
    /// An error ends the run.
    fn called(&mut self, now: f64) -> Result<Vec<u32>, Self::Error> {
        let _ = now;
        Ok(Vec::new())
    }

    /// A request that is held is given up.
    ///
    /// # Errors
    /// An error ends the run.
    fn give_up(&mut self, id: u32) -> Result<(), Self::Error> {
        let _ = id;
        Ok(())
    }

    /// Time reaches `now`, before anything happens then.
    ///
    /// # Errors
    /// An error ends the run.
    fn elapse(&mut self, now: f64) -> Result<(), Self::Error> {
        let _ = now;
        Ok(())
    }

    /// Messages to other gateways that wait, in order.
    ///
    /// # Errors
    /// An error ends the run.
    fn publish(&mut self) -> Result<Vec<Vec<u8>>, Self::Error> {
        Ok(Vec::new())
    }

    /// Takes in a message of another gateway.
    ///
    /// # Errors
    /// An error ends the run.
    fn receive(&mut self, message: &[u8], now: f64) -> Result<(), Self::Error> {
        let _ = (message, now);
        Ok(())
    }

    /// Position of the gateway that a request comes to, if there are several.
    fn entrance(&self, id: u32) -> u16 {
        let _ = id;
        0
    }

    /// Takes in what became of a request that it placed.
    ///
    /// # Errors
    /// An error ends the run.
    fn notice(&mut self, placed: Placed, notice: Notice, now: f64) -> Result<(), Self::Error>;

    /// Takes in what is known of the workers.
    ///
    /// # Errors
    /// An error ends the run.
    fn news(&mut self, news: News<'_>, now: f64) -> Result<(), Self::Error>;
}
