//! What is registered of a worker.

use cachelb_core::groups::Resuming;

/// The properties of a worker, as it was registered.
#[derive(Debug, Clone, PartialEq)]
pub struct About {
    /// Relative capacity.
    pub weight: f64,
    /// Which half of a pair it serves: 0 for both, 1 for prefill, 2 for decode.
    pub role: u8,
    /// Data-parallel ranks.
    pub dp_size: u32,
    /// How long its weight takes to rise to full.
    pub slow_start_ms: u64,
    /// Blocks of its cache, if known.
    pub kv_blocks: Option<u32>,
    /// How its engine resumes, `None` if any leading blocks will do.
    pub resuming: Option<Resuming>,
    /// Name of its device's model.
    pub gpu: Option<String>,
    /// Models it serves, none for all.
    pub models: Vec<String>,
}

impl Default for About {
    fn default() -> Self {
        Self {
            weight: 1.0,
            role: 0,
            dp_size: 1,
            slow_start_ms: 0,
            kv_blocks: None,
            resuming: None,
            gpu: None,
            models: Vec::new(),
        }
    }
}

/// One thing said of a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum Word {
    /// It is there, and this is what it is.
    Here(About),
    /// It finishes what it has, and leaves.
    Draining,
    /// It was taken out.
    Gone,
    /// Whether it takes requests: a matter of its own, of which there is a last word, too.
    Ready(bool),
}
