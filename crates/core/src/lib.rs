//! The law of Postrider: one durable message lifecycle on any store.
//!
//! **The idea.** A message is sent, leased, settled, retried, dead-lettered and redriven by sixteen rules (L1 to L16)
//! that hold on every provider. This crate defines the types of that law: messages, receipts and leases, the states of a
//! message ([`State`]), and the three traits that a provider implements ([`MessagingService`], [`QueueAdmin`],
//! [`DeadLetters`]). It also has the smallest provider that keeps the whole law, [`memory`], the reference for others.
//!
//! **The invariant.** A message is in one place at any time, and a change to it requires the lease that is valid at that
//! moment by the store's clock. Claims, retries, order and dead letters follow from it.
//!
//! Waits and deadlines need a tokio runtime with its timer enabled (`enable_time`).
//!
//! **What was rejected.** A generic `send<T: Serialize>` on the provider: values are encoded once, above it, or one
//! undecodable message would fail a batch inside the store. A trait object on the path of every message: providers are
//! chosen by an enum, and [`SharedProvider`] is for types that the enum does not have. Futures of the provider's own
//! types: each crate that awaits one compiles it again, so the futures of the contract are boxed. A receipt that is only
//! the message's id: a late worker would settle another worker's delivery.

pub mod archive;
pub mod archive_policy;
pub mod capabilities;
pub mod client;
pub mod clock;
pub mod coalescer;
pub mod codec;
pub mod dead_letter;
pub mod deadline;
pub mod disposition;
pub mod duration_text;
pub mod error;
pub mod failpoint;
pub mod finding;
mod hand_on;
pub mod headers;
pub mod id;
pub mod idempotency;
pub mod masked_url;
pub mod memory;
pub mod message;
pub mod message_state;
pub mod queue;
pub mod queue_name;
pub mod queued_message;
pub mod receipt;
pub mod receive_options;
pub mod receive_several;
pub mod retry;
pub mod returns;
pub mod router;
#[cfg(feature = "schema")]
mod schema;
pub mod service;
pub mod shared_provider;
pub mod spawn;
pub mod state_records;
pub mod stats;
mod sync;
pub mod task;
pub mod typed;
pub mod under_way;
pub mod waiting;
pub mod wakes;
pub mod workflow_message;

pub use archive::{ArchiveCursor, ArchiveFilter, ArchivePage, ArchiveQuery, ArchivedMessage, ArchivedState};
pub use archive_policy::ArchivePolicy;
pub use async_trait::async_trait;
pub use bytes::Bytes;
pub use capabilities::{Capabilities, Feature, Limits, Support};
pub use client::MessageClient;
pub use clock::{Clock, ManualClock, Moment, SystemClock, Timestamp, WallClock};
pub use codec::{FromBytes, Json, MsgPack, QueueMessage};
pub use dead_letter::{
    DeadLetter, DeadLetterCursor, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterReason,
    DeadLetterSelection, DeadLetterSummary, DeadLetterSummaryPage, Redrive, RedriveReport, RedriveSkip,
};
pub use deadline::Deadline;
pub use disposition::{Disposition, Nack, Settlement};
pub use error::{ErrorSource, MessagingError};
pub use finding::{Finding, Severity};
pub use futures_util::future::BoxFuture;
pub use headers::Headers;
pub use id::MessageId;
pub use idempotency::{Begun, IdempotencyKey, IdempotencyStore, IdempotencyToken, Standing};
pub use memory::{MemoryProvider, MemoryStore};
pub use message::{ContentType, Expiry, Key, Message, Priority};
pub use message_state::{LiveState, State};
pub use queue::Queue;
pub use queue_name::{DEAD_LETTER_SUFFIX, QueueName};
pub use queued_message::{Envelope, Lease, QueuedMessage, ReturnLease};
pub use receipt::{LeaseToken, NativeRef, ReceiptHandle};
pub use receive_options::ReceiveOptions;
pub use retry::{RetryLimits, RetryStrategy};
pub use returns::Returns;
pub use router::{DefaultMessageRouter, MessageRouter, MessageRouterKind, QueuesConfig};
pub use service::{
    DeadLetters, MessageAttempt, MessagingService, PeekedMessage, Provider, QueueAdmin, RowResults, SettledAndReceived,
    WakeUps,
};
pub use shared_provider::SharedProvider;
pub use spawn::spawn;
pub use state_records::{
    Put, RecordCursor, RecordKey, RecordKind, RecordOrder, RecordPage, RecordQuery, StateRecord, StateRecords,
};
pub use stats::{Measured, QueueHealthReport, QueueStats};
pub use task::{NewTask, TaskId, TaskState, TaskStore, TaskType};
pub use typed::TypedMessaging;
pub use under_way::UnderWay;
pub use waiting::{PeekCursor, PeekPage, PeekQuery, WaitingFilter, WaitingState};
