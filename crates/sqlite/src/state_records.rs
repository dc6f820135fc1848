//! Small records that are neither messages nor tasks, in the same file as the queues.
//!
//! All changes go through the writer, so a read and the change that depends on it are in one transaction.

use std::time::Duration;

use bytes::Bytes;
use postrider_core::state_records::check_record;
use postrider_core::{
    Deadline, MessagingError, Put, RecordCursor, RecordKey, RecordKind, RecordOrder, RecordPage, RecordQuery,
    StateRecord, StateRecords, Timestamp, async_trait,
};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::SqliteProvider;
use crate::error::Failure;
use crate::rows;
use crate::session::Session;
use crate::sql;

/// Records removed in one transaction: other processes wait for the write lock.
const CHUNK: i64 = 1000;

/// The small records in a file. Clones share the connection and close with it.
#[derive(Debug, Clone)]
pub struct SqliteStateRecords {
    provider: SqliteProvider,
}

/// Reads a record with a known key.
fn record(row: &Row<'_>, kind: &RecordKind, key: &RecordKey) -> rusqlite::Result<StateRecord> {
    Ok(StateRecord {
        kind: kind.clone(),
        key: key.clone(),
        version: row.get("version")?,
        created_at: rows::time(row, "created_at")?,
        expires_at: rows::optional_time(row, "expires_at")?,
        value: rows::bytes(row, "value")?,
    })
}

fn get(
    connection: &Connection,
    kind: &RecordKind,
    key: &RecordKey,
    now: Timestamp,
) -> rusqlite::Result<Option<StateRecord>> {
    let mut statement = connection.prepare_cached(sql::STATE_RECORD_GET)?;
    let parameters = (kind.as_str(), key.as_str(), now.as_micros());
    statement.query_row(parameters, |row| record(row, kind, key)).optional()
}

fn list(
    connection: &Connection,
    kind: &RecordKind,
    query: &RecordQuery,
    now: Timestamp,
) -> Result<RecordPage, Failure> {
    let after = query.after.as_ref().map(RecordCursor::sequence).transpose()?;
    let (statement, after) = match query.order {
        RecordOrder::OldestFirst => (sql::STATE_RECORD_LIST, after.unwrap_or(i64::MIN)),
        RecordOrder::NewestFirst => (sql::STATE_RECORD_LIST_NEWEST, after.unwrap_or(i64::MAX)),
    };
    // One more than the page holds shows whether there is a next page.
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1);
    let mut statement = connection.prepare_cached(statement)?;
    let read = |row: &Row<'_>| {
        // A record with an invalid key was written by another program.
        let key = RecordKey::new(row.get::<_, String>("key")?).ok();
        Ok((row.get::<_, i64>("sequence")?, key.map(|key| record(row, kind, &key)).transpose()?))
    };
    let found = statement.query_map((kind.as_str(), after, now.as_micros(), limit), read)?;
    let mut found = found.collect::<rusqlite::Result<Vec<_>>>()?;
    let has_more = found.len() > query.limit;
    found.truncate(query.limit);
    let next = found.last().filter(|_| has_more).map(|(sequence, _)| RecordCursor::at(*sequence));
    Ok(RecordPage { records: found.into_iter().filter_map(|(_, record)| record).collect(), next })
}

