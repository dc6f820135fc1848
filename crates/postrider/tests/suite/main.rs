//! Tests of the facade, and of everything that needs every store: this program links all of them.

// The lints for tests also hold for the functions that they share.
#![allow(clippy::unwrap_used)]

mod breaker;
mod full_disk;
mod guarantees;
mod outage;
mod pages;
mod server;
mod spool_settings;
mod sqlite_settings;
mod subscriber;
mod subscriber_guide;
mod switching;
mod tasks;
mod test_store;

/// Whether the long runs are on.
fn is_long() -> bool {
    std::env::var_os("POSTRIDER_LONG").is_some()
}
