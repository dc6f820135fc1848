//! The settings of each store, with their defaults.

use std::path::PathBuf;
use std::time::Duration;

use postrider_core::ArchivePolicy;

use super::secret::Secret;
use super::store_url::StoreUrl;

/// Settings of the embedded SQLite file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqliteConfig {
    /// What a commit waits for.
    pub synchronous: Synchronous,
    /// Which messages are archived.
    pub archive: ArchivePolicy,
    /// Retention of archived messages.
    pub archive_retention: Duration,
    /// Whether the tables may be in another program's database.
    pub share_file: bool,
    /// Longest wait for other processes that write.
    pub lock_timeout: Duration,
    /// Largest size of the write-ahead log.
    pub wal_limit_bytes: u32,
}

impl Default for SqliteConfig {
    fn default() -> Self {
        Self {
            synchronous: Synchronous::Full,
            archive: ArchivePolicy::All,
            archive_retention: Duration::from_secs(7 * 24 * 3600),
            share_file: false,
            lock_timeout: Duration::from_secs(10),
            wal_limit_bytes: 16 * 1024 * 1024,
        }
    }
}

/// What a commit to the embedded file waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synchronous {
    /// The disk: answered calls survive a loss of power.
    Full,
    /// The operating system: a loss of power can take the last messages and settlements with it.
    Normal,
}

/// Settings of a folder of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolConfig {
    /// Which files in `incoming/` are messages.
    pub files: SpoolFiles,
    /// The fields with the ordering key of another program's file: the first entry that the file has. Each entry names one
    /// field or several, separated by commas.
    pub ordering_key: Vec<String>,
    /// Time without a write before a file that was not renamed into `incoming/` is taken.
    pub grace_period: Duration,
    /// How changes by other programs are noticed.
    pub watch: SpoolWatch,
    /// Poll interval where changes are not notified.
    pub poll_interval: Duration,
    /// Longest wait for other processes that change the same queue.
    pub lock_timeout: Duration,
}

impl Default for SpoolConfig {
    fn default() -> Self {
        Self {
            files: SpoolFiles::Json,
            ordering_key: Vec::new(),
            grace_period: Duration::from_secs(2),
            watch: SpoolWatch::Auto,
            poll_interval: Duration::from_millis(500),
            lock_timeout: Duration::from_secs(10),
        }
    }
}

/// Which files in a spool's `incoming/` are messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpoolFiles {
    /// Those whose names end in `.json`.
    Json,
    /// All but hidden ones.
    Any,
}

/// How changes of a spool by other programs are noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpoolWatch {
    /// By inotify where the file system has it, else by polling.
    Auto,
    /// By polling.
    Poll,
}

/// Settings of PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresConfig {
    /// The schema that holds the tables.
    pub schema: String,
    /// Upper bound of open connections.
    pub pool_size: u32,
    /// Which messages are archived.
    pub archive: ArchivePolicy,
    /// Retention of archived messages.
    pub archive_retention: Duration,
    /// Whether no session state is used: no `LISTEN`, no settings.
    pub poll_only: bool,
    /// Poll interval of a waiting receiver.
    pub poll_interval: Duration,
    /// Time limit of connecting.
    pub connection_timeout: Duration,
    /// Time limit of a statement.
    pub statement_timeout: Duration,
}

impl Default for PostgresConfig {
    fn default() -> Self {
        Self {
            schema: "postrider".into(),
            pool_size: 10,
            archive: ArchivePolicy::All,
            archive_retention: Duration::from_secs(7 * 24 * 3600),
            poll_only: false,
            poll_interval: Duration::from_secs(1),
            connection_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(30),
        }
    }
}

/// Settings of MariaDB and MySQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MysqlConfig {
    /// Upper bound of open connections.
    pub pool_size: u32,
    /// Which messages are archived.
    pub archive: ArchivePolicy,
    /// Retention of archived messages.
    pub archive_retention: Duration,
    /// Poll interval of a waiting receiver.
    pub poll_interval: Duration,
    /// Time limit of connecting.
    pub connection_timeout: Duration,
    /// Time limit of a step of a transaction.
    pub statement_timeout: Duration,
}

impl Default for MysqlConfig {
    fn default() -> Self {
        Self {
            pool_size: 10,
            archive: ArchivePolicy::All,
            archive_retention: Duration::from_secs(7 * 24 * 3600),
            poll_interval: Duration::from_secs(1),
            connection_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(30),
        }
    }
}

