//! The loops, by paused time on the provider in memory.

// What is said of tests goes for the functions that they share: a failure there is the failure of a test.
#![allow(clippy::unwrap_used)]

mod building;
mod closure;
mod emptying;
mod fetching;
mod fixture;
mod flushing;
mod leasing;
mod observing;
mod scripted;
mod settling;
mod stopping;
mod together;
