//! The calls of a history and their outcomes.

use std::fmt;
use std::time::Duration;

use postrider_core::{DeadLetterReason, DeadLetterSelection, Disposition, LeaseToken, MessageId, QueueName, Timestamp};
use serde::{Deserialize, Serialize};

/// One call, or one row of one, as its caller saw it.
///
/// The call took effect at some moment between `start` and `end`; with an [`Unknown`](Outcome::Unknown) outcome, at any
/// time after `start`, also after `end`, or never.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The calling worker.
    pub worker: u32,
    /// Before the call.
    pub start: Timestamp,
    /// After the answer.
    pub end: Timestamp,
    /// The call and its outcome.
    #[serde(flatten)]
    pub operation: Operation,
}

/// The call and its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A message was sent.
    Send(SendCall),
    /// A receive.
    Receive(ReceiveCall),
    /// A lease was settled.
    Settle(SettleCall),
    /// A lease was extended.
    Extend(ExtendCall),
    /// A message was dropped unsettled: its lease may end early from then on.
    Dropped(Dropped),
    /// Dead letters were redriven.
    Redrive(RedriveCall),
    /// Messages were removed.
    Purge(PurgeCall),
    /// A dead letter was edited.
    Edit(EditCall),
    /// A queue was removed with everything in it.
    Delete(DeleteCall),
    /// What a queue held after the final drain.
    Final(FinalState),
}

macro_rules! operations {
    ($($variant:ident($call:ident),)*) => {
        $(impl From<$call> for Operation {
            fn from(call: $call) -> Self {
                Self::$variant(call)
            }
        })*
    };
}

operations! {
    Send(SendCall),
    Receive(ReceiveCall),
    Settle(SettleCall),
    Extend(ExtendCall),
    Dropped(Dropped),
    Redrive(RedriveCall),
    Purge(PurgeCall),
    Edit(EditCall),
    Delete(DeleteCall),
    Final(FinalState),
}

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    /// It was carried out, and this is the answer.
    Done(T),
    /// It may have been carried out, or may be carried out later.
    Unknown,
    /// It failed, and the store did nothing.
    Failed(String),
}

impl<T> Outcome<T> {
    /// The answer, if there was one.
    pub fn done(&self) -> Option<&T> {
        match self {
            Self::Done(answer) => Some(answer),
            Self::Unknown | Self::Failed(_) => None,
        }
    }

    /// Whether the store may have carried it out.
    pub fn may_have_happened(&self) -> bool {
        !matches!(self, Self::Failed(_))
    }
}

/// The outcome of the use of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseOutcome {
    /// It was carried out.
    Done,
    /// The lease had ended; nothing was changed.
    Expired,
    /// It may have been carried out, or may be carried out later.
    Unknown,
    /// It failed, and the store did nothing.
    Failed(String),
}

impl LeaseOutcome {
    /// Whether the store may have carried it out.
    pub fn may_have_happened(&self) -> bool {
        matches!(self, Self::Done | Self::Unknown)
    }
}

/// One message that was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendCall {
    /// The target queue.
    pub queue: QueueName,
    /// The message id.
    pub id: MessageId,
    /// The ordering key.
    pub ordering_key: Option<String>,
    /// The dedup key.
    pub dedup_key: Option<String>,
    /// The time from the send until it is due.
    pub delay: Duration,
    /// The time from the send until it expires.
    pub expires_in: Option<Duration>,
    /// When it expires, by the store's clock.
    pub expires_at: Option<Timestamp>,
    /// The hash of its body.
    pub body_hash: BodyHash,
    /// Its row in its batch; rows are sent in order.
    pub row: u32,
    /// The id in the first row of its batch; its own id when it was sent alone.
    pub batch: MessageId,
    /// The returned id.
    pub outcome: Outcome<MessageId>,
}

/// One receive from one queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveCall {
    /// The source queue.
    pub queue: QueueName,
    /// The length of the leases.
    pub visibility: Duration,
    /// The delivery limit.
    pub max_receive_count: u32,
    /// The deliveries.
    pub outcome: Outcome<Vec<Delivery>>,
}

/// One received message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The message id.
    pub id: MessageId,
    /// The lease token.
    #[serde(with = "hex_token")]
    pub token: LeaseToken,
    /// The number of this delivery, by the store's count.
    pub receive_count: u32,
    /// The number of failed attempts, by the store's count.
    pub attempts_count: u32,
    /// The ordering key.
    pub ordering_key: Option<String>,
    /// The hash of its body.
    pub body_hash: BodyHash,
}

