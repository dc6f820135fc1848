//! The suite on stores that keep the law, and on stores that do not.

mod broken_twins;
mod idempotency;
mod lawful;
mod model;
mod storms;

use std::future::Future;

/// `long` in a long run (`scripts/test --full`), else `short`.
fn short_or_long(short: u32, long: u32) -> u32 {
    if std::env::var_os("POSTRIDER_LONG").is_some() { long } else { short }
}

/// Runs a test on one thread in paused time: fast and deterministic.
fn in_paused_time(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime can be started")
        .block_on(test);
}
