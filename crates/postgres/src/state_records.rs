//! Small records that are neither messages nor tasks, beside the queues in the same schema.
//!
//! Every change is one conditional statement, so locks are held only for its duration.

use std::sync::Arc;
use std::time::Duration;

use postgres_types::ToSql;
use postrider_core::state_records::check_record;
use postrider_core::{
    Bytes, Deadline, MessagingError, Put, RecordCursor, RecordKey, RecordKind, RecordOrder, RecordPage, RecordQuery,
    StateRecord, StateRecords, async_trait,
};
use postrider_provider::{Undone, persist};
use tokio_postgres::Row;

use crate::PostgresProvider;
use crate::rows::{body, micros, optional_time, time};
use crate::store::Shared;

/// Records removed in one transaction.
const CHUNK: i64 = 1000;

/// The small records of a schema. Clones share one connection and close with it.
#[derive(Debug, Clone)]
pub struct PostgresStateRecords {
    provider: PostgresProvider,
}

/// Reads a record with a known key.
fn record(row: &Row, kind: &RecordKind, key: &RecordKey) -> StateRecord {
    StateRecord {
        kind: kind.clone(),
        key: key.clone(),
        version: row.get("version"),
        created_at: time(row, "created_at"),
        expires_at: optional_time(row, "expires_at"),
        value: body(row, "value"),
    }
}

impl Shared {
    async fn put_record(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        value: &[u8],
        expires_in: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Put, Undone> {
        const PUT: &str = "put a record";
        let (statement, lifetime) = (&self.database.sql.state_record_put, expires_in.map(micros));
        let names = (kind.as_str(), key.as_str());
        loop {
            deadline.check(PUT)?;
            let put = persist(|| {
                let parameters: Vec<&(dyn ToSql + Sync)> = vec![&names.0, &names.1, &value, &lifetime];
                self.ask(PUT, deadline, statement, parameters)
            });
            if let Some(row) = put.await?.first() {
                return Ok(Put::Made(record(row, kind, key)));
            }
            // A record that was removed or has expired between the two statements does not exist.
            if let Some(there) = self.get_record(kind, key, deadline).await? {
                return Ok(Put::Taken(there));
            }
        }
    }

    async fn replace_record(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        version: i64,
        value: &[u8],
        expires_in: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Option<StateRecord>, Undone> {
        let (statement, lifetime) = (&self.database.sql.state_record_replace, expires_in.map(micros));
        let names = (kind.as_str(), key.as_str());
        let replaced = persist(|| {
            let parameters: Vec<&(dyn ToSql + Sync)> = vec![&names.0, &names.1, &version, &value, &lifetime];
            self.ask("replace a record", deadline, statement, parameters)
        });
        Ok(replaced.await?.first().map(|row| record(row, kind, key)))
    }

    async fn get_record(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        deadline: Deadline,
    ) -> Result<Option<StateRecord>, Undone> {
        let names = (kind.as_str(), key.as_str());
        let statement = &self.database.sql.state_record_get;
        let found = self.ask("get a record", deadline, statement, vec![&names.0, &names.1]).await?;
        Ok(found.first().map(|row| record(row, kind, key)))
    }

    async fn remove_record(&self, kind: &RecordKind, key: &RecordKey, deadline: Deadline) -> Result<bool, Undone> {
        let names = (kind.as_str(), key.as_str());
        let statement = &self.database.sql.state_record_remove;
        let gone = persist(|| self.ask("remove a record", deadline, statement, vec![&names.0, &names.1]));
        Ok(!gone.await?.is_empty())
    }

    async fn list_records(
        &self,
        kind: &RecordKind,
        query: &RecordQuery,
        deadline: Deadline,
    ) -> Result<RecordPage, Undone> {
        let after = query.after.as_ref().map(RecordCursor::sequence).transpose()?;
        let sql = &self.database.sql;
        let (statement, after) = match query.order {
            RecordOrder::OldestFirst => (&sql.state_record_list, after.unwrap_or(i64::MIN)),
            RecordOrder::NewestFirst => (&sql.state_record_list_newest, after.unwrap_or(i64::MAX)),
        };
        // One more than a page, to see whether there is a next page.
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1);
        let name = kind.as_str();
        let mut found = self.ask("list records", deadline, statement, vec![&name, &after, &limit]).await?;
        let has_more = found.len() > query.limit;
        found.truncate(query.limit);
        // Skip keys that are invalid: another program wrote them.
        let read = |row: &Row| RecordKey::new(row.get::<_, &str>("key")).ok().map(|key| record(row, kind, &key));
        let next = found.last().filter(|_| has_more).map(|row| RecordCursor::at(row.get("sequence")));
        Ok(RecordPage { records: found.iter().filter_map(read).collect(), next })
    }

    async fn forget_records(&self, deadline: Deadline) -> Result<u64, Undone> {
        let mut forgotten = 0;
        loop {
            let statement = &self.database.sql.state_record_forget;
            let rows = persist(|| self.ask("forget records", deadline, statement, vec![&CHUNK])).await?;
            let chunk = rows.first().map_or(0, |row| row.get::<_, i64>(0));
            forgotten += chunk.unsigned_abs();
            if chunk < CHUNK {
                return Ok(forgotten);
            }
        }
    }
}

impl PostgresStateRecords {
    /// Returns the records of the schema that a connection is open to.
    pub fn new(provider: PostgresProvider) -> Self {
        Self { provider }
    }

