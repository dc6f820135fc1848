//! Every setting of the embedded file takes effect from a configuration file.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use postrider::config::{Config, Sources};
use postrider::{
    Deadline, Message, MessagingError, MessagingProvider, MessagingService, Nack, QueueAdmin, QueueName, ReceiveOptions,
};
use postrider_sqlite::rusqlite::Connection;
use tempfile::TempDir;

/// A temporary folder for the file.
struct TestFolder(TempDir);

impl TestFolder {
    fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("mail.db")
    }

    fn log_bytes(&self) -> u64 {
        std::fs::metadata(self.0.path().join("mail.db-wal")).map_or(0, |log| log.len())
    }

    /// Connects with these lines of `postrider.toml`, in the messaging section and in the provider's.
    async fn try_connect(&self, messaging: &str, sqlite: &str) -> Result<MessagingProvider, MessagingError> {
        let toml = format!(
            "[common.messaging]\nprovider = 'sqlite'\n{messaging}\n[common.messaging.sqlite]\npath = '{}'\n{sqlite}\n",
            self.file().display()
        );
        let path = self.0.path().join("postrider.toml");
        std::fs::write(&path, toml).unwrap();
        Config::load(&Sources::none().file(path)).unwrap().endpoint().unwrap().connect().await
    }

    async fn connect(&self, messaging: &str, sqlite: &str) -> MessagingProvider {
        self.try_connect(messaging, sqlite).await.unwrap()
    }
}

fn soon() -> Deadline {
    Deadline::default()
}

fn orders() -> QueueName {
    QueueName::new("orders").unwrap()
}

async fn handle_one(provider: &MessagingProvider) {
    provider.send_message(&orders(), Message::new("good"), soon()).await.unwrap();
    let mut received = provider.receive_messages(&orders(), &ReceiveOptions::default(), soon()).await.unwrap();
    provider.ack_message(&orders(), received.remove(0), soon()).await.unwrap();
}

async fn purge_one(provider: &MessagingProvider) {
    provider.send_message(&orders(), Message::new("bad"), soon()).await.unwrap();
    let mut received = provider.receive_messages(&orders(), &ReceiveOptions::default(), soon()).await.unwrap();
    provider.nack_message(&orders(), received.remove(0), Nack::dead_letter("bad"), soon()).await.unwrap();
    assert_eq!(provider.purge(&orders().dead_letters(), soon()).await.unwrap(), 1);
}

fn archived(file: &Path) -> Vec<String> {
    let file = Connection::open(file).unwrap();
    let mut rows = file.prepare("select state from message_archive order by archive_id").unwrap();
    rows.query_map([], |row| row.get(0)).unwrap().map(|row| row.unwrap()).collect()
}

#[tokio::test]
async fn archive_decides_what_is_kept() {
    for (policy, kept) in
        [("all", ["COMPLETED", "FAILED"].as_slice()), ("failed", ["FAILED"].as_slice()), ("none", [].as_slice())]
    {
        let folder = TestFolder::new();
        let provider = folder.connect("", &format!("archive = '{policy}'")).await;
        handle_one(&provider).await;
        purge_one(&provider).await;
        assert_eq!(archived(&folder.file()), kept, "{policy}");
        provider.close(soon()).await.unwrap();
    }
}

