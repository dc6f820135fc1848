//! Small records on a file.

use std::sync::Arc;
use std::time::Duration;

use postrider_conformance::{StateRecordsHarness, exercise_state_records};
use postrider_core::{
    Bytes, ManualClock, Message, MessagingError, MessagingService, Put, ReceiveOptions, RecordKey, RecordKind,
    RecordQuery, StateRecords,
};
use postrider_sqlite::rusqlite::Connection;
use postrider_sqlite::{SqliteOptions, SqliteStateRecords, SqliteStore};

use crate::{TestStore, queue, soon};

const TOKENS: RecordKind = RecordKind::constant("api_token");

/// Every store opens the file separately, as other processes do; all of them share one clock.
pub(crate) struct ManualClockHarness {
    test_store: TestStore,
    clock: ManualClock,
}

impl ManualClockHarness {
    pub(crate) fn new() -> Self {
        Self { test_store: TestStore::in_memory(), clock: ManualClock::default() }
    }
}

impl StateRecordsHarness for ManualClockHarness {
    type Store = SqliteStateRecords;

    async fn open(&self) -> Result<SqliteStateRecords, MessagingError> {
        let options = SqliteOptions { clock: Arc::new(self.clock.clone()), ..SqliteOptions::default() };
        Ok(SqliteStateRecords::new(SqliteStore::open(self.test_store.file(), options).await?.connect().await?))
    }

    async fn elapse(&self, time: Duration) {
        self.clock.advance(time);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_for_small_records_passes() {
    for finding in exercise_state_records(&ManualClockHarness::new()).await {
        assert_eq!(finding.fault, None, "{finding}");
    }
}

fn key(name: &str) -> RecordKey {
    RecordKey::new(name).unwrap()
}

#[tokio::test]
async fn a_record_is_kept_after_the_file_was_closed() {
    let bench = ManualClockHarness::new();
    let records = bench.open().await.unwrap();
    let value = Bytes::from_static(b"7");
    let Put::Made(made) = records.put_new(&TOKENS, &key("k"), value, None, soon()).await.unwrap() else { panic!() };
    records.provider().close(soon()).await.unwrap();
    let closed = records.get(&TOKENS, &key("k"), soon()).await;
    assert!(matches!(closed, Err(MessagingError::Closed { .. })), "{closed:?}");
    let again = bench.open().await.unwrap();
    assert_eq!(again.get(&TOKENS, &key("k"), soon()).await.unwrap(), Some(made));
}

#[tokio::test]
async fn an_invalid_key_of_another_program_hides_no_other_record() {
    let test_store = TestStore::new();
    let records = SqliteStateRecords::new(test_store.connect().await);
    for name in ["a", "b"] {
        let put = records.put_new(&TOKENS, &key(name), Bytes::new(), None, soon()).await.unwrap();
        assert!(matches!(put, Put::Made(_)));
    }
    let file = Connection::open(test_store.file()).unwrap();
    file.busy_timeout(Duration::from_secs(5)).unwrap();
    assert_eq!(file.execute("update state_record set key = char(10) where key = 'a'", []).unwrap(), 1);
    let page = records.list(&TOKENS, &RecordQuery::default(), soon()).await.unwrap();
    assert_eq!(page.records.iter().map(|record| record.key.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn a_file_without_the_record_tables_is_upgraded() {
    let test_store = TestStore::new();
    let file = Connection::open(test_store.file()).unwrap();
    file.execute_batch(
        "create table postrider_migration (version integer not null primary key, name text not null, \
         works_since integer not null, applied_at integer not null)",
    )
    .unwrap();
    for step in SqliteStore::all_migrations().into_iter().filter(|step| step.version <= 3) {
        file.execute_batch(step.sql).unwrap();
        let row = (step.version, step.name, step.works_since);
        file.execute("insert into postrider_migration values (?1, ?2, ?3, 0)", row).unwrap();
    }
    file.execute_batch(
        "insert into queue values ('orders', 0); \
         insert into message (queue, blocked, priority, next_attempt_at, state, created_at, message_id, headers, payload) \
         values ('orders', 0, 4, 0, 'PENDING', 0, randomblob(16), '{}', x'61')",
    )
    .unwrap();
    drop(file);
    let pending = SqliteStore::pending_migrations(test_store.file(), SqliteOptions::default()).await.unwrap();
    let later = SqliteStore::all_migrations().into_iter().filter(|step| step.version > 3).collect::<Vec<_>>();
    assert_eq!(pending, later);
    assert!(pending.iter().all(|step| step.works_since == 1), "a program without records can still use the queues");
    let records = SqliteStateRecords::new(test_store.connect().await);
    let put = records.put_new(&TOKENS, &key("k"), Bytes::new(), None, soon()).await.unwrap();
    assert!(matches!(put, Put::Made(_)));
    let orders = queue("orders");
    let left = records.provider().receive_messages(&orders, &ReceiveOptions::default(), soon()).await.unwrap();
    assert_eq!(left[0].message, "a", "the message from before the upgrade");
    records.provider().send_message(&orders, Message::new("b"), soon()).await.unwrap();
}
