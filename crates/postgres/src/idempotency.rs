//! Idempotency records, beside the queues in the same schema.

use std::time::Duration;

use postrider_core::{Begun, Deadline, IdempotencyKey, IdempotencyToken, Standing};
use postrider_provider::{RecordChange, Undone};

use crate::rows::micros;
use crate::store::Shared;

/// Records removed in one transaction.
const CHUNK: i64 = 1000;

impl Shared {
    pub(crate) async fn begin_work(
        &self,
        key: &IdempotencyKey,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Begun, Undone> {
        let (sql, name, lease) = (&self.database.sql, key.as_str(), micros(lease));
        loop {
            deadline.check("begin")?;
            let token = IdempotencyToken::new(key.clone(), rand::random());
            let lease_token = token.lease();
            let parameters: Vec<&(dyn postgres_types::ToSql + Sync)> = vec![&name, &lease_token, &lease];
            let begun = self.ask("begin", deadline, &sql.idempotency_begin, parameters).await?;
            if !begun.is_empty() {
                return Ok(Begun::Fresh(token));
            }
            let found = self.ask("begin", deadline, &sql.idempotency_find, vec![&name]).await?;
            let found = found.first().map(|row| (row.get::<_, bool>("completed"), row.get::<_, i64>("left_micros")));
            match found {
                Some((true, _)) => return Ok(Begun::Done),
                Some((false, left)) if left > 0 => {
                    return Ok(Begun::Busy { remaining: Duration::from_micros(left.unsigned_abs()) });
                }
                // The record was abandoned, or its lease expired, between the two statements.
                _ => {}
            }
        }
    }

    pub(crate) async fn change_work(
        &self,
        token: &IdempotencyToken,
        change: RecordChange,
        deadline: Deadline,
    ) -> Result<Standing, Undone> {
        let (sql, name, lease_token) = (&self.database.sql, token.key().as_str(), token.lease());
        let lease;
        let mut parameters: Vec<&(dyn postgres_types::ToSql + Sync)> = vec![&name, &lease_token];
        let statement = match change {
            RecordChange::Extend(extension) => {
                lease = micros(extension);
                parameters.push(&lease);
                &sql.idempotency_extend
            }
            RecordChange::Complete => &sql.idempotency_complete,
            RecordChange::Abandon => &sql.idempotency_abandon,
        };
        let held = self.ask(change.name(), deadline, statement, parameters).await?;
        Ok(if held.is_empty() { Standing::Lost } else { Standing::Held })
    }

    pub(crate) async fn forget_work(&self, older_than: Duration, deadline: Deadline) -> Result<u64, Undone> {
        let (mut forgotten, age) = (0, micros(older_than));
        loop {
            let rows = self.ask("forget", deadline, &self.database.sql.idempotency_forget, vec![&age, &CHUNK]).await?;
            let chunk = rows.first().map_or(0, |row| row.get::<_, i64>(0));
            forgotten += chunk.unsigned_abs();
            if chunk < CHUNK {
                return Ok(forgotten);
            }
        }
    }
}
