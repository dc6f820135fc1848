//! What each store has of its own, each value with its default.

use std::path::PathBuf;
use std::time::Duration;

use postrider_core::ArchivePolicy;

use super::secret::Secret;
use super::store_url::StoreUrl;

/// What only the embedded SQLite file knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqliteConfig {
    /// What a commit waits for.
    pub synchronous: Synchronous,
    /// Which messages are kept after their end.
    pub archive: ArchivePolicy,
    /// How long they are kept.
    pub archive_retention: Duration,
    /// Whether the tables may stand in another program's database.
    pub share_file: bool,
    /// How long a call waits while other processes write.
    pub lock_timeout: Duration,
    /// How large the write-ahead log may grow.
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
    /// The disk: what was answered survives a loss of power.
    Full,
    /// The operating system: a loss of power can take the last messages and settlements with it.
    Normal,
}

/// What only a folder of files knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolConfig {
    /// Which files that others put into `incoming/` are messages.
    pub files: SpoolFiles,
    /// Where the ordering key of a file of others is: the first of these that the file has. Each names one field, or
    /// several with commas between them.
    pub ordering_key: Vec<String>,
    /// How long a file that was not renamed into `incoming/` must not have been written to before it is taken.
    pub grace_period: Duration,
    /// How changes by others are noticed.
    pub watch: SpoolWatch,
    /// How often is looked where nothing tells of changes.
    pub poll_interval: Duration,
    /// How long a call waits while other processes change the same queue.
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

/// Which files that others put into a spool's `incoming/` are messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpoolFiles {
    /// Those whose names end in `.json`.
    Json,
    /// All but hidden ones.
    Any,
}

/// How changes of a spool by others are noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpoolWatch {
    /// By inotify where the file system has it, by looking elsewhere.
    Auto,
    /// By looking.
    Poll,
}

/// What only PostgreSQL knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresConfig {
    /// The schema that holds the tables.
    pub schema: String,
    /// How many connections are open at most.
    pub pool_size: u32,
    /// Which messages are kept after their end.
    pub archive: ArchivePolicy,
    /// How long they are kept.
    pub archive_retention: Duration,
    /// Whether nothing is kept in a session: no `LISTEN`, no settings.
    pub poll_only: bool,
    /// How long a waiting receiver goes without a look of its own.
    pub poll_interval: Duration,
    /// How long connecting may take.
    pub connection_timeout: Duration,
    /// How long a statement may take.
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

/// What only MariaDB and MySQL know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MysqlConfig {
    /// How many connections are open at most.
    pub pool_size: u32,
    /// Which messages are kept after their end.
    pub archive: ArchivePolicy,
    /// How long they are kept.
    pub archive_retention: Duration,
    /// How long a waiting receiver goes without a look of its own.
    pub poll_interval: Duration,
    /// How long connecting may take.
    pub connection_timeout: Duration,
    /// How long a step of a transaction may take.
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

/// What only PGMQ knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgmqConfig {
    /// The schema that holds what PGMQ has no place for.
    pub schema: String,
    /// How many connections are open at most.
    pub pool_size: u32,
    /// Which messages are kept after their end.
    pub archive: ArchivePolicy,
    /// How long they are kept.
    pub archive_retention: Duration,
    /// Whether waiting receivers hear of new messages by `LISTEN` and `NOTIFY`.
    pub enable_pg_notify: bool,
    /// How long after one notification of a queue PGMQ sends no other.
    pub notify_throttle: Duration,
    /// How long a waiting receiver goes without a look of its own.
    pub poll_interval: Duration,
    /// Messages without keys that are due later than this wait beside the queue.
    pub long_delay: Duration,
    /// How long connecting may take.
    pub connection_timeout: Duration,
    /// How long a statement may take.
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

/// What only RabbitMQ knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RabbitMqConfig {
    /// The virtual host; `None` is the one that the URL names.
    pub vhost: Option<String>,
    /// What kind of queues are made.
    pub queue_type: RabbitMqQueueType,
    /// How many partitions a queue has whose messages have keys.
    pub partitions: u32,
    /// How many messages the broker hands over before the first is settled.
    pub prefetch_count: u32,
    /// How often the connection shows that it is alive.
    pub heartbeat: Duration,
    /// How long connecting may take.
    pub connection_timeout: Duration,
    /// The broker's own `consumer_timeout`.
    pub consumer_timeout: Duration,
    /// Where the management interface answers; `None` is the usual port of the broker's host.
    pub management_url: Option<StoreUrl>,
    /// The certificates that the broker's is checked against; `None` takes the system's.
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

/// What kind of queues are made on RabbitMQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RabbitMqQueueType {
    /// Replicated, and counts its deliveries.
    Quorum,
    /// On one node, and counts nothing.
    Classic,
}

/// What only SQS knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqsConfig {
    /// How many calls are under way at the same time for one batch.
    pub parallel_calls: u32,
    /// How long connecting may take.
    pub connection_timeout: Duration,
    /// How long SQS may take to answer.
    pub call_timeout: Duration,
}

impl Default for SqsConfig {
    fn default() -> Self {
        Self { parallel_calls: 16, connection_timeout: Duration::from_secs(10), call_timeout: Duration::from_secs(10) }
    }
}

/// What only a Postrider server knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// The token that the server knows this program by.
    pub token: Option<Secret>,
    /// The certificates that the server's is checked against; `None` takes the system's.
    pub ca_file: Option<PathBuf>,
    /// How long connecting may take.
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
    /// Whatever a Postrider server has.
    Http,
}
