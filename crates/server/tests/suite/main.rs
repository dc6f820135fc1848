//! Tests of the server over a socket, on real stores.

#![allow(clippy::unwrap_used, reason = "a test says what it expects")]

mod access;
mod archive;
mod dashboard;
mod dead_letters;
mod examples;
mod grafana;
mod hidden;
mod idempotency;
mod large;
mod large_requests;
mod lawful;
mod leases;
mod many_dead_letters;
mod memory;
mod messages;
mod observability;
mod receipts;
mod slow;
mod stopping;
mod tasks;
mod test_server;
mod waiting;
