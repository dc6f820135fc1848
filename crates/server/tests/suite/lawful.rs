//! The whole law, over HTTP: a client of a server is a provider like any other.

use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider::MessagingError;
use postrider::http::{HttpOptions, HttpProvider, HttpStore};
use postrider_conformance::{Harness, Outcome, Settings, exercise};
use postrider_server::ServerOptions;
use tokio::sync::Mutex;

use crate::test_server::{TestServer, TestStore};

/// Every worker is its own client. A restart brings the server back at the same address.
struct OverHttp {
    files: TestStore,
    url: String,
    server: Mutex<Option<TestServer>>,
}

impl OverHttp {
    async fn new(files: TestStore) -> Self {
        let server = TestServer::on(&files, ServerOptions::default()).await;
        Self { files, url: format!("http://{}", server.address), server: Mutex::new(Some(server)) }
    }
}

impl Harness for OverHttp {
    type Provider = HttpProvider;

    async fn open(&self) -> Result<HttpProvider, MessagingError> {
        HttpStore::open(&self.url, HttpOptions::default()).await?.connect()
    }

    fn restart(&self) -> Option<BoxFuture<'_, Result<(), MessagingError>>> {
        Some(Box::pin(async {
            let mut running = self.server.lock().await;
            let server = running.take().expect("a server");
            let listen = server.address;
            server.stop().await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            *running =
                Some(TestServer::listening(&self.files, ServerOptions { listen, ..ServerOptions::default() }).await);
            Ok(())
        }))
    }
}

async fn holds(files: TestStore) {
    let report = exercise(OverHttp::new(files).await, Settings::default()).await.unwrap();
    for rule in &report.rules {
        assert_eq!(rule.outcome, Outcome::Holds, "{report}");
        for test in &rule.tests {
            // All clients are on one host and have its clock.
            let is_untried = test.name == "l16_a_workers_clock_moves_no_lease_and_no_due_time";
            let is_expected = match test.outcome {
                Outcome::NotExercised(_) => is_untried,
                _ => !is_untried && test.outcome == Outcome::Holds,
            };
            assert!(is_expected, "{}: {report}", test.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rule_holds_over_http_on_sqlite() {
    holds(TestStore::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the law again, on another store: scripts/test --full"]
async fn every_rule_holds_over_http_on_postgres() {
    holds(TestStore::postgres()).await;
}
