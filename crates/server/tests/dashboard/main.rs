//! The dashboard in a browser, against a server in this process with a store of its own: every page, every action, and what
//! each of them did to the store.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may panic")]

mod access;
mod browser;
mod dead_letters;
mod driver;
mod keyboard;
mod live;
mod pages;
mod picture;
#[path = "../suite/place.rs"]
#[allow(dead_code, reason = "the other tests of the server use more of it")]
mod place;
mod queues;
mod scene;
mod tasks;
