//! The broker is killed, and restarts with its durable data.

use std::path::Path;
use std::time::Duration;

use postrider_conformance::private_server::storm_on_a_killed_server;
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqStore};

use crate::is_long;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_killed_loses_nothing() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
    let open = |url: String| async move { RabbitmqStore::new(&url, RabbitmqOptions::default())?.connect().await };
    // The storm's queues are older than a second by then: the broker loses queues declared just before it is killed.
    let storm = (1500, Duration::from_secs(6));
    storm_on_a_killed_server(&script, "rabbitmq", storm, is_long(), open).await.unwrap();
}
