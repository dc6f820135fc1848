//! Failed transactions: the answer of each caller, and the content of the file afterwards.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use postrider_core::{
    ArchivePolicy, Deadline, Message, MessagingError, MessagingService, Nack, QueueAdmin, QueueName, ReceiveOptions,
};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::error::Failure;
use crate::free_space::FreeSpace;
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

/// The error of a commit with an unknown outcome.
pub(super) fn disk_failed() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR), None)
}

/// Runs SQL on the writer's connection, inside a transaction of its own.
async fn on_connection(provider: &SqliteProvider, sql: &'static str) {
    let run = move |session: &mut Session<'_>| Ok(session.connection.execute_batch(sql)?);
    provider.write("test", soon(), run).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_every_caller_learns_that_nothing_was_done() {
    let folder = tempfile::tempdir().unwrap();
    let (provider, queue) = (open(&folder).await, queue());
    provider.send_message(&queue, Message::new("before"), soon()).await.unwrap();
    // The connection may not add a page from now on, which is SQLite's own way of running out of disk.
    on_connection(&provider, "pragma max_page_count = 1").await;
    let sends = (0..20).map(|_| provider.send_message(&queue, Message::new(vec![b'x'; 8192]), soon()));
    let mut refused = 0;
    for answer in join_all(sends).await {
        match answer {
            Ok(_) => {}
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("queues.db': the disk is full") && error.is_retryable(), "{text}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
    on_connection(&provider, "pragma max_page_count = 1000000").await;
    until_sent(&provider, Message::new(vec![b'x'; 8192])).await;
    assert_eq!(count(&provider).await, Some(22 - refused), "refused messages are missing and nothing else is lost");
}

/// Sends as soon as there is free space again.
async fn until_sent(provider: &SqliteProvider, message: Message) {
    let end = Instant::now() + Duration::from_secs(20);
    while let Err(error) = provider.send_message(&queue(), message.clone(), soon()).await {
        assert!(matches!(error, MessagingError::Busy { .. }) && Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_full_file_can_be_drained_and_then_takes_messages_again() {
    for archive in [ArchivePolicy::All, ArchivePolicy::None] {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions { archive, ..SqliteOptions::default() };
        let store = SqliteStore::open(folder.path().join("queues.db"), options).await.unwrap();
        let (provider, queue) = (store.connect().await.unwrap(), queue());
        on_connection(&provider, "pragma max_page_count = 500").await;
        let mut sent = 0;
        let refused = loop {
            match provider.send_message(&queue, Message::new(vec![b'x'; 1500]), soon()).await {
                Ok(_) => sent += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, MessagingError::Busy { .. }), "the file and its connection are intact: {refused:?}");
        assert!(refused.is_retryable() && refused.to_string().contains("queues.db': the disk is full"), "{refused}");
        assert!(sent > 300, "{sent}");

        let (options, mut done) = (ReceiveOptions::batch(7).max_receive_count(100), 0_u32);
        while done < sent {
            let messages = provider.receive_messages(&queue, &options, soon()).await.unwrap();
            assert!(!messages.is_empty(), "{archive:?}: {done} of {sent} were received");
            for message in messages {
                let later = Duration::from_secs(60);
                provider.extend_visibility(&queue, message.receipt(), later, soon()).await.unwrap();
                if message.envelope.attempts_count == 0 && done.is_multiple_of(10) {
                    let failed = Nack::retry_after(Duration::ZERO).with_error("no");
                    provider.nack_message(&queue, message, failed, soon()).await.unwrap();
                    continue;
                }
                match done % 50 {
                    49 => provider.nack_message(&queue, message, Nack::dead_letter("rejected"), soon()).await,
                    _ => provider.ack_message(&queue, message, soon()).await,
                }
                .unwrap();
                done += 1;
            }
        }
        if archive == ArchivePolicy::All {
            let refused = provider.send_message(&queue, Message::new("x"), soon()).await.unwrap_err();
            assert!(refused.to_string().contains("the disk is full"), "the archive took the space: {refused}");
            on_connection(&provider, "pragma max_page_count = 1000000").await;
        }
        until_sent(&provider, Message::new("again")).await;
        let received = provider.receive_messages(&queue, &options, soon()).await.unwrap();
        assert_eq!(received.len(), 1);
        provider.close(soon()).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_without_free_space_does_not_fail_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions { archive: ArchivePolicy::None, ..SqliteOptions::default() };
    let store = SqliteStore::open(folder.path().join("queues.db"), options).await.unwrap();
    let (provider, queue) = (store.connect().await.unwrap(), queue());
    let messages = (0..3).map(|n| Message::new(n.to_string())).collect();
    provider.send_batch(&queue, messages, soon()).await.unwrap();
    let leased = provider.receive_messages(&queue, &ReceiveOptions::batch(3), soon()).await.unwrap();
    let shrink = |session: &mut Session<'_>| {
        session.connection.execute_batch("pragma max_page_count = 1")?;
        // SQLite must find the disk full, and not the measurement.
        session.cache.free_space = FreeSpace::plenty();
        Ok(())
    };
    provider.write("test", soon(), shrink).await.unwrap();
    // Larger than all pages together, so that SQLite needs another page.
    let sends = (0..3).map(|_| provider.send_message(&queue, Message::new(vec![b'x'; 900_000]), soon()));
    let acks = leased.into_iter().map(|message| provider.ack_message(&queue, message, soon()));
    let (sent, acked) = tokio::join!(join_all(sends), join_all(acks));
    for answer in &sent {
        assert!(matches!(answer, Err(MessagingError::Busy { .. })), "{answer:?}");
    }
    assert!(acked.iter().all(Result::is_ok), "{acked:?}");
    assert_eq!(count(&provider).await, Some(0));
    on_connection(&provider, "pragma max_page_count = 1000000").await;
    until_sent(&provider, Message::new("y")).await;
}

#[tokio::test]
async fn a_waiting_receiver_is_woken_by_other_processes_after_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let (provider, others, queue) = (open(&folder).await, open(&folder).await, queue());
    let waits = {
        let (provider, queue) = (provider.clone(), queue.clone());
        let options = ReceiveOptions::default().wait(std::time::Duration::from_secs(20));
        tokio::spawn(async move {
            loop {
                match provider.receive_messages(&queue, &options, soon()).await {
                    // Its claim was in the failed transaction; it tries again.
                    Err(error) if error.is_retryable() => {}
                    answer => return answer,
                }
            }
        })
    };
    tokio::task::yield_now().await;
    // The writer works in order: when this call is done, the receiver has claimed and found nothing.
    on_connection(&provider, "pragma max_page_count = 1").await;
    provider.send_message(&queue, Message::new(vec![b'x'; 8192]), soon()).await.unwrap_err();
    let began = std::time::Instant::now();
    others.send_message(&queue, Message::new("x"), soon()).await.unwrap();
    assert_eq!(waits.await.unwrap().unwrap().len(), 1);
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "it was not woken: {:?}", began.elapsed());
}

#[tokio::test]
async fn a_commit_that_may_have_reached_the_disk_has_an_unknown_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let (provider, queue) = (open(&folder).await, queue());
    let run = {
        let queue = queue.clone();
        move |session: &mut Session<'_>| {
            session.cache.commit_fails = true;
            session.send(&queue, &Message::new("may be there")).map(|_| ())
        }
    };
    let answer = provider.write("test", soon(), run).await;
    let Err(MessagingError::OutcomeUnknown { source: Some(source), .. }) = answer else { panic!("{answer:?}") };
    assert!(source.to_string().contains("queues.db': the disk or its file system failed"), "{source}");
    let again = provider.send_message(&queue, Message::new("y"), soon()).await;
    assert!(again.is_ok(), "a connection that failed is not used again: {again:?}");
    assert_eq!(count(&provider).await, Some(2), "the call with the unknown outcome took effect");
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
    // The same for callers that share a transaction by chance.
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
async fn a_panic_inside_a_transaction_fails_no_other_call() {
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
