//! Idempotency records on a file.

use std::sync::Arc;
use std::time::Duration;

use postrider_conformance::{IdempotencyHarness, exercise_idempotency};
use postrider_core::{
    Begun, IdempotencyKey, IdempotencyStore, IdempotencyToken, ManualClock, MessagingError, Standing,
};
use postrider_sqlite::rusqlite::{Connection, TransactionBehavior};
use postrider_sqlite::{SqliteOptions, SqliteProvider, SqliteStore};

use crate::{TestStore, soon};

const LEASE: Duration = Duration::from_secs(30);

/// Every worker opens the file separately, as other processes do; all of them share one clock.
struct ManualClockHarness {
    test_store: TestStore,
    clock: ManualClock,
}

impl ManualClockHarness {
    fn new() -> Self {
        Self { test_store: TestStore::in_memory(), clock: ManualClock::default() }
    }
}

impl IdempotencyHarness for ManualClockHarness {
    type Store = SqliteProvider;

    async fn open(&self) -> Result<SqliteProvider, MessagingError> {
        let options = SqliteOptions { clock: Arc::new(self.clock.clone()), ..SqliteOptions::default() };
        SqliteStore::open(self.test_store.file(), options).await?.connect().await
    }

    async fn elapse(&self, time: Duration) {
        self.clock.advance(time);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_idempotency_suite_passes() {
    for finding in exercise_idempotency(&ManualClockHarness::new()).await {
        assert_eq!(finding.fault, None, "{finding}");
    }
}

async fn begun(provider: &SqliteProvider, key: &IdempotencyKey) -> IdempotencyToken {
    match provider.begin(key, LEASE, soon()).await.unwrap() {
        Begun::Fresh(token) => token,
        other => panic!("{other:?}"),
    }
}

fn key() -> IdempotencyKey {
    IdempotencyKey::new("orders/7").unwrap()
}

#[tokio::test]
async fn completed_work_is_known_after_the_file_was_closed() {
    let bench = ManualClockHarness::new();
    let provider = bench.open().await.unwrap();
    let token = begun(&provider, &key()).await;
    assert_eq!(provider.complete(&token, soon()).await.unwrap(), Standing::Held);
    drop(provider);
    let again = bench.open().await.unwrap();
    assert_eq!(again.begin(&key(), LEASE, soon()).await.unwrap(), Begun::Done);
}

#[tokio::test]
async fn a_record_and_the_handlers_changes_are_committed_together() {
    let bench = ManualClockHarness::new();
    let provider = bench.open().await.unwrap();
    let store = provider.store().clone();
    let mut own = Connection::open(bench.test_store.file()).unwrap();
    own.execute_batch("create table booked (id integer primary key)").unwrap();
    let token = begun(&provider, &key()).await;
    for attempt in 0..2 {
        let transaction = own.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        transaction.execute("insert into booked default values", []).unwrap();
        store.complete_in(&transaction, &token).unwrap();
        if attempt == 0 { transaction.rollback() } else { transaction.commit() }.unwrap();
        let found = provider.begin(&key(), LEASE, soon()).await.unwrap();
        assert_eq!(found == Begun::Done, attempt == 1, "{found:?}");
    }
    let booked: i64 = own.query_row("select count(*) from booked", [], |row| row.get(0)).unwrap();
    assert_eq!(booked, 1);
    assert_eq!(provider.complete(&token, soon()).await.unwrap(), Standing::Held, "the layer's own completion");
}

#[tokio::test]
async fn a_late_handlers_transaction_is_refused() {
    let bench = ManualClockHarness::new();
    let provider = bench.open().await.unwrap();
    let late = begun(&provider, &key()).await;
    bench.clock.advance(LEASE * 2);
    let newer = begun(&provider, &key()).await;
    let mut own = Connection::open(bench.test_store.file()).unwrap();
    let transaction = own.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let refused = provider.store().complete_in(&transaction, &late);
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "idempotency token", .. })), "{refused:?}");
    drop(transaction);
    assert_eq!(provider.complete(&newer, soon()).await.unwrap(), Standing::Held);
}