    /// Returns the connection of the records.
    pub fn provider(&self) -> &PostgresProvider {
        &self.provider
    }

    /// Runs work independently of its caller, which may stop waiting at any time.
    async fn call<T, F>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        work: impl FnOnce(Arc<Shared>) -> F,
    ) -> Result<T, MessagingError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Undone>> + Send + 'static,
    {
        // Boxed: several frames would each reserve space for it.
        self.provider.call(operation, deadline, Box::pin(work(self.provider.store().shared.clone()))).await
    }
}

#[async_trait]
impl StateRecords for PostgresStateRecords {
    async fn put_new(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        value: Bytes,
        expires_in: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Put, MessagingError> {
        check_record(&value, expires_in)?;
        let (kind, key) = (kind.clone(), key.clone());
        let put =
            |shared: Arc<Shared>| async move { shared.put_record(&kind, &key, &value, expires_in, deadline).await };
        self.call("put a record", deadline, put).await
    }

    async fn replace(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        version: i64,
        value: Bytes,
        expires_in: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Option<StateRecord>, MessagingError> {
        check_record(&value, expires_in)?;
        let (kind, key) = (kind.clone(), key.clone());
        let replace = |shared: Arc<Shared>| async move {
            shared.replace_record(&kind, &key, version, &value, expires_in, deadline).await
        };
        self.call("replace a record", deadline, replace).await
    }

    async fn get(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        deadline: Deadline,
    ) -> Result<Option<StateRecord>, MessagingError> {
        let (kind, key) = (kind.clone(), key.clone());
        let get = |shared: Arc<Shared>| async move { shared.get_record(&kind, &key, deadline).await };
        self.call("get a record", deadline, get).await
    }

    async fn remove(&self, kind: &RecordKind, key: &RecordKey, deadline: Deadline) -> Result<bool, MessagingError> {
        let (kind, key) = (kind.clone(), key.clone());
        let remove = |shared: Arc<Shared>| async move { shared.remove_record(&kind, &key, deadline).await };
        self.call("remove a record", deadline, remove).await
    }

    async fn list(
        &self,
        kind: &RecordKind,
        query: &RecordQuery,
        deadline: Deadline,
    ) -> Result<RecordPage, MessagingError> {
        query.check()?;
        let (kind, query) = (kind.clone(), query.clone());
        let list = |shared: Arc<Shared>| async move { shared.list_records(&kind, &query, deadline).await };
        self.call("list records", deadline, list).await
    }

    async fn forget_expired(&self, deadline: Deadline) -> Result<u64, MessagingError> {
        self.call("forget records", deadline, |shared| async move { shared.forget_records(deadline).await }).await
    }
}
