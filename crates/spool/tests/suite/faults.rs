//! Full and read-only disks, removed folders, and clocks that are set.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use postrider_core::clock::Sleep;
use postrider_core::{
    Clock, DeadLetterQuery, DeadLetters, Message, MessagingError, MessagingService, Nack, QueueAdmin, QueueName,
    QueuedMessage, ReceiveOptions, Timestamp,
};
use postrider_spool::{SpoolOptions, SpoolProvider, SpoolStore, Watch};

use crate::{Scratch, connect, queue, soon};

/// A small disk for one test.
struct SmallDisk {
    scratch: Scratch,
}

impl SmallDisk {
    fn new(options: &str) -> Self {
        let scratch = Scratch::new();
        let disk = Self { scratch };
        fs::create_dir(disk.path()).unwrap();
        mount(Some("tmpfs"), &disk.path(), Some("tmpfs"), MsFlags::empty(), Some(options))
            .expect("a disk can be mounted: these tests need root");
        disk
    }

    fn path(&self) -> PathBuf {
        self.scratch.folder.path().join("disk")
    }

    fn spool(&self) -> PathBuf {
        self.path().join("spool")
    }

    fn remount(&self, flags: MsFlags) {
        mount(None::<&str>, &self.path(), None::<&str>, MsFlags::MS_REMOUNT | flags, None::<&str>).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.path(), MntFlags::MNT_DETACH);
    }
}

