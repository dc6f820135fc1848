//! The facade, judged from outside, and all that can only be judged on every store: this program has all of them.

// What is said of tests goes for the functions that they share: a failure there is the failure of a test.
#![allow(clippy::unwrap_used)]

mod breaker;
mod full_disk;
mod guarantees;
mod outage;
mod pages;
mod place;
mod server;
mod spool_settings;
mod sqlite_settings;
mod subscriber;
mod subscriber_guide;
mod switching;
mod tasks;

/// Whether the long runs were asked for.
fn is_long() -> bool {
    std::env::var_os("POSTRIDER_LONG").is_some()
}
