//! The facade, judged from outside.

// What is said of tests goes for the functions that they share: a failure there is the failure of a test.
#![allow(clippy::unwrap_used)]

#[cfg(all(feature = "postgres", feature = "subscriber"))]
mod breaker;
// The pages, and the settings of the embedded file, are about everything that a default build has.
#[cfg(all(
    feature = "mysql",
    feature = "pgmq",
    feature = "postgres",
    feature = "rabbitmq",
    feature = "spool",
    feature = "sqlite",
    feature = "sqs"
))]
mod guarantees;
#[cfg(all(
    feature = "mysql",
    feature = "pgmq",
    feature = "postgres",
    feature = "rabbitmq",
    feature = "spool",
    feature = "sqlite",
    feature = "sqs"
))]
mod pages;
#[cfg(feature = "postgres")]
mod server;
#[cfg(feature = "spool")]
mod spool_settings;
#[cfg(feature = "sqlite")]
mod sqlite_settings;
#[cfg(all(feature = "sqlite", feature = "subscriber"))]
mod subscriber_guide;
#[cfg(all(
    feature = "mysql",
    feature = "pgmq",
    feature = "postgres",
    feature = "rabbitmq",
    feature = "spool",
    feature = "sqlite",
    feature = "sqs"
))]
mod switching;
#[cfg(all(
    feature = "mysql",
    feature = "pgmq",
    feature = "postgres",
    feature = "rabbitmq",
    feature = "spool",
    feature = "sqlite",
    feature = "sqs",
    feature = "tasks"
))]
mod tasks;
