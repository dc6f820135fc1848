//! Runs generated programs on the in-memory model and on a provider, step by step, and compares them.
//!
//! The provider leads and the model follows: which of several ready messages a receive returns is the store's choice,
//! so the model leases the same ones by their ids and refuses when the law does not allow it.
//! Everything else (answers, counts, dead letters, stats) must be the same on both sides.

mod program;
mod run;

use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_core::{Deadline, Message, MessagingError, MessagingService, QueueName, ReceiveOptions};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::harness::Harness;
use crate::probe::soon;
pub use program::Step;

/// A store whose clock the comparison can advance.
pub trait TimedHarness: Harness {
    /// Length of short leases and delays. A store with a real clock needs one that outlasts a few calls.
    fn short(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Lets at least `time` pass on the store's clock. Where the clock cannot be set, this waits for a message with that
    /// delay.
    fn elapse<'a>(&'a self, time: Duration, scratch: &'a QueueName) -> BoxFuture<'a, Result<(), MessagingError>> {
        Box::pin(async move {
            let provider = self.open().await?;
            provider.send_message(scratch, Message::new("").delay(time), soon()).await?;
            let options = ReceiveOptions::default().wait(Duration::from_secs(1));
            let deadline = Deadline::after(time + Duration::from_secs(30));
            loop {
                if let Some(message) = provider.receive_messages(scratch, &options, soon()).await?.pop() {
                    provider.ack_message(scratch, message, soon()).await?;
                    return provider.close(soon()).await;
                }
                deadline.check("waiting for the store's clock")?;
            }
        })
    }
}

/// Runs `cases` programs, chosen by `seed`, on the model and on the provider.
///
/// The error names the first difference, the shortest program found that shows it, and the seed. It starts a runtime
/// of its own and so cannot be called from inside one.
pub fn compare_with_model<H: TimedHarness>(harness: &H, cases: u32, seed: u64) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start a runtime: {error}"))?;
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let prefix = format!("pm{:08x}", rand::random::<u32>());
    let case = std::cell::Cell::new(0);
    let result = runner.run(&program::programs(), |program| {
        case.set(case.get() + 1);
        let name = format!("{prefix}_{}", case.get());
        runtime.block_on(run::run(harness, &name, &program)).map_err(TestCaseError::fail)
    });
    runtime
        .block_on(async {
            let provider = harness.open().await?;
            crate::exercise::sweep(&provider, &prefix).await?;
            provider.close(soon()).await
        })
        .map_err(|error| format!("cannot remove the queues: {error}"))?;
    match result {
        Ok(()) => Ok(()),
        Err(TestError::Fail(reason, program)) => Err(format!(
            "{reason}\nseed {seed}, after {} programs; the shortest that differs:\n{program:#?}",
            case.get()
        )),
        Err(TestError::Abort(reason)) => Err(format!("seed {seed}: gave up: {reason}")),
    }
}