/// Settings of PGMQ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgmqConfig {
    /// The schema for data that PGMQ has no tables for.
    pub schema: String,
    /// Upper bound of open connections.
    pub pool_size: u32,
    /// Which messages are archived.
    pub archive: ArchivePolicy,
    /// Retention of archived messages.
    pub archive_retention: Duration,
    /// Whether new messages wake waiting receivers by `LISTEN` and `NOTIFY`.
    pub enable_pg_notify: bool,
    /// Shortest time between two notifications of a queue.
    pub notify_throttle: Duration,
    /// Poll interval of a waiting receiver.
    pub poll_interval: Duration,
    /// Messages without keys that are due later than this wait in a separate table.
    pub long_delay: Duration,
    /// Time limit of connecting.
    pub connection_timeout: Duration,
    /// Time limit of a statement.
    pub statement_timeout: Duration,
}

impl Default for PgmqConfig {
    fn default() -> Self {
        Self {
            schema: "postrider_pgmq".into(),
            pool_size: 10,
            archive: ArchivePolicy::All,
            archive_retention: Duration::from_secs(7 * 24 * 3600),
            enable_pg_notify: true,
            notify_throttle: Duration::from_millis(250),
            poll_interval: Duration::from_secs(1),
            long_delay: Duration::from_secs(60),
            connection_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(30),
        }
    }
}

/// Settings of RabbitMQ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RabbitMqConfig {
    /// The virtual host; `None` is the one that the URL names.
    pub vhost: Option<String>,
    /// The type of new queues.
    pub queue_type: RabbitMqQueueType,
    /// Number of partitions of a queue for messages with keys.
    pub partitions: u32,
    /// Upper bound of unsettled messages per receive.
    pub prefetch_count: u32,
    /// Heartbeat interval of the connection.
    pub heartbeat: Duration,
    /// Time limit of connecting.
    pub connection_timeout: Duration,
    /// The broker's own `consumer_timeout`.
    pub consumer_timeout: Duration,
    /// URL of the management interface; `None` is the usual port of the broker's host.
    pub management_url: Option<StoreUrl>,
    /// The CA certificates for the broker's certificate; `None` uses the system's.
    pub ca_file: Option<PathBuf>,
}

impl Default for RabbitMqConfig {
    fn default() -> Self {
        Self {
            vhost: None,
            queue_type: RabbitMqQueueType::Quorum,
            partitions: 8,
            prefetch_count: 200,
            heartbeat: Duration::from_secs(60),
            connection_timeout: Duration::from_secs(30),
            consumer_timeout: Duration::from_secs(1800),
            management_url: None,
            ca_file: None,
        }
    }
}

/// The type of new queues on RabbitMQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RabbitMqQueueType {
    /// Replicated; counts deliveries.
    Quorum,
    /// On one node; counts no deliveries.
    Classic,
}

/// Settings of SQS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqsConfig {
    /// Number of concurrent calls for one batch.
    pub parallel_calls: u32,
    /// Time limit of connecting.
    pub connection_timeout: Duration,
    /// Time limit of a call.
    pub call_timeout: Duration,
}

impl Default for SqsConfig {
    fn default() -> Self {
        Self { parallel_calls: 16, connection_timeout: Duration::from_secs(10), call_timeout: Duration::from_secs(10) }
    }
}

/// Settings of a Postrider server as a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// The token of this program.
    pub token: Option<Secret>,
    /// The CA certificates for the server's certificate; `None` uses the system's.
    pub ca_file: Option<PathBuf>,
    /// Time limit of connecting.
    pub connection_timeout: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self { token: None, ca_file: None, connection_timeout: Duration::from_secs(10) }
    }
}

/// The stores that a configuration can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProviderKind {
    /// In this process.
    Memory,
    /// The embedded file.
    Sqlite,
    /// A folder of files.
    Spool,
    /// A schema of a PostgreSQL database.
    Postgres,
    /// A MariaDB or MySQL database.
    Mysql,
    /// PostgreSQL with the PGMQ extension.
    Pgmq,
    /// RabbitMQ.
    RabbitMq,
    /// Queues of SQS.
    Sqs,
    /// A Postrider server.
    Http,
}
