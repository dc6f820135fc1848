//! Breaches of the law that the checker found.

use std::collections::BTreeMap;
use std::fmt;

use postrider_core::{MessageId, QueueName};
use serde::{Deserialize, Serialize};

/// The kind of breach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// An accepted message is nowhere.
    Lost,
    /// A message existed more often than it was sent.
    Duplicated,
    /// Two receivers held one message at once.
    TwoLeases,
    /// A call with an ended lease was carried out.
    StaleSettle,
    /// A message was delivered before it was due, or after it had expired.
    Early,
    /// Messages of one key were not handled one at a time and in send order.
    Reordered,
    /// A delivery or an attempt was not counted, or the delivery limit was exceeded.
    ForgottenCount,
    /// A dead letter is missing, or exists without a cause.
    WrongDeadLetter,
    /// A message came back with other bytes or another key.
    Altered,
    /// A message was delivered that was never sent.
    Phantom,
}

impl FindingKind {
    /// The kind in a few words.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Duplicated => "duplicated",
            Self::TwoLeases => "two leases at once",
            Self::StaleSettle => "ended lease used",
            Self::Early => "early or expired",
            Self::Reordered => "out of order",
            Self::ForgottenCount => "wrong count",
            Self::WrongDeadLetter => "wrong dead letter",
            Self::Altered => "altered",
            Self::Phantom => "never sent",
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title())
    }
}

/// One breach of the law that no correct provider could have caused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The kind of breach.
    pub kind: FindingKind,
    /// The number of the rule that was broken: 1 for L1.
    pub rule: u8,
    /// The queue.
    pub queue: QueueName,
    /// The message.
    pub id: MessageId,
    /// What was seen. Times count from the start of the history; events are numbered in its order.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, rule, queue, id, text } = self;
        write!(f, "L{rule} {kind}: message {id} of queue '{queue}': {text}")
    }
}

/// The findings so far: all are counted, a few of each kind are kept.
#[derive(Debug)]
pub(super) struct Findings {
    kept: Vec<Finding>,
    counted: BTreeMap<FindingKind, u64>,
    per_kind: usize,
}

impl Findings {
    pub(super) fn new(per_kind: usize) -> Self {
        Self { kept: Vec::new(), counted: BTreeMap::new(), per_kind }
    }

    /// Adds a finding. The text is made only for findings that are kept: a broken provider can cause a million.
    pub(super) fn add(
        &mut self,
        (kind, rule): (FindingKind, u8),
        queue: &QueueName,
        id: MessageId,
        text: impl FnOnce() -> String,
    ) {
        let count = self.counted.entry(kind).or_default();
        if usize::try_from(*count).is_ok_and(|count| count < self.per_kind) {
            self.kept.push(Finding { kind, rule, queue: queue.clone(), id, text: text() });
        }
        *count += 1;
    }

    pub(super) fn into_parts(self) -> (Vec<Finding>, BTreeMap<FindingKind, u64>) {
        (self.kept, self.counted)
    }
}
