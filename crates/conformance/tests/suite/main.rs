//! The suite on stores that keep the law, and on stores that do not.

mod broken_twins;
mod lawful;
mod model;
mod storms;

use std::future::Future;

/// Runs a test on one thread whose time jumps to whatever is waited for next: fast, and the same in every run.
fn in_paused_time(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime can be started")
        .block_on(test);
}
