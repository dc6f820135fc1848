//! Capabilities and health of the server's store.

use std::borrow::Cow;
use std::time::Duration;

use postrider_core::{Capabilities, Feature, Limits, Severity, Support, duration_text};
use serde::{Deserialize, Serialize};

use super::problem::{feature, feature_word};

/// `GET /v1/capabilities`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Capabilities"))]
pub struct CapabilityTable {
    /// The provider of the store.
    pub provider: String,
    /// The server's version.
    pub server_version: String,
    /// Support of each feature.
    pub features: Vec<FeatureSupport>,
    /// Limits of sizes and times.
    pub limits: LimitTable,
}

/// How a feature is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum SupportWord {
    /// By the store itself.
    Native,
    /// By the provider, at a cost.
    Emulated,
    /// Not supported.
    Refused,
}

/// Support of one feature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub struct FeatureSupport {
    /// Identifier of the feature.
    // A text, because a newer server has features that this side does not.
    pub feature: String,
    /// Display name of the feature.
    pub name: String,
    /// How it is supported.
    pub support: SupportWord,
    /// The cost of the emulation, or why it is refused.
    pub note: Option<String>,
}

/// Limits of sizes and times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub struct LimitTable {
    /// The largest body, in bytes.
    pub max_body_bytes: usize,
    /// The largest sum of all header names and values, in bytes.
    pub max_header_bytes: usize,
    /// The longest delay of a send or a retry.
    #[serde(with = "duration_text::Text")]
    pub max_delay: Duration,
    /// The longest lease.
    #[serde(with = "duration_text::Text")]
    pub max_visibility: Duration,
    /// The store's smallest unit of time.
    #[serde(with = "duration_text::Text")]
    pub time_resolution: Duration,
    /// How long a dedup key is kept, unless it is as long as its message lives.
    #[serde(default, with = "duration_text::OptionalText")]
    pub dedup_window: Option<Duration>,
}

impl CapabilityTable {
    /// The table of a store, on a server of this version.
    pub fn new(capabilities: &Capabilities, server_version: impl Into<String>) -> Self {
        let row = |(feature, support): (Feature, &Support)| {
            let (word, note) = match support {
                Support::Native => (SupportWord::Native, None),
                Support::Emulated { cost } => (SupportWord::Emulated, Some(cost.to_string())),
                Support::Refused { why } => (SupportWord::Refused, Some(why.to_string())),
            };
            FeatureSupport { feature: feature_word(feature), name: feature.name().to_owned(), support: word, note }
        };
        let limits = &capabilities.limits;
        Self {
            provider: capabilities.provider().to_owned(),
            server_version: server_version.into(),
            features: capabilities.iter().map(row).collect(),
            limits: LimitTable {
                max_body_bytes: limits.max_body_bytes,
                max_header_bytes: limits.max_header_bytes,
                max_delay: limits.max_delay,
                max_visibility: limits.max_visibility,
                time_resolution: limits.time_resolution,
                dedup_window: limits.dedup_window,
            },
        }
    }

    /// The capabilities, under the name of the client's provider. A feature that the table does not list is refused.
    pub fn into_capabilities(self, provider: &'static str) -> Capabilities {
        let mut capabilities = Feature::ALL.iter().fold(Capabilities::native(provider), |capabilities, feature| {
            capabilities.with(*feature, Support::refused("the server does not have this feature yet; update it"))
        });
        for row in self.features {
            let note = || row.note.map_or(Cow::Borrowed("the server gives no details"), Cow::Owned);
            let support = match row.support {
                SupportWord::Native => Support::Native,
                SupportWord::Emulated => Support::Emulated { cost: note() },
                SupportWord::Refused => Support::Refused { why: note() },
            };
            if let Some(feature) = feature(&row.feature) {
                capabilities = capabilities.with(feature, support);
            }
        }
        capabilities.with_limits(Limits {
            max_body_bytes: self.limits.max_body_bytes,
            max_header_bytes: self.limits.max_header_bytes,
            max_delay: self.limits.max_delay,
            max_visibility: self.limits.max_visibility,
            time_resolution: self.limits.time_resolution,
            dedup_window: self.limits.dedup_window,
        })
    }
}

