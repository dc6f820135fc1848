//! The identity of a message.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A message's identity: made by its sender, carried by the message, kept over retries, dead letters and redrive.
///
/// It is a UUIDv7. Its time is the sender's and is never used for order or leases: senders' clocks disagree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(Uuid);

impl MessageId {
    /// A new id.
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// Takes an id that the caller made.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// The id as a UUID.
    pub const fn as_uuid(&self) -> &Uuid {
        &self.0
    }

    /// The id of a message that came into the store without one (a row by another program, a file by `mv`): derived
    /// from where it is, so that it stays the same over redelivery.
    pub fn derived(provider: &str, queue: &str, native_id: &str) -> Self {
        // Lengths are part of the name, or ("a", "bc") and ("ab", "c") would meet.
        let name = format!("{}:{provider}{}:{queue}{native_id}", provider.len(), queue.len());
        Self(Uuid::new_v5(&Self::FOREIGN, name.as_bytes()))
    }

    const FOREIGN: Uuid = Uuid::from_u128(0x7057_1de2_f02e_5b1d_9a5e_0f0e_16de_55a6);
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for MessageId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_ids_are_version_7_and_ascend() {
        let ids: Vec<_> = (0..1000).map(|_| MessageId::generate()).collect();
        assert!(ids.iter().all(|id| id.as_uuid().get_version_num() == 7));
        assert!(ids.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_foreign_message_keeps_its_id_and_shares_it_with_nobody() {
        let id = MessageId::derived("spool", "orders", "a.json");
        assert_eq!(id, MessageId::derived("spool", "orders", "a.json"));
        for other in [("spool", "order", "sa.json"), ("spoo", "lorders", "a.json"), ("spool", "orders", "b.json")] {
            assert_ne!(id, MessageId::derived(other.0, other.1, other.2));
        }
    }
}
