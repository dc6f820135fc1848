//! What a caller did, and what it was told.

use std::fmt;
use std::time::Duration;

use postrider_core::{DeadLetterReason, DeadLetterSelection, Disposition, LeaseToken, MessageId, QueueName, Timestamp};
use serde::{Deserialize, Serialize};

/// One call, or one row of one, as its caller saw it.
///
/// The store did its part at some moment between `start` and `end`; an [`Unknown`](Outcome::Unknown) outcome may have
/// taken effect at any time after `start`, also after `end`, or never.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Who called.
    pub worker: u32,
    /// Before the call.
    pub start: Timestamp,
    /// After the answer.
    pub end: Timestamp,
    /// What was asked and answered.
    #[serde(flatten)]
    pub operation: Operation,
}

/// What was asked and answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A message was sent.
    Send(SendCall),
    /// Messages were asked for.
    Receive(ReceiveCall),
    /// A lease was ended by its holder.
    Settle(SettleCall),
    /// A lease was given another end.
    Extend(ExtendCall),
    /// A message was dropped unsettled: its lease may end early from then on.
    Dropped(Dropped),
    /// Dead letters were brought back to life.
    Redrive(RedriveCall),
    /// Messages were removed.
    Purge(PurgeCall),
    /// A dead letter was changed.
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

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    /// It was carried out, and this is the answer.
    Done(T),
    /// It may have been carried out, may be carried out later, or never.
    Unknown,
    /// It was refused with the promise that nothing was done.
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

/// What became of a use of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseOutcome {
    /// It was carried out.
    Done,
    /// The lease was over, nothing was changed.
    Expired,
    /// It may have been carried out, may be carried out later, or never.
    Unknown,
    /// It was refused with the promise that nothing was done.
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
    /// Where to.
    pub queue: QueueName,
    /// The message's identity.
    pub id: MessageId,
    /// The key that it is ordered by.
    pub ordering_key: Option<String>,
    /// The key that keeps it single.
    pub dedup_key: Option<String>,
    /// How long it may not be received.
    pub delay: Duration,
    /// How long after the send it is too late to handle it.
    pub expires_in: Option<Duration>,
    /// When it is too late to handle it, by the store's clock.
    pub expires_at: Option<Timestamp>,
    /// What its bytes are.
    pub body_hash: BodyHash,
    /// Its place in its batch: the rows of a batch are sent in their order.
    pub row: u32,
    /// The message in the first row of its batch; itself when it was sent alone.
    pub batch: MessageId,
    /// The id that was answered.
    pub outcome: Outcome<MessageId>,
}

/// One call that asked for messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveCall {
    /// Where from.
    pub queue: QueueName,
    /// How long they are leased.
    pub visibility: Duration,
    /// How often a message may be delivered.
    pub max_receive_count: u32,
    /// What was received.
    pub outcome: Outcome<Vec<Delivery>>,
}

/// One message that was received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The message's identity.
    pub id: MessageId,
    /// The lease.
    #[serde(with = "hex_token")]
    pub token: LeaseToken,
    /// Which delivery this is, by the store's count.
    pub receive_count: u32,
    /// How often a handler has failed on it, by the store's count.
    pub attempts_count: u32,
    /// The key that it is ordered by.
    pub ordering_key: Option<String>,
    /// What its bytes are.
    pub body_hash: BodyHash,
}

/// One lease that its holder ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleCall {
    /// The queue that the message was received from.
    pub queue: QueueName,
    /// The message.
    pub id: MessageId,
    /// The lease.
    #[serde(with = "hex_token")]
    pub token: LeaseToken,
    /// How it ends.
    pub disposition: Disposition,
    /// What became of it.
    pub outcome: LeaseOutcome,
}

/// One lease that was given another end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtendCall {
    /// The queue that the message was received from.
    pub queue: QueueName,
    /// The message.
    pub id: MessageId,
    /// The lease.
    #[serde(with = "hex_token")]
    pub token: LeaseToken,
    /// How long it goes on from now.
    pub extension: Duration,
    /// What became of it.
    pub outcome: LeaseOutcome,
}

/// One message that was dropped unsettled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// The queue that the message was received from.
    pub queue: QueueName,
    /// The message.
    pub id: MessageId,
    /// The lease.
    #[serde(with = "hex_token")]
    pub token: LeaseToken,
}

/// Dead letters that were brought back to life. A dry run is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedriveCall {
    /// The queue that they died in.
    pub queue: QueueName,
    /// Where they went; `None` is the queue that they died in.
    pub to: Option<QueueName>,
    /// Which ones were meant.
    pub selection: Selection,
    /// Which ones went.
    pub outcome: Outcome<Vec<MessageId>>,
}

/// Messages that were removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurgeCall {
    /// The queue; for dead letters the one that they died in.
    pub queue: QueueName,
    /// Which ones were meant.
    pub what: Purged,
    /// How many there were.
    pub outcome: Outcome<u64>,
}

/// What a purge removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purged {
    /// The messages that nobody has leased.
    Waiting,
    /// Dead letters.
    DeadLetters(Selection),
}

/// Which dead letters of a queue are meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// Every one.
    All,
    /// These.
    Ids(Vec<MessageId>),
    /// Those that died for this reason.
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

/// One dead letter that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditCall {
    /// The queue that it died in.
    pub queue: QueueName,
    /// The message.
    pub id: MessageId,
    /// Its new bytes, if it was given others.
    pub body_hash: Option<BodyHash>,
    /// What became of it.
    pub outcome: Outcome<()>,
}

/// A queue that was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteCall {
    /// The queue.
    pub queue: QueueName,
    /// What became of it.
    pub outcome: Outcome<()>,
}

/// What a queue held after everything that could be received from it had been.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalState {
    /// The queue.
    pub queue: QueueName,
    /// Its dead letters.
    pub dead_letters: Vec<DeadRecord>,
    /// What still lives in it; `None` when nobody looked, and then the drain is taken at its word: nothing.
    pub live: Option<Vec<MessageId>>,
}

/// What the checker needs to know of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadRecord {
    /// The message.
    pub id: MessageId,
    /// The queue that it died in.
    pub origin: QueueName,
    /// Why.
    pub reason: DeadLetterReason,
    /// How often it was delivered, by the store's count.
    pub deliveries_count: u32,
    /// What its bytes are.
    pub body_hash: BodyHash,
}

/// A body, in a few bytes: two different hashes are two different bodies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct BodyHash(u64);

impl BodyHash {
    /// The hash of these bytes: FNV-1a, because it must be the same in every process and every build.
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
        u64::from_str_radix(&text, 16).map(Self).map_err(|error| format!("'{text}' is no body hash: {error}"))
    }
}

/// A token as text, since JSON's numbers end at 53 bits in many readers.
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
            .map_err(|error| de::Error::custom(format!("'{text}' is no lease token: {error}")))
    }
}
