//! The audit log.

use postrider_core::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditEntry {
    /// Opaque id.
    pub id: String,
    /// Time of the change.
    pub at: Timestamp,
    /// Name of the client.
    pub who: String,
    /// Name of the action.
    pub action: String,
    /// What was changed.
    pub target: String,
    /// Details.
    #[serde(default)]
    pub detail: Map<String, Value>,
}

/// The query of `GET /v1/audit`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditQuery {
    /// Page size; 100 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `next` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// `GET /v1/audit`, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPage {
    /// The changes.
    pub entries: Vec<AuditEntry>,
    /// Cursor of the next page.
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::round_trip;

    #[test]
    fn entries_round_trip() {
        let entry = AuditEntry {
            id: "7".into(),
            at: Timestamp::from_micros(1),
            who: "anna".into(),
            action: "purge".into(),
            target: "orders".into(),
            detail: Map::from_iter([("purged".to_owned(), Value::from(7))]),
        };
        let page = AuditPage { entries: vec![entry], next: Some("7".into()) };
        assert_eq!(round_trip(&page), page);
    }
}
