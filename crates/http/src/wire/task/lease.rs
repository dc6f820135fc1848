//! A task's lease as text.

use std::fmt;
use std::str::FromStr;

use postrider_core::MessagingError;
use postrider_core::task::TaskLease;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A task's lease: the task's id and the token of its claim, with a dot between. Opaque to workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease(pub TaskLease);

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0.id, self.0.token)
    }
}

impl FromStr for Lease {
    type Err = MessagingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lease = text
            .split_once('.')
            .and_then(|(id, token)| Some(Self(TaskLease { id: id.parse().ok()?, token: token.parse().ok()? })));
        lease.ok_or_else(|| MessagingError::invalid("lease", "it is damaged or not complete; use it as it was claimed"))
    }
}

impl Serialize for Lease {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lease {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::TaskId;

    use super::*;
    use crate::wire::round_trip::over;

    #[test]
    fn leases_come_over_whole_and_damaged_ones_are_refused() {
        for token in [0, 7, -7, i64::MIN, i64::MAX] {
            let lease = Lease(TaskLease { id: TaskId::generate(), token });
            assert_eq!(over(&lease), lease);
        }
        for bad in ["", ".", "7.7", "01890a5d-ac96-774b-bcce-b302099a8057", "01890a5d-ac96-774b-bcce-b302099a8057.x"] {
            assert!(bad.parse::<Lease>().is_err(), "{bad}");
        }
    }
}
