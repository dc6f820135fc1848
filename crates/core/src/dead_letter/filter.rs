//! Filters of dead letters.

use super::fingerprint::error_fingerprint;
use super::{DeadLetter, DeadLetterReason, DeadLetterSelection, DeadLetterSummary};
use crate::clock::Timestamp;

/// A filter of dead letters: those that meet every condition that is not `None`.
///
/// Stores select by reason or by id. The caller compares the rest on pages of summaries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadLetterFilter {
    /// This reason.
    pub reason: Option<DeadLetterReason>,
    /// Exactly this error text.
    pub error: Option<String>,
    /// This part of the error text; case-insensitive.
    pub error_contains: Option<String>,
    /// This kind of error: see [`error_fingerprint`].
    pub fingerprint: Option<String>,
    /// This ordering key.
    pub ordering_key: Option<String>,
    /// This part of the id.
    pub id_contains: Option<String>,
    /// Died at this time or later.
    pub since: Option<Timestamp>,
    /// Died before this time.
    pub before: Option<Timestamp>,
    /// This part of the id, ordering key, dedup key, error, headers or body; case-insensitive.
    pub text: Option<String>,
}

impl DeadLetterFilter {
    /// The part of the filter that a store selects by.
    pub fn selection(&self) -> DeadLetterSelection {
        self.reason.clone().map_or(DeadLetterSelection::All, DeadLetterSelection::Reason)
    }

    /// Whether a store can select by the whole filter.
    pub fn is_selection(&self) -> bool {
        *self == Self { reason: self.reason.clone(), ..Self::default() }
    }

    /// The error text, if the filter has nothing else that a store cannot select by.
    pub fn only_error(&self) -> Option<&str> {
        let simple = Self { reason: self.reason.clone(), error: self.error.clone(), ..Self::default() };
        self.error.as_deref().filter(|_| *self == simple)
    }

    /// Whether the filter needs bodies and headers, which a summary does not have.
    pub fn reads_bodies(&self) -> bool {
        self.text.is_some()
    }

    /// Whether a dead letter meets the filter, except for `text`.
    pub fn includes_summary(&self, summary: &DeadLetterSummary) -> bool {
        self.includes_parts(summary)
    }

    /// Whether a dead letter meets the filter.
    pub fn includes(&self, letter: &DeadLetter) -> bool {
        self.includes_parts(letter) && self.text.as_ref().is_none_or(|text| has_text(letter, &text.to_lowercase()))
    }

    fn includes_parts(&self, letter: &impl Parts) -> bool {
        let error = letter.error();
        self.reason.as_ref().is_none_or(|reason| letter.reason() == reason)
            && self.since.is_none_or(|since| letter.dead_at() >= since)
            && self.before.is_none_or(|before| letter.dead_at() < before)
            && self.error.as_ref().is_none_or(|wanted| error == Some(wanted))
            && self.ordering_key.as_ref().is_none_or(|key| letter.ordering_key() == Some(key))
            && self.id_contains.as_ref().is_none_or(|part| letter.id().contains(&part.to_lowercase()))
            && self
                .error_contains
                .as_ref()
                .is_none_or(|part| error.is_some_and(|error| error.to_lowercase().contains(&part.to_lowercase())))
            && self.fingerprint.as_ref().is_none_or(|wanted| error_fingerprint(error) == *wanted)
    }
}

/// The fields that a filter compares, except bodies and headers.
trait Parts {
    fn id(&self) -> String;
    fn reason(&self) -> &DeadLetterReason;
    fn error(&self) -> Option<&str>;
    fn ordering_key(&self) -> Option<&str>;
    fn dead_at(&self) -> Timestamp;
}

macro_rules! parts {
    ($of:ty) => {
        impl Parts for $of {
            fn id(&self) -> String {
                self.id.to_string()
            }

            fn reason(&self) -> &DeadLetterReason {
                &self.reason
            }

            fn error(&self) -> Option<&str> {
                self.error.as_deref()
            }

            fn ordering_key(&self) -> Option<&str> {
                self.ordering_key.as_ref().map(|key| key.as_str())
            }

            fn dead_at(&self) -> Timestamp {
                self.dead_at
            }
        }
    };
}

parts!(DeadLetter);
parts!(DeadLetterSummary);