async fn take(provider: &SpoolProvider, queue: &QueueName) -> QueuedMessage {
    let options = ReceiveOptions::default().wait(Duration::from_secs(20));
    provider.receive_messages(queue, &options, soon()).await.unwrap().pop().expect("a message")
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

#[tokio::test]
async fn a_full_disk_refuses_sends_and_loses_no_message() {
    let disk = SmallDisk::new("size=256k");
    let provider = connect(&disk.spool(), SpoolOptions::default()).await;
    let queue = queue("orders");
    let body = "x".repeat(8000);
    let mut accepted = Vec::new();
    let refused = loop {
        match provider.send_message(&queue, Message::new(body.clone()), soon()).await {
            Ok(id) => accepted.push(id),
            Err(error) => break error,
        }
        assert!(accepted.len() < 1000, "the disk is never full");
    };
    assert!(refused.is_retryable() && refused.to_string().contains("the disk is full; free some space"), "{refused}");
    assert!(!accepted.is_empty());
    assert_eq!(count(&disk.spool().join("orders/tmp")), 0, "a refused message was left behind");
    // A batch is accepted in part.
    let batch = (0..20).map(|_| Message::new(body.clone())).collect();
    for row in provider.send_batch(&queue, batch, soon()).await.unwrap() {
        match row {
            Ok(id) => accepted.push(id),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    // Without space for a record a message is not dead-lettered: it stays leased.
    let filler = disk.path().join("filler");
    fs::write(&filler, "").unwrap();
    while fs::OpenOptions::new()
        .append(true)
        .open(&filler)
        .and_then(|mut f| std::io::Write::write_all(&mut f, &[0; 512]))
        .is_ok()
    {}
    let message = take(&provider, &queue).await;
    let receipt = message.receipt().clone();
    let result = provider.nack_message(&queue, message.into_receipt(), Nack::dead_letter("rejected"), soon()).await;
    assert!(result.as_ref().is_err_and(MessagingError::is_retryable), "{result:?}");
    assert!(provider.list_dead_letters(&queue, &DeadLetterQuery::default(), soon()).await.unwrap().letters.is_empty());
    // Acknowledgements need no space and free some.
    provider.ack_message(&queue, receipt, soon()).await.unwrap();
    let mut received = 1;
    while received < accepted.len() {
        let message = take(&provider, &queue).await;
        assert!(accepted.contains(&message.id()));
        provider.ack_message(&queue, message, soon()).await.unwrap();
        received += 1;
    }
    assert_eq!(provider.queue_stats(&queue, soon()).await.unwrap().message_count(), Some(0));
    provider.send_message(&queue, Message::new("fits again"), soon()).await.unwrap();
}

#[tokio::test]
async fn a_disk_that_becomes_read_only_fails_every_change_and_loses_no_message() {
    let disk = SmallDisk::new("size=4m");
    let provider = connect(&disk.spool(), SpoolOptions::default()).await;
    let queue = queue("orders");
    for n in 0..3 {
        provider.send_message(&queue, Message::new(n.to_string()), soon()).await.unwrap();
    }
    let held = take(&provider, &queue).await;
    disk.remount(MsFlags::MS_RDONLY);
    let send = provider.send_message(&queue, Message::new("no"), soon()).await.unwrap_err();
    assert!(send.is_retryable() && send.to_string().contains("read-only; mount it for writing"), "{send}");
    let receive = provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap_err();
    assert!(receive.to_string().contains("read-only"), "{receive}");
    let ack = provider.ack_message(&queue, held.receipt().clone(), soon()).await.unwrap_err();
    assert!(ack.to_string().contains("read-only"), "{ack}");
    assert!(provider.health_check(soon()).await.is_err());
    // A peek writes nothing.
    assert_eq!(provider.peek(&queue, 10, soon()).await.unwrap().len(), 3);
    disk.remount(MsFlags::empty());
    provider.ack_message(&queue, held, soon()).await.unwrap();
    for body in ["1", "2"] {
        let message = take(&provider, &queue).await;
        assert_eq!(message.message, body);
        provider.ack_message(&queue, message, soon()).await.unwrap();
    }
}

#[tokio::test]
async fn a_queue_whose_folder_is_removed_does_not_exist() {
    for watch in [Watch::Auto, Watch::Poll] {
        let scratch = Scratch::new();
        let poll_interval = Duration::from_millis(20);
        let provider = scratch.connect_with(SpoolOptions { watch, poll_interval, ..SpoolOptions::default() }).await;
        let queue = queue("orders");
        provider.send_message(&queue, Message::new("lost"), soon()).await.unwrap();
        let held = take(&provider, &queue).await;
        let receipt = held.into_receipt();
        fs::remove_dir_all(scratch.spool().join("orders")).unwrap();
        assert!(matches!(
            provider.ack_message(&queue, receipt, soon()).await,
            Err(MessagingError::VisibilityExpired { .. })
        ));
        assert!(provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap().is_empty());
        assert!(provider.list_queues(soon()).await.unwrap().is_empty());
        // A waiting receiver receives from the queue that replaces it.
        let sender = scratch.connect().await;
        let sending = async {
            tokio::task::yield_now().await;
            sender.send_message(&queue, Message::new("new"), soon()).await.unwrap();
        };
        let (message, ()) = tokio::join!(take(&provider, &queue), sending);
        assert_eq!(message.message, "new");
    }
}

#[tokio::test]
async fn a_spool_that_was_removed_is_not_created_again() {
    let scratch = Scratch::new();
    let provider = scratch.connect().await;
    let queue = queue("orders");
    provider.send_message(&queue, Message::new("kept"), soon()).await.unwrap();
    let away = scratch.spool().with_extension("away");
    fs::rename(scratch.spool(), &away).unwrap();
    let send = provider.send_message(&queue, Message::new("no"), soon()).await.unwrap_err();
    assert!(send.is_retryable() && send.to_string().contains("put it back, or mount its disk again"), "{send}");
    assert!(!scratch.spool().exists(), "messages would be written where the disk should be");
    fs::rename(&away, scratch.spool()).unwrap();
    assert_eq!(take(&provider, &queue).await.message, "kept");
}

/// A clock that can be set, forward and back.
#[derive(Debug, Clone)]
struct Settable(Arc<AtomicI64>);

impl Settable {
    fn set_by(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }
}

impl Clock for Settable {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(Timestamp::now().as_micros() + self.0.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, time: Timestamp) -> Sleep {
        Box::pin(tokio::time::sleep(time.since(self.now()).min(Duration::from_millis(50))))
    }
}

#[tokio::test]
async fn order_survives_a_clock_that_is_set_back_and_no_message_starves() {
    let scratch = Scratch::new();
    let clock = Settable(Arc::default());
    let options = || SpoolOptions { clock: Arc::new(clock.clone()), ..SpoolOptions::default() };
    let (sender, receiver) = (scratch.connect_with(options()).await, scratch.connect_with(options()).await);
    let queue = queue("orders");
    let keyed = |body: String| Message::new(body).ordering_key("k").unwrap();
    for n in 0..6 {
        sender.send_message(&queue, keyed(n.to_string()), soon()).await.unwrap();
        sender.send_message(&queue, Message::new(format!("free {n}")), soon()).await.unwrap();
        // An hour back, then forward again, then far back.
        clock.set_by([-3600, 3600, -7200, 10, -3600, 0][n]);
        if n == 2 {
            // A new process has only the state in the folder.
            let late = scratch.connect_with(options()).await;
            sender.send_message(&queue, Message::new("late starter"), soon()).await.unwrap();
            assert!(late.queue_stats(&queue, soon()).await.unwrap().ready.value() == Some(7));
        }
    }
    // New messages keep coming, each with an earlier time than those.
    let (mut of_key, mut free) = (Vec::new(), 0);
    for n in 0..100 {
        if of_key.len() == 6 && free == 7 {
            break;
        }
        sender.send_message(&queue, Message::new("new"), soon()).await.unwrap();
        let message = take(&receiver, &queue).await;
        let body = String::from_utf8_lossy(&message.message).into_owned();
        match &message.envelope.ordering_key {
            Some(_) => of_key.push(body),
            None => free += usize::from(body != "new"),
        }
        receiver.ack_message(&queue, message, soon()).await.unwrap();
        assert!(n < 99, "old messages starve: {of_key:?} and {free}");
    }
    assert_eq!(of_key, ["0", "1", "2", "3", "4", "5"]);
}

#[tokio::test]
async fn leases_and_delays_follow_the_clock_when_it_is_set() {
    let scratch = Scratch::new();
    let clock = Settable(Arc::default());
    let options = SpoolOptions { clock: Arc::new(clock.clone()), ..SpoolOptions::default() };
    let store = SpoolStore::open(scratch.spool(), options).await.unwrap();
    let provider = store.connect().unwrap();
    let queue = queue("orders");
    provider.send_message(&queue, Message::new("leased"), soon()).await.unwrap();
    let lease = ReceiveOptions::default().visibility(Duration::from_secs(600));
    let held = provider.receive_messages(&queue, &lease, soon()).await.unwrap().pop().unwrap().into_receipt();
    // Back: the lease lasts longer, and is valid.
    clock.set_by(-3600);
    assert!(provider.receive_messages(&queue, &lease, soon()).await.unwrap().is_empty());
    provider.extend_visibility(&queue, &held, Duration::from_secs(600), soon()).await.unwrap();
    // Forward: it has expired, for its holder too.
    clock.set_by(7200);
    assert!(matches!(provider.ack_message(&queue, held, soon()).await, Err(MessagingError::VisibilityExpired { .. })));
    assert_eq!(take(&provider, &queue).await.receive_count(), 2);
}

#[tokio::test]
async fn a_file_that_cannot_be_moved_blocks_no_other() {
    let disk = SmallDisk::new("size=1m");
    let provider = connect(&disk.spool(), SpoolOptions::default()).await;
    let queue = queue("orders");
    provider.ensure_queue(&queue, soon()).await.unwrap();
    // A mount point cannot be renamed, and it is the oldest entry.
    let stuck = disk.spool().join("orders/incoming/stuck.json");
    fs::create_dir(&stuck).unwrap();
    mount(Some("tmpfs"), &stuck, Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
    // Older than the grace period, so that it is claimed.
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(60);
    fs::File::open(&stuck).unwrap().set_modified(long_ago).unwrap();
    for n in 0..3 {
        provider.send_message(&queue, Message::new(n.to_string()), soon()).await.unwrap();
    }
    for n in 0..3 {
        let message = take(&provider, &queue).await;
        assert_eq!((message.message.as_ref(), message.receive_count()), (n.to_string().as_bytes(), 1));
        provider.ack_message(&queue, message, soon()).await.unwrap();
    }
    umount2(&stuck, MntFlags::MNT_DETACH).unwrap();
}
