//! The archive: what is kept of a message after its end, and for how long.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::{
    ArchiveFilter, ArchiveQuery, ArchivedState, DeadLetterSelection, DeadLetters, ManualClock, Message,
    MessagingService, Nack, QueueAdmin, ReceiveOptions, Redrive,
};
use postrider_sqlite::rusqlite::Connection;
use postrider_sqlite::{ArchivePolicy, SqliteOptions, SqliteProvider};

use crate::{TestStore, queue, soon};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Sends one message that is acknowledged, and one that is dead-lettered and purged.
async fn complete_one_and_purge_one(provider: &SqliteProvider) {
    let queue = queue("orders");
    provider.send_message(&queue, Message::new("good").header("a", "b").unwrap(), soon()).await.unwrap();
    let message = provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap().remove(0);
    provider.ack_message(&queue, message, soon()).await.unwrap();
    provider.send_message(&queue, Message::new("bad"), soon()).await.unwrap();
    let message = provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap().remove(0);
    provider.nack_message(&queue, message, Nack::dead_letter("rejected").with_error("no"), soon()).await.unwrap();
    assert_eq!(provider.purge_dead_letters(&queue, &DeadLetterSelection::All, soon()).await.unwrap(), 1);
}

fn archived(test_store: &TestStore) -> Vec<(String, String, Option<String>)> {
    let file = Connection::open(test_store.file()).unwrap();
    let mut rows = file
        .prepare("select state, cast(payload as text), last_error from message_archive order by archive_id")
        .unwrap();
    rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap()
        .map(|row| row.expect("a row"))
        .collect()
}

fn attempts(test_store: &TestStore) -> Vec<(i64, Option<String>)> {
    let file = Connection::open(test_store.file()).unwrap();
    let mut rows = file.prepare("select attempt, error from failed_attempt order by message_id, attempt").unwrap();
    rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(|row| row.expect("a row")).collect()
}

#[tokio::test]
async fn the_policy_decides_what_is_archived() {
    let completed = ("COMPLETED".to_owned(), "good".to_owned(), None);
    let failed = ("FAILED".to_owned(), "bad".to_owned(), Some("no".to_owned()));
    let expected = [
        (ArchivePolicy::All, vec![completed, failed.clone()]),
        (ArchivePolicy::Failed, vec![failed]),
        (ArchivePolicy::None, vec![]),
    ];
    for (archive, kept) in expected {
        let test_store = TestStore::new();
        let provider = test_store.connect_with(SqliteOptions { archive, ..SqliteOptions::default() }).await;
        complete_one_and_purge_one(&provider).await;
        assert_eq!(archived(&test_store), kept, "{archive:?}");
        let found = provider.archived(&queue("orders"), &ArchiveQuery::default(), soon()).await.unwrap().messages;
        let found = found.into_iter().rev().map(|message| {
            (message.state.to_string(), String::from_utf8_lossy(&message.body).into_owned(), message.last_error)
        });
        assert_eq!(found.collect::<Vec<_>>(), kept, "{archive:?}");
        let left = if archive == ArchivePolicy::None { 0 } else { 1 };
        assert_eq!(attempts(&test_store).len(), left, "{archive:?}: the attempts of archived messages stay");
    }
}

