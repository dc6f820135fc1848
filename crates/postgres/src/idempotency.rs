//! Records of work that was done, beside the queues in the same schema.

use std::time::Duration;

use postrider_core::idempotency::check_lease;
use postrider_core::{Begun, Deadline, IdempotencyKey, IdempotencyStore, IdempotencyToken, MessagingError, Standing};

use crate::error::Undone;
use crate::provider::PostgresProvider;
use crate::rows::micros;
use crate::store::Shared;

/// So many records are forgotten in one transaction.
const CHUNK: i64 = 1000;

impl Shared {
    async fn begin_work(&self, key: &IdempotencyKey, lease: Duration, deadline: Deadline) -> Result<Begun, Undone> {
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
            let found = found.first().map(|row| (row.get::<_, bool>(0), row.get::<_, i64>(1)));
            match found {
                Some((true, _)) => return Ok(Begun::Done),
                Some((false, left)) if left > 0 => {
                    return Ok(Begun::Busy { remaining: Duration::from_micros(left.unsigned_abs()) });
                }
                // It was given up, or ran out, between the two looks.
                _ => {}
            }
        }
    }

    async fn change_work(
        &self,
        operation: &'static str,
        token: &IdempotencyToken,
        statement: &str,
        lease: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Standing, Undone> {
        let (name, lease_token) = (token.key().as_str(), token.lease());
        let lease = lease.map(micros);
        let mut parameters: Vec<&(dyn postgres_types::ToSql + Sync)> = vec![&name, &lease_token];
        if let Some(lease) = &lease {
            parameters.push(lease);
        }
        let held = self.ask(operation, deadline, statement, parameters).await?;
        Ok(if held.is_empty() { Standing::Lost } else { Standing::Held })
    }
}

impl IdempotencyStore for PostgresProvider {
    async fn begin(&self, key: &IdempotencyKey, lease: Duration, deadline: Deadline) -> Result<Begun, MessagingError> {
        self.begin("begin", deadline)?;
        check_lease(lease)?;
        let (shared, key) = (self.shared().clone(), key.clone());
        let begin = async move { shared.begin_work(&key, lease, deadline).await };
        self.carry_out("begin", Vec::new(), deadline, begin).await
    }

    async fn extend(
        &self,
        token: &IdempotencyToken,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Standing, MessagingError> {
        self.begin("extend", deadline)?;
        check_lease(lease)?;
        let (shared, token) = (self.shared().clone(), token.clone());
        let extend = async move {
            let statement = &shared.database.sql.idempotency_extend;
            shared.change_work("extend", &token, statement, Some(lease), deadline).await
        };
        self.carry_out("extend", Vec::new(), deadline, extend).await
    }

    async fn complete(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError> {
        self.begin("complete", deadline)?;
        let (shared, token) = (self.shared().clone(), token.clone());
        let complete = async move {
            let statement = &shared.database.sql.idempotency_complete;
            shared.change_work("complete", &token, statement, None, deadline).await
        };
        self.carry_out("complete", Vec::new(), deadline, complete).await
    }

    async fn abandon(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError> {
        self.begin("abandon", deadline)?;
        let (shared, token) = (self.shared().clone(), token.clone());
        let abandon = async move {
            let statement = &shared.database.sql.idempotency_abandon;
            shared.change_work("abandon", &token, statement, None, deadline).await
        };
        self.carry_out("abandon", Vec::new(), deadline, abandon).await
    }

    async fn forget(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError> {
        self.begin("forget", deadline)?;
        let shared = self.shared().clone();
        let forget = async move {
            let (mut forgotten, age) = (0, micros(older_than));
            loop {
                let statement = &shared.database.sql.idempotency_forget;
                let rows = shared.ask("forget", deadline, statement, vec![&age, &CHUNK]).await?;
                let chunk = rows.first().map_or(0, |row| row.get::<_, i64>(0));
                forgotten += chunk.unsigned_abs();
                if chunk < CHUNK {
                    return Ok(forgotten);
                }
            }
        };
        self.carry_out("forget", Vec::new(), deadline, forget).await
    }
}