impl Session<'_> {
    /// A new change number; no change of any record has had it.
    fn next_change(&mut self) -> rusqlite::Result<i64> {
        self.connection.prepare_cached(sql::STATE_RECORD_CHANGE)?.query_row([], |row| row.get(0))
    }

    fn ends(&self, expires_in: Option<Duration>) -> Option<i64> {
        expires_in.map(|lifetime| self.now.saturating_add(lifetime).as_micros())
    }

    fn put_record(
        &mut self,
        kind: &RecordKind,
        key: &RecordKey,
        value: &[u8],
        expires_in: Option<Duration>,
    ) -> rusqlite::Result<Put> {
        if let Some(there) = get(self.connection, kind, key, self.now)? {
            return Ok(Put::Taken(there));
        }
        let (change, end) = (self.next_change()?, self.ends(expires_in));
        let parameters = (change, kind.as_str(), key.as_str(), self.now.as_micros(), end, value);
        let mut statement = self.connection.prepare_cached(sql::STATE_RECORD_PUT)?;
        Ok(Put::Made(statement.query_row(parameters, |row| record(row, kind, key))?))
    }

    fn replace_record(
        &mut self,
        kind: &RecordKind,
        key: &RecordKey,
        version: i64,
        value: &[u8],
        expires_in: Option<Duration>,
    ) -> rusqlite::Result<Option<StateRecord>> {
        let (change, end, now) = (self.next_change()?, self.ends(expires_in), self.now.as_micros());
        let parameters = (kind.as_str(), key.as_str(), version, change, end, value, now);
        let mut statement = self.connection.prepare_cached(sql::STATE_RECORD_REPLACE)?;
        statement.query_row(parameters, |row| record(row, kind, key)).optional()
    }

    fn remove_record(&mut self, kind: &RecordKind, key: &RecordKey) -> rusqlite::Result<bool> {
        let mut statement = self.connection.prepare_cached(sql::STATE_RECORD_REMOVE)?;
        Ok(statement.execute((kind.as_str(), key.as_str(), self.now.as_micros()))? > 0)
    }

    fn forget_records(&mut self) -> rusqlite::Result<u64> {
        let mut statement = self.connection.prepare_cached(sql::STATE_RECORD_FORGET)?;
        Ok(statement.execute((self.now.as_micros(), CHUNK))? as u64)
    }
}

impl SqliteStateRecords {
    /// The records in the file of this connection.
    pub fn new(provider: SqliteProvider) -> Self {
        Self { provider }
    }

    /// The connection that the records use.
    pub fn provider(&self) -> &SqliteProvider {
        &self.provider
    }

    /// Runs a query at the store's time in one read transaction.
    async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        query: impl FnOnce(&Connection, Timestamp) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let shared = self.provider.shared();
        let clock = shared.context.options.clock.clone();
        shared.readers.read(operation, deadline, move |connection| query(connection, clock.now())).await
    }
}

#[async_trait]
impl StateRecords for SqliteStateRecords {
    async fn put_new(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        value: Bytes,
        expires_in: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Put, MessagingError> {
        self.provider.begin("put a record", deadline)?;
        check_record(&value, expires_in)?;
        let (kind, key) = (kind.clone(), key.clone());
        let put = move |session: &mut Session<'_>| Ok(session.put_record(&kind, &key, &value, expires_in)?);
        self.provider.write("put a record", deadline, put).await
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
        self.provider.begin("replace a record", deadline)?;
        check_record(&value, expires_in)?;
        let (kind, key) = (kind.clone(), key.clone());
        let replace =
            move |session: &mut Session<'_>| Ok(session.replace_record(&kind, &key, version, &value, expires_in)?);
        self.provider.write("replace a record", deadline, replace).await
    }

    async fn get(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        deadline: Deadline,
    ) -> Result<Option<StateRecord>, MessagingError> {
        self.provider.begin("get a record", deadline)?;
        let (kind, key) = (kind.clone(), key.clone());
        self.read("get a record", deadline, move |connection, now| Ok(get(connection, &kind, &key, now)?)).await
    }

    async fn remove(&self, kind: &RecordKind, key: &RecordKey, deadline: Deadline) -> Result<bool, MessagingError> {
        self.provider.begin("remove a record", deadline)?;
        let (kind, key) = (kind.clone(), key.clone());
        let remove = move |session: &mut Session<'_>| Ok(session.remove_record(&kind, &key)?);
        self.provider.write("remove a record", deadline, remove).await
    }

    async fn list(
        &self,
        kind: &RecordKind,
        query: &RecordQuery,
        deadline: Deadline,
    ) -> Result<RecordPage, MessagingError> {
        self.provider.begin("list records", deadline)?;
        query.check()?;
        let (kind, query) = (kind.clone(), query.clone());
        self.read("list records", deadline, move |connection, now| list(connection, &kind, &query, now)).await
    }

    async fn forget_expired(&self, deadline: Deadline) -> Result<u64, MessagingError> {
        self.provider.begin("forget records", deadline)?;
        let mut forgotten = 0;
        loop {
            let forget = |session: &mut Session<'_>| Ok(session.forget_records()?);
            let chunk = self.provider.write("forget records", deadline, forget).await?;
            forgotten += chunk;
            if chunk < CHUNK.unsigned_abs() {
                return Ok(forgotten);
            }
        }
    }
}
