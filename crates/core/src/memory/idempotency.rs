//! Idempotency records in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::deadline::Deadline;
use crate::error::MessagingError;
use crate::idempotency::{Begun, IdempotencyKey, IdempotencyStore, IdempotencyToken, Standing, check_lease};

use super::MemoryProvider;

/// The records of a store, by key.
pub(super) type Records = BTreeMap<IdempotencyKey, Record>;

#[derive(Debug)]
pub(super) struct Record {
    lease: i64,
    is_done: bool,
    /// When the work was done; before that, when the lease ends.
    at: Timestamp,
}

#[async_trait]
impl IdempotencyStore for MemoryProvider {
    async fn begin(&self, key: &IdempotencyKey, lease: Duration, deadline: Deadline) -> Result<Begun, MessagingError> {
        let mut state = self.begin("begin", deadline)?;
        check_lease(lease)?;
        let now = self.now();
        match state.records.get(key) {
            Some(record) if record.is_done => return Ok(Begun::Done),
            Some(record) if record.at > now => return Ok(Begun::Busy { remaining: record.at.since(now) }),
            _ => {}
        }
        let token = IdempotencyToken::new(key.clone(), state.next_token().0 as i64);
        state
            .records
            .insert(key.clone(), Record { lease: token.lease(), is_done: false, at: now.saturating_add(lease) });
        Ok(Begun::Fresh(token))
    }

    async fn extend(
        &self,
        token: &IdempotencyToken,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Standing, MessagingError> {
        check_lease(lease)?;
        self.change("extend", token, deadline, |record, now| record.at = now.saturating_add(lease))
    }

    async fn complete(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError> {
        self.change("complete", token, deadline, |record, now| {
            record.is_done = true;
            record.at = now;
        })
    }

    async fn abandon(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError> {
        let mut state = self.begin("abandon", deadline)?;
        match state.records.get(token.key()) {
            Some(record) if record.lease == token.lease() => {
                if !record.is_done {
                    state.records.remove(token.key());
                }
                Ok(Standing::Held)
            }
            _ => Ok(Standing::Lost),
        }
    }

    async fn forget(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError> {
        let mut state = self.begin("forget", deadline)?;
        let (until, before) = (self.now().saturating_sub(older_than), state.records.len());
        state.records.retain(|_, record| record.at > until);
        Ok((before - state.records.len()) as u64)
    }
}

impl MemoryProvider {
    /// Changes the record of unfinished work.
    fn change(
        &self,
        operation: &'static str,
        token: &IdempotencyToken,
        deadline: Deadline,
        change: impl FnOnce(&mut Record, Timestamp),
    ) -> Result<Standing, MessagingError> {
        let mut state = self.begin(operation, deadline)?;
        match state.records.get_mut(token.key()) {
            Some(record) if record.lease == token.lease() => {
                if !record.is_done {
                    change(record, self.now());
                }
                Ok(Standing::Held)
            }
            _ => Ok(Standing::Lost),
        }
    }
}
