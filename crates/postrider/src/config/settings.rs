//! The values of a configuration, each with its default.

use std::time::Duration;

use postrider_core::task::{DEFAULT_TASK_QUEUE_PREFIX, TaskMode};
use postrider_core::{Limits, MessagingError, QueuesConfig, ReceiveOptions, RetryStrategy};

use super::store_settings::{
    HttpConfig, MysqlConfig, PgmqConfig, PostgresConfig, RabbitMqConfig, SpoolConfig, SqliteConfig, SqsConfig,
};
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
