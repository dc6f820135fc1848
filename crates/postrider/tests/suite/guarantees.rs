//! `docs/guarantees.md` says what the suite finds on every provider today.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, LocalBoxFuture, join_all};
use postrider::{Endpoint, MessagingError, MessagingProvider};
use postrider_conformance::guarantees::{Section, page};
use postrider_conformance::{Harness, Settings, StormSettings};
use postrider_sqlite::rusqlite::Connection;

use crate::pages::ensure_up_to_date;

/// Takes a store away and brings it back.
type Restart = Arc<dyn Fn() -> BoxFuture<'static, Result<(), MessagingError>> + Send + Sync>;

/// A store that users reach by a URL.
#[derive(Clone)]
struct Store {
    endpoint: Endpoint,
    restart: Option<Restart>,
}

impl Store {
    fn at(url: &str) -> Self {
        Self { endpoint: url.parse().unwrap(), restart: None }
    }

    fn restarted_by(
        self,
        restart: impl Fn() -> BoxFuture<'static, Result<(), MessagingError>> + Send + Sync + 'static,
    ) -> Self {
        Self { restart: Some(Arc::new(restart)), ..self }
    }

    /// Tries the law on it.
    fn try_law(self, tried: &'static str) -> LocalBoxFuture<'static, Section> {
        async move { Section::of(self, settings(), tried).await.unwrap() }.boxed_local()
    }
}

impl Harness for Store {
    type Provider = MessagingProvider;

    async fn open(&self) -> Result<MessagingProvider, MessagingError> {
        self.endpoint.connect().await
    }

    fn restart(&self) -> Option<BoxFuture<'_, Result<(), MessagingError>>> {
        self.restart.as_ref().map(|restart| restart())
    }
}

fn settings() -> Settings {
    Settings { seed: 1, storm: StormSettings { messages: 500, ..StormSettings::default() }, ..Settings::default() }
}

/// Another program holds the file locked for a moment: all that can take a file away that several processes use.
fn lock_for_a_moment(file: PathBuf) -> BoxFuture<'static, Result<(), MessagingError>> {
    Box::pin(async move {
        let other = Connection::open(file).unwrap();
        other.busy_timeout(Duration::from_secs(10)).unwrap();
        other.execute_batch("begin immediate").unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        other.execute_batch("rollback").unwrap();
        Ok(())
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn guarantees_page_is_up_to_date() {
    // In main memory where that is a place for files: what is measured here is no matter of the disk's speed.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let file = folder.path().join("queues.db");

    let tried = [
        Store::at("memory:").try_law("All workers share one store in the suite's process."),
        Store::at(&format!("sqlite:{}", file.display())).restarted_by(move || lock_for_a_moment(file.clone())).try_law(
            "Every worker opens the same file for itself, as other processes do. There is no server to restart: for \
             L14 another program holds the file locked. [More about it](sqlite.md).",
        ),
    ];

    let sections = join_all(tried).await;
    let unlawful = |section: &&Section| !section.report.is_lawful() || section.report.left_behind.is_some();
    let broken: String = sections.iter().filter(unlawful).map(|section| section.report.to_string()).collect();
    assert!(broken.is_empty(), "\n{broken}");
    ensure_up_to_date("guarantees.md", &page(&sections), "guarantees");
}
