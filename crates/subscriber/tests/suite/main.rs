//! Subscribers, judged from outside: the loops by paused time on the provider in memory, processes and large numbers on
//! files. What needs a server, and the storm on every store, is in the facade's tests, which have all of them.

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
mod logging;
mod observing;
mod place;
mod processes;
mod scripted;
mod settling;
mod stopping;
mod together;
mod volumes;

/// Whether the long runs were asked for.
fn is_long() -> bool {
    std::env::var_os("POSTRIDER_LONG").is_some()
}
