//! The capabilities that a provider declares.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::MessagingError;
use crate::message::MAX_DURATION;

/// How a provider supports a feature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Support {
    /// The store has the feature.
    Native,
    /// The provider implements the feature on the store, at this cost.
    Emulated {
        /// The cost, in a sentence.
        cost: Cow<'static, str>,
    },
    /// The feature is not supported: a call that needs it fails with [`MessagingError::NotSupported`], unless the
    /// feature describes another behaviour.
    Refused {
        /// Why, in a sentence.
        why: Cow<'static, str>,
    },
}

impl Support {
    /// Emulated, at that cost.
    pub const fn emulated(cost: &'static str) -> Self {
        Self::Emulated { cost: Cow::Borrowed(cost) }
    }

    /// Refused, for that reason.
    pub const fn refused(why: &'static str) -> Self {
        Self::Refused { why: Cow::Borrowed(why) }
    }

    /// Whether the feature can be used.
    pub fn is_offered(&self) -> bool {
        !matches!(self, Self::Refused { .. })
    }
}

macro_rules! features {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A feature that a provider supports or refuses.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Feature { $($(#[$doc])* $variant,)* }

        impl Feature {
            /// Every feature.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name of the feature in texts and tables.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

features! {
    /// An accepted message survives a crash (L1).
    DurableSend = "durable send",
    /// One message per living dedup key (L1).
    Dedup = "dedup keys",
    /// A message has at most one valid lease (L2).
    SingleLease = "one lease at a time",
    /// The token of a lease that has ended changes nothing (L3).
    Fencing = "fencing of late settles",
    /// A receipt can be used on other connections.
    PortableReceipts = "receipts on another connection",
    /// A message whose lease expires can be received again (L4).
    LeaseExpiry = "lease expiry",
    /// A lease can be extended (L5).
    ExtendLease = "lease extension",
    /// A failed delivery is retried after the delay of the strategy (L6).
    Retry = "retry with delay",
    /// Work that was never started is given back uncounted (L7). If refused, a release still gives the message back at
    /// once, but its delivery counts.
    FreeRelease = "uncounted release",
    /// The delivery count is checked on reading (L8).
    DeliveryLimit = "delivery limit",
    /// A message that cannot be decoded is dead-lettered alone (L9).
    BadBytes = "undecodable messages",
    /// Dead letters can be listed, read, edited, redriven and purged (L10).
    DeadLetters = "dead letters",
    /// Messages of a key are handled one at a time, in send order (L11).
    OrderByKey = "order by key",
    /// A message can be sent with a delay (L12).
    Delay = "delayed delivery",
    /// A message can expire (L12).
    Expiry = "message expiry",
    /// The provider reconnects by itself and loses no accepted message (L14).
    Recovery = "recovery",
    /// `close` ends calls properly (L15).
    CleanStop = "clean stop",
    /// Leases and due times are judged by the store's clock (L16).
    StoreClock = "the store's clock",
    /// More urgent messages first.
    Priority = "priority",
    /// The receives of a queue can be paused.
    Pause = "pause and resume",
    /// Messages can be read without a lease.
    Peek = "peek",
    /// The last failed attempts of a message can be read, each with its error.
    AttemptHistory = "history of attempts",
    /// Messages are kept after their end; they can be searched and sent again.
    Archive = "archive",
    /// A waiting message can be delivered now, dead-lettered or deleted on request.
    WaitingMessages = "actions on waiting messages",
    /// One message can be received by its id.
    ReceiveById = "receive by id",
    /// Hints end the wait for new messages early.
    WakeUp = "wake-up hints",
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Sizes and times that a provider accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Upper bound of a body, in bytes. 1 MiB by default.
    pub max_body_bytes: usize,
    /// Upper bound of all header names and values together, in bytes. 64 KiB by default.
    pub max_header_bytes: usize,
    /// Upper bound of the delay of a send or a retry.
    pub max_delay: Duration,
    /// Upper bound of a lease.
    pub max_visibility: Duration,
    /// The smallest unit of time of the store. Other durations are rounded **up** to it.
    pub time_resolution: Duration,
    /// How long after its send a dedup key is reserved, on a store that cannot tell how long the message lives. `None`
    /// if the key is reserved as long as the message lives, as the law says.
    pub dedup_window: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 1024 * 1024,
            max_header_bytes: 64 * 1024,
            max_delay: MAX_DURATION,
            max_visibility: MAX_DURATION,
            time_resolution: Duration::from_micros(1),
            dedup_window: None,
        }
    }
}

/// The capabilities of a provider: the support of every feature, and the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    provider: &'static str,
    support: BTreeMap<Feature, Support>,
    /// Sizes and times.
    pub limits: Limits,
}

impl Capabilities {
    /// Native support of every feature, with the default limits. A provider then declares its differences.
    pub fn native(provider: &'static str) -> Self {
        let support = Feature::ALL.iter().map(|feature| (*feature, Support::Native)).collect();
        Self { provider, support, limits: Limits::default() }
    }

    /// With other support for one feature.
    #[must_use]
    pub fn with(mut self, feature: Feature, support: Support) -> Self {
        self.support.insert(feature, support);
        self
    }

    /// With other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The provider's name.
    pub fn provider(&self) -> &'static str {
        self.provider
    }

    /// The support of a feature.
    pub fn support(&self, feature: Feature) -> &Support {
        // `native` fills in every feature and none is ever removed.
        &self.support[&feature]
    }

    /// Whether a feature can be used.
    pub fn offers(&self, feature: Feature) -> bool {
        self.support(feature).is_offered()
    }

    /// Fails with [`MessagingError::NotSupported`] when a feature is refused.
    pub fn require(&self, feature: Feature) -> Result<(), MessagingError> {
        match self.support(feature) {
            Support::Refused { why } => {
                Err(MessagingError::NotSupported { provider: self.provider, feature, why: why.to_string() })
            }
            Support::Native | Support::Emulated { .. } => Ok(()),
        }
    }

    /// Every feature with its support, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (Feature, &Support)> {
        self.support.iter().map(|(feature, support)| (*feature, support))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_feature_fails_and_says_why() {
        let capabilities = Capabilities::native("paper").with(Feature::Delay, Support::refused("no clock"));
        assert!(capabilities.require(Feature::Dedup).is_ok());
        let error = capabilities.require(Feature::Delay).unwrap_err();
        assert_eq!(error.to_string(), "paper does not support delayed delivery: no clock");
        assert!(!error.is_retryable());
        assert_eq!(capabilities.iter().count(), Feature::ALL.len());
    }
}
