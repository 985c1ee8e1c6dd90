//! Options of `length-bucket`.

use super::LengthBucket;
use crate::rule::about::{About, Need, Ruled, Setup};
use crate::rule::options::{
    AT_LEAST_ONE, Configure, MAX_TOKENS, NOT_NEGATIVE, Policy, Seconds, options,
};
use cachelb_core::error::Result;

options! {
    /// Prompts of similar length share a worker, so that short ones do not wait behind long ones.
    ///
    /// Meant for prefill workers. The workers, in the order of registration, divide the lengths among them: at first in
    /// equal parts of `l_max`, later so that each gets an equal part of the tokens that came in. If the workers got too
    /// unequal parts lately, the one that got least serves (`imbalance`). A worker that is not available is stood in for by
    /// its neighbours. Requests of unknown length go to the least loaded worker (`no-key`).
    ///
    /// Example:
    ///     >>> policy = LengthBucket(l_max=4096)
    ///     >>> workers = ["gpu0", "gpu1", "gpu2", "gpu3"]
    ///     >>> [policy.select_worker(workers, prompt_tokens=n, dry_run=True).worker for n in (1023, 1024, 9999)]
    ///     ['gpu0', 'gpu1', 'gpu3']
    pub struct LengthBucketOptions {
        /// Prompt tokens that the first ranges divide among them; the last range is open.
        l_max: u64 = 4096, (1, MAX_TOKENS);
        /// The workers' tokens of the latest interval may be this far apart.
        balance_abs_threshold: f64 = 8192.0, NOT_NEGATIVE;
        /// Further apart, the largest must also be more than this many times the smallest to be out of balance.
        balance_rel_threshold: f64 = 1.0001, AT_LEAST_ONE;
        /// Seconds that tokens count, and seconds between two cuts. Ranges are cut anew when the traffic has doubled or
        /// halved.
        bucket_adjust_interval_secs: Seconds = Seconds::of(5);
    }
}

/// The policy.
pub(crate) const POLICY: Policy = Policy::of::<LengthBucketOptions>(About {
    needs: &["prompt_tokens"],
    ..About::plain("length-bucket", "LengthBucket")
});

impl Configure for LengthBucketOptions {
    fn ruled(&self, setup: &Setup) -> Result<Ruled> {
        let options = Self {
            balance_abs_threshold: self.balance_abs_threshold / setup.replicas,
            ..self.clone()
        };
        Ok(Ruled::new(LengthBucket::new(options), Need::LENGTH))
    }
}
