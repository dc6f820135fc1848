//! Tasks, judged from outside: workers and keepers on a file. Processes that are killed, and brokers, are in the facade's
//! tests, which have every store.

// What is said of tests goes for the functions that they share: a failure there is the failure of a test.
#![allow(clippy::unwrap_used)]

mod keeping;
mod logging;
mod replaying;
mod scheduling;
mod stopping;
mod working;
mod world;

use std::future::Future;
use std::time::{Duration, Instant};

use postrider_core::Deadline;

/// How long anything may take here.
const PATIENCE: Duration = Duration::from_secs(30);

fn soon() -> Deadline {
    Deadline::default()
}

/// Waits until something is so, and fails when it does not become so in time.
async fn until<F: Future<Output = bool>>(what: &str, patience: Duration, mut is_so: impl FnMut() -> F) {
    let end = Instant::now() + patience;
    while !is_so().await {
        assert!(Instant::now() < end, "in {patience:?} it was not so that {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