fn has_text(letter: &DeadLetter, lower: &str) -> bool {
    let has = |text: &str| text.to_lowercase().contains(lower);
    has(&letter.id.to_string())
        || letter.ordering_key.as_ref().is_some_and(|key| has(key.as_str()))
        || letter.dedup_key.as_ref().is_some_and(|key| has(key.as_str()))
        || letter.error.as_deref().is_some_and(has)
        || letter.headers.iter().any(|(name, value)| has(name) || has(value))
        || has(&String::from_utf8_lossy(&letter.body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::Headers;
    use crate::id::MessageId;
    use crate::message::{ContentType, Key, Priority};
    use crate::queue_name::QueueName;

    fn letter() -> DeadLetter {
        let mut headers = Headers::new();
        headers.insert("customer", "Anna").unwrap();
        DeadLetter {
            id: "01900000-0000-7000-8000-00000000abcd".parse().unwrap(),
            origin: QueueName::new("orders").unwrap(),
            body: "{\"item\": \"Tea\"}".into(),
            content_type: ContentType::JSON,
            headers,
            ordering_key: Some(Key::new("ordering key", "anna-7").unwrap()),
            dedup_key: None,
            priority: Priority::default(),
            expires_at: None,
            reason: DeadLetterReason::REJECTED,
            error: Some("Order 17 has no litres".into()),
            deliveries_count: 1,
            attempts_count: 1,
            enqueued_at: Timestamp::from_micros(1),
            first_attempt_at: None,
            last_attempt_at: None,
            dead_at: Timestamp::from_micros(100),
            revision: 0,
        }
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn every_condition_must_be_met() {
        let letter = letter();
        let none = DeadLetterFilter::default();
        let meant = [
            none.clone(),
            DeadLetterFilter { reason: Some(DeadLetterReason::REJECTED), ..none.clone() },
            DeadLetterFilter { error: text("Order 17 has no litres"), ..none.clone() },
            DeadLetterFilter { error_contains: text("order 17"), ..none.clone() },
            DeadLetterFilter { fingerprint: text("Order # has no litres"), ..none.clone() },
            DeadLetterFilter { ordering_key: text("anna-7"), ..none.clone() },
            DeadLetterFilter { id_contains: text("00ABCD"), ..none.clone() },
            DeadLetterFilter { since: Some(Timestamp::from_micros(100)), ..none.clone() },
            DeadLetterFilter { before: Some(Timestamp::from_micros(101)), ..none.clone() },
        ];
        for filter in &meant {
            assert!(filter.includes(&letter) && filter.includes_summary(&letter.clone().into()), "{filter:?}");
            assert!(!filter.reads_bodies());
        }
        let others = [
            DeadLetterFilter { reason: Some(DeadLetterReason::EXPIRED), ..none.clone() },
            DeadLetterFilter { error: text("Order 17"), ..none.clone() },
            DeadLetterFilter { error_contains: text("order 18"), ..none.clone() },
            DeadLetterFilter { fingerprint: text("Order # has no tea"), ..none.clone() },
            DeadLetterFilter { ordering_key: text("anna"), ..none.clone() },
            DeadLetterFilter { id_contains: text("00abce"), ..none.clone() },
            DeadLetterFilter { since: Some(Timestamp::from_micros(101)), ..none.clone() },
            DeadLetterFilter { before: Some(Timestamp::from_micros(100)), ..none.clone() },
            DeadLetterFilter {
                error_contains: text("order"),
                ordering_key: text("ben"),
                reason: Some(DeadLetterReason::REJECTED),
                ..none.clone()
            },
        ];
        for filter in &others {
            assert!(!filter.includes(&letter) && !filter.includes_summary(&letter.clone().into()), "{filter:?}");
        }
        for (part, is_meant) in
            [("tea", true), ("ANNA", true), ("customer", true), ("litres", true), ("00abcd", true), ("coffee", false)]
        {
            let filter = DeadLetterFilter { text: text(part), ..none.clone() };
            assert_eq!((filter.includes(&letter), filter.reads_bodies()), (is_meant, true), "{part}");
        }
    }

    #[test]
    fn a_store_selects_by_reason_alone() {
        let reason = Some(DeadLetterReason::EXPIRED);
        let by_reason = DeadLetterFilter { reason: reason.clone(), ..DeadLetterFilter::default() };
        assert!(by_reason.is_selection() && DeadLetterFilter::default().is_selection());
        assert_eq!(by_reason.selection(), DeadLetterSelection::Reason(DeadLetterReason::EXPIRED));
        let more = DeadLetterFilter { reason, text: text("tea"), ..DeadLetterFilter::default() };
        assert!(!more.is_selection());
        assert_eq!(DeadLetterFilter::default().selection(), DeadLetterSelection::All);
        let _: MessageId = letter().id;
    }
}
