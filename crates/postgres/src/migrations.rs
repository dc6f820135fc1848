//! The migrations of the schema.

use postrider_pg::{Known, Migrations, Schema};

use crate::PROVIDER;

const STEPS: &[Known] = &[
    Known { version: 1, name: "0001_queue", sql: include_str!("../sql/migrations/0001_queue.sql"), works_since: 1 },
    Known {
        version: 2,
        name: "0002_idempotency",
        sql: include_str!("../sql/migrations/0002_idempotency.sql"),
        works_since: 1,
    },
    Known {
        version: 3,
        name: "0003_functions",
        sql: include_str!("../sql/migrations/0003_functions.sql"),
        works_since: 1,
    },
    Known { version: 4, name: "0004_task", sql: include_str!("../sql/migrations/0004_task.sql"), works_since: 1 },
    Known {
        version: 5,
        name: "0005_state_record",
        sql: include_str!("../sql/migrations/0005_state_record.sql"),
        works_since: 1,
    },
    Known {
        version: 6,
        name: "0006_default_attempts",
        sql: include_str!("../sql/migrations/0006_default_attempts.sql"),
        works_since: 1,
    },
    Known {
        version: 7,
        name: "0007_failed_attempt",
        sql: include_str!("../sql/migrations/0007_failed_attempt.sql"),
        works_since: 1,
    },
    Known {
        version: 8,
        name: "0008_archive_search",
        sql: include_str!("../sql/migrations/0008_archive_search.sql"),
        works_since: 1,
    },
];

/// Returns the migrations of a schema.
pub(crate) fn of(schema: &Schema) -> Migrations {
    Migrations { provider: PROVIDER, schema: schema.clone(), steps: STEPS, first_table: "message" }
}
