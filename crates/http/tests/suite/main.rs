//! The client, judged from outside, against a server that answers as each test wants.

// What is said of tests goes for the functions that they share: a failure there is the failure of a test.
#![allow(clippy::unwrap_used)]

mod answers;
mod batches;
mod closing;
mod connection;
#[cfg(feature = "tls")]
mod encryption;
mod fake;
mod hints;
mod looks;
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
