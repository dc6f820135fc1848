//! The server itself is killed, and starts again on what it had made durable.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use postrider_conformance::private_server::PrivateServer;
use postrider_conformance::{Settings, StormSettings, storm_under_faults};
use postrider_postgres::PostgresStore;

use crate::{is_long, options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_nothing() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
    let server = Arc::new(PrivateServer::start(&script, "postgres").unwrap());
    let url = server.url().to_owned();
    let open = move || {
        let url = url.clone();
        async move { PostgresStore::open(&url, options("killed")).await?.connect() }
    };
    let (messages, kills) = if is_long() { (20_000, 10) } else { (300, 1) };
    let storm = StormSettings { messages, senders: 2, receivers: 3 };
    let settings = Settings { storm, ..Settings::default() };
    let faults = server.clone().crash_again_and_again(kills, Duration::from_millis(400));
    let report = storm_under_faults(&open, &settings, faults).await.unwrap();
    let verdict = &report.verdict;
    assert!(verdict.is_clean() && verdict.counts.live == 0, "seed {}: {verdict}", report.seed);
    assert!(server.kills() > 0, "the storm was over before the server was killed: {verdict}");
}
