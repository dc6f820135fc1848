//! The values of a configuration, each with its default.

use std::path::PathBuf;
use std::time::Duration;

use postrider_core::task::{DEFAULT_TASK_QUEUE_PREFIX, TaskMode};
use postrider_core::{ArchivePolicy, Limits, MessagingError, QueuesConfig, ReceiveOptions, RetryStrategy};

use super::secret::Secret;
use super::store_url::StoreUrl;
use crate::breaker::BreakerSettings;

/// Settings that every part of a system shares.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CommonConfig {
    /// How messages are sent, leased and given up.
    pub messaging: MessagingConfig,
    /// The names of a workflow's queues.
    pub queues: QueuesConfig,
    /// When a failed message is tried again.
    pub retry: RetryStrategy,
}

/// How tasks reach their workers, and how long they are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TasksConfig {
    /// Who looks for due tasks.
    pub mode: TaskMode,
    /// What the queues of tasks begin with.
    pub queue_prefix: String,
    /// Where the events of deaths are sent to.
    pub dead_events: Option<String>,
    /// How long a lease on a task lasts without a sign of life.
    pub lease: Duration,
    /// How long a task may be on its way before its message may have been lost.
    pub grace: Duration,
    /// How long tasks are kept that succeeded or were canceled.
    pub retention: Duration,
}

impl Default for TasksConfig {
    fn default() -> Self {
        Self {
            mode: TaskMode::Polling,
            queue_prefix: DEFAULT_TASK_QUEUE_PREFIX.to_owned(),
            dead_events: None,
            lease: Duration::from_secs(30),
            grace: Duration::from_secs(60),
            retention: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// How messages are sent, leased and given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagingConfig {
    /// How long a message is leased when the receiver does not say it.
    pub default_visibility_timeout: Duration,
    /// How many messages are received at once when the receiver does not say it.
    pub default_batch_size: u32,
    /// The most messages that one call may ask for.
    pub max_batch_size: u32,
    /// Whether a send creates a queue that is missing.
    pub create_queues: bool,
    /// Whether connecting brings an older database up to date.
    pub auto_migrate: bool,
    /// The largest body of a message.
    pub max_message_bytes: u32,
    /// When a message is given up.
    pub dead_letter: DeadLetterConfig,
    /// When calls to a failing store are held back.
    pub circuit_breaker: BreakerSettings,
    /// What only the embedded SQLite file knows.
    pub sqlite: SqliteConfig,
    /// What only a folder of files knows.
    pub spool: SpoolConfig,
    /// What only PostgreSQL knows.
    pub postgres: PostgresConfig,
    /// What only MariaDB and MySQL know.
    pub mysql: MysqlConfig,
    /// What only PGMQ knows.
    pub pgmq: PgmqConfig,
    /// What only RabbitMQ knows.
    pub rabbitmq: RabbitMqConfig,
    /// What only SQS knows.
    pub sqs: SqsConfig,
    /// What only a Postrider server knows.
    pub http: HttpConfig,
}

impl Default for MessagingConfig {
    fn default() -> Self {
        Self {
            default_visibility_timeout: Duration::from_secs(30),
            default_batch_size: 10,
            max_batch_size: 100,
            create_queues: true,
            auto_migrate: true,
            max_message_bytes: 1024 * 1024,
            dead_letter: DeadLetterConfig::default(),
            circuit_breaker: BreakerSettings::default(),
            sqlite: SqliteConfig::default(),
            spool: SpoolConfig::default(),
            postgres: PostgresConfig::default(),
            mysql: MysqlConfig::default(),
            pgmq: PgmqConfig::default(),
            rabbitmq: RabbitMqConfig::default(),
            sqs: SqsConfig::default(),
            http: HttpConfig::default(),
        }
    }
}

impl MessagingConfig {
    /// A receive of the default batch.
    pub fn receive_options(&self) -> ReceiveOptions {
        ReceiveOptions::batch(self.default_batch_size as usize)
            .visibility(self.default_visibility_timeout)
            .max_receive_count(self.dead_letter.max_receive_count)
    }

    /// A receive of up to `max` messages; refused when that is above `max_batch_size`.
    pub fn receive_options_for(&self, max: usize) -> Result<ReceiveOptions, MessagingError> {
        let most = self.max_batch_size as usize;
        if max > most {
            return Err(MessagingError::invalid(
                "max",
                format!(
                    "{max} messages at once are more than common.messaging.max_batch_size, {most}; ask for less, or raise it"
                ),
            ));
        }
        Ok(ReceiveOptions { max, ..self.receive_options() })
    }

    /// What messages may be like, for a store that has no limits of its own.
    pub fn limits(&self) -> Limits {
        Limits { max_body_bytes: self.max_message_bytes as usize, ..Limits::default() }
    }
}

/// When a message is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadLetterConfig {
    /// How often a message is delivered before it is dead-lettered.
    pub max_receive_count: u32,
}

impl Default for DeadLetterConfig {
    fn default() -> Self {
        Self { max_receive_count: 3 }
    }
}

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
