//! A full disk is no outage: calls that need no space succeed, so the breaker stays closed.

use std::io::Write;
use std::process::Command;

use postrider::{
    BreakerSettings, BreakerState, Deadline, Endpoint, Guarded, Message, MessagingError, MessagingProvider,
    MessagingService, QueueName, ReceiveOptions,
};
use tempfile::TempDir;

/// A small disk for one test.
struct Disk {
    folder: TempDir,
}

impl Disk {
    /// `None` where this user may not mount.
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(folder.path());
        mount.output().is_ok_and(|made| made.status.success()).then_some(Self { folder })
    }

    /// Fills the rest of the disk.
    fn fill(&self) {
        let mut other = std::fs::File::create(self.folder.path().join("other")).unwrap();
        while other.write_all(&[0; 4096]).is_ok() {}
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).output();
    }
}

async fn assert_goes_on(scheme: &str) {
    // Only the super-user may mount a disk.
    let Some(disk) = Disk::mount() else { return };
    let queue = QueueName::new("orders").unwrap();
    let url = format!("{scheme}:{}", disk.folder.path().join("queues").display());
    let provider: MessagingProvider = url.parse::<Endpoint>().unwrap().connect().await.unwrap();
    // One failure would open it.
    let settings = BreakerSettings { failure_threshold: 1, ..BreakerSettings::default() };
    let guarded = Guarded::new(provider, settings);
    let mut sent = 0;
    let refused = loop {
        match guarded.send_message(&queue, Message::new(vec![b'x'; 100_000]), Deadline::default()).await {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(sent > 50, "{sent} were sent to a disk with room for two hundred");
    if scheme == "spool" {
        // Not even an empty file fits. SQLite has a reserve instead.
        disk.fill();
    }
    for _ in 0..3 {
        let again = guarded.send_message(&queue, Message::new(vec![b'x'; 100_000]), Deadline::default()).await;
        for error in [&refused, &again.unwrap_err()] {
            assert!(matches!(error, MessagingError::Busy { .. }), "{error:?}");
            assert!(error.is_retryable() && error.to_string().contains("the disk is full"), "{error}");
        }
        assert_eq!(guarded.breaker().state(), BreakerState::Closed { failures: 0 });
    }
    for _ in 0..3 {
        let options = ReceiveOptions::default();
        let message = guarded.receive_messages(&queue, &options, Deadline::default()).await.unwrap().remove(0);
        guarded.ack_message(&queue, message, Deadline::default()).await.unwrap();
        assert_eq!(guarded.breaker().state(), BreakerState::Closed { failures: 0 });
    }
    guarded.close(Deadline::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spool_on_a_full_disk_opens_no_breaker() {
    assert_goes_on("spool").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_sqlite_file_on_a_full_disk_opens_no_breaker() {
    assert_goes_on("sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_sqlite_file_that_is_opened_on_a_full_disk_is_busy() {
    let Some(disk) = Disk::mount() else { return };
    disk.fill();
    let url = format!("sqlite:{}", disk.folder.path().join("queues.db").display());
    let error = url.parse::<Endpoint>().unwrap().connect().await.unwrap_err();
    assert!(matches!(error, MessagingError::Busy { .. }), "{error:?}");
    assert!(error.to_string().contains("the disk is full"), "{error}");
}
