//! Tests of subscribers through the public API: the loops in paused time on the in-memory provider, processes and large
//! numbers on files. Tests that need a server, and the storm on every store, are in the tests of `crates/postrider`.

// The lint allows unwraps in tests; these functions are shared by tests.
#![allow(clippy::unwrap_used)]

mod building;
mod closure;
mod edge_cases;
mod fetching;
mod fixture;
mod flushing;
mod held;
mod leasing;
mod logging;
mod observing;
mod processes;
mod scripted;
mod settling;
mod stop_when_empty;
mod stopping;
mod test_store;
mod together;
mod volumes;

/// Whether long runs are requested.
fn is_long() -> bool {
    std::env::var_os("POSTRIDER_LONG").is_some()
}