/// One settle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleCall {
    /// The queue that the message was received from.
    pub queue: QueueName,
    /// The message.
    pub id: MessageId,
    /// The lease token.
    #[serde(with = "hex_token")]
    pub token: LeaseToken,
    /// How the lease is settled.
    pub disposition: Disposition,
    /// The outcome.
    pub outcome: LeaseOutcome,
}

/// One extension of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtendCall {
    /// The queue that the message was received from.
    pub queue: QueueName,
    /// The message.
    pub id: MessageId,
    /// The lease token.
    #[serde(with = "hex_token")]
    pub token: LeaseToken,
    /// The new length of the lease, from now.
    pub extension: Duration,
    /// The outcome.
    pub outcome: LeaseOutcome,
}

/// One message that was dropped unsettled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// The queue that the message was received from.
    pub queue: QueueName,
    /// The message.
    pub id: MessageId,
    /// The lease token.
    #[serde(with = "hex_token")]
    pub token: LeaseToken,
}

/// One redrive; dry runs are not recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedriveCall {
    /// The origin queue.
    pub queue: QueueName,
    /// The target; `None` is the origin queue.
    pub to: Option<QueueName>,
    /// The selected messages.
    pub selection: Selection,
    /// The redriven ids.
    pub outcome: Outcome<Vec<MessageId>>,
}

/// Messages that were removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurgeCall {
    /// The queue; for dead letters the origin queue.
    pub queue: QueueName,
    /// The selected messages.
    pub what: Purged,
    /// The number of removed messages.
    pub outcome: Outcome<u64>,
}

/// The target of a purge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purged {
    /// The messages without a lease.
    Waiting,
    /// Dead letters.
    DeadLetters(Selection),
}

/// A selection of the dead letters of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// All.
    All,
    /// Those with these ids.
    Ids(Vec<MessageId>),
    /// Those with this reason.
    Reason(DeadLetterReason),
}

impl From<&DeadLetterSelection> for Selection {
    fn from(selection: &DeadLetterSelection) -> Self {
        match selection {
            DeadLetterSelection::All => Self::All,
            DeadLetterSelection::Ids(ids) => Self::Ids(ids.clone()),
            DeadLetterSelection::Reason(reason) => Self::Reason(reason.clone()),
        }
    }
}

/// One edit of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditCall {
    /// The origin queue.
    pub queue: QueueName,
    /// The message.
    pub id: MessageId,
    /// The hash of the new body, if the body was edited.
    pub body_hash: Option<BodyHash>,
    /// The outcome.
    pub outcome: Outcome<()>,
}

/// A queue that was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteCall {
    /// The queue.
    pub queue: QueueName,
    /// The outcome.
    pub outcome: Outcome<()>,
}

/// The contents of a queue after the final drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalState {
    /// The queue.
    pub queue: QueueName,
    /// Its dead letters.
    pub dead_letters: Vec<DeadRecord>,
    /// The live messages in it; `None` when they were not listed, then the drain is taken to have emptied it.
    pub live: Option<Vec<MessageId>>,
}

/// A dead letter, as the checker needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadRecord {
    /// The message.
    pub id: MessageId,
    /// The origin queue.
    pub origin: QueueName,
    /// The reason.
    pub reason: DeadLetterReason,
    /// The number of deliveries, by the store's count.
    pub deliveries_count: u32,
    /// The hash of its body.
    pub body_hash: BodyHash,
}

/// The hash of a body: two different hashes are two different bodies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct BodyHash(u64);

impl BodyHash {
    /// The FNV-1a hash of the bytes, which is the same in every process and build.
    pub fn of(body: &[u8]) -> Self {
        Self(
            body.iter()
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)),
        )
    }
}

impl fmt::Display for BodyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for BodyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<BodyHash> for String {
    fn from(hash: BodyHash) -> Self {
        hash.to_string()
    }
}

impl TryFrom<String> for BodyHash {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u64::from_str_radix(&text, 16).map(Self).map_err(|error| format!("invalid body hash '{text}': {error}"))
    }
}

/// Tokens as text: many readers limit JSON numbers to 53 bits.
mod hex_token {
    use postrider_core::LeaseToken;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(token: &LeaseToken, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:032x}", token.0))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LeaseToken, D::Error> {
        let text = String::deserialize(from)?;
        u128::from_str_radix(&text, 16)
            .map(LeaseToken)
            .map_err(|error| de::Error::custom(format!("invalid lease token '{text}': {error}")))
    }
}