#[tokio::test]
async fn archive_retention_decides_how_long() {
    let folder = TestFolder::new();
    let provider = folder.connect("", "").await;
    handle_one(&provider).await;
    handle_one(&provider).await;
    provider.close(soon()).await.unwrap();
    let minutes_ago = |minutes: i64, row: i64| {
        let sql = "update message_archive set archived_at = archived_at - ?1 where archive_id = ?2";
        assert_eq!(Connection::open(folder.file()).unwrap().execute(sql, (minutes * 60_000_000, row)).unwrap(), 1);
    };
    minutes_ago(120, 1);
    minutes_ago(30, 2);
    // The archive is swept in the background after the open, so poll for the row's removal.
    let provider = folder.connect("", "archive_retention = '1h'").await;
    let end = Instant::now() + Duration::from_secs(30);
    while archived(&folder.file()).len() > 1 {
        assert!(Instant::now() < end, "the two-hour-old row was not removed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(archived(&folder.file()).len(), 1, "the half-hour-old row was removed");
    provider.close(soon()).await.unwrap();
}

#[tokio::test]
async fn share_file_allows_another_programs_database() {
    let folder = TestFolder::new();
    Connection::open(folder.file()).unwrap().execute_batch("create table theirs (x)").unwrap();
    let refused = folder.try_connect("", "").await.unwrap_err().to_string();
    assert!(refused.contains("belongs to another program") && refused.contains("share_file"), "{refused}");
    let provider = folder.connect("", "share_file = true").await;
    handle_one(&provider).await;
    provider.close(soon()).await.unwrap();
}

#[tokio::test]
async fn lock_timeout_decides_how_long_a_call_waits() {
    let folder = TestFolder::new();
    let provider = folder.connect("", "lock_timeout_seconds = 0.05").await;
    let other = Connection::open(folder.file()).unwrap();
    other.execute_batch("begin immediate").unwrap();
    let began = Instant::now();
    let error = provider.send_message(&orders(), Message::new("x"), soon()).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("locked by another process"), "{error}");
    // The default is ten seconds.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    other.execute_batch("rollback").unwrap();
    handle_one(&provider).await;
    provider.close(soon()).await.unwrap();
}

#[tokio::test]
async fn wal_limit_bounds_the_log() {
    let mut longest = Vec::new();
    for limit in ["wal_limit_bytes = 1048576", ""] {
        let folder = TestFolder::new();
        let provider = folder.connect("", limit).await;
        let mut most = 0;
        for _ in 0..20 {
            let messages = (0..100).map(|_| Message::new(vec![b'x'; 2000])).collect();
            provider.send_batch(&orders(), messages, soon()).await.unwrap();
            provider.list_queues(soon()).await.unwrap();
            most = most.max(folder.log_bytes());
        }
        provider.close(soon()).await.unwrap();
        longest.push(most);
    }
    assert!(longest[0] <= 1024 * 1024 * 3 / 2 && longest[1] > 2 * 1024 * 1024, "{longest:?}");
}

#[tokio::test]
async fn auto_migrate_decides_whether_a_file_is_made() {
    let folder = TestFolder::new();
    let refused = folder.try_connect("auto_migrate = false", "").await.unwrap_err().to_string();
    assert!(refused.contains("does not exist and auto_migrate is off"), "{refused}");
    assert!(!folder.file().exists());
    folder.connect("", "").await.close(soon()).await.unwrap();
    folder.connect("auto_migrate = false", "").await.close(soon()).await.unwrap();
}

#[tokio::test]
async fn create_queues_decides_whether_a_send_makes_its_queue() {
    let folder = TestFolder::new();
    let provider = folder.connect("create_queues = false", "").await;
    let refused = provider.send_message(&orders(), Message::new("x"), soon()).await;
    assert!(matches!(refused, Err(MessagingError::QueueNotFound { .. })), "{refused:?}");
    provider.ensure_queue(&orders(), soon()).await.unwrap();
    handle_one(&provider).await;
    provider.close(soon()).await.unwrap();
}

#[tokio::test]
async fn max_message_bytes_bounds_a_body() {
    let folder = TestFolder::new();
    let provider = folder.connect("max_message_bytes = 4", "").await;
    handle_one(&provider).await;
    let refused = provider.send_message(&orders(), Message::new("worse"), soon()).await;
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "body", .. })), "{refused:?}");
    provider.close(soon()).await.unwrap();
}

/// A new key needs a test above and its name here. `synchronous` has no effect that is visible from outside: a unit test
/// shows that the value reaches the file.
#[test]
fn every_key_of_the_section_is_tried_here() {
    let sources = Sources::none().flag("--url", "common.messaging.url", "memory:");
    let config = Config::load(&sources).unwrap();
    let keys: Vec<_> =
        config.describe().iter().filter_map(|row| row.key.strip_prefix("common.messaging.sqlite.")).collect();
    let tried = [
        "path",
        "synchronous",
        "archive",
        "archive_retention",
        "share_file",
        "lock_timeout_seconds",
        "wal_limit_bytes",
    ];
    assert_eq!(keys, tried);
}
