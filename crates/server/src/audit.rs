//! The audit log: actions that change or remove something, with their callers.
//!
//! An entry is content before the action, so that no action is missing in the log, and completed with its outcome
//! afterwards. An action that is aborted in between has the outcome `unknown`; one whose server died has none.

use std::time::Duration;

use postrider::state_records::{
    Put, RecordCursor, RecordKey, RecordKind, RecordOrder, RecordQuery, StateRecord, StateRecords,
};
use postrider::{Bytes, Deadline, MessagingError, StateStorage};
use postrider_wire::audit::AuditEntry;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::access::Caller;

static KIND: RecordKind = RecordKind::constant("audit");

/// Retention of entries.
const RETENTION: Duration = Duration::from_secs(90 * 24 * 3600);

/// An entry as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Content {
    who: String,
    action: String,
    target: String,
    detail: Map<String, Value>,
}

/// An action that has an entry and no outcome yet.
#[must_use = "record its outcome"]
pub(crate) struct AuditedAction {
    /// `None` once the outcome is recorded.
    entry: Option<(StateRecord, Content)>,
    audit: Audit,
}

impl Drop for AuditedAction {
    fn drop(&mut self) {
        let Some(entry) = self.entry.take() else { return };
        // Without a runtime the process is ending anyway.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let audit = self.audit.clone();
        self.audit.background.spawn_on(async move { audit.complete(entry, "unknown".into()).await }, &runtime);
    }
}

/// The log.
#[derive(Debug, Clone)]
pub(crate) struct Audit {
    records: StateStorage,
    /// Tracks writes of the outcome `unknown`, which the server awaits when it stops.
    background: TaskTracker,
}

/// Returns an action's outcome as the log shows it.
pub(crate) fn outcome<T>(done: &Result<T, MessagingError>, shown: impl Fn(&T) -> Value) -> Value {
    match done {
        Ok(done) => shown(done),
        Err(error) => json!({ "failed": error.to_string() }),
    }
}

fn encoded(content: &Content) -> Result<Bytes, MessagingError> {
    let bytes = serde_json::to_vec(content).map_err(|error| {
        let source: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
        MessagingError::Serialization { content_type: "application/json", source: source.into() }
    })?;
    Ok(bytes.into())
}

impl Audit {
    pub(crate) fn new(records: StateStorage, background: TaskTracker) -> Self {
        Self { records, background }
    }

    /// Writes the entry of an action. If that fails, the action must not be taken.
    pub(crate) async fn begin(
        &self,
        caller: &Caller,
        action: &str,
        target: &str,
        detail: Value,
    ) -> Result<AuditedAction, MessagingError> {
        self.begin_as(&caller.name, action, target, detail).await
    }

    /// The same for an actor without a request.
    pub(crate) async fn begin_as(
        &self,
        who: &str,
        action: &str,
        target: &str,
        detail: Value,
    ) -> Result<AuditedAction, MessagingError> {
        let detail = match detail {
            Value::Object(detail) => detail,
            _ => Map::new(),
        };
        let (who, action, target) = (who.to_owned(), action.to_owned(), target.to_owned());
        let content = Content { who, action, target, detail };
        let id = RecordKey::new(Uuid::now_v7().to_string())?;
        match self.records.put_new(&KIND, &id, encoded(&content)?, Some(RETENTION), Deadline::default()).await? {
            Put::Made(record) => Ok(AuditedAction { entry: Some((record, content)), audit: self.clone() }),
            Put::Taken(_) => Err(MessagingError::busy("the id of the new audit entry is in use; try again")),
        }
    }

    /// Records the outcome. A failure is logged only, as the action has been taken.
    pub(crate) async fn finish(&self, mut audited: AuditedAction, outcome: Value) {
        if let Some(entry) = audited.entry.take() {
            self.complete(entry, outcome).await;
        }
    }

    async fn complete(&self, (record, mut content): (StateRecord, Content), outcome: Value) {
        content.detail.insert("outcome".into(), outcome);
        let value = match encoded(&content) {
            Ok(value) => value,
            Err(error) => return tracing::error!(%error, "the outcome of an audited action cannot be encoded"),
        };
        let replaced =
            self.records.replace(&KIND, &record.key, record.version, value, Some(RETENTION), Deadline::default());
        if let Err(error) = replaced.await {
            tracing::error!(%error, id = record.key.as_str(), "the outcome of an audited action was not content");
        }
    }

    /// Returns a page of entries, newest first.
    pub(crate) async fn list(
        &self,
        limit: usize,
        after: Option<String>,
    ) -> Result<(Vec<AuditEntry>, Option<String>), MessagingError> {
        let query = RecordQuery { limit, after: after.map(RecordCursor), order: RecordOrder::NewestFirst };
        let page = self.records.list(&KIND, &query, Deadline::default()).await?;
        let entry = |record: &StateRecord| {
            let content: Content = serde_json::from_slice(&record.value).ok()?;
            let Content { who, action, target, detail } = content;
            Some(AuditEntry { id: record.key.to_string(), at: record.created_at, who, action, target, detail })
        };
        Ok((page.records.iter().filter_map(entry).collect(), page.next.map(|RecordCursor(next)| next)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn an_aborted_action_has_the_outcome_unknown() {
        let (app, _folder) = crate::app::test_app().await;
        let caller = Caller::open("here");
        let done = app.audit.begin(&caller, "purge_queue", "orders", json!({})).await.unwrap();
        app.audit.finish(done, json!({ "purged": 7 })).await;
        drop(app.audit.begin(&caller, "purge_queue", "mail", json!({})).await.unwrap());
        app.background.close();
        app.background.wait().await;
        let (entries, _) = app.audit.list(10, None).await.unwrap();
        let outcomes: Vec<_> = entries.iter().map(|entry| (entry.target.as_str(), &entry.detail["outcome"])).collect();
        assert_eq!(outcomes, [("mail", &json!("unknown")), ("orders", &json!({ "purged": 7 }))]);
    }
}
