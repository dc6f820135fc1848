//! Every setting of a spool takes effect from a configuration file.

use std::fs::{File, create_dir_all, rename, write};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use postrider::config::{Config, Sources};
use postrider::{
    Deadline, Feature, Message, MessagingError, MessagingProvider, MessagingService, QueueAdmin, QueueName,
    QueuedMessage, ReceiveOptions, Support,
};
use tempfile::TempDir;

/// A temporary folder.
struct TestFolder(TempDir);

impl TestFolder {
    fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn queue(&self) -> PathBuf {
        self.0.path().join("mail/orders")
    }

    /// Moves a file into the queue as another program does: written elsewhere, then renamed.
    fn move_in(&self, name: &str, content: &str) {
        let outside = self.0.path().join(name);
        write(&outside, content).unwrap();
        create_dir_all(self.queue().join("incoming")).unwrap();
        rename(outside, self.queue().join("incoming").join(name)).unwrap();
    }

    /// Connects with these lines of `postrider.toml`, in the messaging section and in the provider's.
    async fn connect(&self, messaging: &str, spool: &str) -> MessagingProvider {
        let toml = format!(
            "[common.messaging]\nprovider = 'spool'\n{messaging}\n[common.messaging.spool]\npath = '{}'\n{spool}\n",
            self.0.path().join("mail").display()
        );
        let path = self.0.path().join("postrider.toml");
        write(&path, toml).unwrap();
        Config::load(&Sources::none().file(path)).unwrap().endpoint().unwrap().connect().await.unwrap()
    }
}

fn soon() -> Deadline {
    Deadline::default()
}

fn orders() -> QueueName {
    QueueName::new("orders").unwrap()
}

async fn receive(provider: &MessagingProvider, wait: Duration) -> Vec<QueuedMessage> {
    provider.receive_messages(&orders(), &ReceiveOptions::batch(10).wait(wait), soon()).await.unwrap()
}

#[tokio::test]
async fn files_decides_what_is_a_message() {
    for (files, expected) in [("json", ["{}"].as_slice()), ("any", ["plain", "{}"].as_slice())] {
        let folder = TestFolder::new();
        folder.move_in("a.txt", "plain");
        folder.move_in("b.json", "{}");
        let provider = folder.connect("", &format!("files = '{files}'\ngrace_period = '0s'")).await;
        let mut bodies = Vec::new();
        while bodies.len() < expected.len() {
            for message in receive(&provider, Duration::from_secs(10)).await {
                bodies.push(String::from_utf8(message.message.to_vec()).unwrap());
                provider.ack_message(&orders(), message, soon()).await.unwrap();
            }
        }
        bodies.sort();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(bodies, expected, "{files}");
        assert!(receive(&provider, Duration::ZERO).await.is_empty(), "{files}");
        provider.close(soon()).await.unwrap();
    }
}

