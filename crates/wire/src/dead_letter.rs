//! Dead letters, and operations on them.

use postrider_core::dead_letter::filter::DeadLetterFilter;
use postrider_core::dead_letter::groups::DeadLetterGroup;
use postrider_core::{
    ContentType, DeadLetter, DeadLetterCursor, DeadLetterEdit, DeadLetterPage, DeadLetterReason, DeadLetterSelection,
    MessageId, MessagingError, Priority, QueueName, Redrive, RedriveReport, RedriveSkip, Timestamp,
};
use serde::{Deserialize, Serialize};

use super::HeaderFields;
use super::body::{self, Base64, Text};
use super::message::{headers, key, text};
use super::object;

/// A dead letter: the message with its record.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DeadLetter"))]
pub struct Dead {
    /// Id of the message.
    pub id: MessageId,
    /// The queue that it was in.
    pub queue: QueueName,
    /// The body, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Text>,
    /// The body, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Base64>,
    /// Content type of the body.
    pub content_type: String,
    /// Its headers.
    #[serde(default)]
    pub headers: HeaderFields,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// Its dedup key.
    pub dedup_key: Option<String>,
    /// Its priority.
    #[cfg_attr(feature = "schema", schemars(range(max = 9)))]
    pub priority: u8,
    /// When it expires or expired.
    pub expires_at: Option<Timestamp>,
    /// Reason of its death.
    pub reason: String,
    /// The last known error text.
    pub error: Option<String>,
    /// Number of deliveries.
    pub receive_count: u32,
    /// Number of failed attempts.
    pub attempts_count: u32,
    /// When the store accepted it.
    pub enqueued_at: Timestamp,
    /// When it was first delivered.
    pub first_attempt_at: Option<Timestamp>,
    /// When it was last delivered.
    pub last_attempt_at: Option<Timestamp>,
    /// When it was dead-lettered.
    pub dead_at: Timestamp,
    /// Number of edits since.
    #[serde(default)]
    pub revision: u32,
}

impl From<DeadLetter> for Dead {
    fn from(letter: DeadLetter) -> Self {
        let (body, body_base64) = body::split(letter.body);
        Self {
            id: letter.id,
            queue: letter.origin,
            body,
            body_base64,
            content_type: letter.content_type.as_str().to_owned(),
            headers: letter.headers.into(),
            ordering_key: text(letter.ordering_key.as_ref()),
            dedup_key: text(letter.dedup_key.as_ref()),
            priority: letter.priority.get(),
            expires_at: letter.expires_at,
            reason: letter.reason.as_str().to_owned(),
            error: letter.error,
            receive_count: letter.deliveries_count,
            attempts_count: letter.attempts_count,
            enqueued_at: letter.enqueued_at,
            first_attempt_at: letter.first_attempt_at,
            last_attempt_at: letter.last_attempt_at,
            dead_at: letter.dead_at,
            revision: letter.revision,
        }
    }
}

impl TryFrom<Dead> for DeadLetter {
    type Error = MessagingError;

    fn try_from(dead: Dead) -> Result<Self, Self::Error> {
        Ok(Self {
            id: dead.id,
            origin: dead.queue,
            body: body::required("body", dead.body, dead.body_base64)?,
            content_type: ContentType::parse(&dead.content_type)?,
            headers: dead.headers.into_headers()?,
            ordering_key: key("ordering key", dead.ordering_key)?,
            dedup_key: key("dedup key", dead.dedup_key)?,
            priority: Priority::new(dead.priority)?,
            expires_at: dead.expires_at,
            reason: dead.reason.into(),
            error: dead.error,
            deliveries_count: dead.receive_count,
            attempts_count: dead.attempts_count,
            enqueued_at: dead.enqueued_at,
            first_attempt_at: dead.first_attempt_at,
            last_attempt_at: dead.last_attempt_at,
            dead_at: dead.dead_at,
            revision: dead.revision,
        })
    }
}

/// `GET /v1/queues/{queue}/dead-letters`, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeadPage {
    /// The dead letters.
    pub dead_letters: Vec<Dead>,
    /// Cursor of the next page.
    pub next: Option<String>,
}

impl From<DeadLetterPage> for DeadPage {
    fn from(page: DeadLetterPage) -> Self {
        let next = page.next.map(|DeadLetterCursor(cursor)| cursor);
        Self { dead_letters: page.letters.into_iter().map(Dead::from).collect(), next }
    }
}

impl TryFrom<DeadPage> for DeadLetterPage {
    type Error = MessagingError;

    fn try_from(page: DeadPage) -> Result<Self, Self::Error> {
        let letters = page.dead_letters.into_iter().map(DeadLetter::try_from).collect::<Result<_, _>>()?;
        Ok(Self { letters, next: page.next.map(DeadLetterCursor) })
    }
}

