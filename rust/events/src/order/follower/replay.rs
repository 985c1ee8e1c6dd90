//! The replay in progress.

/// The latest request for a replay, and its progress.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is true without the others"
)]
pub(super) struct Replay {
    /// A replay was requested and its end is not reported yet.
    outstanding: bool,
    /// The outstanding replay is outdated; this request follows it.
    next: Option<u64>,
    /// It brought a message.
    pub answered: bool,
    /// It brought a new message.
    pub progress: bool,
    /// It began too late or had holes.
    pub short: bool,
    /// Replays in a row that brought nothing new.
    pub fruitless: u32,
    /// The number to request from, until the source takes it.
    pub wanted: Option<u64>,
}

impl Replay {
    /// Requests the messages from a number on, after the end of an outstanding replay.
    pub fn request(&mut self, from: u64) {
        if self.outstanding {
            self.next = Some(from);
            return;
        }
        *self = Self {
            outstanding: true,
            wanted: Some(from),
            fruitless: self.fruitless,
            ..Self::default()
        };
    }

    /// Whether the messages that come answer the last request.
    pub fn is_current(&self) -> bool {
        self.outstanding && self.next.is_none()
    }

    /// Earlier replays no longer count.
    pub fn renew(&mut self) {
        self.next = None;
        self.fruitless = 0;
    }

    /// The outstanding replay is over. Returns the number that the next one is due from.
    pub fn end(&mut self) -> Option<u64> {
        self.outstanding = false;
        self.next.take()
    }

    /// Counts the end of the latest one.
    pub fn count(&mut self, complete: bool) {
        self.fruitless = match (complete, self.progress) {
            (false, _) => u32::MAX,
            (true, true) => 0,
            (true, false) => self.fruitless.saturating_add(1),
        };
    }
}
