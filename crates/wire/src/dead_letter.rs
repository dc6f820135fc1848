//! Dead letters, and what is done with them.

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

/// A dead message with its record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Dead {
    /// The message's identity.
    pub id: MessageId,
    /// The queue that it died in.
    pub queue: QueueName,
    /// What it says, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Text>,
    /// What it says, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Base64>,
    /// How the body is encoded.
    pub content_type: String,
    /// Its headers.
    #[serde(default)]
    pub headers: HeaderFields,
    /// The key that it was ordered by.
    pub ordering_key: Option<String>,
    /// The key that kept it single.
    pub dedup_key: Option<String>,
    /// How urgent it was.
    pub priority: u8,
    /// When it was, or will be, too late.
    pub expires_at: Option<Timestamp>,
    /// Why it died, in a word.
    pub reason: String,
    /// The last error text that is known.
    pub error: Option<String>,
    /// How often it was delivered.
    pub receive_count: u32,
    /// How often a handler failed on it.
    pub attempts_count: u32,
    /// When the store accepted it.
    pub enqueued_at: Timestamp,
    /// When it was first delivered.
    pub first_attempt_at: Option<Timestamp>,
    /// When it was last delivered.
    pub last_attempt_at: Option<Timestamp>,
    /// When it died.
    pub dead_at: Timestamp,
    /// How often it has been edited since.
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

/// `GET /v1/queues/{queue}/dead-letters`, oldest death first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeadPage {
    /// The dead letters.
    pub dead_letters: Vec<Dead>,
    /// Where the next page begins.
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

/// Dead letters that died in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadGroup {
    /// Why, in a word.
    pub reason: String,
    /// The kind of their errors: the text without numbers, ids, quoted values, paths and times. A filter takes it.
    pub fingerprint: String,
    /// The error text of the newest of them.
    pub error: Option<String>,
    /// How many there are.
    pub count: u64,
    /// When the first of them died.
    pub first_dead_at: Timestamp,
    /// When the last of them did.
    pub last_dead_at: Timestamp,
    /// The newest of them.
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
pub struct DeadGroups {
    /// The largest groups.
    pub groups: Vec<DeadGroup>,
    /// How many kinds there are beside them.
    #[serde(default)]
    pub more_kinds: u64,
    /// How many dead letters those kinds have together.
    #[serde(default)]
    pub more_count: u64,
    /// How many dead letters were looked at.
    pub looked_at: u64,
    /// Whether those were all.
    pub complete: bool,
}

/// `PATCH /v1/queues/{queue}/dead-letters/{id}`. What is left out stays as it is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EditRequest {
    /// Another body, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<Text>,
    /// Another body, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Base64>,
    /// Another content type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Other headers, in place of all that it has.
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

/// Which dead letters are meant: those of which everything holds that is said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// That died for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// With exactly this error text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whose error text has this in it; upper and lower case are alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_contains: Option<String>,
    /// Whose errors are of this kind, as a group tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// With this ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whose id has this in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// That died at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// That died before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Timestamp>,
    /// With this in its id, key, error, headers or body; upper and lower case are alike.
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

/// Which dead letters are meant: these, or those of a filter; all when nothing is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// These.
    Ids(Vec<MessageId>),
    /// Those that a filter leaves.
    Filter(DeadLetterFilter),
}

