//! Tests of tasks through the public API: workers and keepers on a file. Tests with killed processes and with brokers
//! are in `crates/postrider`, which has every store.

// The lint allows unwraps in tests; these functions are shared by tests.
#![allow(clippy::unwrap_used)]

mod fixture;
mod keeping;
mod logging;
mod replaying;
mod scheduling;
mod stopping;
mod typed;
mod working;

use std::future::Future;
use std::time::{Duration, Instant};

use postrider_core::Deadline;

/// Time limit of a wait.
const TIME_LIMIT: Duration = Duration::from_secs(30);

fn soon() -> Deadline {
    Deadline::default()
}

/// Waits until the condition is true, and fails when it is not in time.
async fn until<F: Future<Output = bool>>(what: &str, limit: Duration, mut is_true: impl FnMut() -> F) {
    let end = Instant::now() + limit;
    while !is_true().await {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
