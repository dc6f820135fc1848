//! Idempotency records, beside the queues in the same database.

use std::time::Duration;

use postrider_core::{Begun, Deadline, IdempotencyKey, IdempotencyToken, Standing};
use postrider_provider::{RecordChange, Undone, persist};

use crate::literal::{self, fill, micros};

use crate::rows;
use crate::store::Shared;

/// Records removed in one transaction.
const CHUNK: u64 = 1000;

impl Shared {
    pub(crate) async fn begin_work(
        &self,
        key: &IdempotencyKey,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Begun, Undone> {
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
            if rows::number(row, "lease_token") == token.lease() {
                return Ok(Begun::Fresh(token));
            }
            match (rows::flag(row, "completed"), rows::number(row, "left_micros")) {
                (true, _) => return Ok(Begun::Done),
                (false, left) if left > 0 => {
                    return Ok(Begun::Busy { remaining: Duration::from_micros(left.unsigned_abs()) });
                }
                // The lease expired between the two statements.
                (false, _) => {}
            }
        }
    }

    pub(crate) async fn change_work(
        &self,
        token: &IdempotencyToken,
        change: RecordChange,
        deadline: Deadline,
    ) -> Result<Standing, Undone> {
        let sql = &self.database.sql;
        let (statement, lease) = match change {
            RecordChange::Extend(lease) => (&sql.idempotency_extend, Some(lease)),
            RecordChange::Complete => (&sql.idempotency_complete, None),
            RecordChange::Abandon => (&sql.idempotency_abandon, None),
        };
        let (name, number) = (literal::bytes(token.key().as_str().as_bytes()), token.lease().to_string());
        let extension = lease.map_or(0, micros).to_string();
        let values = [("name", name.as_str()), ("lease", number.as_str()), ("extension", extension.as_str())];
        let held = fill(&sql.idempotency_held, &values);
        let carry_out = || async {
            let mut session = self.database.session(change.name(), deadline).await?;
            session.run(format!("{held};\n{}", fill(statement, &values))).await
        };
        let held = persist(carry_out).await?.concat();
        Ok(if held.is_empty() { Standing::Lost } else { Standing::Held })
    }

    pub(crate) async fn forget_work(&self, older_than: Duration, deadline: Deadline) -> Result<u64, Undone> {
        let (mut forgotten, age, limit) = (0, micros(older_than).to_string(), CHUNK.to_string());
        loop {
            let forget = fill(&self.database.sql.idempotency_forget, &[("age", &age), ("limit", &limit)]);
            let rows = self.change("forget", deadline, format!("{forget};\nselect row_count() as gone")).await?;
            let chunk = rows.first().map_or(0, |row| rows::number(row, "gone")).max(0).cast_unsigned();
            forgotten += chunk;
            if chunk < CHUNK {
                return Ok(forgotten);
            }
        }
    }
}
