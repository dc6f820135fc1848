//! A server as its clients see it: over a socket, on a real store.

#![allow(clippy::unwrap_used, reason = "a test says what it expects")]

mod access;
mod archive;
mod dashboard;
mod dead_letters;
mod examples;
mod grafana;
mod hidden;
mod large;
mod lawful;
mod leases;
mod many_dead;
mod memory;
mod messages;
mod place;
mod receipts;
mod repeated;
mod slow;
mod stopping;
mod tasks;
mod too_much;
mod waiting;
mod watching;