impl Choice {
    fn new(
        ids: &Option<Vec<MessageId>>,
        reason: &Option<String>,
        error: &Option<String>,
        filter: &Option<Filter>,
    ) -> Result<Self, MessagingError> {
        let is_told_twice = |own: &Option<String>, other: &Option<String>| own.is_some() && other.is_some();
        match (ids, filter) {
            (Some(_), Some(_)) => Err(MessagingError::invalid("choice", "ids stand alone; leave out filter, or ids")),
            (Some(_), None) if reason.is_some() || error.is_some() => {
                Err(MessagingError::invalid("choice", "ids stand alone; leave out reason and error, or ids"))
            }
            (Some(ids), None) => Ok(Self::Ids(ids.clone())),
            (None, Some(filter)) if is_told_twice(reason, &filter.reason) || is_told_twice(error, &filter.error) => {
                Err(MessagingError::invalid("choice", "reason and error stand in filter or beside it, not in both"))
            }
            (None, filter) => {
                let mut filter = filter.clone().unwrap_or_default();
                filter.reason = filter.reason.or_else(|| reason.clone());
                filter.error = filter.error.or_else(|| error.clone());
                Ok(Self::Filter(filter.into()))
            }
        }
    }

    /// What a store can choose by. The rest of a filter is compared by the caller.
    pub fn selection(&self) -> DeadLetterSelection {
        match self {
            Self::Ids(ids) => DeadLetterSelection::Ids(ids.clone()),
            Self::Filter(filter) => filter.selection(),
        }
    }
}

/// The ids and the reason of a selection, as a request has them.
fn fields(selection: &DeadLetterSelection) -> (Option<Vec<MessageId>>, Option<String>) {
    match selection {
        DeadLetterSelection::All => (None, None),
        DeadLetterSelection::Ids(ids) => (Some(ids.clone()), None),
        DeadLetterSelection::Reason(reason) => (None, Some(reason.as_str().to_owned())),
    }
}

/// `POST /v1/queues/{queue}/dead-letters/redrive`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedriveRequest {
    /// These.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<MessageId>>,
    /// Those that died for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Those with exactly this error text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Those of which all of this holds.
    #[serde(deserialize_with = "object::optional", skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
    /// Where they go; without it, to the queue that they died in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<QueueName>,
    /// Only tell what would be done.
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
    /// Which ones.
    pub fn choice(&self) -> Result<Choice, MessagingError> {
        Choice::new(&self.ids, &self.reason, &self.error, &self.filter)
    }

    /// The redrive of what a store can choose by.
    pub fn redrive(&self) -> Result<Redrive, MessagingError> {
        let selection = self.choice()?.selection();
        Ok(Redrive { selection, to: self.to.clone(), dry_run: self.dry_run.unwrap_or(false) })
    }
}

/// `POST /v1/queues/{queue}/dead-letters/redrive-job`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedriveJobRequest {
    /// These.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<MessageId>>,
    /// Those that died for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Those with exactly this error text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Those of which all of this holds.
    #[serde(deserialize_with = "object::optional", skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
    /// Where they go; without it, to the queue that they died in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<QueueName>,
    /// That many a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
}

impl RedriveJobRequest {
    /// Which ones.
    pub fn choice(&self) -> Result<Choice, MessagingError> {
        Choice::new(&self.ids, &self.reason, &self.error, &self.filter)
    }
}

/// `POST /v1/queues/{queue}/dead-letters/purge`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PurgeRequest {
    /// These.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<MessageId>>,
    /// Those that died for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Those with exactly this error text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Those of which all of this holds.
    #[serde(deserialize_with = "object::optional", skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
    /// Only tell how many it would be.
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
    /// Which ones.
    pub fn choice(&self) -> Result<Choice, MessagingError> {
        Choice::new(&self.ids, &self.reason, &self.error, &self.filter)
    }
}

/// What a redrive did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redriven {
    /// The messages that went back to life.
    pub redriven: Vec<MessageId>,
    /// The messages that stayed dead.
    #[serde(default)]
    pub skipped: Vec<Skipped>,
}

/// A message that stayed dead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The message.
    pub id: MessageId,
    /// Why.
    pub why: RedriveSkip,
}

impl From<RedriveReport> for Redriven {
    fn from(report: RedriveReport) -> Self {
        let skipped = report.skipped.into_iter().map(|(id, why)| Skipped { id, why }).collect();
        Self { redriven: report.redriven, skipped }
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
