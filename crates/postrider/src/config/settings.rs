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
    /// How messages are sent, leased and dead-lettered.
    pub messaging: MessagingConfig,
    /// The names of a workflow's queues.
    pub queues: QueuesConfig,
    /// When a failed message is tried again.
    pub retry: RetryStrategy,
}

/// How tasks reach their workers, and how long they are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TasksConfig {
    /// How workers get due tasks.
    pub mode: TaskMode,
    /// The prefix of task queues.
    pub queue_prefix: String,
    /// The queue for events of dead tasks.
    pub dead_events: Option<String>,
    /// Length of a task's lease without a heartbeat.
    pub lease: Duration,
    /// Time after which the message of a sent task counts as possibly lost.
    pub grace: Duration,
    /// Retention of succeeded and canceled tasks.
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

/// How messages are sent, leased and dead-lettered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagingConfig {
    /// Default length of a lease.
    pub default_visibility_timeout: Duration,
    /// Default number of messages of a receive.
    pub default_batch_size: u32,
    /// Upper bound of messages of one receive.
    pub max_batch_size: u32,
    /// Whether a send creates a missing queue.
    pub create_queues: bool,
    /// Whether connecting applies missing migrations.
    pub auto_migrate: bool,
    /// The largest body of a message.
    pub max_message_bytes: u32,
    /// When a message is dead-lettered.
    pub dead_letter: DeadLetterConfig,
    /// When calls to a failing store are refused.
    pub circuit_breaker: BreakerSettings,
    /// Settings of the embedded SQLite file.
    pub sqlite: SqliteConfig,
    /// Settings of a folder of files.
    pub spool: SpoolConfig,
    /// Settings of PostgreSQL.
    pub postgres: PostgresConfig,
    /// Settings of MariaDB and MySQL.
    pub mysql: MysqlConfig,
    /// Settings of PGMQ.
    pub pgmq: PgmqConfig,
    /// Settings of RabbitMQ.
    pub rabbitmq: RabbitMqConfig,
    /// Settings of SQS.
    pub sqs: SqsConfig,
    /// Settings of a Postrider server as a store.
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
    /// Options of a receive with the default batch size.
    pub fn receive_options(&self) -> ReceiveOptions {
        ReceiveOptions::batch(self.default_batch_size as usize)
            .visibility(self.default_visibility_timeout)
            .max_receive_count(self.dead_letter.max_receive_count)
    }

    /// Options of a receive of up to `max` messages; refused when that is above `max_batch_size`.
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

    /// The limits of messages, for a store without its own limits.
    pub fn limits(&self) -> Limits {
        Limits { max_body_bytes: self.max_message_bytes as usize, ..Limits::default() }
    }
}

/// When a message is dead-lettered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadLetterConfig {
    /// Delivery limit.
    pub max_receive_count: u32,
}

impl Default for DeadLetterConfig {
    fn default() -> Self {
        Self { max_receive_count: 3 }
    }
}