/// Dead letters with the same reason and kind of error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DeadLetterGroup"))]
pub struct DeadGroup {
    /// Their reason.
    pub reason: String,
    /// Their error text without numbers, ids, quoted values, paths and times; can be used in a filter.
    pub fingerprint: String,
    /// Error text of the newest.
    pub error: Option<String>,
    /// Number of dead letters.
    pub count: u64,
    /// When the oldest was dead-lettered.
    pub first_dead_at: Timestamp,
    /// When the newest was dead-lettered.
    pub last_dead_at: Timestamp,
    /// Id of the newest.
    pub example_id: MessageId,
}

impl From<DeadLetterGroup> for DeadGroup {
    fn from(group: DeadLetterGroup) -> Self {
        Self {
            reason: group.reason.as_str().to_owned(),
            fingerprint: group.fingerprint,
            error: group.error,
            count: group.count,
            first_dead_at: group.first_dead_at,
            last_dead_at: group.last_dead_at,
            example_id: group.example_id,
        }
    }
}

/// `GET /v1/queues/{queue}/dead-letters/groups`, largest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DeadLetterGroups"))]
pub struct DeadGroups {
    /// The largest groups.
    pub groups: Vec<DeadGroup>,
    /// Number of further groups.
    #[serde(default)]
    pub more_kinds: u64,
    /// Number of dead letters in the further groups.
    #[serde(default)]
    pub more_count: u64,
    /// Number of dead letters that were examined.
    pub looked_at: u64,
    /// Whether all dead letters were examined.
    pub complete: bool,
}

/// `PATCH /v1/queues/{queue}/dead-letters/{id}`. Absent fields stay as they are.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DeadLetterEdit"))]
#[serde(default, deny_unknown_fields)]
pub struct EditRequest {
    /// New body, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Text>,
    /// New body, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Base64>,
    /// New content type.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::schema::Line<128>>"))]
    pub content_type: Option<String>,
    /// New headers; replace all present ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<HeaderFields>,
}

impl From<DeadLetterEdit> for EditRequest {
    fn from(edit: DeadLetterEdit) -> Self {
        let (body, body_base64) = edit.body.map_or((None, None), body::split);
        let content_type = edit.content_type.map(|content_type| content_type.as_str().to_owned());
        Self { body, body_base64, content_type, headers: edit.headers.map(HeaderFields::from) }
    }
}

impl TryFrom<EditRequest> for DeadLetterEdit {
    type Error = MessagingError;

    fn try_from(edit: EditRequest) -> Result<Self, Self::Error> {
        Ok(Self {
            body: body::join("body", edit.body, edit.body_base64)?,
            content_type: edit.content_type.as_deref().map(ContentType::parse).transpose()?,
            headers: headers(edit.headers)?,
        })
    }
}

/// A filter of dead letters; all given conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DeadLetterFilter"))]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// With this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// With exactly this error text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whose error text contains this, ignoring case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_contains: Option<String>,
    /// With the fingerprint of a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// With this ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whose id contains this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Dead-lettered at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Dead-lettered before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Timestamp>,
    /// With this text in the id, key, error, headers or body, ignoring case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl From<Filter> for DeadLetterFilter {
    fn from(filter: Filter) -> Self {
        Self {
            reason: filter.reason.map(DeadLetterReason::from),
            error: filter.error,
            error_contains: filter.error_contains,
            fingerprint: filter.fingerprint,
            ordering_key: filter.key,
            id_contains: filter.id,
            since: filter.since,
            before: filter.before,
            text: filter.text,
        }
    }
}

/// The dead letters of a request: given ids, or a filter. An empty filter chooses all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Given ids.
    Ids(Vec<MessageId>),
    /// Those that match a filter.
    Filter(DeadLetterFilter),
}

impl Choice {
    fn new(
        ids: &Option<Vec<MessageId>>,
        reason: &Option<String>,
        error: &Option<String>,
        filter: &Option<Filter>,
    ) -> Result<Self, MessagingError> {
        let is_set_twice = |own: &Option<String>, other: &Option<String>| own.is_some() && other.is_some();
        match (ids, filter) {
            (Some(_), Some(_)) => Err(MessagingError::invalid("choice", "`ids` cannot be combined with `filter`")),
            (Some(_), None) if reason.is_some() || error.is_some() => {
                Err(MessagingError::invalid("choice", "`ids` cannot be combined with `reason` or `error`"))
            }
            (Some(ids), None) => Ok(Self::Ids(ids.clone())),
            (None, Some(filter)) if is_set_twice(reason, &filter.reason) || is_set_twice(error, &filter.error) => {
                Err(MessagingError::invalid(
                    "choice",
                    "`reason` or `error` is set both in `filter` and beside it; set it once",
                ))
            }
            (None, filter) => {
                let mut filter = filter.clone().unwrap_or_default();
                filter.reason = filter.reason.or_else(|| reason.clone());
                filter.error = filter.error.or_else(|| error.clone());
                Ok(Self::Filter(filter.into()))
            }
        }
    }

