//! Subscribers, judged from outside: the loops by paused time on the provider in memory, and storms on real stores.

// What is said of tests goes for the functions that they share: a failure there is the failure of a test.
#![allow(clippy::unwrap_used)]

mod at_their_worst;
mod building;
mod closure;
mod emptying;
mod fetching;
mod fixture;
mod flushing;
mod held;
mod leasing;
mod observing;
mod place;
mod processes;
mod scripted;
#[path = "../../src/servers.rs"]
mod servers;
mod settling;
mod stopping;
mod storm;
mod together;
mod volumes;

/// Whether the long runs were asked for.
fn is_long() -> bool {
    std::env::var_os("POSTRIDER_LONG").is_some()
}
