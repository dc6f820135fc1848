//! The providers, as one type.

use std::time::Duration;

use postrider_core::*;

/// A provider: one of those that are built in, or another behind the object-safe twin of the contract.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum MessagingProvider {
    /// In this process.
    Memory(MemoryProvider),
    /// On one SQLite file.
    #[cfg(feature = "sqlite")]
    Sqlite(postrider_sqlite::SqliteProvider),
    /// In folders of a directory.
    #[cfg(feature = "spool")]
    Spool(postrider_spool::SpoolProvider),
    /// In a schema of a PostgreSQL database.
    #[cfg(feature = "postgres")]
    Postgres(postrider_postgres::PostgresProvider),
    /// In a MariaDB or MySQL database.
    #[cfg(feature = "mysql")]
    Mysql(postrider_mysql::MysqlProvider),
    /// In queues of PGMQ.
    #[cfg(feature = "pgmq")]
    Pgmq(postrider_pgmq::PgmqProvider),
    /// In queues of a RabbitMQ broker.
    #[cfg(feature = "rabbitmq")]
    Rabbitmq(postrider_rabbitmq::RabbitmqProvider),
    /// In queues of SQS.
    #[cfg(feature = "sqs")]
    Sqs(postrider_sqs::SqsProvider),
    /// Wherever a Postrider server keeps them.
    #[cfg(feature = "http")]
    Http(postrider_http::HttpProvider),
    /// A provider that is not built in.
    Custom(SharedProvider),
}

impl MessagingProvider {
    /// Wraps a provider that is not built in.
    pub fn custom(provider: impl Provider) -> Self {
        Self::Custom(SharedProvider::new(provider))
    }
}

/// Calls the same method on whichever provider it is.
macro_rules! each {
    ($self:ident, $provider:ident => $call:expr) => {
        match $self {
            Self::Memory($provider) => $call,
            #[cfg(feature = "sqlite")]
            Self::Sqlite($provider) => $call,
            #[cfg(feature = "spool")]
            Self::Spool($provider) => $call,
            #[cfg(feature = "postgres")]
            Self::Postgres($provider) => $call,
            #[cfg(feature = "mysql")]
            Self::Mysql($provider) => $call,
            #[cfg(feature = "pgmq")]
            Self::Pgmq($provider) => $call,
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq($provider) => $call,
            #[cfg(feature = "sqs")]
            Self::Sqs($provider) => $call,
            #[cfg(feature = "http")]
            Self::Http($provider) => $call,
            Self::Custom($provider) => $call,
        }
    };
}

impl MessagingService for MessagingProvider {
    fn provider_name(&self) -> &'static str {
        each!(self, provider => provider.provider_name())
    }

    fn capabilities(&self) -> &Capabilities {
        each!(self, provider => provider.capabilities())
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        each!(self, provider => provider.ensure_queue(queue, deadline).await)
    }

    async fn ensure_queues(&self, queues: &[QueueName], deadline: Deadline) -> Result<(), MessagingError> {
        each!(self, provider => provider.ensure_queues(queues, deadline).await)
    }

    async fn send_batch(
        &self,
        queue: &QueueName,
        messages: Vec<Message>,
        deadline: Deadline,
    ) -> Result<RowResults<MessageId>, MessagingError> {
        each!(self, provider => provider.send_batch(queue, messages, deadline).await)
    }

    async fn send_message(
        &self,
        queue: &QueueName,
        message: Message,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        each!(self, provider => provider.send_message(queue, message, deadline).await)
    }

    async fn receive_messages(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        each!(self, provider => provider.receive_messages(queue, options, deadline).await)
    }

    async fn settle(&self, settlements: Vec<Settlement>, deadline: Deadline) -> Result<RowResults<()>, MessagingError> {
        each!(self, provider => provider.settle(settlements, deadline).await)
    }

    async fn settle_and_receive(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        each!(self, provider => provider.settle_and_receive(settlements, queues, options, deadline).await)
    }

    async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        each!(self, provider => provider.extend_visibility(queue, receipt, extension, deadline).await)
    }

    async fn receive_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        each!(self, provider => provider.receive_by_id(queue, id, options, deadline).await)
    }

    async fn subscribe(&self, queue: &QueueName, deadline: Deadline) -> Result<WakeUps, MessagingError> {
        each!(self, provider => provider.subscribe(queue, deadline).await)
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        each!(self, provider => provider.health_check(deadline).await)
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        each!(self, provider => provider.close(deadline).await)
    }
}

impl QueueAdmin for MessagingProvider {
    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        each!(self, provider => provider.list_queues(deadline).await)
    }

    async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        each!(self, provider => provider.queue_stats(queue, deadline).await)
    }

    async fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<QueueHealthReport, MessagingError> {
        each!(self, provider => provider.verify_queues(queues, deadline).await)
    }

    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError> {
        each!(self, provider => provider.peek(queue, limit, deadline).await)
    }

    async fn message_attempts(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError> {
        each!(self, provider => provider.message_attempts(queue, id, deadline).await)
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        each!(self, provider => provider.purge(queue, deadline).await)
    }

    async fn pause(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        each!(self, provider => provider.pause(queue, deadline).await)
    }

    async fn resume(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        each!(self, provider => provider.resume(queue, deadline).await)
    }

    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        each!(self, provider => provider.delete_queue(queue, deadline).await)
    }
}

impl DeadLetters for MessagingProvider {
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        each!(self, provider => provider.list_dead_letters(queue, query, deadline).await)
    }

    async fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        each!(self, provider => provider.get_dead_letter(queue, id, deadline).await)
    }

    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        each!(self, provider => provider.edit_dead_letter(queue, id, edit, deadline).await)
    }

    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        each!(self, provider => provider.redrive_dead_letters(queue, redrive, deadline).await)
    }

    async fn purge_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        each!(self, provider => provider.purge_dead_letters(queue, selection, deadline).await)
    }
}
