//! What a provider can do, said before anybody relies on it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::MessagingError;
use crate::message::MAX_DURATION;

/// How a provider keeps a promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Support {
    /// The store does it by itself.
    Native,
    /// The provider does it on top of the store, at this cost.
    Emulated {
        /// The cost, in a sentence.
        cost: Cow<'static, str>,
    },
    /// Not at all: a call that asks for it fails with [`MessagingError::NotSupported`], unless the feature says what
    /// else happens.
    Refused {
        /// Why, in a sentence.
        why: Cow<'static, str>,
    },
}

impl Support {
    /// Emulated at that cost.
    pub const fn emulated(cost: &'static str) -> Self {
        Self::Emulated { cost: Cow::Borrowed(cost) }
    }

    /// Refused, and why.
    pub const fn refused(why: &'static str) -> Self {
        Self::Refused { why: Cow::Borrowed(why) }
    }

    /// Whether it can be used.
    pub fn is_offered(&self) -> bool {
        !matches!(self, Self::Refused { .. })
    }
}

macro_rules! features {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Something that a provider offers or refuses.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Feature { $($(#[$doc])* $variant,)* }

        impl Feature {
            /// Every feature.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The feature's name in texts and tables.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

features! {
    /// An accepted message survives (L1).
    DurableSend = "durable send",
    /// One message per living dedup key (L1).
    Dedup = "dedup keys",
    /// At most one valid lease on a message (L2).
    SingleLease = "one lease at a time",
    /// A dead lease's token changes nothing (L3).
    Fencing = "fencing of late settles",
    /// A receipt can be used on another connection than the one that it was received on.
    PortableReceipts = "receipts on another connection",
    /// A lease that runs out gives the message back (L4).
    LeaseExpiry = "lease expiry",
    /// A lease can be extended (L5).
    ExtendLease = "lease extension",
    /// A failed delivery comes back after the strategy's delay (L6).
    Retry = "retry with delay",
    /// Work that was never started goes back uncounted (L7). Refused, a release still gives the message back at once,
    /// with its delivery counted.
    FreeRelease = "uncounted release",
    /// The delivery count is checked on reading (L8).
    DeliveryLimit = "delivery limit",
    /// Bytes that cannot be decoded die alone (L9).
    BadBytes = "undecodable messages",
    /// Dead letters can be listed, read, edited, redriven and purged (L10).
    DeadLetters = "dead letters",
    /// One at a time and in send order within a key (L11).
    OrderByKey = "order by key",
    /// A message can be sent with a delay (L12).
    Delay = "delayed delivery",
    /// A message can expire (L12).
    Expiry = "message expiry",
    /// The provider reconnects by itself and loses nothing (L14).
    Recovery = "recovery",
    /// `close` ends calls cleanly (L15).
    CleanStop = "clean stop",
    /// Leases and due times are judged by the store's clock (L16).
    StoreClock = "the store's clock",
    /// More urgent messages first.
    Priority = "priority",
    /// A queue's receives can be held back.
    Pause = "pause and resume",
    /// Messages can be looked at without a lease.
    Peek = "peek",
    /// The last failed attempts of a message can be read, each with its error.
    AttemptHistory = "history of attempts",
    /// Messages that are kept after their end can be searched, and sent again.
    Archive = "archive",
    /// A waiting message can be delivered now, dead-lettered and deleted by a person.
    WaitingMessages = "actions on waiting messages",
    /// One message can be received by its id.
    ReceiveById = "receive by id",
    /// Hints shorten the wait for new messages.
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
    /// The largest body, in bytes. 1 MiB by default.
    pub max_body_bytes: usize,
    /// The largest sum of all header names and values, in bytes. 64 KiB by default.
    pub max_header_bytes: usize,
    /// The longest delay of a send or a retry.
    pub max_delay: Duration,
    /// The longest lease.
    pub max_visibility: Duration,
    /// The store's smallest unit of time. Shorter or odd durations are rounded **up** to it.
    pub time_resolution: Duration,
    /// How long a dedup key is taken, counted from its send, on a store that does not know how long its message lives;
    /// `None` where the law holds as it is written: as long as the message lives.
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

/// A provider's whole answer: every feature, and the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    provider: &'static str,
    support: BTreeMap<Feature, Support>,
    /// Sizes and times.
    pub limits: Limits,
}

impl Capabilities {
    /// Everything native, within the default limits. A provider then says where it differs.
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

    /// Whose capabilities these are.
    pub fn provider(&self) -> &'static str {
        self.provider
    }

    /// How a feature is kept.
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