    /// The part of the choice that a store can select by. The caller applies the rest of the filter.
    pub fn selection(&self) -> DeadLetterSelection {
        match self {
            Self::Ids(ids) => DeadLetterSelection::Ids(ids.clone()),
            Self::Filter(filter) => filter.selection(),
        }
    }
}

/// The fields `ids` and `reason` of a request for a selection.
fn fields(selection: &DeadLetterSelection) -> (Option<Vec<MessageId>>, Option<String>) {
    match selection {
        DeadLetterSelection::All => (None, None),
        DeadLetterSelection::Ids(ids) => (Some(ids.clone()), None),
        DeadLetterSelection::Reason(reason) => (None, Some(reason.as_str().to_owned())),
    }
}

/// `POST /v1/queues/{queue}/dead-letters/redrive`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Redrive"))]
#[serde(default, deny_unknown_fields)]
pub struct RedriveRequest {
    /// Only these.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = crate::object::MOST_ROWS)))]
    pub ids: Option<Vec<MessageId>>,
    /// Only those with this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Only those with exactly this error text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only those that match this filter.
    #[serde(deserialize_with = "object::optional", skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
    /// Target queue; the queue that they died in if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<QueueName>,
    /// Only report what would be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

impl From<&Redrive> for RedriveRequest {
    fn from(redrive: &Redrive) -> Self {
        let (ids, reason) = fields(&redrive.selection);
        Self { ids, reason, to: redrive.to.clone(), dry_run: redrive.dry_run.then_some(true), ..Self::default() }
    }
}

impl RedriveRequest {
    /// The chosen dead letters.
    pub fn choice(&self) -> Result<Choice, MessagingError> {
        Choice::new(&self.ids, &self.reason, &self.error, &self.filter)
    }

    /// The redrive of [`Choice::selection`].
    pub fn redrive(&self) -> Result<Redrive, MessagingError> {
        let selection = self.choice()?.selection();
        Ok(Redrive { selection, to: self.to.clone(), dry_run: self.dry_run.unwrap_or(false) })
    }
}

/// `POST /v1/queues/{queue}/dead-letters/redrive-job`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "RedriveJob"))]
#[serde(default, deny_unknown_fields)]
pub struct RedriveJobRequest {
    /// Only these.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = crate::object::MOST_ROWS)))]
    pub ids: Option<Vec<MessageId>>,
    /// Only those with this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Only those with exactly this error text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only those that match this filter.
    #[serde(deserialize_with = "object::optional", skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
    /// Target queue; the queue that they died in if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<QueueName>,
    /// Maximum rate, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0)))]
    pub rate: Option<f64>,
}

impl RedriveJobRequest {
    /// The chosen dead letters.
    pub fn choice(&self) -> Result<Choice, MessagingError> {
        Choice::new(&self.ids, &self.reason, &self.error, &self.filter)
    }
}

/// `POST /v1/queues/{queue}/dead-letters/purge`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Purge"))]
#[serde(default, deny_unknown_fields)]
pub struct PurgeRequest {
    /// Only these.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = crate::object::MOST_ROWS)))]
    pub ids: Option<Vec<MessageId>>,
    /// Only those with this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Only those with exactly this error text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only those that match this filter.
    #[serde(deserialize_with = "object::optional", skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
    /// Only count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

impl From<&DeadLetterSelection> for PurgeRequest {
    fn from(selection: &DeadLetterSelection) -> Self {
        let (ids, reason) = fields(selection);
        Self { ids, reason, ..Self::default() }
    }
}

impl PurgeRequest {
    /// The chosen dead letters.
    pub fn choice(&self) -> Result<Choice, MessagingError> {
        Choice::new(&self.ids, &self.reason, &self.error, &self.filter)
    }
}

/// The result of a redrive or of its dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Redriven {
    /// Messages that were redriven.
    pub redriven: Vec<MessageId>,
    /// Messages that were not.
    #[serde(default)]
    pub skipped: Vec<Skipped>,
    /// Whether nothing was changed because the request was a dry run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// A message that was not redriven.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub struct Skipped {
    /// The message.
    pub id: MessageId,
    /// Why.
    pub why: RedriveSkip,
}

impl From<RedriveReport> for Redriven {
    fn from(report: RedriveReport) -> Self {
        let skipped = report.skipped.into_iter().map(|(id, why)| Skipped { id, why }).collect();
        Self { redriven: report.redriven, skipped, dry_run: false }
    }
}

impl From<Redriven> for RedriveReport {
    fn from(redriven: Redriven) -> Self {
        let skipped = redriven.skipped.into_iter().map(|row| (row.id, row.why)).collect();
        Self { redriven: redriven.redriven, skipped }
    }
}

#[cfg(test)]
mod tests;
