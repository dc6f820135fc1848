//! What people did that cannot be undone, and who it was.
//!
//! An entry is written before the deed, so that nothing is done that the log does not know of, and completed afterwards
//! with what came of it. A deed that is given up in between has the outcome `unknown`; one whose server died has none.

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

/// How long entries are kept.
const KEPT: Duration = Duration::from_secs(90 * 24 * 3600);

/// An entry as it is written.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Written {
    who: String,
    action: String,
    target: String,
    detail: Map<String, Value>,
}

/// A deed that is about to be done.
#[must_use = "say what came of it"]
pub(crate) struct Deed {
    /// Until it is said what came of it.
    entry: Option<(StateRecord, Written)>,
    audit: Audit,
}

impl Drop for Deed {
    fn drop(&mut self) {
        let Some(entry) = self.entry.take() else { return };
        // Without a runtime the process is ending.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let audit = self.audit.clone();
        self.audit.begun.spawn_on(async move { audit.complete(entry, "unknown".into()).await }, &runtime);
    }
}

/// The log.
#[derive(Debug, Clone)]
pub(crate) struct Audit {
    records: StateStorage,
    /// Where an entry that is completed without anybody waiting for it is waited for when the server stops.
    begun: TaskTracker,
}

/// What the log says of how something ended.
pub(crate) fn outcome<T>(done: &Result<T, MessagingError>, shown: impl Fn(&T) -> Value) -> Value {
    match done {
        Ok(done) => shown(done),
        Err(error) => json!({ "failed": error.to_string() }),
    }
}

fn encoded(written: &Written) -> Result<Bytes, MessagingError> {
    let bytes = serde_json::to_vec(written).map_err(|error| {
        let source: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
        MessagingError::Serialization { content_type: "application/json", source: source.into() }
    })?;
    Ok(bytes.into())
}

impl Audit {
    pub(crate) fn new(records: StateStorage, begun: TaskTracker) -> Self {
        Self { records, begun }
    }

    /// Writes down what is about to be done. If that fails, it must not be done.
    pub(crate) async fn begin(
        &self,
        caller: &Caller,
        action: &str,
        target: &str,
        detail: Value,
    ) -> Result<Deed, MessagingError> {
        self.begin_by(&caller.name, action, target, detail).await
    }

    /// The same for somebody who sent no request.
    pub(crate) async fn begin_by(
        &self,
        who: &str,
        action: &str,
        target: &str,
        detail: Value,
    ) -> Result<Deed, MessagingError> {
        let detail = match detail {
            Value::Object(detail) => detail,
            _ => Map::new(),
        };
        let (who, action, target) = (who.to_owned(), action.to_owned(), target.to_owned());
        let written = Written { who, action, target, detail };
        let id = RecordKey::new(Uuid::now_v7().to_string())?;
        match self.records.put_new(&KIND, &id, encoded(&written)?, Some(KEPT), Deadline::default()).await? {
            Put::Made(record) => Ok(Deed { entry: Some((record, written)), audit: self.clone() }),
            Put::Taken(_) => Err(MessagingError::busy("the id of an entry in the audit log is taken; try again")),
        }
    }

    /// Writes down what came of it. The deed stands, whatever becomes of this.
    pub(crate) async fn done(&self, mut deed: Deed, outcome: Value) {
        if let Some(entry) = deed.entry.take() {
            self.complete(entry, outcome).await;
        }
    }

    async fn complete(&self, (record, mut written): (StateRecord, Written), outcome: Value) {
        written.detail.insert("outcome".into(), outcome);
        let value = match encoded(&written) {
            Ok(value) => value,
            Err(error) => return tracing::error!(%error, "the outcome of an audited action cannot be written"),
        };
        let replaced = self.records.replace(&KIND, &record.key, record.version, value, Some(KEPT), Deadline::default());
        if let Err(error) = replaced.await {
            tracing::error!(%error, id = record.key.as_str(), "the audit log has an action without its outcome");
        }
    }

    /// Newest first.
    pub(crate) async fn list(
        &self,
        limit: usize,
        after: Option<String>,
    ) -> Result<(Vec<AuditEntry>, Option<String>), MessagingError> {
        let query = RecordQuery { limit, after: after.map(RecordCursor), order: RecordOrder::NewestFirst };
        let page = self.records.list(&KIND, &query, Deadline::default()).await?;
        let entry = |record: &StateRecord| {
            let written: Written = serde_json::from_slice(&record.value).ok()?;
            let Written { who, action, target, detail } = written;
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
    async fn a_deed_that_is_given_up_has_an_outcome() {
        let (app, _folder) = crate::app::example().await;
        let caller = Caller::open("here");
        let done = app.audit.begin(&caller, "purge_queue", "orders", json!({})).await.unwrap();
        app.audit.done(done, json!({ "purged": 7 })).await;
        drop(app.audit.begin(&caller, "purge_queue", "mail", json!({})).await.unwrap());
        app.begun.close();
        app.begun.wait().await;
        let (entries, _) = app.audit.list(10, None).await.unwrap();
        let outcomes: Vec<_> = entries.iter().map(|entry| (entry.target.as_str(), &entry.detail["outcome"])).collect();
        assert_eq!(outcomes, [("mail", &json!("unknown")), ("orders", &json!({ "purged": 7 }))]);
    }
}
