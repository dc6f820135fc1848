//! Disks that fill up or become read-only, folders that go away, and clocks that are set.

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

use crate::{Place, connect, queue, soon};

/// A small disk of a test's own.
struct SmallDisk {
    place: Place,
}

impl SmallDisk {
    fn new(options: &str) -> Self {
        let place = Place::new();
        let disk = Self { place };
        fs::create_dir(disk.path()).unwrap();
        mount(Some("tmpfs"), &disk.path(), Some("tmpfs"), MsFlags::empty(), Some(options))
            .expect("a disk can be mounted: these tests need the rights of the super-user");
        disk
    }

    fn path(&self) -> PathBuf {
        self.place.folder.path().join("disk")
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
async fn a_full_disk_refuses_what_does_not_fit_and_loses_nothing() {
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
    assert_eq!(count(&disk.spool().join("orders/tmp")), 0, "what did not fit was left behind");
    // Of a batch, what fits is accepted and the rest is told.
    let batch = (0..20).map(|_| Message::new(body.clone())).collect();
    for row in provider.send_batch(&queue, batch, soon()).await.unwrap() {
        match row {
            Ok(id) => accepted.push(id),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    // A record cannot be written, so nothing dies without one: the message stays what it is.
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
    let buried = provider.nack_message(&queue, message.into_receipt(), Nack::dead_letter("rejected"), soon()).await;
    assert!(buried.as_ref().is_err_and(MessagingError::is_retryable), "{buried:?}");
    assert!(provider.list_dead_letters(&queue, &DeadLetterQuery::default(), soon()).await.unwrap().letters.is_empty());
    // Room comes by acknowledging, which needs none.
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
async fn a_disk_that_becomes_read_only_stops_everything_and_loses_nothing() {
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
    // Looking needs no writing.
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
async fn a_queue_whose_folder_is_removed_is_like_one_that_never_was() {
    for watch in [Watch::Auto, Watch::Poll] {
        let place = Place::new();
        let poll_interval = Duration::from_millis(20);
        let provider = place.connect_with(SpoolOptions { watch, poll_interval, ..SpoolOptions::default() }).await;
        let queue = queue("orders");
        provider.send_message(&queue, Message::new("lost"), soon()).await.unwrap();
        let held = take(&provider, &queue).await;
        let receipt = held.into_receipt();
        fs::remove_dir_all(place.spool().join("orders")).unwrap();
        assert!(matches!(
            provider.ack_message(&queue, receipt, soon()).await,
            Err(MessagingError::VisibilityExpired { .. })
        ));
        assert!(provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap().is_empty());
        assert!(provider.list_queues(soon()).await.unwrap().is_empty());
        // Somebody who waits for it gets what is sent to the queue that takes its place.
        let sender = place.connect().await;
        let sending = async {
            tokio::task::yield_now().await;
            sender.send_message(&queue, Message::new("new"), soon()).await.unwrap();
        };
        let (message, ()) = tokio::join!(take(&provider, &queue), sending);
        assert_eq!(message.message, "new");
    }
}

#[tokio::test]
async fn a_spool_that_is_not_there_any_more_is_not_made_anew() {
    let place = Place::new();
    let provider = place.connect().await;
    let queue = queue("orders");
    provider.send_message(&queue, Message::new("kept"), soon()).await.unwrap();
    let away = place.spool().with_extension("away");
    fs::rename(place.spool(), &away).unwrap();
    let send = provider.send_message(&queue, Message::new("no"), soon()).await.unwrap_err();
    assert!(send.is_retryable() && send.to_string().contains("put it back, or mount its disk again"), "{send}");
    assert!(!place.spool().exists(), "messages would be written where the disk should be");
    fs::rename(&away, place.spool()).unwrap();
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
async fn order_survives_a_clock_that_is_set_back_and_nobody_starves() {
    let place = Place::new();
    let clock = Settable(Arc::default());
    let options = || SpoolOptions { clock: Arc::new(clock.clone()), ..SpoolOptions::default() };
    let (sender, receiver) = (place.connect_with(options()).await, place.connect_with(options()).await);
    let queue = queue("orders");
    let keyed = |body: String| Message::new(body).ordering_key("k").unwrap();
    for n in 0..6 {
        sender.send_message(&queue, keyed(n.to_string()), soon()).await.unwrap();
        sender.send_message(&queue, Message::new(format!("free {n}")), soon()).await.unwrap();
        // An hour back, then forward again, then far back.
        clock.set_by([-3600, 3600, -7200, 10, -3600, 0][n]);
        if n == 2 {
            // Whoever starts now knows only what is in the folder.
            let late = place.connect_with(options()).await;
            sender.send_message(&queue, Message::new("late starter"), soon()).await.unwrap();
            assert!(late.queue_stats(&queue, soon()).await.unwrap().ready.value() == Some(7));
        }
    }
    // While new messages keep coming, each of which has an earlier time than those.
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
    let place = Place::new();
    let clock = Settable(Arc::default());
    let options = SpoolOptions { clock: Arc::new(clock.clone()), ..SpoolOptions::default() };
    let store = SpoolStore::open(place.spool(), options).await.unwrap();
    let provider = store.connect().unwrap();
    let queue = queue("orders");
    provider.send_message(&queue, Message::new("leased"), soon()).await.unwrap();
    let lease = ReceiveOptions::default().visibility(Duration::from_secs(600));
    let held = provider.receive_messages(&queue, &lease, soon()).await.unwrap().pop().unwrap().into_receipt();
    // Back: the lease lasts longer, and is valid.
    clock.set_by(-3600);
    assert!(provider.receive_messages(&queue, &lease, soon()).await.unwrap().is_empty());
    provider.extend_visibility(&queue, &held, Duration::from_secs(600), soon()).await.unwrap();
    // Forward: it is over, for its holder as for everybody else.
    clock.set_by(7200);
    assert!(matches!(provider.ack_message(&queue, held, soon()).await, Err(MessagingError::VisibilityExpired { .. })));
    assert_eq!(take(&provider, &queue).await.receive_count(), 2);
}

#[tokio::test]
async fn a_file_that_cannot_be_moved_is_in_nobodys_way() {
    let disk = SmallDisk::new("size=1m");
    let provider = connect(&disk.spool(), SpoolOptions::default()).await;
    let queue = queue("orders");
    provider.ensure_queue(&queue, soon()).await.unwrap();
    // A folder that another disk is mounted on cannot be renamed, and it is the oldest.
    let stuck = disk.spool().join("orders/incoming/stuck.json");
    fs::create_dir(&stuck).unwrap();
    mount(Some("tmpfs"), &stuck, Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
    // Older than the grace period asks for, so that it is tried.
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
