//! Tests of the client against a fake server.

// Shared functions may unwrap, as tests do.
#![allow(clippy::unwrap_used)]

mod admin;
mod answers;
mod batches;
mod closing;
mod connection;
#[cfg(feature = "tls")]
mod encryption;
mod fake;
mod hints;
mod receiving;
mod tasks;
mod tokens;

use postrider_core::{Deadline, QueueName};

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn soon() -> Deadline {
    Deadline::default()
}