#[tokio::test]
async fn ordering_key_says_which_fields_are_the_key() {
    let folder = TestFolder::new();
    let provider = folder.connect("", "ordering_key = ['run', 'channel,conversation']").await;
    provider.ensure_queue(&orders(), soon()).await.unwrap();
    folder.move_in("a.json", r#"{"run": "r7", "channel": "mail"}"#);
    folder.move_in("b.json", r#"{"channel": "mail", "conversation": "c1"}"#);
    folder.move_in("c.json", r#"{"channel": "mail"}"#);
    let mut keys = Vec::new();
    while keys.len() < 3 {
        for message in receive(&provider, Duration::from_secs(10)).await {
            keys.push(message.envelope.ordering_key.as_ref().map(|key| key.as_str().to_owned()));
            provider.ack_message(&orders(), message, soon()).await.unwrap();
        }
    }
    keys.sort();
    assert_eq!(keys, [None, Some("mail/c1".into()), Some("r7".into())]);
    provider.close(soon()).await.unwrap();
}

#[tokio::test]
async fn grace_period_decides_when_a_file_that_was_not_renamed_is_taken() {
    let folder = TestFolder::new();
    folder.move_in("slow.json", "{}");
    let five_minutes_ago = SystemTime::now() - Duration::from_secs(300);
    let file = File::options().write(true).open(folder.queue().join("incoming/slow.json")).unwrap();
    file.set_modified(five_minutes_ago).unwrap();
    // The default is two seconds.
    for (grace_period, ready) in [("10m", 0), ("1m", 1)] {
        let provider = folder.connect("", &format!("grace_period = '{grace_period}'")).await;
        let stats = provider.queue_stats(&orders(), soon()).await.unwrap();
        assert_eq!((stats.ready.value(), stats.delayed.value()), (Some(ready), Some(1 - ready)), "{grace_period}");
        provider.close(soon()).await.unwrap();
    }
    let provider = folder.connect("", "grace_period = '1m'").await;
    assert_eq!(receive(&provider, Duration::ZERO).await.len(), 1);
    provider.close(soon()).await.unwrap();
}

#[tokio::test]
async fn watch_and_poll_interval_decide_how_files_are_noticed() {
    let wake_up = |provider: &MessagingProvider| provider.capabilities().support(Feature::WakeUp).clone();
    let folder = TestFolder::new();
    let watching = folder.connect("", "").await;
    assert_eq!(wake_up(&watching), Support::Native);
    watching.close(soon()).await.unwrap();

    let looking = folder.connect("", "watch = 'poll'\npoll_interval = '20ms'\ngrace_period = '0s'").await;
    let Support::Emulated { cost } = wake_up(&looking) else { panic!("{:?}", wake_up(&looking)) };
    assert!(cost.contains("20ms"), "{cost}");
    looking.ensure_queue(&orders(), soon()).await.unwrap();
    let mover = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        folder.move_in("late.json", "{}");
    };
    let (received, ()) = tokio::join!(receive(&looking, Duration::from_secs(10)), mover);
    assert_eq!(received.len(), 1);
    drop(received);
    looking.close(soon()).await.unwrap();
}

#[tokio::test]
async fn lock_timeout_decides_how_long_a_call_waits() {
    let folder = TestFolder::new();
    let provider = folder.connect("", "lock_timeout = '50ms'").await;
    provider.send_message(&orders(), Message::new("x"), soon()).await.unwrap();
    let other = File::open(folder.queue().join(".lock")).unwrap();
    other.lock().unwrap();
    let began = Instant::now();
    let error = provider.send_message(&orders(), Message::new("y"), soon()).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    // The default is ten seconds.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    other.unlock().unwrap();
    provider.send_message(&orders(), Message::new("y"), soon()).await.unwrap();
    provider.close(soon()).await.unwrap();
}

#[tokio::test]
async fn create_queues_and_max_message_bytes_bind_a_folder_too() {
    let folder = TestFolder::new();
    let provider = folder.connect("create_queues = false\nmax_message_bytes = 4", "").await;
    let refused = provider.send_message(&orders(), Message::new("x"), soon()).await;
    assert!(matches!(refused, Err(MessagingError::QueueNotFound { .. })), "{refused:?}");
    provider.ensure_queue(&orders(), soon()).await.unwrap();
    provider.send_message(&orders(), Message::new("good"), soon()).await.unwrap();
    let refused = provider.send_message(&orders(), Message::new("worse"), soon()).await;
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "body", .. })), "{refused:?}");
    assert_eq!(provider.list_queues(soon()).await.unwrap(), [orders()]);
    provider.close(soon()).await.unwrap();
}

/// A new key needs a test above and its name here.
#[test]
fn every_key_of_the_section_is_tried_here() {
    let sources = Sources::none().flag("--url", "common.messaging.url", "memory:");
    let config = Config::load(&sources).unwrap();
    let keys: Vec<_> =
        config.describe().iter().filter_map(|row| row.key.strip_prefix("common.messaging.spool.")).collect();
    let tried = ["path", "files", "ordering_key", "grace_period", "watch", "poll_interval", "lock_timeout"];
    assert_eq!(keys, tried);
}