#[tokio::test]
async fn old_archived_rows_are_removed() {
    let test_store = TestStore::new();
    let clock = ManualClock::default();
    let options = SqliteOptions { clock: Arc::new(clock.clone()), ..SqliteOptions::default() };
    let provider = test_store.connect_with(options).await;
    complete_one_and_purge_one(&provider).await;
    clock.advance(6 * DAY);
    complete_one_and_purge_one(&provider).await;
    assert_eq!(provider.sweep_archive(soon()).await.unwrap(), 0, "nothing is a week old");
    clock.advance(DAY);
    assert_eq!(provider.sweep_archive(soon()).await.unwrap(), 2);
    assert_eq!(archived(&test_store).len(), 2);
    assert_eq!(attempts(&test_store).len(), 1);
    clock.advance(7 * DAY);
    provider.close(soon()).await.unwrap();
    // Opening a file starts a sweep.
    let provider = provider.store().connect().await.unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !archived(&test_store).is_empty() {
        assert!(std::time::Instant::now() < end, "old rows are not removed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    provider.close(soon()).await.unwrap();
}

fn put_into_archive(test_store: &TestStore, rows: u32, archived_at: i64) {
    let file = Connection::open(test_store.file()).unwrap();
    file.execute(
        "with recursive n (n) as (values (1) union all select n + 1 from n where n < ?1) \
         insert into message_archive (id, queue, state, priority, deliveries_count, attempts_count, created_at, \
                                      archived_at, message_id, headers, payload) \
         select n, 'orders', 'COMPLETED', 4, 1, 0, 0, ?2, zeroblob(16), '{}', zeroblob(1) from n",
        (rows, archived_at),
    )
    .unwrap();
}

async fn until_archive_has(test_store: &TestStore, rows: usize) {
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while archived(test_store).len() != rows {
        assert!(std::time::Instant::now() < end, "{} rows are left", archived(test_store).len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn rows_of_a_clock_that_was_ahead_do_not_stop_sweeps() {
    let test_store = TestStore::new();
    test_store.connect().await.close(soon()).await.unwrap();
    let far = postrider_core::Timestamp::now().saturating_add(DAY * 1000).as_micros();
    // More than one sweep reads, of both kinds.
    put_into_archive(&test_store, 1100, far);
    put_into_archive(&test_store, 1100, 0);
    let provider = test_store.connect().await;
    until_archive_has(&test_store, 1100).await;
    put_into_archive(&test_store, 10, 0);
    assert_eq!(provider.sweep_archive(soon()).await.unwrap(), 10);
}

#[tokio::test]
async fn a_sweep_of_a_locked_file_is_tried_again_soon() {
    let test_store = TestStore::new();
    test_store.connect().await.close(soon()).await.unwrap();
    put_into_archive(&test_store, 10, 0);
    let other = Connection::open(test_store.file()).unwrap();
    other.execute_batch("begin immediate").unwrap();
    let provider = test_store.connect().await;
    // The first sweep has failed by then.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(archived(&test_store).len(), 10);
    other.execute_batch("rollback").unwrap();
    until_archive_has(&test_store, 0).await;
    provider.close(soon()).await.unwrap();
}

#[tokio::test]
async fn the_last_failed_attempts_are_kept_and_end_with_a_redrive() {
    let test_store = TestStore::new();
    let options = SqliteOptions { worker: Some("me".into()), ..SqliteOptions::default() };
    let provider = test_store.connect_with(options).await;
    let queue = queue("orders");
    provider.send_message(&queue, Message::new("x"), soon()).await.unwrap();
    let receive = ReceiveOptions::default().max_receive_count(100);
    for attempt in 1..=14 {
        let message = provider.receive_messages(&queue, &receive, soon()).await.unwrap().remove(0);
        let nack = if attempt < 14 { Nack::retry_after(Duration::ZERO) } else { Nack::dead_letter("over") };
        provider.nack_message(&queue, message, nack.with_error(format!("no. {attempt}")), soon()).await.unwrap();
    }
    let expected: Vec<_> = (5..=14).map(|attempt| (attempt, Some(format!("no. {attempt}")))).collect();
    assert_eq!(attempts(&test_store), expected);
    let signed: String = Connection::open(test_store.file())
        .unwrap()
        .query_row("select distinct worker from failed_attempt", [], |row| row.get(0))
        .unwrap();
    assert_eq!(signed, "me");
    provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await.unwrap();
    assert_eq!(attempts(&test_store), [], "a redriven message starts without attempts");
}

#[tokio::test]
async fn archived_messages_of_other_queues_do_not_slow_a_search() {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    complete_one_and_purge_one(&provider).await;
    let file = Connection::open(test_store.file()).unwrap();
    let now = postrider_core::Timestamp::now().as_micros();
    file.execute(
        "with recursive n (n) as (values (1) union all select n + 1 from n where n < 50000) \
         insert into message_archive (id, queue, state, priority, deliveries_count, attempts_count, created_at, \
                                      archived_at, message_id, headers, payload) \
         select n, 'other', 'COMPLETED', 4, 1, 0, 0, ?1 + n, randomblob(16), '{}', zeroblob(1) from n",
        [now],
    )
    .unwrap();
    // More rows of another queue than one page reads; none of them is read.
    for state in [None, Some(ArchivedState::Completed)] {
        let query =
            ArchiveQuery { filter: ArchiveFilter { state, ..ArchiveFilter::default() }, ..ArchiveQuery::default() };
        let page = provider.archived(&queue("orders"), &query, soon()).await.unwrap();
        assert_eq!((page.messages.len(), page.next), (if state.is_none() { 2 } else { 1 }, None));
    }
    let query = ArchiveQuery {
        filter: ArchiveFilter { state: Some(ArchivedState::Failed), ..ArchiveFilter::default() },
        ..ArchiveQuery::default()
    };
    let page = provider.archived(&queue("other"), &query, soon()).await.unwrap();
    assert!(page.messages.is_empty() && page.next.is_some(), "a page reads a bounded part");
}
