//! Transactions that fail: who is told what, and what is there afterwards.

use futures_util::future::join_all;
use postrider_core::{Deadline, Message, MessagingError, MessagingService, QueueAdmin, QueueName, ReceiveOptions};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::error::Failure;
use crate::session::Session;
use crate::{SqliteOptions, SqliteProvider, SqliteStore};

fn soon() -> Deadline {
    Deadline::default()
}

fn queue() -> QueueName {
    QueueName::new("orders").unwrap()
}

async fn open(folder: &TempDir) -> SqliteProvider {
    let store = SqliteStore::open(folder.path().join("queues.db"), SqliteOptions::default()).await.unwrap();
    store.connect().await.unwrap()
}

async fn count(provider: &SqliteProvider) -> Option<u64> {
    provider.queue_stats(&queue(), soon()).await.unwrap().message_count()
}

/// What a commit answers whose end nobody knows.
pub(super) fn disk_failed() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR), None)
}

/// A run of the writer's connection, inside a transaction of its own.
async fn on_connection(provider: &SqliteProvider, sql: &'static str) {
    let run = move |session: &mut Session<'_>| Ok(session.connection.execute_batch(sql)?);
    provider.write("test", soon(), run).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_disk_is_full_everybody_is_told_that_nothing_was_done() {
    let folder = tempfile::tempdir().unwrap();
    let (provider, queue) = (open(&folder).await, queue());
    provider.send_message(&queue, Message::new("before"), soon()).await.unwrap();
    // The connection may not add a single page from now on: SQLite's way to run out of disk.
    on_connection(&provider, "pragma max_page_count = 1").await;
    let sends = (0..20).map(|_| provider.send_message(&queue, Message::new(vec![b'x'; 8192]), soon()));
    let mut refused = 0;
    for answer in join_all(sends).await {
        match answer {
            // Those that came after the connection had been given up for a new one.
            Ok(_) => {}
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("queues.db': the disk is full") && error.is_retryable(), "{text}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
    let again = provider.send_message(&queue, Message::new(vec![b'x'; 8192]), soon()).await;
    assert!(again.is_ok(), "a connection that failed is not used again: {again:?}");
    assert_eq!(count(&provider).await, Some(22 - refused), "what was refused is not there, and nothing else is lost");
}

#[tokio::test]
async fn whoever_waits_hears_of_other_processes_after_a_failure_too() {
    let folder = tempfile::tempdir().unwrap();
    let (provider, others, queue) = (open(&folder).await, open(&folder).await, queue());
    let waits = {
        let (provider, queue) = (provider.clone(), queue.clone());
        let options = ReceiveOptions::default().wait(std::time::Duration::from_secs(20));
        tokio::spawn(async move {
            loop {
                match provider.receive_messages(&queue, &options, soon()).await {
                    // It looked in the very transaction that failed, is told so, and asks again.
                    Err(error) if error.is_retryable() => {}
                    answer => return answer,
                }
            }
        })
    };
    tokio::task::yield_now().await;
    // The writer does one thing after the other: when this is done, the receiver has looked and found nothing.
    on_connection(&provider, "pragma max_page_count = 1").await;
    provider.send_message(&queue, Message::new(vec![b'x'; 8192]), soon()).await.unwrap_err();
    let began = std::time::Instant::now();
    others.send_message(&queue, Message::new("x"), soon()).await.unwrap();
    assert_eq!(waits.await.unwrap().unwrap().len(), 1);
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "it was not woken: {:?}", began.elapsed());
}

#[tokio::test]
async fn a_commit_that_may_have_reached_the_disk_is_told_as_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let (provider, queue) = (open(&folder).await, queue());
    let run = {
        let queue = queue.clone();
        move |session: &mut Session<'_>| {
            session.memory.commit_fails = true;
            session.send(&queue, &Message::new("may be there")).map(|_| ())
        }
    };
    let answer = provider.write("test", soon(), run).await;
    let Err(MessagingError::OutcomeUnknown { source: Some(source), .. }) = answer else { panic!("{answer:?}") };
    assert!(source.to_string().contains("queues.db': the disk or its file system failed"), "{source}");
    let again = provider.send_message(&queue, Message::new("y"), soon()).await;
    assert!(again.is_ok(), "a connection that failed is not used again: {again:?}");
    assert_eq!(count(&provider).await, Some(2), "what was told as unknown was done here");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_sqlite_refuses_fails_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (provider, queue) = (open(&folder).await, queue());
    Connection::open(folder.path().join("queues.db"))
        .unwrap()
        .execute_batch(
            "create trigger refuse before insert on message when new.payload = cast('bad' as blob) \
             begin select raise(abort, 'not this one'); end",
        )
        .unwrap();
    let body = |n: usize| if n == 7 { "bad".to_owned() } else { n.to_string() };
    let rows = provider.send_batch(&queue, (0..20).map(|n| Message::new(body(n))).collect(), soon()).await.unwrap();
    for (n, row) in rows.iter().enumerate() {
        assert_eq!(row.is_err(), n == 7, "row {n}: {row:?}");
    }
    // The same for callers that only happen to share a transaction.
    let sends = (0..20).map(|n| provider.send_message(&queue, Message::new(body(n)), soon()));
    let options = ReceiveOptions::batch(1);
    let (sends, received) = tokio::join!(join_all(sends), provider.receive_messages(&queue, &options, soon()));
    for (n, answer) in sends.iter().enumerate() {
        assert_eq!(answer.is_err(), n == 7, "send {n}: {answer:?}");
    }
    assert_eq!(received.unwrap().len(), 1);
    assert_eq!(count(&provider).await, Some(38));
}

#[tokio::test]
async fn a_panic_inside_a_transaction_harms_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let (provider, queue) = (open(&folder).await, queue());
    let panic = provider.write("test", soon(), |_: &mut Session<'_>| -> Result<(), Failure> { panic!("on purpose") });
    let send = provider.send_message(&queue, Message::new("x"), soon());
    let (panicked, sent) = tokio::join!(panic, send);
    assert!(matches!(panicked, Err(MessagingError::OutcomeUnknown { .. })), "{panicked:?}");
    sent.unwrap();
    assert_eq!(count(&provider).await, Some(1));
    provider.close(soon()).await.unwrap();
}
