//! A full disk: which calls still succeed, and that no message is lost.

use std::collections::HashSet;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use postrider_core::{Message, MessageId, MessagingError, MessagingService, QueueAdmin, ReceiveOptions};
use postrider_sqlite::{ArchivePolicy, SqliteOptions, SqliteProvider};

use crate::{TestStore, queue, soon};

const PATIENCE: Duration = Duration::from_secs(60);

/// A small disk for one test.
struct Disk {
    test_store: TestStore,
}

impl Disk {
    /// Mounts a disk; `None` if this user may not.
    fn mount() -> Option<Self> {
        let test_store = TestStore::new();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(test_store.folder.path());
        mount.output().is_ok_and(|made| made.status.success()).then_some(Self { test_store })
    }

    /// Fills the disk, as another program might.
    fn fill(&self) {
        let mut other = std::fs::File::create(self.other()).unwrap();
        while other.write_all(&[0; 4096]).is_ok() {}
    }

    fn other(&self) -> std::path::PathBuf {
        self.test_store.folder.path().join("other")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let folder: &Path = self.test_store.folder.path();
        let _ = Command::new("umount").arg("-l").arg(folder).output();
    }
}

/// Sends until the disk is full, and returns the ids of the accepted messages.
async fn send_until_full(provider: &SqliteProvider) -> HashSet<MessageId> {
    let mut sent = HashSet::new();
    loop {
        let rows = provider.send_batch(&queue("orders"), messages(), soon()).await.unwrap();
        for row in rows {
            match row {
                Ok(id) => assert!(sent.insert(id)),
                Err(error) => {
                    let text = error.to_string();
                    assert!(matches!(error, MessagingError::Busy { .. }) && error.is_retryable(), "{error:?}");
                    assert!(text.contains("queues.db': the disk is full"), "{text}");
                    return sent;
                }
            }
        }
    }
}

fn messages() -> Vec<Message> {
    (0..20).map(|_| Message::new(vec![b'x'; 10_000])).collect()
}

/// Receives and acknowledges some messages, and returns their ids.
async fn drain_some(provider: &SqliteProvider) -> Result<Vec<MessageId>, MessagingError> {
    let options = ReceiveOptions::batch(10).visibility(Duration::from_millis(500)).max_receive_count(1_000_000);
    let messages = provider.receive_messages(&queue("orders"), &options, soon()).await?;
    let ids: Vec<MessageId> = messages.iter().map(|message| message.id()).collect();
    let receipts = messages.into_iter().map(|message| message.into_receipt()).collect();
    let acked = provider.ack_messages(&queue("orders"), receipts, soon()).await?;
    Ok(ids.into_iter().zip(acked).filter(|(_, acked)| acked.is_ok()).map(|(id, _)| id).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_drained_without_a_failure_and_takes_messages_again() {
    // Only the superuser may mount a disk; `writer/tests.rs` has the same test with SQLite's own limit.
    let Some(disk) = Disk::mount() else { return };
    let options = SqliteOptions { archive: ArchivePolicy::None, ..SqliteOptions::default() };
    let provider = disk.test_store.connect_with(options).await;
    for round in 0..3 {
        let mut left = send_until_full(&provider).await;
        assert!(left.len() > 200, "round {round}: {} were sent", left.len());
        let end = Instant::now() + PATIENCE;
        while !left.is_empty() {
            assert!(Instant::now() < end, "round {round}: {} are left", left.len());
            for id in drain_some(&provider).await.unwrap() {
                assert!(left.remove(&id), "{id} was done twice");
            }
        }
    }
    provider.close(soon()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_others_take_the_last_of_the_disk() {
    let Some(disk) = Disk::mount() else { return };
    let options = SqliteOptions { archive: ArchivePolicy::None, ..SqliteOptions::default() };
    let provider = disk.test_store.connect_with(options).await;
    let mut left = send_until_full(&provider).await;
    disk.fill();
    // Calls may fail now, but every error says that the disk is full, and none ends the connection.
    for _ in 0..20 {
        match drain_some(&provider).await {
            Ok(done) => done.iter().for_each(|id| assert!(left.remove(id), "{id} was done twice")),
            Err(error) => {
                assert!(
                    matches!(error, MessagingError::Busy { .. }) && error.to_string().contains("full"),
                    "{error:?}"
                );
            }
        }
        let sent = provider.send_message(&queue("orders"), Message::new(vec![0; 100_000]), soon()).await;
        left.extend(sent.ok());
    }
    std::fs::remove_file(disk.other()).unwrap();
    let end = Instant::now() + PATIENCE;
    while !left.is_empty() {
        assert!(Instant::now() < end, "{} are left", left.len());
        match drain_some(&provider).await {
            Ok(done) => done.iter().for_each(|id| assert!(left.remove(id), "{id} was done twice")),
            Err(error) => panic!("the disk has free space again: {error}"),
        }
    }
    assert_eq!(provider.queue_stats(&queue("orders"), soon()).await.unwrap().message_count(), Some(0));
    // Sends go on by themselves a moment after the last failure.
    while send_until_full(&provider).await.is_empty() {
        assert!(Instant::now() < end, "sends are still refused");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    provider.close(soon()).await.unwrap();
}