/// `GET /v1/health`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Health {
    /// Whether the store responds.
    pub ok: bool,
}

/// `GET /v1/doctor`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// The checks.
    pub findings: Vec<Finding>,
}

/// One check of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    /// Name of the check.
    pub check: String,
    /// Its severity.
    pub severity: SeverityWord,
    /// What was found.
    pub found: String,
    /// How to fix it.
    pub fix: Option<String>,
}

/// Severity of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum SeverityWord {
    /// As it should be.
    Fine,
    /// Worth knowing.
    Note,
    /// Works, but should be improved.
    Warning,
    /// Does not work, or loses messages.
    Problem,
}

impl From<Severity> for SeverityWord {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Fine => Self::Fine,
            Severity::Note => Self::Note,
            Severity::Warning => Self::Warning,
            Severity::Problem => Self::Problem,
        }
    }
}

impl From<SeverityWord> for Severity {
    fn from(word: SeverityWord) -> Self {
        match word {
            SeverityWord::Fine => Self::Fine,
            SeverityWord::Note => Self::Note,
            SeverityWord::Warning => Self::Warning,
            SeverityWord::Problem => Self::Problem,
        }
    }
}

impl From<postrider_core::Finding> for Finding {
    fn from(finding: postrider_core::Finding) -> Self {
        Self {
            check: finding.check.to_owned(),
            severity: finding.severity.into(),
            found: finding.found,
            fix: finding.fix,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{json, round_trip};

    #[test]
    fn capabilities_round_trip() {
        let store = Capabilities::native("http")
            .with(Feature::Dedup, Support::emulated("a side record"))
            .with(Feature::ReceiveById, Support::refused("no index"))
            .with_limits(Limits { dedup_window: Some(Duration::from_secs(300)), ..Limits::default() });
        assert_eq!(round_trip(&CapabilityTable::new(&store, "0.1.0")).into_capabilities("http"), store);
        let table = json(&CapabilityTable::new(&Capabilities::native("sqlite"), "0.1.0"));
        let limits = serde_json::json!({
            "max_body_bytes": 1_048_576, "max_header_bytes": 65536, "max_delay": "36500d", "max_visibility": "36500d",
            "time_resolution": "1us", "dedup_window": null,
        });
        assert_eq!(table["limits"], limits);
        let dedup = serde_json::json!({"feature": "dedup", "name": "dedup keys", "support": "native", "note": null});
        assert!(table["features"].as_array().unwrap().contains(&dedup));
    }

    #[test]
    fn missing_features_are_refused_and_unknown_ones_ignored() {
        let mut table = CapabilityTable::new(&Capabilities::native("sqlite"), "9");
        table.features.retain(|row| row.feature != "pause");
        table.features.push(FeatureSupport {
            feature: "teleport".into(),
            name: "teleport".into(),
            support: SupportWord::Native,
            note: None,
        });
        let capabilities = round_trip(&table).into_capabilities("http");
        assert!(!capabilities.offers(Feature::Pause) && capabilities.offers(Feature::Peek));
        assert_eq!(capabilities.provider(), "http");
    }

    #[test]
    fn findings_round_trip() {
        for severity in [Severity::Fine, Severity::Note, Severity::Warning, Severity::Problem] {
            let finding = postrider_core::Finding::new("schema", severity, "old", "migrate");
            let findings = Findings { findings: vec![finding.into()] };
            let back = round_trip(&findings);
            assert_eq!(back, findings);
            assert_eq!(Severity::from(back.findings[0].severity), severity);
            assert_eq!(json(&back)["findings"][0]["severity"], severity.to_string());
        }
    }
}
