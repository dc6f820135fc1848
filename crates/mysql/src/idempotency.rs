//! Records of work that was done, beside the queues in the same schema.

use std::time::Duration;

use postrider_core::idempotency::check_lease;
use postrider_core::{Begun, Deadline, IdempotencyKey, IdempotencyStore, IdempotencyToken, MessagingError, Standing};

use crate::connection::persist;
use crate::error::Undone;
use crate::literal::{self, fill, micros};
use crate::provider::MysqlProvider;

use crate::rows;
use crate::store::Shared;

/// So many records are forgotten in one transaction.
const CHUNK: u64 = 1000;

impl Shared {
    async fn begin_work(&self, key: &IdempotencyKey, lease: Duration, deadline: Deadline) -> Result<Begun, Undone> {
        let (sql, name) = (&self.database.sql, literal::bytes(key.as_str().as_bytes()));
        let lease = micros(lease).to_string();
        let token = IdempotencyToken::new(key.clone(), rand::random());
        let number = token.lease().to_string();
        let begin = fill(&sql.idempotency_begin, &[("name", &name), ("lease", &number), ("extension", &lease)]);
        let find = fill(&sql.idempotency_find, &[("name", &name)]);
        loop {
            let mut session = self.database.session("begin", deadline).await?;
            let found = session.run(format!("{begin};\n{find}")).await?.concat();
            let Some(row) = found.first() else { continue };
            if rows::number(row, 2) == token.lease() {
                return Ok(Begun::Fresh(token));
            }
            match (rows::flag(row, 0), rows::number(row, 1)) {
                (true, _) => return Ok(Begun::Done),
                (false, left) if left > 0 => {
                    return Ok(Begun::Busy { remaining: Duration::from_micros(left.unsigned_abs()) });
                }
                // It ran out between the two looks.
                (false, _) => {}
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
        let (name, number) = (literal::bytes(token.key().as_str().as_bytes()), token.lease().to_string());
        let extension = lease.map_or(0, micros).to_string();
        let values = [("name", name.as_str()), ("lease", number.as_str()), ("extension", extension.as_str())];
        let held = fill(&self.database.sql.idempotency_held, &values);
        let change = || async {
            let mut session = self.database.session(operation, deadline).await?;
            session.run(format!("{held};\n{}", fill(statement, &values))).await
        };
        let held = persist(change).await?.concat();
        Ok(if held.is_empty() { Standing::Lost } else { Standing::Held })
    }
}

impl IdempotencyStore for MysqlProvider {
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
            let (mut forgotten, age, limit) = (0, micros(older_than).to_string(), CHUNK.to_string());
            loop {
                let forget = fill(&shared.database.sql.idempotency_forget, &[("age", &age), ("limit", &limit)]);
                let rows = shared.ask("forget", deadline, format!("{forget};\nselect row_count()")).await?;
                let chunk = rows.first().map_or(0, |row| rows::number(row, 0)).max(0).cast_unsigned();
                forgotten += chunk;
                if chunk < CHUNK {
                    return Ok(forgotten);
                }
            }
        };
        self.carry_out("forget", Vec::new(), deadline, forget).await
    }
}
