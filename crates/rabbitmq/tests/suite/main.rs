//! RabbitMQ, judged from outside.

// What is said of tests goes for the functions that they share: a failure there is the failure of a test.
#![allow(clippy::unwrap_used)]

mod lawful;

use postrider_core::Deadline;
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqProvider, RabbitmqStore};

/// A prefix of a test's own for the names of its queues.
fn prefix() -> String {
    format!("t{:012x}", rand::random::<u64>() >> 16)
}

fn options() -> RabbitmqOptions {
    RabbitmqOptions { management_url: Some(management_url()), ..RabbitmqOptions::default() }
}

/// The broker under test.
fn url() -> String {
    setting("POSTRIDER_AMQP_URL")
}

fn management_url() -> String {
    setting("POSTRIDER_AMQP_MANAGEMENT_URL")
}

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: start a broker with `scripts/services up rabbitmq`, then `eval \"$(scripts/services env)\"`"
        )
    })
}

async fn connect_with(options: RabbitmqOptions) -> RabbitmqProvider {
    RabbitmqStore::new(&url(), options).unwrap().connect().await.expect("the broker can be reached")
}

fn soon() -> Deadline {
    Deadline::default()
}
