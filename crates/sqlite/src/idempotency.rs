//! Idempotency records, in the same file as the queues.

use std::time::Duration;

use postrider_core::idempotency::check_lease;
use postrider_core::{
    Begun, Deadline, IdempotencyKey, IdempotencyStore, IdempotencyToken, MessagingError, Standing, Timestamp,
    async_trait,
};
use postrider_provider::Provider;
use rusqlite::OptionalExtension;

use crate::SqliteProvider;
use crate::session::Session;
use crate::sql;

/// Records removed in one transaction: other processes wait for the write lock.
const CHUNK: i64 = 1000;

struct Record {
    lease: i64,
    is_done: bool,
    at: Timestamp,
}

impl Session<'_> {
    fn record(&mut self, key: &IdempotencyKey) -> rusqlite::Result<Option<Record>> {
        self.connection
            .prepare_cached(sql::IDEMPOTENCY_FIND)?
            .query_row([key.as_str()], |row| {
                Ok(Record {
                    lease: row.get("lease_token")?,
                    is_done: row.get("completed")?,
                    at: Timestamp::from_micros(row.get("at")?),
                })
            })
            .optional()
    }

    fn begin_work(&mut self, key: &IdempotencyKey, lease: Duration) -> rusqlite::Result<Begun> {
        match self.record(key)? {
            Some(record) if record.is_done => return Ok(Begun::Done),
            Some(record) if record.at > self.now => {
                return Ok(Begun::Busy { remaining: record.at.since(self.now) });
            }
            _ => {}
        }
        let token = IdempotencyToken::new(key.clone(), rand::random());
        let until = self.now.saturating_add(lease).as_micros();
        self.connection.prepare_cached(sql::IDEMPOTENCY_BEGIN)?.execute((key.as_str(), token.lease(), until))?;
        Ok(Begun::Fresh(token))
    }

    fn extend_work(&mut self, token: &IdempotencyToken, lease: Duration) -> rusqlite::Result<Standing> {
        let until = self.now.saturating_add(lease).as_micros();
        self.change_work(token, sql::IDEMPOTENCY_EXTEND, &[&token.key().as_str(), &until])
    }

    pub(crate) fn complete_work(&mut self, token: &IdempotencyToken) -> rusqlite::Result<Standing> {
        let now = self.now.as_micros();
        self.change_work(token, sql::IDEMPOTENCY_COMPLETE, &[&token.key().as_str(), &now])
    }

    fn abandon_work(&mut self, token: &IdempotencyToken) -> rusqlite::Result<Standing> {
        self.change_work(token, sql::IDEMPOTENCY_ABANDON, &[&token.key().as_str()])
    }

    /// Changes the record if the token holds it. A completed record counts as held, and stays as it is.
    fn change_work(
        &mut self,
        token: &IdempotencyToken,
        statement: &str,
        parameters: &[&dyn rusqlite::ToSql],
    ) -> rusqlite::Result<Standing> {
        match self.record(token.key())? {
            Some(record) if record.lease == token.lease() => {
                if !record.is_done {
                    self.connection.prepare_cached(statement)?.execute(parameters)?;
                }
                Ok(Standing::Held)
            }
            _ => Ok(Standing::Lost),
        }
    }

    fn forget_work(&mut self, older_than: Duration) -> rusqlite::Result<u64> {
        let until = self.now.saturating_sub(older_than).as_micros();
        let forgotten = self.connection.prepare_cached(sql::IDEMPOTENCY_FORGET)?.execute((until, CHUNK))?;
        Ok(forgotten as u64)
    }
}

#[async_trait]
impl IdempotencyStore for SqliteProvider {
    async fn begin(&self, key: &IdempotencyKey, lease: Duration, deadline: Deadline) -> Result<Begun, MessagingError> {
        Provider::begin(self, "begin", deadline)?;
        check_lease(lease)?;
        let key = key.clone();
        self.lease("begin", Vec::new(), deadline, move |session| Ok(session.begin_work(&key, lease)?)).await
    }

    async fn extend(
        &self,
        token: &IdempotencyToken,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Standing, MessagingError> {
        Provider::begin(self, "extend", deadline)?;
        check_lease(lease)?;
        let token = token.clone();
        self.write("extend", deadline, move |session| Ok(session.extend_work(&token, lease)?)).await
    }

    async fn complete(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError> {
        Provider::begin(self, "complete", deadline)?;
        let token = token.clone();
        self.write("complete", deadline, move |session| Ok(session.complete_work(&token)?)).await
    }

    async fn abandon(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError> {
        Provider::begin(self, "abandon", deadline)?;
        let token = token.clone();
        self.write("abandon", deadline, move |session| Ok(session.abandon_work(&token)?)).await
    }

    async fn forget(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError> {
        Provider::begin(self, "forget", deadline)?;
        let mut forgotten = 0;
        loop {
            let chunk = self.write("forget", deadline, move |session| Ok(session.forget_work(older_than)?)).await?;
            forgotten += chunk;
            if chunk < CHUNK.unsigned_abs() {
                return Ok(forgotten);
            }
        }
    }
}
