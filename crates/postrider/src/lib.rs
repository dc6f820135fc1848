//! One durable message lifecycle, on whatever queue you already run.
//!
//! **The idea.** An application depends on this crate and names its store by a URL; messages are leased, acknowledged,
//! retried, ordered and dead-lettered by the same law on every store. [`connect`] returns a [`MessagingProvider`];
//! everything else is the contract of [`postrider_core`], re-exported here. A program that is configured by a
//! file, its environment or its flags reads a [`Config`] and makes a [`SystemContext`] from it.
//!
//! **The invariant.** Changing the URL changes the store and nothing else; where a store cannot keep a promise, it
//! declares so in its [`Capabilities`] and refuses.
//!
//! **What was rejected.** A trait object for every provider: the providers are an enum with one variant for custom ones.
//! A call returns a boxed future, so that it is compiled once, in its provider's crate.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Order { id: u64 }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), postrider::MessagingError> {
//! let orders = postrider::connect("memory:").await?.queue("orders")?;
//! orders.send_json(&Order { id: 7 }).await?;
//! for order in orders.receive_json::<Order>(10).await? {
//!     assert_eq!(order.message, Order { id: 7 });
//!     orders.ack(order).await?;
//! }
//! # Ok(())
//! # }
//! ```

pub mod breaker;
pub mod config;
mod context;
mod endpoint;
mod examine;
mod idempotency_records;
mod messaging_provider;
#[cfg(feature = "prometheus")]
pub mod prometheus;
pub mod provider;
#[cfg(doctest)]
mod readmes;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod state_storage;
#[cfg(all(feature = "tasks", any(feature = "http", feature = "postgres", feature = "sqlite")))]
mod task_storage;

/// The examples of the README are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The examples of the guide are compiled.
#[cfg(all(doctest, feature = "subscriber", feature = "sqlite"))]
#[doc = include_str!("../../../docs/subscriber.md")]
struct SubscriberGuide;

/// The examples of the guide are compiled.
#[cfg(all(doctest, feature = "tasks", feature = "sqlite"))]
#[doc = include_str!("../../../docs/tasks.md")]
struct TasksGuide;

pub use breaker::{BreakerSettings, BreakerState, CircuitBreaker, Guarded};
pub use config::{Config, ConfigError, Sources};
pub use context::{ContextError, SystemContext};
pub use endpoint::{Endpoint, Migration, connect};
pub use idempotency_records::IdempotencyRecords;

// Messages, and what describes them.
pub use postrider_core::{
    Bytes, ContentType, Envelope, Expiry, FromBytes, Headers, Json, Key, Message, MessageId, MsgPack, Priority, Queue,
    QueueMessage, QueueName, QueuedMessage, Timestamp, message,
};
// The contract.
pub use postrider_core::{
    DeadLetters, Deadline, Disposition, MessageAttempt, MessagingService, Nack, Provider, QueueAdmin, ReceiptHandle,
    ReceiveOptions, RowResults, SettledAndReceived, Settlement, TypedMessaging, WakeUps,
};
pub use postrider_core::{ErrorSource, MessagingError, RetryLimits, RetryStrategy};
// What is in a store, and what the store offers.
pub use postrider_core::{
    ArchiveCursor, ArchiveFilter, ArchivePage, ArchiveQuery, ArchivedMessage, ArchivedState, PeekCursor, PeekPage,
    PeekQuery, PeekedMessage, WaitingFilter, WaitingState, archive, waiting,
};
pub use postrider_core::{
    ArchivePolicy, Capabilities, Feature, Finding, Limits, LiveState, Measured, QueueHealthReport, QueueStats,
    Severity, State, Support,
};
pub use postrider_core::{
    DeadLetter, DeadLetterCursor, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterReason,
    DeadLetterSelection, DeadLetterSummary, DeadLetterSummaryPage, Redrive, RedriveReport, RedriveSkip, dead_letter,
};
// Tasks, idempotency and other records of the state store.
pub use postrider_core::{
    Begun, IdempotencyKey, IdempotencyStore, IdempotencyToken, NewTask, Standing, StateRecords, TaskId, TaskState,
    TaskStore, TaskType, idempotency, state_records, task,
};
// The messages of workflows and the queues that carry them.
pub use messaging_provider::MessagingProvider;
pub use postrider_core::{
    DefaultMessageRouter, MessageClient, MessageRouter, MessageRouterKind, QueuesConfig, workflow_message,
};
pub use postrider_core::{MemoryProvider, MemoryStore};
#[doc(hidden)]
pub use postrider_core::{duration_text, masked_url};
#[cfg(feature = "http")]
pub use postrider_http as http;
#[cfg(feature = "mysql")]
pub use postrider_mysql as mysql;
#[cfg(feature = "pgmq")]
pub use postrider_pgmq as pgmq;
#[cfg(feature = "postgres")]
pub use postrider_postgres as postgres;
#[cfg(feature = "rabbitmq")]
pub use postrider_rabbitmq as rabbitmq;
#[cfg(feature = "spool")]
pub use postrider_spool as spool;
#[cfg(feature = "sqlite")]
pub use postrider_sqlite as sqlite;
#[cfg(feature = "sqs")]
pub use postrider_sqs as sqs;
#[cfg(feature = "subscriber")]
pub use postrider_subscriber as subscriber;
#[cfg(feature = "tasks")]
pub use postrider_tasks as tasks;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use state_storage::StateStorage;
#[cfg(all(feature = "tasks", any(feature = "http", feature = "postgres", feature = "sqlite")))]
pub use task_storage::TaskStorage;
