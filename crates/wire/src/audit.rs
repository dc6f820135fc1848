//! Who changed what.

use postrider_core::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Its number or name; opaque.
    pub id: String,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub who: String,
    /// What was done, in a word.
    pub action: String,
    /// To what.
    pub target: String,
    /// What else is worth knowing.
    #[serde(default)]
    pub detail: Map<String, Value>,
}

/// The query of `GET /v1/audit`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditQuery {
    /// At most that many; 100 without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Those after the page that ended with this cursor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// `GET /v1/audit`, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPage {
    /// The changes.
    pub entries: Vec<AuditEntry>,
    /// Where the next page begins.
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round_trip::over;

    #[test]
    fn entries_come_over_whole() {
        let entry = AuditEntry {
            id: "7".into(),
            at: Timestamp::from_micros(1),
            who: "anna".into(),
            action: "purge".into(),
            target: "orders".into(),
            detail: Map::from_iter([("purged".to_owned(), Value::from(7))]),
        };
        let page = AuditPage { entries: vec![entry], next: Some("7".into()) };
        assert_eq!(over(&page), page);
    }
}
